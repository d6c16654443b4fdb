"""Limits on the time to recreate each snapshot: explicit, as a factor of the cheapest, or by frequency of reads.

Budgets are an array with one limit per snapshot of the graph; infinity means no limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from regatta.errors import UsageError, nearest
from regatta.store.archive.spanning_trees import quickest_tree
from regatta.store.archive.storage_graph import Floats, Scheme, StorageGraph, StoragePlan, snapshot_costs


def cheapest_costs(graph: StorageGraph, scheme: Scheme) -> Floats:
    """The least cost of recreating each snapshot; a single plan, the quickest tree, attains all of them."""
    return snapshot_costs(graph, StoragePlan(graph, tuple(quickest_tree(graph))).distances, scheme)


def by_factor(graph: StorageGraph, scheme: Scheme, factor: float) -> Floats:
    """The same factor of the cheapest recreation for every snapshot."""
    _check_factor(factor)
    return cheapest_costs(graph, scheme) * factor


def by_snapshot(graph: StorageGraph, limits: Mapping[str, float]) -> Floats:
    """A limit for each named snapshot; the others have none."""
    known = set(graph.snapshots)
    for name, limit in limits.items():
        if name not in known:
            raise UsageError(f"There is no snapshot {name!r} to set a budget for.", candidates=nearest(name, known))
        if not limit >= 0:
            raise UsageError(f"The budget of snapshot {name} is {limit}; it must be a number that is not negative.")
    return np.array([limits.get(name, math.inf) for name in graph.snapshots], np.float64)


def by_access(graph: StorageGraph, scheme: Scheme, factor: float, reads: Mapping[str, float]) -> Floats:
    """Budgets under which the mean cost over all reads is at most `factor` times the cheapest mean.

    The cost that a snapshot may have above its minimum is proportional to one over the square root of its number of
    reads. If storage falls in proportion to the time allowed, this saves the most for a given mean. A snapshot that
    is never read has no limit.
    """
    _check_factor(factor)
    cheapest = cheapest_costs(graph, scheme)
    for name in graph.snapshots:
        if not 0 <= reads.get(name, 0.0) < math.inf:
            raise UsageError(f"Snapshot {name} is read {reads[name]} times; give a finite number that is not negative.")
    often = np.array([reads.get(name, 0.0) for name in graph.snapshots])
    if unknown := set(reads) - set(graph.snapshots):
        name = min(unknown)
        raise UsageError(f"There is no snapshot {name!r} that is read.", candidates=nearest(name, graph.snapshots))
    read = often > 0
    if not read.any():
        return np.full(len(cheapest), math.inf)
    shares = np.full(len(cheapest), math.inf)
    shares[read] = 1 / np.sqrt(often[read])
    shares[read] *= (often * cheapest)[read].sum() / max((often[read] * cheapest[read] * shares[read]).sum(), 1e-300)
    budgets = np.full(len(cheapest), math.inf)
    budgets[read] = cheapest[read] * (1 + (factor - 1) * shares[read])
    return budgets


def check_feasible(graph: StorageGraph, scheme: Scheme, budgets: Floats) -> None:
    """An error that says by how much budgets are too small, if no plan can keep them."""
    cheapest = cheapest_costs(graph, scheme)
    short = np.flatnonzero(cheapest > budgets)
    if not len(short):
        return
    worst = int(short[np.argmax((cheapest - budgets)[short])])
    with np.errstate(divide="ignore", over="ignore"):
        needed = float((cheapest[short] / budgets[short]).max())
    raise UsageError(
        f"{len(short)} of {len(budgets)} snapshots cannot be recreated within their budgets: {graph.snapshots[worst]} "
        f"has {budgets[worst]:g} and takes {cheapest[worst]:g} at best, {cheapest[worst] - budgets[worst]:g} more.",
        hint=f"Raise the budgets; {needed:.6g} times the given ones would be enough.",
    )


def split_by_size(graph: StorageGraph, scheme: Scheme, budgets: Floats) -> list[float]:
    """A bound per node that keeps the budgets, for algorithms that do not know snapshots, such as LAST.

    Under the independent scheme the budget of a snapshot is split in proportion to the size of its matrices, which is
    the least cost of storing each without a base. A matrix that cannot be recreated within its part gets what it
    needs, at the expense of the others.
    """
    quickest = StoragePlan(graph, tuple(quickest_tree(graph))).distances
    sizes = [_size(graph, node) for node in range(len(graph))]
    bounds = [math.inf] * len(graph)
    for members, budget in zip(graph.members, budgets.tolist(), strict=True):
        parts = [budget] * len(members)
        if scheme == "independent" and math.isfinite(budget):
            parts = _portions(budget, [sizes[n] for n in members], [float(quickest[n]) for n in members])
        for node, part in zip(members, parts, strict=True):
            bounds[node] = min(bounds[node], part)
    return bounds


def _portions(budget: float, sizes: Sequence[float], least: Sequence[float]) -> list[float]:
    parts = list(least)
    free = set(range(len(sizes)))
    left = budget * (1 - 1e-12)  # so that the parts, rounded, do not add up to more
    while free:
        scale = left / max(math.fsum(sizes[i] for i in free), 1e-300)
        tight = {i for i in free if sizes[i] * scale <= least[i]}
        if not tight:
            for i in free:
                parts[i] = sizes[i] * scale
            break
        left -= math.fsum(least[i] for i in tight)
        free -= tight
    return parts


def _size(graph: StorageGraph, node: int) -> float:
    whole = [graph.storage[edge] for edge in graph.into[node] if graph.sources[edge] == 0]
    return float(min(whole or [graph.storage[edge] for edge in graph.into[node]], default=0.0))


def _check_factor(factor: float) -> None:
    if not 1 <= factor < math.inf:
        raise UsageError(
            f"A budget of {factor} times the cheapest recreation was asked for; no plan takes less than 1 time.",
            hint="Give a factor of 1 or more; leave the budget out to store as little as possible.",
        )
