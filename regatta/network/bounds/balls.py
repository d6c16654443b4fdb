"""Numbers that lie within a radius of a centre, and the rounding errors that enlarge the radius.

Two kinds of rounding are included. The bounded model computes in float32, in any order of its sums: a sum of n products
has an error of at most `gamma(n)` times the sum of their magnitudes (Higham, Accuracy and Stability of Numerical
Algorithms, 3.1). The bounds themselves are computed in float64, with `gamma64(n)` instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.intp]

SINGLE, DOUBLE = 2.0**-24, 2.0**-53
FLOOR = 2.0**-120  # more than the error of a float32 operation with a subnormal result
MAX_FLOAT32 = 1e37  # beyond it float32 may overflow, so there is no bound


@dataclass(frozen=True)
class Ball:
    """`radius` has the shape of `centre`; it is infinite where there is no bound."""

    centre: Array
    radius: Array

    @property
    def low(self) -> Array:
        return self.centre - self.radius - 2 * DOUBLE * self.size

    @property
    def high(self) -> Array:
        return self.centre + self.radius + 2 * DOUBLE * self.size

    @property
    def size(self) -> Array:
        """The largest magnitude."""
        return np.abs(self.centre) + self.radius

    @property
    def shape(self) -> tuple[int, ...]:
        return self.centre.shape

    @property
    def is_exact(self) -> bool:
        return not self.radius.any()


def exactly(values: Any) -> Ball:
    centre = np.asarray(values, np.float64)
    return Ball(centre, np.zeros_like(centre))


def between(low: Any, high: Any) -> Ball:
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    centre = low / 2 + high / 2
    return Ball(centre, np.maximum(high - centre, centre - low) + 2 * DOUBLE * np.abs(centre))


def gamma(terms: int) -> float:
    """The largest relative error of a float32 sum of `terms` products, relative to the sum of their magnitudes."""
    return _relative(terms, SINGLE)


def gamma64(terms: int) -> float:
    """The same for sums in float64."""
    return _relative(terms, DOUBLE)


def _relative(terms: int, unit: float) -> float:
    return terms * unit / (1 - terms * unit) if terms * unit < 0.5 else np.inf


def rounding_slack(mass: Array, steps: int) -> Array:
    """The error of a number of float32 roundings at that magnitude; infinite where they may overflow."""
    slack = gamma(steps + 1) * mass + steps * FLOOR
    return np.where(mass <= MAX_FLOAT32, slack, np.inf)


def lower_bound(a: Array, centre: Array, radius: Array) -> Array:
    """For each row of `a`, a lower bound on its product with the numbers in the ball."""
    rows = len(a)
    flat, size = a.reshape(rows, -1), int(np.prod(a.shape[1:]))
    centre = np.broadcast_to(centre, a.shape).reshape(rows, -1)
    radius = np.broadcast_to(radius, a.shape).reshape(rows, -1)
    rounding = gamma64(size + 8)
    around = np.abs(centre)
    around *= rounding
    around += radius
    spread = np.einsum("pi,pi->p", np.abs(flat), around)
    return np.asarray(np.einsum("pi,pi->p", flat, centre) - (1 + rounding) * spread)
