"""Archive plans: how to store each matrix, so that storage is small and every snapshot is read within its budget.

    plan(graph, "pas-mt", "independent", by_factor(graph, "independent", 2.0))

| name   | what it is                                                                                              |
|--------|---------------------------------------------------------------------------------------------------------|
| mst    | the least storage; ignores budgets                                                                      |
| spt    | the quickest recreation                                                                                 |
| last   | a balance of the two, with the budget of a snapshot split over its matrices (Khuller et al., 1995)      |
| pas-mt | the cheapest tree, repaired by the best edges per byte until every budget is kept (Algorithm 1)         |
| pas-pt | a tree grown by the cheapest edge that still keeps every budget (Algorithm 2)                           |

The PAS algorithms are those of the ModelHub paper. As published they can need more storage than LAST: in PAS-PT the
first matrices can use up the budget of a snapshot, and both stop at the first plan that keeps the budgets. With
`refined`, PAS-PT limits what each matrix may use, and local search improves the better of this tree and LAST's. A plan
that exceeds a budget is never returned.
"""

from __future__ import annotations

import math

import numpy as np

from regatta.errors import UsageError, nearest
from regatta.store.archive.budgets import check_feasible, split_by_size
from regatta.store.archive.pas import TreeGrowth, repair_tree
from regatta.store.archive.refine import MAX_ROUNDS, LocalSearch
from regatta.store.archive.spanning_trees import Chosen, balanced_tree, cheapest_tree, quickest_tree
from regatta.store.archive.storage_graph import Floats, Scheme, StorageGraph, StoragePlan, check_scheme
from regatta.store.archive.storage_tree import StorageTree

ALGORITHMS = ("mst", "spt", "last", "pas-mt", "pas-pt")


def plan(
    graph: StorageGraph,
    algorithm: str = "pas-mt",
    scheme: Scheme = "independent",
    budgets: Floats | None = None,
    *,
    refined: bool = True,
    rounds: int = MAX_ROUNDS,
    hops: int | None = None,
) -> StoragePlan:
    """A plan by an algorithm that keeps the budgets, with at most `hops` edges from the null node to any node.

    `rounds` limits the local search of a PAS plan; a round takes tenths of a millisecond to milliseconds.
    """
    check_scheme(scheme)
    if algorithm not in ALGORITHMS:
        raise UsageError(
            f"There is no planning algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}.",
            candidates=nearest(algorithm, ALGORITHMS),
        )
    if len(graph) == 1:
        return StoragePlan(graph, (-1,))
    limits = np.full(len(graph.snapshots), math.inf) if budgets is None else np.asarray(budgets, np.float64)
    check_feasible(graph, scheme, limits)
    chosen = _tree(graph, algorithm, scheme, limits, refined)
    if refined and algorithm.startswith("pas"):
        chosen = _refined(graph, chosen, scheme, limits, rounds)
    found = StoragePlan(graph, tuple(chosen))
    if hops is not None:
        found = shortened(found, hops)
    costs = found.recreation(scheme)
    if over := np.flatnonzero(costs > limits).tolist():
        worst = max(over, key=lambda snapshot: float(costs[snapshot] - limits[snapshot]))
        raise UsageError(
            f"The plan by {algorithm} exceeds {len(over)} of {len(costs)} budgets, most that of "
            f"{found.graph.snapshots[worst]}: {costs[worst]:g} of {limits[worst]:g}.",
            hint="Use pas-mt or pas-pt, or raise the budgets.",
        )
    return found


def shortened(found: StoragePlan, hops: int) -> StoragePlan:
    """The plan with every chain cut to at most `hops` edges; no matrix becomes slower to recreate."""
    if hops < 1:
        raise UsageError(f"A chain cannot have {hops} hops; a matrix without a base has 1.")
    tree = StorageTree(found.graph, found.chosen)
    depths = found.hops.copy()
    for node in found.order:
        if depths[node] <= hops:
            continue
        below, allowed = tree.below(node), found.distances[node] - tree.distances[node]
        near = [edge for edge in found.graph.into[node] if depths[tree.sources[edge]] < hops]
        fitting = [edge for edge in near if tree.change(edge) <= allowed and tree.sources[edge] not in below]
        if not fitting:
            raise UsageError(
                f"Matrix {found.graph.nodes[node]} cannot be recreated within {hops} hops as quickly as by the "
                f"chain of {depths[node]} that was planned.",
                hint="Allow more hops, or give it an edge from the null node.",
            )
        tree.move(min(fitting, key=lambda edge: float(found.graph.storage[edge])), below)
        for one in below:
            depths[one] = depths[tree.base(one)] + 1
    return tree.plan()


def _tree(graph: StorageGraph, algorithm: str, scheme: Scheme, budgets: Floats, refined: bool) -> Chosen:
    match algorithm:
        case "mst":
            return cheapest_tree(graph)
        case "spt":
            return quickest_tree(graph)
        case "last":
            return balanced_tree(graph, split_by_size(graph, scheme, budgets))
        case "pas-mt":
            return repair_tree(graph, cheapest_tree(graph), scheme, budgets)
        case _:
            return repair_tree(graph, TreeGrowth(graph, scheme, budgets, paced=refined).run(), scheme, budgets)


def _refined(graph: StorageGraph, found: Chosen, scheme: Scheme, budgets: Floats, rounds: int) -> Chosen:
    cheapest = _tree(graph, "mst", scheme, budgets, False)
    if _keeps(StoragePlan(graph, tuple(cheapest)), scheme, budgets):
        return cheapest
    last = StoragePlan(graph, tuple(_tree(graph, "last", scheme, budgets, False)))
    if _keeps(last, scheme, budgets) and last.storage < StoragePlan(graph, tuple(found)).storage:
        found = list(last.chosen)
    search = LocalSearch(graph, found, scheme, budgets)
    search.climb()
    search.search(rounds)
    search.climb()
    return search.tree.chosen


def _keeps(found: StoragePlan, scheme: Scheme, budgets: Floats) -> bool:
    return bool((found.recreation(scheme) <= budgets).all())
