"""Metrics as users pass them: a number, a list of one per epoch, numbers by step, or the rows of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from regatta.errors import UsageError

STEPS = ("step", "iteration", "epoch")  # the column that holds the step of a row


LOWER_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae", "rmse", "nll")


def usual_mode(metric: str) -> Literal["min", "max"]:
    """Whether lower or higher values of a metric are better, by its name."""
    return "min" if any(word in metric.lower() for word in LOWER_IS_BETTER) else "max"


def metric_points(metrics: Any) -> dict[str, dict[int, float]]:
    """{name: {step: value}}. A single number is a value at step 0, a list begins with step 1."""
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        return {_name(name): _points(name, values) for name, values in metrics.items()}
    if isinstance(metrics, Sequence) and not isinstance(metrics, str | bytes):
        return _from_rows(metrics)
    raise UsageError(f"Metrics are values by name, or the rows of a log, not {type(metrics).__name__}.")


def _points(name: str, values: Any) -> dict[int, float]:
    if isinstance(values, Mapping):
        return {_step(step): _number(name, value) for step, value in values.items()}
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return {step: _number(name, value) for step, value in enumerate(values, 1)}
    return {0: _number(name, values)}


def _from_rows(rows: Sequence[Any]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise UsageError(f"Row {number} of the metrics is {row!r:.100}, not values by name.")
        column = next((column for column in STEPS if column in row), None)
        step = number if column is None else _step(row[column])
        for name, value in row.items():
            if name != column:
                found.setdefault(_name(name), {})[step] = _number(name, value)
    return found


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise UsageError(f"The name of a metric is a text, not {name!r:.100}.")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"The name {name!a:.100} of a metric cannot be written as UTF-8.") from error
    return name


def _step(step: object) -> int:
    try:
        number = int(step)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or number != step or not -(2**63) <= number < 2**63:
        raise UsageError(f"The step of a metric is a whole number, not {step!r:.100}.")
    return int(number)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        reason = "too large for a float" if isinstance(error, OverflowError) else "not a number"
        raise UsageError(f"The metric {name!r:.200} is {value!r:.100}, which is {reason}.") from error
