"""When a model has converged, and how many epochs may be left until then.

A criterion decides from the metric after each epoch whether the model has converged. It also bounds the number of
epochs, which is all that a policy knows in advance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from regatta.errors import UsageError

Mode = Literal["min", "max"]
Horizon = Callable[["EpochBounds", float], float]  # epochs left, from the criterion's bounds and the epochs done


@dataclass(frozen=True, slots=True)
class EpochBounds:
    """A model converges after `least` epochs at the earliest and after `most` at the latest."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UsageError(f"Between {self.least} and {self.most} epochs: give numbers from 1, the smaller first.")


@dataclass(frozen=True)
class Plateau:
    """No improvement by `delta` for `patience` epochs, or `most` epochs."""

    patience: int
    most: int
    delta: float = 0.0
    mode: Mode = "min"

    @property
    def bounds(self) -> EpochBounds:
        return EpochBounds(min(self.patience + 1, self.most), self.most)

    def reached(self, values: Sequence[float]) -> bool:
        """Whether a model with these values, one after each epoch, has converged."""
        if len(values) >= self.most:
            return True
        best, since = math.inf, 0
        for value in values if self.mode == "min" else (-v for v in values):
            if value < best - self.delta:
                best, since = value, 0
            else:
                since += 1
        return since >= self.patience


def even(bounds: EpochBounds, done: float) -> float:
    """The mean of the epochs left, if all possible numbers are equally likely."""
    soonest = max(bounds.least, int(done) + 1)
    return max((soonest + bounds.most) / 2 - done, 0.0)


def as_long_again(bounds: EpochBounds, done: float) -> float:
    """As many epochs as it has had, and at least half an epoch: an estimate that needs no bounds."""
    return max(done, 0.5)
