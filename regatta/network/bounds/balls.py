"""Numbers that are known to lie within a radius of a centre, and what rounding adds to it.

Two roundings are accounted for. The model whose answers are bounded computes in float32, in whatever order its sums
are taken: a sum of n products is off by at most `gamma(n)` of the sum of their magnitudes (Higham, Accuracy and
Stability of Numerical Algorithms, 3.1). The bounds themselves are computed in float64, with `own(n)` in place of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.intp]

SINGLE, DOUBLE = 2.0**-24, 2.0**-53
FLOOR = 2.0**-120  # more than what a float32 operation loses where its result is too small for a normal number
LARGEST = 1e37  # beyond it float32 may overflow, and nothing is known


@dataclass(frozen=True)
class Ball:
    """`radius` has the shape of `centre`; infinite where nothing is known."""

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
        """The greatest magnitude."""
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
    """What a float32 sum of so many products is off by at most, of the sum of their magnitudes."""
    return _relative(terms, SINGLE)


def own(terms: int) -> float:
    """The same of our own sums, in float64."""
    return _relative(terms, DOUBLE)


def _relative(terms: int, unit: float) -> float:
    return terms * unit / (1 - terms * unit) if terms * unit < 0.5 else np.inf


def rounded(ball: Ball, steps: int = 1, mass: Array | None = None) -> Ball:
    """The ball of what float32 makes of it in so many roundings, which are relative to `mass` where that is given."""
    added = slack_of(ball.size if mass is None else mass, steps)
    return Ball(ball.centre, (ball.radius + added) * (1 + 4 * DOUBLE))


def slack_of(mass: Array, steps: int) -> Array:
    """What so many roundings of numbers of that magnitude are off by; no bound at all where they may overflow."""
    slack = gamma(steps + 1) * mass + steps * FLOOR
    return np.where(mass <= LARGEST, slack, np.inf)


def least(a: Array, centre: Array, radius: Array) -> Array:
    """For each row of `a` the least value of its product with the numbers in the ball."""
    rows = len(a)
    flat, size = a.reshape(rows, -1), int(np.prod(a.shape[1:]))
    centre = np.broadcast_to(centre, a.shape).reshape(rows, -1)
    radius = np.broadcast_to(radius, a.shape).reshape(rows, -1)
    magnitude = np.abs(flat)
    products = np.einsum("pi,pi->p", flat, centre)
    spread = np.einsum("pi,pi->p", magnitude, radius)
    mass = np.einsum("pi,pi->p", magnitude, np.abs(centre)) + spread
    return np.asarray(products - spread - own(size + 4) * mass)
