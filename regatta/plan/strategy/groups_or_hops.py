"""Fewer models than workers: hop, or train each model with a group of workers?

Data-parallel training costs communication. Let rho(g) be the ratio of communication to computation in a step of a group
of g workers. A model's epoch, which takes 1 on one worker, then takes (1 + rho(g)) / g. Hopping over the G = p // g
groups, the S models of a round take

    max(S, G) / G * (1 + rho(g)) / g

so that width 1 is plain hopping, max(S / p, 1), and width p is data-parallel training of one model after the other.
The batch size does not depend on the width: each of g workers computes 1 / g of a step. A ring sends 2 (g - 1) / g of
the gradients, so rho(g) is g - 1 times rho(2). Groups win as soon as S < p / (1 + rho). The Cerebro paper (section 12)
draws that line at half the workers for every rho, and HOHO forms as many groups as there are models; both are here by
name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

from regatta.errors import UsageError

MIN_UNITS = 4  # of a group, before they replace what profiling measured
TIE = 0.01  # groups must be faster by more than this, because hopping is exact and simpler


@dataclass(frozen=True, slots=True)
class Communication:
    """Measured communication over computation in a step of a group of two, inside a node and across nodes."""

    inside: float
    across: float | None = None  # None: as inside
    per_node: int = 0  # workers of a node; 0: all are on one

    def __post_init__(self) -> None:
        if self.inside < 0 or (self.across is not None and self.across < 0):
            raise UsageError(f"Ratios of communication to computation of {self.inside} and {self.across}: below zero.")

    def ratio(self, width: int) -> float:
        """rho(width) of the formula above."""
        crosses_nodes = self.per_node and width > self.per_node
        link = self.across if crosses_nodes and self.across is not None else self.inside
        return link * (width - 1)

    def scaled(self, factor: float) -> Communication:
        across = None if self.across is None else self.across * factor
        return Communication(self.inside * factor, across, self.per_node)


class ObservedCommunication:
    """What communication really costs groups, by the units that they have done."""

    def __init__(self) -> None:
        self._sums: dict[bool, list[float]] = {}  # by whether a group spans nodes: sum of rho(2), and units

    def add_unit(self, width: int, nodes: int, seconds: float, sync_seconds: float) -> None:
        """A unit of a group took `seconds`, including `sync_seconds` for communication."""
        if width > 1 and seconds > sync_seconds > 0:
            sums = self._sums.setdefault(nodes > 1, [0.0, 0.0])
            sums[0] += sync_seconds / (seconds - sync_seconds) / (width - 1)
            sums[1] += 1

    def correct(self, measured: Communication) -> Communication:
        """What profiling measured, replaced by what enough units have shown."""
        found = {across: total / units for across, (total, units) in self._sums.items() if units >= MIN_UNITS}
        if not measured.per_node:  # all workers are on one node, or all links are alike
            return replace(measured, inside=fmean(found.values())) if found else measured
        return replace(measured, inside=found.get(False, measured.inside), across=found.get(True, measured.across))


def round_time(models: int, workers: int, width: int, communication: Communication) -> float:
    """The time of one epoch of all models, in epochs of one model on one worker."""
    groups = workers // width
    return max(models, groups) / groups * (1 + communication.ratio(width)) / width


def hops(models: int, workers: int, communication: Communication) -> int:
    return 1


def data_parallel(models: int, workers: int, communication: Communication) -> int:
    """One model after the other on all workers."""
    return workers


def hoho(models: int, workers: int, communication: Communication) -> int:
    """Horovod Hopper of the Cerebro paper: as many groups as models."""
    return max(workers // models, 1)


def half(models: int, workers: int, communication: Communication) -> int:
    """The Cerebro paper's rule: hop with more models than half the workers, else all workers for each model."""
    return 1 if models > workers / 2 else workers


def measured(models: int, workers: int, communication: Communication) -> int:
    """Ours: the width with the shortest round by the measured ratio; the narrowest of those that tie."""
    times = {width: round_time(models, workers, width, communication) for width in range(1, workers + 1)}
    limit = min(times.values()) * (1 + TIE)
    return next(width for width, time in times.items() if time <= limit)


WidthRule = Callable[[int, int, Communication], int]

WIDTH_RULES: dict[str, WidthRule] = {
    "measured": measured,
    "hops": hops,
    "data-parallel": data_parallel,
    "hoho": hoho,
    "half": half,
}
