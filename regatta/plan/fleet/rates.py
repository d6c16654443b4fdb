"""Rows per second of a model by the width of its group: measured, extended by Equation 5, or fitted.

A rate is asked for with a width and the number of nodes that the group lies on. What was profiled is a table by
width; Equation 5 of the FLEET paper goes on from its end. Our own model has three terms, all linear, so that it is
fitted from any steps that were seen, and corrected by those of the run itself:

    seconds per row = compute / width + inside * ring(devices on a node) + across * ring(nodes)

with ring(n) = 2 (n - 1) / n, the share of the gradients that a ring of n sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from regatta.errors import UsageError
from regatta.plan.fleet.nodes import Nodes

Floats = NDArray[np.float64]
TRUST = 4.0  # what the present model weighs against observations, in observations
PRIOR_LINK = 0.05  # an unmeasured link is taken to cost this share of the compute, as weakly as can be
WEAK = 1e-6  # the guess yields to anything that was seen
UNSURE = (0.1, 0.2, 1.0)  # how far each term may be off, over the computation
WIDEST = 512  # no group is looked at beyond this


class RateModel(Protocol):
    def rates(self, widths: Floats, nodes: Floats) -> Floats:
        """Rows per second of groups of so many devices on so many nodes."""
        ...


def rate(model: RateModel, width: int, nodes: int) -> float:
    return float(model.rates(np.array([float(width)]), np.array([float(nodes)]))[0])


@dataclass(frozen=True)
class GeometricRates:
    """Each device beyond the first multiplies the efficiency of all: by `inside` in the first node, then by `beyond`.

    That is the form of Equation 5. A further node multiplies it by `node`. Devices that would only slow a group down
    are left out of its steps, so that no group is slower than a narrower one.
    """

    single: float
    inside: float = 1.0
    beyond: float = 1.0
    node: float = 1.0
    each: int = 4

    @cached_property
    def widest(self) -> int:
        """The width beyond which nothing is won, on nodes that are full."""
        widths = np.arange(1.0, WIDEST + 1)
        return int(np.argmax(self._all_used(widths, np.ceil(widths / self.each)))) + 1

    def rates(self, widths: Floats, nodes: Floats) -> Floats:
        spare = widths > self.widest
        nodes = np.where(spare, np.minimum(nodes, math.ceil(self.widest / self.each)), nodes)
        return self._all_used(np.minimum(widths, self.widest), nodes)

    def _all_used(self, widths: Floats, nodes: Floats) -> Floats:
        within = np.minimum(widths, self.each)
        efficiency = self.inside ** (within - 1) * self.beyond ** (widths - within) * self.node ** (nodes - 1)
        found: Floats = self.single * widths * efficiency
        return found


@dataclass(frozen=True)
class ProfiledRates:
    """Rates that were measured for widths 1, 2, ..., and Equation 5 from there on; `base` is its M_b."""

    measured: tuple[float, ...]
    base: int

    def __post_init__(self) -> None:
        if not self.measured or min(self.measured) <= 0:
            raise UsageError(f"A profile of rates {self.measured}: there must be one, and all above zero.")
        if not 1 <= self.base <= len(self.measured):
            raise UsageError(f"Equation 5 starts at width {self.base}; widths 1 to {len(self.measured)} were measured.")

    def rates(self, widths: Floats, nodes: Floats) -> Floats:
        known = len(self.measured)
        within = np.array(self.measured)[np.minimum(widths, known).astype(int) - 1]
        return np.where(widths <= known, within, equation_5(self.measured, self.base, widths))


def equation_5(measured: Sequence[float], base: int, widths: Floats) -> Floats:
    """The rates of widths that were not profiled, as in the FLEET paper: the last loss of efficiency goes on."""
    if base < 2:
        return widths * measured[0]
    loss = measured[base - 1] / measured[base - 2] * (base - 1) / base
    found: Floats = widths * measured[base - 1] / base * loss ** (widths - base)
    return found


def widths_to_profile(singles: Sequence[float], each: int) -> tuple[int, int]:
    """Up to which width the paper profiles, and where its Equation 5 starts (M_t and M_b of appendix B.3)."""
    wanted, base = math.ceil(max(singles) / min(singles)), 2 * each
    return max(wanted, base), base


@dataclass(frozen=True, slots=True)
class Observation:
    """Steps that were seen: rows per second of a group."""

    width: int
    nodes: int
    rate: float
    weight: float = 1.0


@dataclass(frozen=True)
class RingRates:
    """Our model; see the head of this file. All three terms are seconds per row, none is negative."""

    compute: float
    inside: float = 0.0
    across: float = 0.0

    def rates(self, widths: Floats, nodes: Floats) -> Floats:
        found: Floats = 1 / (_factors(widths, nodes) @ np.array(self.terms))
        return found

    @property
    def terms(self) -> tuple[float, float, float]:
        return (self.compute, self.inside, self.across)

    def ratio(self, width: int, nodes: int) -> float:
        """Communication over compute in a step."""
        compute, inside, across = _factors(np.array([width]), np.array([nodes]))[0] * np.array(self.terms)
        return float((inside + across) / compute)


def fit(observations: Iterable[Observation]) -> RingRates:
    """The model of a profile. What it says nothing about, such as a second node, gets a weak guess."""
    seen = list(observations)
    if not seen:
        raise UsageError("No steps were observed: nothing to fit rates to.", hint="Profile at least one width.")
    compute = min(o.width / o.rate for o in seen)
    return _solve(RingRates(compute, PRIOR_LINK * compute, PRIOR_LINK * compute), seen, WEAK)


def corrected(model: RingRates, observations: Iterable[Observation], trust: float = TRUST) -> RingRates:
    """The model after more steps were seen; it weighs as much as `trust` observations."""
    seen = list(observations)
    return _solve(model, seen, trust) if seen else model


def _solve(prior: RingRates, seen: Sequence[Observation], trust: float) -> RingRates:
    """Least squares of relative errors with no negative term; each term is also drawn to what it was before.

    What one device and one node do is known from the profile; how nodes are linked is known least.
    """
    weights = np.sqrt([o.weight for o in seen])
    factors = _factors(np.array([o.width for o in seen]), np.array([o.nodes for o in seen]))
    rows = factors * np.array([[o.rate] for o in seen]) * prior.compute  # in units of the computation
    pulls = np.diag(np.sqrt(trust) / np.array(UNSURE))
    left = np.vstack([rows * weights[:, None], pulls])
    right = np.concatenate([weights, pulls @ np.array(prior.terms) / prior.compute])
    solution, _ = nnls(left, right)
    compute, inside, across = (float(value) for value in solution * prior.compute)
    if compute <= 0:
        raise UsageError(f"The observed rates {[o.rate for o in seen]} leave no time for the computation itself.")
    return RingRates(compute, inside, across)


def _factors(widths: NDArray[Any], nodes: NDArray[Any]) -> Floats:
    return np.stack([1 / widths, _ring(np.ceil(widths / nodes)), _ring(nodes)], axis=-1)


def _ring(members: NDArray[Any]) -> Floats:
    found: Floats = 2 * (members - 1) / members
    return found


def table(models: Iterable[RateModel], machines: Nodes) -> Floats:
    """Rates by model and width - 1, each group on as few nodes as the machines allow."""
    widths = np.arange(1.0, machines.count + 1)
    nodes = np.array(machines.fewest[1:], dtype=float)
    return np.array([model.rates(widths, nodes) for model in models])


def envelope(row: Floats) -> list[tuple[int, float]]:
    """The corners of the least concave curve from (0, 0) above these rates, up to the highest rate."""
    corners: list[tuple[int, float]] = [(0, 0.0)]
    for width, rate in enumerate(row[: int(np.argmax(row)) + 1].tolist(), start=1):
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-1], (width, rate)):
            corners.pop()
        corners.append((width, rate))
    return corners


def _slope(a: tuple[int, float], b: tuple[int, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])
