"""Rows per second of a model by the width of its group: measured, extended by Equation 5, or fitted.

A rate depends on the width of a group and on the number of nodes that it spans. Profiled rates are a table by width,
which Equation 5 of the FLEET paper extends. Our own model has three linear terms, so it can be fitted to any observed
steps, and corrected by steps of the run itself:

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
TRUST = 4.0  # the weight of the present model, in observations
PRIOR_LINK = 0.05  # first guess of an unmeasured link, as a share of the compute time
PRIOR_TRUST = 1e-6  # the weight of that guess, in observations
UNCERTAINTY = (0.1, 0.2, 1.0)  # of each term, as a share of the compute time
MAX_WIDTH = 512  # of groups that are considered


class RateModel(Protocol):
    def rates(self, widths: Floats, nodes: Floats) -> Floats:
        """Rows per second of groups with these widths on these numbers of nodes."""
        ...


def rate(model: RateModel, width: int, nodes: int) -> float:
    return float(model.rates(np.array([float(width)]), np.array([float(nodes)]))[0])


@dataclass(frozen=True)
class GeometricRates:
    """Each device after the first multiplies the efficiency: by `inside` in the first node, then by `beyond`.

    This is the form of Equation 5. Each further node multiplies it by `node`. Devices that would slow a group down take
    no part in its steps, so no group is slower than a narrower one.
    """

    single: float
    inside: float = 1.0
    beyond: float = 1.0
    node: float = 1.0
    per_node: int = 4

    @cached_property
    def widest(self) -> int:
        """The width at which full nodes reach the highest rate."""
        widths = np.arange(1.0, MAX_WIDTH + 1)
        return int(np.argmax(self._rates_of_all(widths, np.ceil(widths / self.per_node)))) + 1

    def rates(self, widths: Floats, nodes: Floats) -> Floats:
        spare = widths > self.widest
        nodes = np.where(spare, np.minimum(nodes, math.ceil(self.widest / self.per_node)), nodes)
        return self._rates_of_all(np.minimum(widths, self.widest), nodes)

    def _rates_of_all(self, widths: Floats, nodes: Floats) -> Floats:
        within = np.minimum(widths, self.per_node)
        efficiency = self.inside ** (within - 1) * self.beyond ** (widths - within) * self.node ** (nodes - 1)
        found: Floats = self.single * widths * efficiency
        return found


@dataclass(frozen=True)
class ProfiledRates:
    """Measured rates for widths 1, 2, ..., extended by Equation 5; `base` is its M_b."""

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
    """Rates of widths that were not profiled, as in the FLEET paper: the last loss of efficiency continues."""
    if base < 2:
        return widths * measured[0]
    loss = measured[base - 1] / measured[base - 2] * (base - 1) / base
    found: Floats = widths * measured[base - 1] / base * loss ** (widths - base)
    return found


@dataclass(frozen=True, slots=True)
class Observation:
    """The observed rate of a group, in rows per second."""

    width: int
    nodes: int
    rate: float
    weight: float = 1.0


@dataclass(frozen=True)
class RingRates:
    """Our model, see the top of this file. The three terms are seconds per row; none is negative."""

    compute: float
    inside: float = 0.0
    across: float = 0.0

    def rates(self, widths: Floats, nodes: Floats) -> Floats:
        found: Floats = 1 / (_factors(widths, nodes) @ np.array(self.terms))
        return found

    @property
    def terms(self) -> tuple[float, float, float]:
        return (self.compute, self.inside, self.across)


def fit(observations: Iterable[Observation]) -> RingRates:
    """The model that fits a profile. Terms without an observation, such as a second node, get a weak guess."""
    seen = list(observations)
    if not seen:
        raise UsageError("No steps were observed to fit rates to.", hint="Profile at least one width.")
    compute = min(o.width / o.rate for o in seen)
    return _solve(RingRates(compute, PRIOR_LINK * compute, PRIOR_LINK * compute), seen, PRIOR_TRUST)


def correct(model: RingRates, observations: Iterable[Observation], trust: float = TRUST) -> RingRates:
    """The model corrected by more observations; it weighs as much as `trust` observations."""
    seen = list(observations)
    return _solve(model, seen, trust) if seen else model


def _solve(prior: RingRates, seen: Sequence[Observation], trust: float) -> RingRates:
    """Non-negative least squares of relative errors, with each term pulled towards its prior.

    The profile tells most about one device and one node, and least about the links between nodes.
    """
    weights = np.sqrt([o.weight for o in seen])
    factors = _factors(np.array([o.width for o in seen]), np.array([o.nodes for o in seen]))
    rows = factors * np.array([[o.rate] for o in seen]) * prior.compute  # in units of the compute time
    pulls = np.diag(np.sqrt(trust) / np.array(UNCERTAINTY))
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


def rate_table(models: Iterable[RateModel], nodes: Nodes) -> Floats:
    """Rates by model and width - 1, with each group on as few nodes as possible."""
    widths = np.arange(1.0, nodes.device_count + 1)
    min_nodes = np.array(nodes.min_nodes[1:], dtype=float)
    return np.array([model.rates(widths, min_nodes) for model in models])


def envelope(row: Floats) -> list[tuple[int, float]]:
    """The corners of the smallest concave curve from (0, 0) above these rates, up to the highest rate."""
    corners: list[tuple[int, float]] = [(0, 0.0)]
    for width, rate in enumerate(row[: int(np.argmax(row)) + 1].tolist(), start=1):
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-1], (width, rate)):
            corners.pop()
        corners.append((width, rate))
    return corners


def _slope(a: tuple[int, float], b: tuple[int, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])
