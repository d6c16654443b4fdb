"""The two algorithms of the ModelHub paper: PAS-MT repairs a tree, PAS-PT grows one."""

from __future__ import annotations

import heapq
from functools import cached_property

import numpy as np

from regatta.store.archive.budgets import cheapest_costs
from regatta.store.archive.spanning_trees import Chosen, quickest_tree
from regatta.store.archive.storage_graph import (
    NULL,
    Floats,
    Integers,
    Scheme,
    StorageGraph,
    StoragePlan,
    snapshot_costs,
)
from regatta.store.archive.storage_tree import BudgetMeter, StorageTree, meter


def repair_tree(graph: StorageGraph, chosen: Chosen, scheme: Scheme, budgets: Floats) -> Chosen:
    """The tree after swapping edges until it keeps the budgets."""
    tree = StorageTree(graph, chosen)
    TreeRepair(tree, meter(tree, scheme, budgets)).run()
    return tree.chosen


class TreeRepair:
    """Swaps one edge at a time, the one with the largest gain, until no budget is exceeded.

    The gain of an edge (equations 1 and 2) is its improvement of the violated constraints divided by the storage that
    it adds. `weights[node]` counts the violated constraints that contain the distance of the node or of a node below.
    An edge that helps and also stores less comes first. The published algorithm gives up if no single edge helps;
    here one member of a violated snapshot is then moved to its shortest path.
    """

    def __init__(self, tree: StorageTree, meter: BudgetMeter) -> None:
        self.tree, self.meter, self.graph = tree, meter, tree.graph
        self.weights = np.zeros(len(self.graph))
        for node in meter.broken():
            self._add_weight(node, meter.weight(node))
        self.own = {node: meter.weight(node) for node in meter.broken()}
        self.free = float(self.graph.storage.mean()) * 1e-9 or 1.0  # replaces a zero cost in a denominator
        self.into = [np.arange(edges.start, edges.stop) for edges in self.graph.into]
        self.gains = np.zeros(len(self.graph.edges))
        self._rate(np.arange(len(self.gains)))

    def run(self) -> None:
        while self.weights[NULL] > 0:
            edge = int(self.gains.argmax())
            if self.gains[edge] > 0:
                self.swap(edge)
            else:
                self._take_shortest_path()

    def swap(self, edge: int) -> None:
        tree = self.tree
        node = tree.targets[edge]
        below = tree.below(node)
        left, weight = tree.above(node), float(self.weights[node])
        self.weights[left] -= weight
        tree.move(edge, below)
        reached = tree.above(node)
        self.weights[reached] += weight
        touched = {*left, *reached, *below}
        for changed in set(self.meter.update(below)):
            weight_now = self.meter.weight(changed)
            touched.update(self._add_weight(changed, weight_now - self.own.get(changed, 0)))
            self.own[changed] = weight_now
        near = [self.into[one] for one in touched] + [self.graph.out[one] for one in below]
        self._rate(np.concatenate(near))

    def _add_weight(self, node: int, weight: int) -> list[int]:
        changed = [node, *self.tree.above(node)]
        self.weights[changed] += weight
        self.weights[NULL] += weight
        return changed

    def _rate(self, edges: Integers) -> None:
        graph, distances = self.graph, self.tree.distances
        targets = graph.targets[edges]
        nearer = distances[targets] - (distances[graph.sources[edges]] + graph.recreation[edges])
        dearer = graph.storage[edges] - self.tree.stored[targets]
        self.gains[edges] = nearer * self.weights[targets] / np.maximum(dearer, self.free)

    @cached_property
    def quickest(self) -> StoragePlan:
        return StoragePlan(self.graph, tuple(quickest_tree(self.graph)))

    def _take_shortest_path(self) -> None:
        quickest, best = self.quickest.chosen, self.quickest.distances
        node = max(self.meter.broken(), key=lambda one: float(self.tree.distances[one] - best[one]))
        path = []
        while node != NULL:
            path.append(quickest[node])
            node = self.tree.sources[quickest[node]]
        for edge in reversed(path):
            if self.tree.change(edge) < 0:
                self.swap(edge)


class TreeGrowth:
    """PAS-PT: grows a tree from the null node by the cheapest edge whose node fits the budgets of its snapshots.

    The costs of matrices that are not in the tree yet are estimated: by their least costs, as published, or, if
    `paced`, by these times the budget's factor, so that the first matrices do not use up the budget.
    """

    def __init__(self, graph: StorageGraph, scheme: Scheme, budgets: Floats, paced: bool) -> None:
        self.graph, self.scheme = graph, scheme
        self.sources: list[int] = graph.sources.tolist()
        self.targets: list[int] = graph.targets.tolist()
        self.storage: list[float] = graph.storage.tolist()
        self.recreation: list[float] = graph.recreation.tolist()
        self.budgets: list[float] = budgets.tolist()
        self.quickest = quickest_tree(graph)
        self.expected = self._expectations(budgets, paced)
        costs = snapshot_costs(graph, self.expected, "independent")
        self.loads: list[float] = np.minimum(costs, budgets).tolist()
        self.chosen = [-1] * len(graph)
        self.distances = [0.0] * len(graph)
        self.children: list[set[int]] = [set() for _ in self.chosen]
        self.queue: list[tuple[float, float, int]] = []

    def _expectations(self, budgets: Floats, paced: bool) -> list[float]:
        least: list[float] = StoragePlan(self.graph, tuple(self.quickest)).distances.tolist()
        if not paced:
            return least
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.nan_to_num(budgets / cheapest_costs(self.graph, self.scheme), nan=1.0, posinf=1.0)
        factors: list[float] = ratios.tolist()
        shares = [min([factors[s] for s in owners], default=1.0) for owners in self.graph.owners]
        return [share * cost for share, cost in zip(shares, least, strict=True)]

    def run(self) -> Chosen:
        self._offer(NULL)
        while self.queue:
            edge = heapq.heappop(self.queue)[-1]
            node = self.targets[edge]
            if self.chosen[node] < 0 and self._fits(node, edge):
                self.chosen[node] = edge
                self.children[self.sources[edge]].add(node)
                self._set_distance(node, self._reached(edge), self.expected[node])
                self._offer(node)
                self._improve_by(node)
        # Add the nodes that did not fit, by their shortest path; the repair that follows pays for it.
        for node in [node for node in range(1, len(self.chosen)) if self.chosen[node] < 0]:
            whole = [edge for edge in self.graph.into[node] if self.sources[edge] == NULL]
            self.chosen[node] = min(whole, key=self.recreation.__getitem__, default=self.quickest[node])
        return self.chosen

    def _offer(self, node: int) -> None:
        for edge in self.graph.out[node].tolist():
            if self.chosen[self.targets[edge]] < 0:
                heapq.heappush(self.queue, (self.storage[edge], self.recreation[edge], edge))

    def _reached(self, edge: int) -> float:
        return self.distances[self.sources[edge]] + self.recreation[edge]

    def _fits(self, node: int, edge: int) -> bool:
        distance, owners = self._reached(edge), self.graph.owners[node]
        if self.scheme == "parallel":
            return all(distance <= self.budgets[snapshot] for snapshot in owners)
        more = distance - self.expected[node]
        return all(self.loads[snapshot] + more <= self.budgets[snapshot] for snapshot in owners)

    def _set_distance(self, node: int, distance: float, before: float) -> None:
        self.distances[node] = distance
        for snapshot in self.graph.owners[node]:
            self.loads[snapshot] += distance - before

    def _improve_by(self, base: int) -> None:
        """Turn nodes of the tree into deltas to the new node, if that is cheaper and not slower."""
        for edge in self.graph.out[base].tolist():
            node, old = self.targets[edge], self.chosen[self.targets[edge]]
            if old < 0 or self.storage[edge] >= self.storage[old] or self._reached(edge) > self.distances[node]:
                continue
            if not self._is_above(node, base):
                self.children[self.sources[old]].remove(node)
                self.children[base].add(node)
                self.chosen[node] = edge
                waiting = [node]  # and all nodes below it
                for one in waiting:
                    self._set_distance(one, self._reached(self.chosen[one]), self.distances[one])
                    waiting.extend(self.children[one])

    def _is_above(self, node: int, below: int) -> bool:
        while below not in (NULL, node):
            below = self.sources[self.chosen[below]]
        return below == node
