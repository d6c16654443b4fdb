"""The best sizes of packs, widths of groups and teams of workers, by what `strategies` says that they cost."""

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
    units,
)

TRIES = 24  # ends between the bound and what one width takes, for which teams are looked for
NARROW = 32  # up to that, groups of every width are looked at


def best_packs(
    work: Workload, site: ClusterSpec, share: bool, slacks: Sequence[float] = (1.0,)
) -> list[tuple[int, ...]]:
    """For each slack, the sizes of packs with the least load that leave no chain longer than load / slack.

    Larger packs mean less work and longer chains. For a limit on the chain each kind takes its cheapest size, so
    that the limit where chain and load meet is found by bisection.
    """
    loads, chains = _loads_and_chains(work, site, share)
    limits = np.unique(chains[np.isfinite(chains)])
    return [_meeting(loads, chains, limits, slack) for slack in slacks]


def _meeting(loads: Floats, chains: Floats, limits: Floats, slack: float) -> tuple[int, ...]:
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if slack * limits[middle] < _ends(loads, chains, float(limits[middle]))[0]:
            low = middle + 1
        else:
            high = middle
    near = [float(limits[place]) for place in sorted({low, max(low - 1, 0)})]
    best = min(near, key=lambda limit: _later(*_ends(loads, chains, limit), slack))
    return tuple((_columns(loads, chains, best) + 1).tolist())


def _loads_and_chains(work: Workload, site: ClusterSpec, share: bool) -> tuple[Floats, Floats]:
    """By kind and size of its packs, what a kind adds to the load of a worker, and how long it takes itself."""
    fit = np.full(len(work.kinds), np.inf)
    np.divide(site.memory, work.peaks, out=fit, where=work.peaks > 0)
    lengths = [len(kind.curve) for kind in work.kinds]
    most = np.maximum(np.minimum(np.minimum(fit, lengths), work.counts), 1).astype(int)
    columns = []
    for size in range(1, int(most.max()) + 1):
        sizes = np.minimum(most, size)  # beyond its largest pack a kind has nothing to offer
        found = units(work, site, Strategy(tuple(sizes.tolist()), share=share))
        offered = np.where(most >= size, 1.0, np.inf)
        load = found.packs * found.seconds * found.each * work.epochs * offered
        columns.append((load, found.longest * work.epochs * found.parts * offered))
    loads, chains = (np.stack(parts, axis=1) for parts in zip(*columns, strict=True))
    return loads, chains


def _columns(loads: Floats, chains: Floats, limit: float) -> Ints:
    """For each kind the cheapest size whose chain keeps to the limit, or the shortest chain there is."""
    allowed = chains <= np.maximum(limit, chains.min(axis=1))[:, None]
    found: Ints = np.argmin(np.where(allowed, loads, np.inf), axis=1)
    return found


def _ends(loads: Floats, chains: Floats, limit: float) -> tuple[float, float]:
    """The load and the longest chain with these sizes."""
    rows, columns = np.arange(len(loads)), _columns(loads, chains, limit)
    return float(loads[rows, columns].sum()), float(chains[rows, columns].max())


def _later(load: float, chain: float, slack: float) -> float:
    return max(load, slack * chain)


def best_widths(work: Workload, site: ClusterSpec, share: bool, count: int = 1) -> list[int]:
    """The widths of groups that end first, the best first; the narrowest of those that tie."""
    times = {width: estimate(work, site, Strategy(width=width, share=share)).seconds for width in site.widths}
    return sorted(times, key=lambda width: times[width])[:count]


def best_teams(work: Workload, site: ClusterSpec, count: int = 1) -> list[Strategy]:
    """Teams of different widths that end first, the best first; none where one width serves all kinds as well.

    If all is to end by some time, each kind needs the narrowest groups that bring its models there, and as many of
    those as have the time for them. The earliest time for which there are workers enough is looked for.
    """
    widths = sorted({*site.widths, *range(1, min(site.workers, NARROW + 1))})
    loads, chains = _by_width(work, site, widths)
    latest = min(estimate(work, site, Strategy(width=width)).seconds for width in site.widths)
    earliest = max(float(chains.min(axis=1).max()), float(loads[:, 0].sum()) / site.workers)
    found = {}
    for end in np.geomspace(earliest, max(latest, earliest), TRIES):
        teams = _teams_by(float(end), work, widths, loads, chains)
        if len(teams) > 1 and sum(team.workers for team in teams) <= site.workers:
            found[teams] = estimate(work, site, Strategy.from_teams(teams)).seconds
    best = sorted(found, key=lambda teams: found[teams])[:count]
    return list(dict.fromkeys(Strategy.from_teams(_filled(teams, work, site)) for teams in best))


def _by_width(work: Workload, site: ClusterSpec, widths: Sequence[int]) -> tuple[Floats, Floats]:
    """By kind and width, the seconds of a group that a kind needs in all, and those that each of its models takes.

    Kinds that were not tried in groups take for ever there.
    """
    tried = np.array([kind.communication is not None for kind in work.kinds])
    loads, chains = [], []
    for width in widths:
        choice = Strategy(width=width)
        found = units(work, site, choice)
        evaluate = evaluations(work, site, choice) * work.counts / width
        loads.append((found.packs * found.seconds * found.parts + evaluate) * work.epochs)
        chains.append(np.where(tried | (width == 1), found.longest * work.epochs * found.parts, np.inf))
    return np.stack(loads, axis=1), np.stack(chains, axis=1)


def _teams_by(end: float, work: Workload, widths: Sequence[int], loads: Floats, chains: Floats) -> tuple[KindTeam, ...]:
    """The teams that would end by then, the widest first."""
    soon = chains <= end * (1 + 1e-9)
    columns = np.where(soon.any(axis=1), np.argmax(soon, axis=1), np.argmin(chains, axis=1))
    teams = []
    for column in sorted(set(columns.tolist()), reverse=True):
        kinds = tuple(np.flatnonzero(columns == column).tolist())
        needed = math.ceil(float(loads[list(kinds), column].sum()) / end - 1e-9)
        models = int(work.counts[list(kinds)].sum())
        teams.append(KindTeam(widths[column], min(max(needed, 1), models), kinds))
    return tuple(teams)


def _filled(teams: tuple[KindTeam, ...], work: Workload, site: ClusterSpec) -> tuple[KindTeam, ...]:
    """Workers that are left over make further groups in the teams that end last and have models for them."""
    grown = list(teams)
    parts = [(work.only(team.kinds), work.only(team.kinds).models) for team in teams]
    ends = [_end(team, part, site) for team, (part, _) in zip(grown, parts, strict=True)]
    spare = site.workers - sum(team.workers for team in teams)
    while True:
        able = [n for n, team in enumerate(grown) if team.width <= spare and team.groups < parts[n][1]]
        if not able:
            return tuple(grown)
        last = max(able, key=lambda n: ends[n])
        grown[last] = replace(grown[last], groups=grown[last].groups + 1)
        ends[last] = _end(grown[last], parts[last][0], site)
        spare -= grown[last].width


def _end(team: KindTeam, work: Workload, site: ClusterSpec) -> float:
    return estimate(work, replace(site, workers=team.workers), Strategy(width=team.width)).seconds
