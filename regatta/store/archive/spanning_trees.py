"""Spanning trees of a storage graph: the cheapest to store, the quickest to read, and LAST, a balance of both.

A tree is a list with the edge into each node, -1 for the null node.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeAlias

from regatta.store.archive.storage_graph import NULL, StorageGraph

Chosen: TypeAlias = list[int]
_NEW, _ON_PATH, _DONE = range(3)


def cheapest_tree(graph: StorageGraph) -> Chosen:
    """The arborescence of least storage (MST): Edmonds' algorithm with mergeable queues."""
    return _Contraction(graph).solve()


class _Contraction:
    """Grows paths backwards from each node to the null node, and contracts cycles on the way.

    A contracted cycle is a new node. Its queue holds the edges into all its parts, each reduced by the price of the
    edge that it replaces in its part; `less` delays that subtraction.
    """

    def __init__(self, graph: StorageGraph) -> None:
        self.sources = graph.sources.tolist()
        self.targets = graph.targets.tolist()
        self.size = len(graph)
        prices = list(zip(graph.storage.tolist(), graph.recreation.tolist(), range(len(self.sources)), strict=True))
        self.queues = [[prices[edge] for edge in edges] for edges in graph.into]
        for queue in self.queues:
            heapq.heapify(queue)
        self.less = [0.0] * self.size
        self.whole = list(range(self.size))  # union-find links from parts towards the node that contains them
        self.contained: list[int | None] = [None] * self.size
        self.enter = [-1] * self.size
        self.state = [_DONE] + [_NEW] * (self.size - 1)

    def solve(self) -> Chosen:
        for start in range(1, self.size):
            if self.state[self._find(start)] != _DONE:
                self._grow(self._find(start))
        for node in range(len(self.enter) - 1, self.size - 1, -1):
            part = self.targets[self.enter[node]]
            while self.contained[part] != node:
                part = self.contained[part]
            self.enter[part] = self.enter[node]
        return self.enter[: self.size]

    def _grow(self, start: int) -> None:
        path = [start]
        self.state[start] = _ON_PATH
        paid: dict[int, float] = {}
        while True:
            node = path[-1]
            paid[node], before = self._cheapest_into(node)
            if self.state[before] == _DONE:
                break
            if self.state[before] == _ON_PATH:
                before = self._contract(path, before, paid)
            path.append(before)
            self.state[before] = _ON_PATH
        for node in path:
            self.state[node] = _DONE

    def _cheapest_into(self, node: int) -> tuple[float, int]:
        """Take the cheapest edge into a node: its reduced price, and the node that it comes from."""
        queue = self.queues[node]
        while True:
            price, _, edge = heapq.heappop(queue)
            before = self._find(self.sources[edge])
            if before != node:
                self.enter[node] = edge
                return price - self.less[node], before

    def _contract(self, path: list[int], first: int, paid: dict[int, float]) -> int:
        """Contract the cycle at the end of the path into one node."""
        cycle = [path.pop()]
        while cycle[-1] != first:
            cycle.append(path.pop())
        made = len(self.enter)
        for part in cycle:
            self.less[part] += paid[part]
            self.whole[part] = made
            self.contained[part] = made
        cycle.sort(key=lambda part: -len(self.queues[part]))
        queue, less = self.queues[cycle[0]], self.less[cycle[0]]
        for part in cycle[1:]:
            for price, recreation, edge in self.queues[part]:
                heapq.heappush(queue, (price - self.less[part] + less, recreation, edge))
            self.queues[part] = []
        self.queues.append(queue)
        self.less.append(less)
        self.whole.append(made)
        self.contained.append(None)
        self.enter.append(-1)
        self.state.append(_ON_PATH)
        return made

    def _find(self, node: int) -> int:
        whole = self.whole
        while whole[node] != node:
            whole[node] = whole[whole[node]]
            node = whole[node]
        return node


def quickest_tree(graph: StorageGraph) -> Chosen:
    """The shortest-path tree by recreation (SPT); of equally short paths, the one that stores less."""
    sources, targets = graph.sources.tolist(), graph.targets.tolist()
    storage, recreation = graph.storage.tolist(), graph.recreation.tolist()
    chosen = [-1] * len(graph)
    waiting = [(recreation[edge], storage[edge], edge) for edge in graph.out[NULL].tolist()]
    heapq.heapify(waiting)
    while waiting:
        distance, _, edge = heapq.heappop(waiting)
        node = targets[edge]
        if node == NULL or chosen[node] >= 0:
            continue
        chosen[node] = edge
        for following in graph.out[node].tolist():
            if chosen[targets[following]] < 0:
                heapq.heappush(waiting, (distance + recreation[following], storage[following], following))
    assert all(edge >= 0 and sources[edge] >= 0 for edge in chosen[1:])
    return chosen


def balanced_tree(graph: StorageGraph, bounds: Sequence[float]) -> Chosen:
    """LAST (Khuller, Raghavachari and Young, 1995): the cheapest tree, repaired where a node is too far away.

    A walk through the cheapest tree keeps track of distances; a node beyond its bound is moved to its shortest path.
    With bounds of alpha times the shortest distances this is the published algorithm. On the way back, the walk tries
    the edge from each node to its parent, if the graph has one.
    """
    cheapest, quickest = cheapest_tree(graph), quickest_tree(graph)
    sources, targets = graph.sources.tolist(), graph.targets.tolist()
    recreation = graph.recreation.tolist()
    distances = [0.0] + [float("inf")] * (len(graph) - 1)
    chosen = [-1] * len(graph)

    def relax(edge: int) -> None:
        reached = distances[sources[edge]] + recreation[edge]
        if reached < distances[targets[edge]]:
            distances[targets[edge]] = reached
            chosen[targets[edge]] = edge

    def take_shortest_path(node: int) -> None:
        path = []
        while node != NULL:
            path.append(quickest[node])
            node = sources[quickest[node]]
        for edge in reversed(path):
            relax(edge)

    for node, arriving in _walk(graph, cheapest):
        if arriving:
            relax(cheapest[node])
            if distances[node] > bounds[node]:
                take_shortest_path(node)
        else:
            above = sources[cheapest[node]]
            for edge in graph.into[above]:
                if sources[edge] == node:
                    relax(edge)
    return chosen


def _walk(graph: StorageGraph, chosen: Chosen) -> list[tuple[int, bool]]:
    """Each node when the walk arrives and when it leaves, in depth-first order."""
    children: list[list[int]] = [[] for _ in chosen]
    for node in range(len(chosen) - 1, 0, -1):
        children[int(graph.sources[chosen[node]])].append(node)
    steps: list[tuple[int, bool]] = []
    waiting = [(node, True) for node in children[NULL]]
    while waiting:
        node, arriving = waiting.pop()
        steps.append((node, arriving))
        if arriving:
            waiting.append((node, False))
            waiting.extend((child, True) for child in children[node])
    return steps
