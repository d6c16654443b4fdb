"""Which way to train a sweep: every rule offers its best choice, the fastest wins, and the simplest of those that tie.

A rule is a plain function from the work and the site to choices. Formulas compare them; those that come close are then
played by the real scheduler, as long as that is quick. Groups give weights that differ by rounding, so they are only
taken where that is allowed. Any choice can be forced; what remains free is chosen around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import Literal

import numpy as np

from regatta.errors import UsageError
from regatta.format import count
from regatta.plan.strategy.costs import (
    ClusterSpec,
    ModelKind,
    Strategy,
    Workload,
    estimate,
    evaluations,
    fits,
    load_and_chain,
    units,
)
from regatta.plan.strategy.plan_tree import (
    Estimate,
    EvaluateNode,
    GroupNode,
    HopNode,
    PackNode,
    Plan,
    PlanPart,
    RejectedStrategy,
    ShareNode,
)
from regatta.plan.strategy.simulate import Noise, count_units, simulate_strategy
from regatta.plan.strategy.sizes import best_packs, best_teams, best_widths

TIE = 0.02  # a plan must be faster than a simpler one by more than this
CLOSE = 1.5  # what is not slower than that by the formula is played
PLAYS = 2  # with other noise each time
EFFORT = 20_000  # units that may be played: a second or so
SLACKS = (1.0, 2.0, 4.0)  # how many times the longest chain of packs goes into the load of a worker
WIDTHS = 3  # of groups that are looked at further
USUAL = Noise()
BEYOND = 1.05  # that much slower is said as a factor

Numerics = Literal["exact", "fast"]


@dataclass(frozen=True)
class Constraints:
    """What is not to be chosen: packs (True, False, or at most so many members), the width of groups, sharing."""

    pack: int | bool | None = None
    width: int | None = None
    share: bool | None = None

    def allows(self, choice: Strategy, kinds: Sequence[ModelKind]) -> bool:
        return (
            self._allows_packs(choice, kinds)
            and (self.width is None or (self.width == choice.width and not choice.teams))
            and self.share in (None, choice.share)
        )

    def sizes(self, kinds: Sequence[ModelKind]) -> tuple[int, ...] | None:
        """Those of packs, where they are forced."""
        if self.pack is None or self.pack is True:
            return None
        return tuple(min(int(self.pack) or 1, kind.models) if kind.packed else 1 for kind in kinds)

    def _allows_packs(self, choice: Strategy, kinds: Sequence[ModelKind]) -> bool:
        if self.pack is True:
            return choice.packs_any or not any(kind.packed and kind.models > 1 for kind in kinds)
        sizes = self.sizes(kinds)
        return sizes is None or (choice.packs or (1,) * len(kinds)) == sizes


Rule = Callable[[Workload, ClusterSpec, Constraints], Iterator[Strategy]]


def hop(work: Workload, site: ClusterSpec, forced: Constraints) -> Iterator[Strategy]:
    yield Strategy()


def pack(work: Workload, site: ClusterSpec, forced: Constraints) -> Iterator[Strategy]:
    yield from (Strategy(sizes) for sizes in _packings(work, site, forced, share=False))


def group(work: Workload, site: ClusterSpec, forced: Constraints) -> Iterator[Strategy]:
    yield from (Strategy(width=width) for width in _widths(work, site, forced, share=False))


def team(work: Workload, site: ClusterSpec, forced: Constraints) -> Iterator[Strategy]:
    """Groups of several widths, for kinds that differ; where it was measured what they cost."""
    if len(work.kinds) > 1 and site.workers > 2 and any(kind.communication is not None for kind in work.kinds):
        yield from best_teams(work, site, WIDTHS)


def share(work: Workload, site: ClusterSpec, forced: Constraints) -> Iterator[Strategy]:
    """The others with shared data; packs and widths are then others than without."""
    if (work.data.prepare > 0 and work.data.sharable) or forced.share:
        yield Strategy(share=True)
        yield from (Strategy(sizes, share=True) for sizes in _packings(work, site, forced, share=True))
        yield from (Strategy(width=width, share=True) for width in _widths(work, site, forced, share=True))


def _packings(work: Workload, site: ClusterSpec, forced: Constraints, share: bool) -> Iterator[tuple[int, ...]]:
    """The best sizes if there were no noise, and smaller ones, with which nobody has to wait for another."""
    sizes = forced.sizes(work.kinds)
    if sizes is not None:
        yield sizes
        return
    found = best_packs(work, site, share, SLACKS)
    yield from found
    if forced.pack and not any(size > 1 for sizes in found for size in sizes):  # they pay nowhere, and are asked for
        yield tuple(min(len(kind.curve), kind.models) for kind in work.kinds)


def _widths(work: Workload, site: ClusterSpec, forced: Constraints, share: bool) -> list[int]:
    return [forced.width] if forced.width else best_widths(work, site, share, WIDTHS)


RULES: tuple[Rule, ...] = (hop, pack, group, team, share)


def choose(
    work: Workload,
    site: ClusterSpec,
    *,
    numerics: Numerics = "exact",
    forced: Constraints | None = None,
    rules: Sequence[Rule] = RULES,
    strays: Noise = USUAL,
    effort: int = EFFORT,
) -> tuple[Strategy, Plan]:
    """The choice, and the plan that explains it. `effort` is how many units may be played to compare what is close."""
    if not work.kinds:
        raise UsageError("There are no models to plan for.")
    wishes = forced or Constraints()
    offered = dict.fromkeys(_tidy(choice) for rule in rules for choice in rule(work, site, wishes))
    refused = {choice: _refusal(work, site, choice, numerics, wishes) for choice in offered}
    estimates = {choice: estimate(work, site, choice) for choice in offered if not refused[choice]}
    if not estimates:
        reasons = "; ".join(f"{choice.name}: {why}" for choice, why in refused.items())
        raise UsageError(f"No plan is possible. {reasons}.", hint="Force less, or allow numerics='fast'.")
    estimates |= _played(work, site, estimates, strays, effort)
    chosen = _simplest(estimates)
    rejected = [
        RejectedStrategy(c.name, _why_not(e, c, chosen, estimates), e) for c, e in estimates.items() if c != chosen
    ]
    rejected += [RejectedStrategy(choice.name, why) for choice, why in refused.items() if why]
    plan = _explained(work, site, chosen, estimates, _told_once(chosen, rejected))
    asked = chosen.packs_any if wishes.pack else (wishes.width or 1) > 1 or wishes.share or len(estimates) == 1
    asked = asked and wishes != Constraints()
    return chosen, replace(plan, why="as was asked for") if asked else plan


def _told_once(chosen: Strategy, rejected: Sequence[RejectedStrategy]) -> tuple[RejectedStrategy, ...]:
    """Of those that have one name, the fastest; those that cannot be for one reason, together."""
    found: dict[str, RejectedStrategy] = {}
    reasons: dict[str, list[str]] = {}
    for other in rejected:
        if other.estimate is None:
            reasons.setdefault(other.why, []).append(other.name)
        elif other.name not in found or other.estimate.seconds < _seconds(found[other.name]):
            found[other.name] = other
    told = [other for name, other in found.items() if name != chosen.name]
    return (*told, *(RejectedStrategy(", ".join(dict.fromkeys(names)), why) for why, names in reasons.items()))


def _seconds(other: RejectedStrategy) -> float:
    return math.inf if other.estimate is None else other.estimate.seconds


def _played(
    work: Workload, site: ClusterSpec, estimates: dict[Strategy, Estimate], strays: Noise, effort: int
) -> dict[Strategy, Estimate]:
    """What may be the best after all, with the times of plays: the best by the formulas, as many as may be played.

    The others that come close are taken to be as much slower than their formulas as those are on average.
    """
    limit = min(found.seconds for found in estimates.values()) * CLOSE
    close = sorted((c for c, found in estimates.items() if found.seconds <= limit), key=lambda c: estimates[c].seconds)
    units = accumulate(PLAYS * count_units(work, site, choice) for choice in close)
    playable = [choice for choice, needed in zip(close, units, strict=True) if needed <= effort]
    if len(playable) < 2:
        return {}
    means = {c: fmean(simulate_strategy(work, site, c, strays, seed) for seed in range(1, PLAYS + 1)) for c in playable}
    slower = fmean(mean / estimates[choice].seconds for choice, mean in means.items())
    seconds = {choice: means.get(choice, slower * estimates[choice].seconds) for choice in close}
    return {choice: replace(estimates[choice], seconds=taken) for choice, taken in seconds.items()}


def _tidy(choice: Strategy) -> Strategy:
    return choice if choice.packs_any else replace(choice, packs=())


def _refusal(work: Workload, site: ClusterSpec, choice: Strategy, numerics: Numerics, forced: Constraints) -> str:
    if not forced.allows(choice, work.kinds):
        return "something else was asked for"
    if choice.width > 1 and forced.width is None:
        unknown = any(kind.communication is None for kind in work.kinds)
        least, plain = (estimate(work, site, way).seconds for way in (choice, replace(choice, width=1, teams=())))
        if unknown and least >= plain:  # nothing is counted for exchanges that were not measured
            return "no faster than hopping, even if gradients were exchanged in no time"
        if numerics == "exact":
            return "not exact: gradients are summed in another order; numerics='fast' allows it"
    return fits(work, site, choice)


def _simplest(estimates: dict[Strategy, Estimate]) -> Strategy:
    limit = min(found.seconds for found in estimates.values()) * (1 + TIE)
    good = [choice for choice, found in estimates.items() if found.seconds <= limit]
    return min(good, key=lambda choice: (choice.complexity, estimates[choice].seconds))


def _why_not(found: Estimate, choice: Strategy, chosen: Strategy, estimates: dict[Strategy, Estimate]) -> str:
    ratio = found.seconds / estimates[chosen].seconds
    if ratio >= BEYOND:
        return f"{ratio:.2f} times as long"
    if choice.complexity > chosen.complexity:
        return (
            f"no more than {TIE:.0%} faster, and more complicated" if ratio < 1 else "more complicated, and no faster"
        )
    return f"{ratio - 1:.1%} slower"


def _explained(
    work: Workload,
    site: ClusterSpec,
    chosen: Strategy,
    estimates: dict[Strategy, Estimate],
    rejected: tuple[RejectedStrategy, ...],
) -> Plan:
    found = estimates[chosen]
    bound, by = lower_bound(work, site)
    others = [choice for choice in estimates if choice != chosen]
    plain = estimates.get(Strategy())
    why = (
        "as simple as it gets, and nothing else was possible"
        if not others
        else "as simple as it gets, and nothing is faster"
    )
    if chosen != Strategy() and plain:
        why = f"{plain.seconds / found.seconds:.2f} times as fast as plain hopping"
    busy = min(load_and_chain(work, site, chosen)[0] / found.seconds, 1.0)
    return Plan(chosen.name, why, _root(work, site, chosen, found), bound, by, busy, rejected)


def _root(work: Workload, site: ClusterSpec, chosen: Strategy, found: Estimate) -> HopNode:
    epochs = sum(kind.models * kind.epochs for kind in work.kinds)
    counts, busy = 0.0, 0.0
    for kinds, its, way in chosen.parts(work, site):
        part, of_units = work.only(kinds), units(work.only(kinds), its, way)
        alone = np.array([way.size(index) == 1 for index in range(len(kinds))])
        each = part.counts * part.epochs * of_units.parts * alone
        counts, busy = counts + float(each.sum()), busy + float((each * of_units.seconds).sum())
    parts = tuple(_parts(work, site, chosen, found))
    mean = busy / counts if counts else 0.0
    return HopNode(work.models, epochs, site.workers, site.parts(chosen), found, parts, int(counts), mean)


def _parts(work: Workload, site: ClusterSpec, chosen: Strategy, found: Estimate) -> Iterator[PlanPart]:
    yield from _packs(work, site, chosen)
    yield from _groups(work, site, chosen, found)
    if chosen.share:
        once = work.data.prepare * work.longest / site.workers
        took = Estimate(once / site.cores if site.cores else once)
        yield ShareNode(site.cores, work.data.prepare, work.data.bytes, took)
    judged, busy, seconds = 0, 0.0, 0.0
    for kinds, its, way in chosen.parts(work, site):
        part = work.only(kinds)
        judged += sum(k.models * k.epochs for k in part.kinds if k.evaluate) * (its.evals or its.workers // way.width)
        took_all = float((evaluations(part, its, way) * part.counts * part.epochs).sum())
        busy, seconds = busy + took_all, seconds + took_all / way.width
    if judged:
        yield EvaluateNode(judged, Estimate(busy / site.workers), seconds / judged)


def _packs(work: Workload, site: ClusterSpec, chosen: Strategy) -> Iterator[PackNode]:
    if not chosen.packs_any:
        return
    of_units = units(work, site, chosen)
    for index, kind in enumerate(work.kinds):
        size = chosen.size(index)
        if size > 1:
            took = estimate(Workload((kind,), work.data), site, Strategy((size,), share=chosen.share))
            packs = -(-kind.models // size)
            every = packs * kind.epochs * of_units.parts
            yield PackNode(kind.name, kind.models, packs, size, took, every, float(of_units.seconds[index]))


def _groups(work: Workload, site: ClusterSpec, chosen: Strategy, found: Estimate) -> Iterator[GroupNode]:
    """One for each team; nothing to be said where all workers are by themselves."""
    if chosen.width == 1:
        return
    idle = site.workers - sum(its.workers // way.width * way.width for _, its, way in chosen.parts(work, site))
    for kinds, its, way in chosen.parts(work, site):
        nodes = -(-way.width // site.each) if site.each else 1
        names = ", ".join(f"{count(work.kinds[k].models, 'model')} {work.kinds[k].name}" for k in kinds)
        took = estimate(work.only(kinds), its, way)
        took = replace(took, seconds=min(took.seconds, found.seconds))  # the whole may have been played
        yield GroupNode(its.workers // way.width, way.width, nodes, idle, took, names if chosen.teams else "")
        idle = 0  # said once


def lower_bound(work: Workload, site: ClusterSpec) -> tuple[float, str]:
    """No choice ends before this: all cores busy at the cheapest rate of each kind, or one model at its widest."""
    fewest = site.partitions or 1  # units of an epoch
    load = (
        sum(k.models * k.epochs * (_least(k, site) + (k.fixed - k.fetch) * fewest) for k in work.kinds) / site.workers
    )
    prepared = work.data.prepare * work.longest / site.workers  # once for all models at the very least
    load = max(load, (load + prepared) / (1 + site.cores))
    chains = {k.name: k.epochs * (k.seconds * _fastest(k, site) + (k.fixed - k.fetch) * fewest) for k in work.kinds}
    slowest = max(chains, key=lambda name: chains[name])
    return (load, "all workers") if load >= chains[slowest] else (chains[slowest], f"a model {slowest}")


def _least(kind: ModelKind, site: ClusterSpec) -> float:
    """Seconds of a worker that an epoch of one model takes at the very least."""
    together = kind.curve[: kind.models]
    return kind.seconds * float((together / np.arange(1, len(together) + 1)).min()) + max(
        kind.evaluate - kind.fetch * (site.evals or site.workers), 0.0
    )


def _fastest(kind: ModelKind, site: ClusterSpec) -> float:
    """An epoch by the best group, over one on one worker: the widest, the widest inside a node, or none at all."""
    if kind.communication is None:
        return 1.0
    inside = min(kind.communication.each or site.workers, site.workers)
    widths = {1, inside, min(inside + 1, site.workers), site.workers}
    return min((1 + kind.communication.ratio(width)) / width for width in widths)
