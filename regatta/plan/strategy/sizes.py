"""The best sizes of packs, widths of groups, and teams of workers, by the formulas of `costs`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from regatta.plan.strategy.costs import (
    ClusterSpec,
    Floats,
    Ints,
    KindTeam,
    Strategy,
    Workload,
    estimate,
    evaluations,
    unit_costs,
)

TRIED_ENDS = 24  # end times, between the bound and that of one width, for which teams are looked for
MAX_DENSE_WIDTH = 32  # up to this, groups of every width are considered


def best_packs(
    work: Workload, cluster: ClusterSpec, share: bool, slacks: Sequence[float] = (1.0,)
) -> list[tuple[int, ...]]:
    """For each slack, the sizes of packs with the least load that leave no chain longer than load / slack.

    Larger packs mean less work and longer chains. For a limit on the chain, each kind takes its cheapest size. The
    limit at which chain and load meet is found by bisection.
    """
    loads, chains = _loads_and_chains(work, cluster, share)
    limits = np.unique(chains[np.isfinite(chains)])
    return [_balance(loads, chains, limits, slack) for slack in slacks]


def _balance(loads: Floats, chains: Floats, limits: Floats, slack: float) -> tuple[int, ...]:
    """The sizes at the limit where `slack` times the chain meets the load."""
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if slack * limits[middle] < _load_and_chain(loads, chains, float(limits[middle]))[0]:
            low = middle + 1
        else:
            high = middle

    def end(limit: float) -> float:
        load, chain = _load_and_chain(loads, chains, limit)
        return max(load, slack * chain)

    best = min((float(limits[place]) for place in sorted({low, max(low - 1, 0)})), key=end)
    return tuple((_cheapest_sizes(loads, chains, best) + 1).tolist())


def _loads_and_chains(work: Workload, cluster: ClusterSpec, share: bool) -> tuple[Floats, Floats]:
    """By kind and size of its packs, what the kind adds to the load of a worker, and how long its chain is."""
    fit = np.full(len(work.kinds), np.inf)
    np.divide(cluster.memory, work.peaks, out=fit, where=work.peaks > 0)
    lengths = [len(kind.curve) for kind in work.kinds]
    most = np.maximum(np.minimum(np.minimum(fit, lengths), work.counts), 1).astype(int)
    columns = []
    for size in range(1, int(most.max()) + 1):
        sizes = np.minimum(most, size)
        costs = unit_costs(work, cluster, Strategy(tuple(sizes.tolist()), share=share))
        possible = np.where(most >= size, 1.0, np.inf)
        load = costs.packs * costs.seconds * costs.partitions_per_group * work.epochs * possible
        columns.append((load, costs.longest * work.epochs * costs.partitions * possible))
    loads, chains = (np.stack(parts, axis=1) for parts in zip(*columns, strict=True))
    return loads, chains


def _cheapest_sizes(loads: Floats, chains: Floats, limit: float) -> Ints:
    """By kind, the column of the cheapest size whose chain keeps to the limit, or of the shortest chain."""
    allowed = chains <= np.maximum(limit, chains.min(axis=1))[:, None]
    found: Ints = np.argmin(np.where(allowed, loads, np.inf), axis=1)
    return found


def _load_and_chain(loads: Floats, chains: Floats, limit: float) -> tuple[float, float]:
    """The load and the longest chain with the cheapest sizes under a limit."""
    rows, columns = np.arange(len(loads)), _cheapest_sizes(loads, chains, limit)
    return float(loads[rows, columns].sum()), float(chains[rows, columns].max())


def best_widths(work: Workload, cluster: ClusterSpec, share: bool, count: int = 1) -> list[int]:
    """The widths of groups that end first, the best first; the narrowest of those that tie."""
    times = {width: estimate(work, cluster, Strategy(width=width, share=share)).seconds for width in cluster.widths}
    return sorted(times, key=lambda width: times[width])[:count]


def best_teams(work: Workload, cluster: ClusterSpec, count: int = 1) -> list[Strategy]:
    """Teams of different widths that end first, the best first; none where one width serves all kinds as well.

    To end by a given time, each kind needs the narrowest groups that bring its models there, and as many groups as its
    work takes until then. The search is for the earliest time for which there are enough workers.
    """
    widths = sorted({*cluster.widths, *range(1, min(cluster.workers, MAX_DENSE_WIDTH + 1))})
    loads, chains = _by_width(work, cluster, widths)
    latest = min(estimate(work, cluster, Strategy(width=width)).seconds for width in cluster.widths)
    earliest = max(float(chains.min(axis=1).max()), float(loads[:, 0].sum()) / cluster.workers)
    found = {}
    for end in np.geomspace(earliest, max(latest, earliest), TRIED_ENDS):
        teams = _teams_that_end_by(float(end), work, widths, loads, chains)
        if len(teams) > 1 and sum(team.workers for team in teams) <= cluster.workers:
            found[teams] = estimate(work, cluster, Strategy.from_teams(teams)).seconds
    best = sorted(found, key=lambda teams: found[teams])[:count]
    return list(dict.fromkeys(Strategy.from_teams(_use_spare_workers(teams, work, cluster)) for teams in best))


def _by_width(work: Workload, cluster: ClusterSpec, widths: Sequence[int]) -> tuple[Floats, Floats]:
    """By kind and width, the group seconds that the kind needs, and the seconds that each of its models takes.

    Kinds that were not tried in groups take infinitely long there.
    """
    tried = np.array([kind.communication is not None for kind in work.kinds])
    loads, chains = [], []
    for width in widths:
        strategy = Strategy(width=width)
        costs = unit_costs(work, cluster, strategy)
        evaluate = evaluations(work, cluster, strategy) * work.counts / width
        loads.append((costs.packs * costs.seconds * costs.partitions + evaluate) * work.epochs)
        chains.append(np.where(tried | (width == 1), costs.longest * work.epochs * costs.partitions, np.inf))
    return np.stack(loads, axis=1), np.stack(chains, axis=1)


def _teams_that_end_by(
    end: float, work: Workload, widths: Sequence[int], loads: Floats, chains: Floats
) -> tuple[KindTeam, ...]:
    """The teams that it takes to end by a time, the widest first."""
    in_time = chains <= end * (1 + 1e-9)
    columns = np.where(in_time.any(axis=1), np.argmax(in_time, axis=1), np.argmin(chains, axis=1))
    teams = []
    for column in sorted(set(columns.tolist()), reverse=True):
        kinds = tuple(np.flatnonzero(columns == column).tolist())
        needed = math.ceil(float(loads[list(kinds), column].sum()) / end - 1e-9)
        models = int(work.counts[list(kinds)].sum())
        teams.append(KindTeam(widths[column], min(max(needed, 1), models), kinds))
    return tuple(teams)


def _use_spare_workers(teams: tuple[KindTeam, ...], work: Workload, cluster: ClusterSpec) -> tuple[KindTeam, ...]:
    """Add groups of spare workers to the teams that end last and have models for them."""
    grown = list(teams)
    works = [work.only(team.kinds) for team in teams]
    ends = [_end(team, own, cluster) for team, own in zip(grown, works, strict=True)]
    spare = cluster.workers - sum(team.workers for team in teams)
    while True:
        able = [n for n, team in enumerate(grown) if team.width <= spare and team.groups < works[n].models]
        if not able:
            return tuple(grown)
        last = max(able, key=lambda n: ends[n])
        grown[last] = replace(grown[last], groups=grown[last].groups + 1)
        ends[last] = _end(grown[last], works[last], cluster)
        spare -= grown[last].width


def _end(team: KindTeam, work: Workload, cluster: ClusterSpec) -> float:
    return estimate(work, replace(cluster, workers=team.workers), Strategy(width=team.width)).seconds
