"""A storage plan that can be changed edge by edge, with the current costs of its snapshots.

Distances are summed from the null node outwards, and loads in the order of members, as `StoragePlan` does. So a plan
that this tree considers within budget is within budget to the last bit.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from regatta.store.archive.storage_graph import NULL, Floats, Integers, Scheme, StorageGraph, StoragePlan


class StorageTree:
    """The edge into each node, its distance from the null node, and its children."""

    def __init__(self, graph: StorageGraph, chosen: Sequence[int]) -> None:
        self.graph = graph
        self.sources: list[int] = graph.sources.tolist()
        self.targets: list[int] = graph.targets.tolist()
        self.recreation: list[float] = graph.recreation.tolist()
        self.chosen = list(chosen)
        self.distances = StoragePlan(graph, tuple(chosen)).distances
        self.far: list[float] = self.distances.tolist()  # the same as a list, which is faster for single values
        self.stored: Floats = np.zeros(len(self.chosen))  # the storage of each node's edge
        self.stored[1:] = graph.storage[self.chosen[1:]]
        self.children: list[set[int]] = [set() for _ in self.chosen]
        for node in range(1, len(self.chosen)):
            self.children[self.base(node)].add(node)

    def base(self, node: int) -> int:
        return self.sources[self.chosen[node]]

    def below(self, node: int) -> list[int]:
        """The node and all nodes that are recreated through it, each after its base."""
        found = [node]
        for one in found:
            found.extend(self.children[one])
        return found

    def above(self, node: int) -> list[int]:
        """The nodes that a node is recreated through, nearest first, without the null node."""
        found = []
        node = self.base(node)
        while node != NULL:
            found.append(node)
            node = self.base(node)
        return found

    def change(self, edge: int) -> float:
        """The change of distance of the edge's target, and of all nodes below it, if this edge were used."""
        node = self.targets[edge]
        return self.far[self.sources[edge]] + self.recreation[edge] - self.far[node]

    def move(self, edge: int, below: Iterable[int]) -> int:
        """Use this edge for its target; returns the edge that it replaces. `below` is `below(target)`."""
        node = self.targets[edge]
        old = self.chosen[node]
        self.children[self.sources[old]].remove(node)
        self.children[self.sources[edge]].add(node)
        self.chosen[node] = edge
        self.stored[node] = self.graph.storage[edge]
        for one in below:
            used = self.chosen[one]
            self.far[one] = self.far[self.sources[used]] + self.recreation[used]
            self.distances[one] = self.far[one]
        return old

    def plan(self) -> StoragePlan:
        return StoragePlan(self.graph, tuple(self.chosen))


class _SumMeter:
    """Compares distances with budgets in the independent scheme: a snapshot costs the sum of its members' distances."""

    def __init__(self, tree: StorageTree, budgets: Floats) -> None:
        self.tree = tree
        self.members, self.owners = tree.graph.members, tree.graph.owners
        self.budgets: list[float] = budgets.tolist()
        self.loads = [self._load(snapshot) for snapshot in range(len(self.members))]
        self.over = [load > limit for load, limit in zip(self.loads, self.budgets, strict=True)]
        self.first = np.array([owners[0] if owners else -1 for owners in self.owners])

    def _load(self, snapshot: int) -> float:
        far = self.tree.far
        return sum([far[node] for node in self.members[snapshot]])

    def weight(self, node: int) -> int:
        """The number of violated constraints that contain the node's distance."""
        return sum(self.over[snapshot] for snapshot in self.owners[node])

    def update(self, nodes: Sequence[int]) -> list[int]:
        """Take changed distances of nodes into account; returns the nodes whose weights change."""
        changed: list[int] = []
        for snapshot in {owner for node in nodes for owner in self.owners[node]}:
            self.loads[snapshot] = self._load(snapshot)
            over = self.loads[snapshot] > self.budgets[snapshot]
            if over != self.over[snapshot]:
                self.over[snapshot] = over
                changed.extend(self.members[snapshot])
        return changed

    def room(self, nodes: Sequence[int]) -> float:
        """The amount by which the distances of all these nodes may grow before a budget is exceeded."""
        if len(nodes) == 1:
            return min((self.budgets[s] - self.loads[s] for s in self.owners[nodes[0]]), default=math.inf)
        counts = Counter(owner for node in nodes for owner in self.owners[node])
        return min(((self.budgets[s] - self.loads[s]) / count for s, count in counts.items()), default=math.inf)

    def room_at_most(self, nodes: Integers) -> Floats:
        """A quick upper bound of `room` for each of these nodes alone."""
        # The last entry is for nodes of no snapshot.
        slack = np.append(np.array(self.budgets) - np.array(self.loads), math.inf)
        found: Floats = slack[self.first[nodes]]
        return found

    def broken(self) -> list[int]:
        """The nodes in violated constraints, each once."""
        found = (self.members[snapshot] for snapshot, over in enumerate(self.over) if over)
        return list(dict.fromkeys(itertools.chain.from_iterable(found)))


class _MaximumMeter:
    """The parallel scheme: a snapshot costs the distance of its farthest member, so its budget bounds each member."""

    def __init__(self, tree: StorageTree, budgets: Floats) -> None:
        self.tree = tree
        limits: list[float] = budgets.tolist()
        self.bounds = [min([limits[s] for s in owners], default=math.inf) for owners in tree.graph.owners]
        self.limits = np.array(self.bounds)
        self.over = [distance > bound for distance, bound in zip(tree.distances.tolist(), self.bounds, strict=True)]

    def weight(self, node: int) -> int:
        return int(self.over[node])

    def update(self, nodes: Sequence[int]) -> list[int]:
        changed = []
        for node in nodes:
            over = self.tree.far[node] > self.bounds[node]
            if over != self.over[node]:
                self.over[node] = over
                changed.append(node)
        return changed

    def room(self, nodes: Sequence[int]) -> float:
        far = self.tree.far
        return min(self.bounds[node] - far[node] for node in nodes)

    def room_at_most(self, nodes: Integers) -> Floats:
        found: Floats = self.limits[nodes] - self.tree.distances[nodes]
        return found

    def broken(self) -> list[int]:
        return [node for node, over in enumerate(self.over) if over]


BudgetMeter: TypeAlias = _SumMeter | _MaximumMeter


def meter(tree: StorageTree, scheme: Scheme, budgets: Floats) -> BudgetMeter:
    return _SumMeter(tree, budgets) if scheme == "independent" else _MaximumMeter(tree, budgets)
