"""Axes for the hyperparameters that vary: numbers on a linear or logarithmic scale, other values as words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from regatta.journal.run_record import ConfigRecord

LOG_RATIO = 10  # of the largest to the smallest value; below it, a linear scale shows as much
CROWDED = 0.2  # if half of the values lie in this share of the range, they are crowded
MAX_LISTED_VALUES = 8


@dataclass(frozen=True)
class Axis:
    """One hyperparameter that varies; `low` and `high` are for numbers, `words` for other values."""

    name: str
    kind: Literal["linear", "log", "words"]
    low: float = 0.0
    high: float = 0.0
    words: tuple[str, ...] = ()
    values: tuple[float, ...] = ()  # all numbers, if they are few

    def place(self, value: Any) -> float:
        """The position of a value on the axis."""
        if self.kind == "words":
            return float(self.words.index(str(value)))
        return math.log(value) if self.kind == "log" else float(value)


def axes_of(configs: Sequence[ConfigRecord], without: Sequence[str] = ()) -> list[Axis]:
    """An axis for each hyperparameter that differs between configurations, in the order of first use."""
    names = dict.fromkeys(name for config in configs for name in config.values if name not in without)
    axes = []
    for name in names:
        present = [config.values[name] for config in configs if name in config.values]
        if len({str(value) for value in present}) > 1 or len(present) < len(configs):
            axes.append(_axis(name, present))
    return axes


def _axis(name: str, values: Sequence[Any]) -> Axis:
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    if not numeric:
        return Axis(name, "words", words=tuple(sorted({str(value) for value in values})))
    distinct = sorted({float(value) for value in values})
    low, high = distinct[0], distinct[-1]
    kind: Literal["log", "linear"] = "log" if low > 0 and _is_logarithmic(distinct) else "linear"
    return Axis(name, kind, low, high, values=tuple(distinct) if len(distinct) <= MAX_LISTED_VALUES else ())


def _is_logarithmic(values: Sequence[float]) -> bool:
    """Whether values suit a logarithmic scale: most are at the low end, or each is the same multiple of the last."""
    low, middle, high = values[0], values[len(values) // 2 - (len(values) % 2 == 0)], values[-1]
    if high / low >= LOG_RATIO and (middle - low) / (high - low) < CROWDED:
        return True
    factors = [b / a for a, b in pairwise(values)]
    return len(factors) >= 2 and max(factors) <= 1.01 * min(factors) and factors[0] >= 1.5
