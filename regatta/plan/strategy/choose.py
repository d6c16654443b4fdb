"""Chooses the strategy for a sweep: every rule offers its best, the fastest wins, and the simplest of those that tie.

A rule is a plain function from the workload and the cluster to strategies. Formulas compare them. Those that come close
are then simulated with the real scheduler, as long as that is quick. Groups give weights that differ by rounding, so
they are only chosen where that is allowed. A sweep can fix any part of the strategy; the rest is chosen around it.
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
    load_and_chain,
    unit_costs,
    why_impossible,
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

TIE = 0.02  # a strategy must be faster than a simpler one by more than this
CLOSE = 1.5  # strategies that the formula has slower than this factor are not simulated
SIMULATIONS = 2  # of each strategy, with different noise
MAX_SIMULATED_UNITS = 20_000  # about a second
SLACKS = (1.0, 2.0, 4.0)  # how many times the longest chain of packs fits into the load of a worker
MAX_WIDTHS = 3  # of groups that are compared
DEFAULT_NOISE = Noise()
SLOWER_FACTOR = 1.05  # from here on a factor says how much slower a strategy is, not a percentage

Numerics = Literal["exact", "fast"]


@dataclass(frozen=True)
class Constraints:
    """What is fixed: packs (True, False, or the largest size), the width of groups, sharing; None is free."""

    pack: int | bool | None = None
    width: int | None = None
    share: bool | None = None

    def allow(self, strategy: Strategy, kinds: Sequence[ModelKind]) -> bool:
        return (
            self._allow_packs(strategy, kinds)
            and (self.width is None or (self.width == strategy.width and not strategy.teams))
            and self.share in (None, strategy.share)
        )

    def pack_sizes(self, kinds: Sequence[ModelKind]) -> tuple[int, ...] | None:
        """The sizes of packs by kind, where they are fixed."""
        if self.pack is None or self.pack is True:
            return None
        return tuple(min(int(self.pack) or 1, kind.models) if kind.packed else 1 for kind in kinds)

    def _allow_packs(self, strategy: Strategy, kinds: Sequence[ModelKind]) -> bool:
        if self.pack is True:
            return strategy.packs_any or not any(kind.packed and kind.models > 1 for kind in kinds)
        sizes = self.pack_sizes(kinds)
        return sizes is None or (strategy.packs or (1,) * len(kinds)) == sizes


Rule = Callable[[Workload, ClusterSpec, Constraints], Iterator[Strategy]]


def hop(work: Workload, cluster: ClusterSpec, constraints: Constraints) -> Iterator[Strategy]:
    yield Strategy()


def pack(work: Workload, cluster: ClusterSpec, constraints: Constraints) -> Iterator[Strategy]:
    yield from (Strategy(sizes) for sizes in _pack_sizes(work, cluster, constraints, share=False))


def group(work: Workload, cluster: ClusterSpec, constraints: Constraints) -> Iterator[Strategy]:
    yield from (Strategy(width=width) for width in _widths(work, cluster, constraints, share=False))


def team(work: Workload, cluster: ClusterSpec, constraints: Constraints) -> Iterator[Strategy]:
    """Groups of several widths for kinds that differ, where the cost of groups was measured."""
    if len(work.kinds) > 1 and cluster.workers > 2 and any(kind.communication is not None for kind in work.kinds):
        yield from best_teams(work, cluster, MAX_WIDTHS)


def share(work: Workload, cluster: ClusterSpec, constraints: Constraints) -> Iterator[Strategy]:
    """The others with shared data, which changes the best sizes and widths."""
    if (work.data.prepare > 0 and work.data.sharable) or constraints.share:
        yield Strategy(share=True)
        yield from (Strategy(sizes, share=True) for sizes in _pack_sizes(work, cluster, constraints, share=True))
        yield from (Strategy(width=width, share=True) for width in _widths(work, cluster, constraints, share=True))


def _pack_sizes(
    work: Workload, cluster: ClusterSpec, constraints: Constraints, share: bool
) -> Iterator[tuple[int, ...]]:
    """The best sizes if times did not vary, and smaller ones, with which packs wait less for each other."""
    sizes = constraints.pack_sizes(work.kinds)
    if sizes is not None:
        yield sizes
        return
    found = best_packs(work, cluster, share, SLACKS)
    yield from found
    if constraints.pack and not any(size > 1 for sizes in found for size in sizes):  # packs do not pay, but must be
        yield tuple(min(len(kind.curve), kind.models) for kind in work.kinds)


def _widths(work: Workload, cluster: ClusterSpec, constraints: Constraints, share: bool) -> list[int]:
    return [constraints.width] if constraints.width else best_widths(work, cluster, share, MAX_WIDTHS)


RULES: tuple[Rule, ...] = (hop, pack, group, team, share)


def choose(
    work: Workload,
    cluster: ClusterSpec,
    *,
    numerics: Numerics = "exact",
    constraints: Constraints | None = None,
    rules: Sequence[Rule] = RULES,
    noise: Noise = DEFAULT_NOISE,
    max_units: int = MAX_SIMULATED_UNITS,
) -> tuple[Strategy, Plan]:
    """The strategy, and the plan that explains it. At most `max_units` are simulated to compare close strategies."""
    if not work.kinds:
        raise UsageError("There are no models to plan for.")
    constraints = constraints or Constraints()
    offers = (offer for rule in rules for offer in rule(work, cluster, constraints))
    offered = dict.fromkeys(offer if offer.packs_any else replace(offer, packs=()) for offer in offers)
    refused = {offer: _why_refused(work, cluster, offer, numerics, constraints) for offer in offered}
    estimates = {offer: estimate(work, cluster, offer) for offer in offered if not refused[offer]}
    if not estimates:
        reasons = "; ".join(f"{offer.name}: {why}" for offer, why in refused.items())
        raise UsageError(f"No plan is possible. {reasons}.", hint="Force less, or allow numerics='fast'.")
    estimates |= _simulate_close(work, cluster, estimates, noise, max_units)
    chosen = _simplest(estimates)
    rejected = [
        RejectedStrategy(other.name, _why_rejected(found, other, chosen, estimates), found)
        for other, found in estimates.items()
        if other != chosen
    ]
    rejected += [RejectedStrategy(offer.name, why) for offer, why in refused.items() if why]
    plan = _explain(work, cluster, chosen, estimates, _merge_rejected(chosen, rejected))
    if constraints.pack:
        asked_for = chosen.packs_any
    else:
        asked_for = (constraints.width or 1) > 1 or bool(constraints.share) or len(estimates) == 1
    if asked_for and constraints != Constraints():
        plan = replace(plan, why="as was asked for")
    return chosen, plan


def _why_refused(
    work: Workload, cluster: ClusterSpec, strategy: Strategy, numerics: Numerics, constraints: Constraints
) -> str:
    if not constraints.allow(strategy, work.kinds):
        return "something else was asked for"
    if strategy.width > 1 and constraints.width is None:
        unmeasured = any(kind.communication is None for kind in work.kinds)
        single_workers = replace(strategy, width=1, teams=())
        least, plain = (estimate(work, cluster, way).seconds for way in (strategy, single_workers))
        if unmeasured and least >= plain:  # an estimate counts nothing for communication that was not measured
            return "no faster, even if exchanging gradients took no time"
        if numerics == "exact":
            return "not exact (sums in another order); numerics='fast' allows it"
    return why_impossible(work, cluster, strategy)


def _simulate_close(
    work: Workload, cluster: ClusterSpec, estimates: dict[Strategy, Estimate], noise: Noise, max_units: int
) -> dict[Strategy, Estimate]:
    """The estimates of strategies that come close to the fastest, corrected by simulations.

    The fastest by the formulas are simulated, as many as `max_units` allow. The others that come close are assumed to
    be as much slower than their formulas as those are on average.
    """
    limit = min(found.seconds for found in estimates.values()) * CLOSE
    close = sorted((s for s, found in estimates.items() if found.seconds <= limit), key=lambda s: estimates[s].seconds)
    units = accumulate(SIMULATIONS * count_units(work, cluster, strategy) for strategy in close)
    simulated = [strategy for strategy, needed in zip(close, units, strict=True) if needed <= max_units]
    if len(simulated) < 2:
        return {}
    means = {
        strategy: fmean(simulate_strategy(work, cluster, strategy, noise, seed) for seed in range(1, SIMULATIONS + 1))
        for strategy in simulated
    }
    slower = fmean(mean / estimates[strategy].seconds for strategy, mean in means.items())
    seconds = {strategy: means.get(strategy, slower * estimates[strategy].seconds) for strategy in close}
    return {strategy: replace(estimates[strategy], seconds=took) for strategy, took in seconds.items()}


def _simplest(estimates: dict[Strategy, Estimate]) -> Strategy:
    """The simplest of the strategies that tie with the fastest."""
    limit = min(found.seconds for found in estimates.values()) * (1 + TIE)
    fast = [strategy for strategy, found in estimates.items() if found.seconds <= limit]
    return min(fast, key=lambda strategy: (strategy.complexity, estimates[strategy].seconds))


def _why_rejected(found: Estimate, strategy: Strategy, chosen: Strategy, estimates: dict[Strategy, Estimate]) -> str:
    ratio = found.seconds / estimates[chosen].seconds
    if ratio >= SLOWER_FACTOR:
        return f"{ratio:.2f} times as long"
    if strategy.complexity > chosen.complexity:
        if ratio < 1:
            return f"no more than {TIE:.0%} faster, and more complicated"
        return "more complicated, and no faster"
    return f"{ratio - 1:.1%} slower"


def _merge_rejected(chosen: Strategy, rejected: Sequence[RejectedStrategy]) -> tuple[RejectedStrategy, ...]:
    """One line for each name, with the fastest of its strategies; impossible ones with the same reason in one line."""
    fastest: dict[str, RejectedStrategy] = {}
    impossible: dict[str, list[str]] = {}
    for other in rejected:
        if other.estimate is None:
            impossible.setdefault(other.why, []).append(other.name)
        elif other.name not in fastest or other.estimate.seconds < _seconds(fastest[other.name]):
            fastest[other.name] = other
    merged = [other for name, other in fastest.items() if name != chosen.name]
    return (*merged, *(RejectedStrategy(", ".join(dict.fromkeys(names)), why) for why, names in impossible.items()))


def _seconds(other: RejectedStrategy) -> float:
    return math.inf if other.estimate is None else other.estimate.seconds


# -- the plan that explains the choice ---------------------------------------------------------------


def _explain(
    work: Workload,
    cluster: ClusterSpec,
    chosen: Strategy,
    estimates: dict[Strategy, Estimate],
    rejected: tuple[RejectedStrategy, ...],
) -> Plan:
    found = estimates[chosen]
    bound, bound_by = lower_bound(work, cluster)
    hopping = estimates.get(Strategy())
    if chosen != Strategy() and hopping:
        why = f"{hopping.seconds / found.seconds:.2f} times as fast as plain hopping"
    else:
        why = "the simplest strategy; no possible alternative is clearly faster"
    busy = min(load_and_chain(work, cluster, chosen)[0] / found.seconds, 1.0)
    return Plan(chosen.name, why, _root(work, cluster, chosen, found), bound, bound_by, busy, rejected)


def _root(work: Workload, cluster: ClusterSpec, chosen: Strategy, found: Estimate) -> HopNode:
    epochs = sum(kind.models * kind.epochs for kind in work.kinds)
    units, seconds = 0.0, 0.0  # of models in no pack
    for kinds, workers, own in chosen.by_team(work, cluster):
        part = work.only(kinds)
        costs = unit_costs(part, workers, own)
        unpacked = np.array([own.pack_size(index) == 1 for index in range(len(kinds))])
        units_by_kind = part.counts * part.epochs * costs.partitions * unpacked
        units += float(units_by_kind.sum())
        seconds += float((units_by_kind * costs.seconds).sum())
    parts = tuple(_parts(work, cluster, chosen, found))
    partitions = cluster.partition_count(chosen)
    mean = seconds / units if units else 0.0
    return HopNode(work.models, epochs, cluster.workers, partitions, found, parts, int(units), mean)


def _parts(work: Workload, cluster: ClusterSpec, chosen: Strategy, found: Estimate) -> Iterator[PlanPart]:
    yield from _packs(work, cluster, chosen)
    yield from _groups(work, cluster, chosen, found)
    if chosen.share:
        prepare = work.data.prepare * work.max_epochs / cluster.workers
        took = Estimate(prepare / cluster.cores if cluster.cores else prepare)
        yield ShareNode(cluster.cores, work.data.prepare, work.data.bytes, took)
    units, worker_seconds, unit_seconds = 0, 0.0, 0.0
    for kinds, workers, own in chosen.by_team(work, cluster):
        part = work.only(kinds)
        evaluated_epochs = sum(kind.models * kind.epochs for kind in part.kinds if kind.evaluate)
        units += evaluated_epochs * (workers.evals or workers.workers // own.width)
        seconds = float((evaluations(part, workers, own) * part.counts * part.epochs).sum())
        worker_seconds, unit_seconds = worker_seconds + seconds, unit_seconds + seconds / own.width
    if units:
        yield EvaluateNode(units, Estimate(worker_seconds / cluster.workers), unit_seconds / units)


def _packs(work: Workload, cluster: ClusterSpec, chosen: Strategy) -> Iterator[PackNode]:
    if not chosen.packs_any:
        return
    costs = unit_costs(work, cluster, chosen)
    for index, kind in enumerate(work.kinds):
        size = chosen.pack_size(index)
        if size > 1:
            took = estimate(Workload((kind,), work.data), cluster, Strategy((size,), share=chosen.share))
            packs = -(-kind.models // size)
            units = packs * kind.epochs * costs.partitions
            yield PackNode(kind.name, kind.models, packs, size, took, units, float(costs.seconds[index]))


def _groups(work: Workload, cluster: ClusterSpec, chosen: Strategy, found: Estimate) -> Iterator[GroupNode]:
    """A node for each team; none where each worker trains by itself."""
    if chosen.width == 1:
        return
    teams = list(chosen.by_team(work, cluster))
    idle = cluster.workers - sum(workers.workers // own.width * own.width for _, workers, own in teams)
    for kinds, workers, own in teams:
        nodes = -(-own.width // cluster.per_node) if cluster.per_node else 1
        names = ", ".join(f"{count(work.kinds[kind].models, 'model')} {work.kinds[kind].name}" for kind in kinds)
        took = estimate(work.only(kinds), workers, own)
        took = replace(took, seconds=min(took.seconds, found.seconds))  # the whole may have been simulated
        yield GroupNode(workers.workers // own.width, own.width, nodes, idle, took, names if chosen.teams else "")
        idle = 0  # only the first node says it


def lower_bound(work: Workload, cluster: ClusterSpec) -> tuple[float, str]:
    """Seconds that no strategy can beat, and what sets the bound.

    Either all workers are busy at the cheapest rate of each kind, or one model is trained by its fastest group.
    """
    partitions = cluster.partitions or 1
    fixed = [(kind.fixed - kind.fetch) * partitions for kind in work.kinds]  # seconds of an epoch
    load = sum(
        kind.models * kind.epochs * (_cheapest_epoch(kind, cluster) + seconds)
        for kind, seconds in zip(work.kinds, fixed, strict=True)
    )
    load /= cluster.workers
    prepare = work.data.prepare * work.max_epochs / cluster.workers  # at least once for all models
    load = max(load, (load + prepare) / (1 + cluster.cores))
    chains = {
        kind.name: kind.epochs * (kind.seconds * _fastest_group(kind, cluster) + seconds)
        for kind, seconds in zip(work.kinds, fixed, strict=True)
    }
    slowest = max(chains, key=lambda name: chains[name])
    return (load, "all workers") if load >= chains[slowest] else (chains[slowest], f"a model {slowest}")


def _cheapest_epoch(kind: ModelKind, cluster: ClusterSpec) -> float:
    """The least worker seconds that an epoch of one model takes, with the best pack."""
    curve = kind.curve[: kind.models]
    train = kind.seconds * float((curve / np.arange(1, len(curve) + 1)).min())
    return train + max(kind.evaluate - kind.fetch * (cluster.evals or cluster.workers), 0.0)


def _fastest_group(kind: ModelKind, cluster: ClusterSpec) -> float:
    """The time of an epoch by the best group over that by one worker: of all workers, of one node, or of one."""
    if kind.communication is None:
        return 1.0
    inside = min(kind.communication.per_node or cluster.workers, cluster.workers)
    widths = {1, inside, min(inside + 1, cluster.workers), cluster.workers}
    return min((1 + kind.communication.ratio(width)) / width for width in widths)
