"""The parts of one unit: its batches, its metrics, and what it costs besides training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from regatta.configuration import Scalar
from regatta.errors import UsageError
from regatta.frameworks.base import Indices, describe


@dataclass
class UnitCosts:
    """Seconds and bytes of a task that are not training or evaluation; fields of `TaskDone` have the same names."""

    hop_bytes: int = 0
    hop_seconds: float = 0.0
    load_seconds: float = 0.0
    save_seconds: float = 0.0
    sync_seconds: float = 0.0


def batch_size(values: Mapping[str, Scalar]) -> int:
    size = values.get("batch_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UsageError(f"batch_size is {size!r}; it is a whole number from 1.")
    return size


def batches_in_order(rows: int, batch_size: int) -> list[Indices]:
    """All rows in batches, in the order of the partition."""
    return [np.arange(start, min(start + batch_size, rows)) for start in range(0, rows, batch_size)]


def to_metrics(returned: object, function: str) -> dict[str, float]:
    """What the user's train_fn or eval_fn returned, as metrics."""
    if returned is None and function == "train_fn":
        return {}
    if not isinstance(returned, Mapping):
        raise UsageError(f"{function} returned {describe(returned)}; it returns a dict of numbers.")
    try:
        return {str(name): float(value) for name, value in returned.items()}
    except (TypeError, ValueError) as error:
        raise UsageError(f"{function} returned {returned!r}; every value must be one number.") from error


def train_metric(name: str) -> str:
    return name if name.startswith("train_") else f"train_{name}"
