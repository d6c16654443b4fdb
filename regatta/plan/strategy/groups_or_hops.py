"""Fewer models than workers: hop, or train each model by a group of workers?

Data-parallel training pays with communication. Let rho(g) be the ratio of communication to computation in a step of a
group of g workers; a model's epoch, 1 on one worker, then takes (1 + rho(g)) / g. Hopping over the G = p // g groups,
the S models of a round take

    max(S, G) / G * (1 + rho(g)) / g

so that width 1 is plain hopping, max(S / p, 1), and width p is data-parallel training of one model after the other.
A batch stays as large as it is whatever the width: each of g workers computes 1 / g of a step, while a ring sends
2 (g - 1) / g of the gradients, so that rho(g) is g - 1 times rho(2). Groups win as soon as S < p / (1 + rho). The
Cerebro paper (section 12) takes half the workers for that line whatever rho is, and HOHO makes as many groups as there
are models; both are here by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

from regatta.errors import UsageError, nearest

SEEN = 4  # units that tell more than a pilot does
SIMPLE = 0.01  # groups must win by more than this: hopping is exact, and simpler


@dataclass(frozen=True, slots=True)
class Communication:
    """Communication over computation in a step of a group of two, as measured: inside a node, and across nodes."""

    inside: float
    across: float | None = None  # as inside where there is only one node, or no difference
    each: int = 0  # workers of a node; 0 when all are on one

    def __post_init__(self) -> None:
        if self.inside < 0 or (self.across is not None and self.across < 0):
            raise UsageError(f"Ratios of communication to computation of {self.inside} and {self.across}: below zero.")

    def ratio(self, width: int) -> float:
        """rho(width): a ring of so many sends 2 (g - 1) / g of the gradients, and each computes 1 / g of the batch."""
        crosses = self.each and width > self.each and self.across is not None
        link = self.across if crosses and self.across is not None else self.inside
        return link * (width - 1)


class ObservedCommunication:
    """What exchanges of a group really cost, by the units that it has done."""

    def __init__(self) -> None:
        self._sums: dict[bool, list[float]] = {}  # by whether it lies on several nodes: ratios of two, and their number

    def hear(self, width: int, nodes: int, seconds: float, exchanging: float) -> None:
        """A unit took so long, of which so much went into exchanges."""
        if width > 1 and seconds > exchanging > 0:
            sums = self._sums.setdefault(nodes > 1, [0.0, 0.0])
            sums[0] += exchanging / (seconds - exchanging) / (width - 1)
            sums[1] += 1

    def corrected(self, link: Communication) -> Communication:
        """A link with what was seen of it in at least so many units."""
        found = {across: total / units for across, (total, units) in self._sums.items() if units >= SEEN}
        if not link.each:  # all are on one node, or all links are alike
            return replace(link, inside=fmean(found.values())) if found else link
        return replace(link, inside=found.get(False, link.inside), across=found.get(True, link.across))


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
    """The Cerebro paper's rule: hopping for more models than half the workers, all workers for each model otherwise."""
    return 1 if models > workers / 2 else workers


def measured(models: int, workers: int, communication: Communication) -> int:
    """Ours: the width with the shortest round, as the measured ratio has it; the narrowest of those that tie."""
    times = {width: round_time(models, workers, width, communication) for width in range(1, workers + 1)}
    limit = min(times.values()) * (1 + SIMPLE)
    return next(width for width, time in times.items() if time <= limit)


WidthRule = Callable[[int, int, Communication], int]

WIDTH_RULES: dict[str, WidthRule] = {
    "measured": measured,
    "hops": hops,
    "data-parallel": data_parallel,
    "hoho": hoho,
    "half": half,
}


def width_rule(name: str) -> WidthRule:
    if name not in WIDTH_RULES:
        hint = f"Rules: {', '.join(WIDTH_RULES)}."
        raise UsageError(f"There is no rule {name!r} for groups.", candidates=nearest(name, WIDTH_RULES), hint=hint)
    return WIDTH_RULES[name]
