"""A bound that no allocation can beat: devices are divisible, and all models end together.

In time C a model with work W needs the average rate W / C. The concave envelope of its rates gives the fewest devices
that reach this average, however widths change during the run. The least C for which these averages fit on the devices
bounds every schedule, preemptive or not, even one that knows everything in advance and restarts for free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regatta.plan.fleet.rates import Floats, envelope

TOLERANCE = 1e-9  # relative


@dataclass(frozen=True)
class FluidBound:
    """The ideal end, and the average width of each model in it."""

    seconds: float
    widths: Floats


class Envelopes:
    """The concave envelopes of many models, as arrays."""

    def __init__(self, rates: Floats) -> None:
        found = [envelope(row) for row in rates]
        longest = max((len(corners) for corners in found), default=1)
        padded = [corners + [corners[-1]] * (longest - len(corners)) for corners in found]
        self.widths = np.array([[width for width, _ in corners] for corners in padded], dtype=float)
        self.rates = np.array([[rate for _, rate in corners] for corners in padded], dtype=float)

    def take(self, indices: Sequence[int]) -> Envelopes:
        subset = object.__new__(Envelopes)
        subset.widths, subset.rates = self.widths[indices], self.rates[indices]
        return subset

    def needed(self, rates: Floats) -> Floats:
        """The smallest average widths that give these average rates; infinite where no width does."""
        rows = np.arange(len(rates))
        after = np.minimum((self.rates < rates[:, None]).sum(axis=1), self.rates.shape[1] - 1)
        before = np.maximum(after - 1, 0)
        low, high = self.rates[rows, before], self.rates[rows, after]
        rise = np.maximum(high - low, np.finfo(float).tiny)
        part = np.clip((rates - low) / rise, 0.0, 1.0)
        width = self.widths[rows, before] + part * (self.widths[rows, after] - self.widths[rows, before])
        return np.where(rates > self.rates[:, -1] * (1 + TOLERANCE), np.inf, width)


def fluid(work: Floats, envelopes: Envelopes, devices: float) -> FluidBound:
    """The bound for this work (rows by model) on these devices, and the widths that would reach it."""
    busy = work > 0
    if not busy.any():
        return FluidBound(0.0, np.zeros(len(work)))
    shortest = float((work[busy] / envelopes.rates[busy, -1]).max())
    low, high = shortest, shortest
    while envelopes.needed(work / high).sum() > devices:
        low, high = high, high * 2
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        if envelopes.needed(work / middle).sum() > devices:
            low = middle
        else:
            high = middle
    return FluidBound(low, envelopes.needed(work / high))
