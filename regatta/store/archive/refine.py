"""Local search: makes a storage plan cheaper by moves that keep the budgets."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import cache
from typing import TypeAlias

import numpy as np

from regatta.store.archive.storage_graph import Floats, Integers, Scheme, StorageGraph
from regatta.store.archive.storage_tree import StorageTree, meter

Undo: TypeAlias = list[tuple[int, list[int]]]  # the edge that was replaced, and the nodes below its target
MAX_ROUNDS = 5_000
MAX_ROUNDS_PER_NODE = 50  # more gain almost nothing
MAX_TRIES_PER_ROUND = 40  # limits the time if each lift touches very many edges
_MIN_ANNEALING_ROUNDS_PER_NODE = 20  # with fewer rounds per node, annealing does not pay
_FIRST_LOSS, _LAST_LOSS = 0.5, 0.02  # the accepted loss at the start and the end, as a share of the mean matrix
_MAX_LIFTED_NODES = 60  # larger subtrees are not lifted: they cost more time than they save


class LocalSearch:
    """Improves a tree that keeps its budgets."""

    def __init__(self, graph: StorageGraph, chosen: list[int], scheme: Scheme, budgets: Floats) -> None:
        self.graph, self.scheme, self.budgets = graph, scheme, budgets
        self.into = [np.arange(edges.start, edges.stop) for edges in graph.into]
        self.scale = float(graph.recreation.mean()) * 1e-12 or 1.0  # replaces a zero cost in a denominator
        self.into_members = cache(self._into_members)
        self.tries = 0
        self._start(chosen)

    def _start(self, chosen: list[int]) -> None:
        self.tree = StorageTree(self.graph, chosen)
        self.meter = meter(self.tree, self.scheme, self.budgets)

    def climb(self) -> None:
        """Use every edge that stores less and fits, in the order of savings per budget used."""
        while self._improve(np.arange(len(self.graph.edges)), []) > 0:
            pass

    def search(self, rounds: int = MAX_ROUNDS) -> None:
        """Move random nodes nearer to the null node and check whether their neighbours then save more.

        With enough rounds for the size of the graph, annealing comes first: it also accepts losses, of decreasing size.
        """
        nodes = len(self.graph) - 1
        rounds = min(rounds, MAX_ROUNDS_PER_NODE * nodes)
        if rounds >= _MIN_ANNEALING_ROUNDS_PER_NODE * nodes:
            self._anneal(rounds, float(self.tree.stored.sum()) / nodes)
        draw = random.Random(nodes)
        for _ in self._progress(rounds):
            self._lift(draw, 0.0)

    def _anneal(self, rounds: int, mean: float) -> None:
        draw = random.Random(rounds)
        gained, most, best = 0.0, 0.0, list(self.tree.chosen)
        for done in self._progress(rounds):
            gained += self._lift(draw, mean * _FIRST_LOSS * (_LAST_LOSS / _FIRST_LOSS) ** done)
            if gained > most + 1e-9 * mean:
                most, best = gained, list(self.tree.chosen)
        self._start(best)

    def _progress(self, rounds: int) -> Iterator[float]:
        """The share of rounds, or of edges that may be tried, that is done."""
        self.tries = 0
        for number in range(rounds):
            done = max(number / rounds, self.tries / (rounds * MAX_TRIES_PER_ROUND))
            if done >= 1:
                return
            yield done

    def _lift(self, draw: random.Random, heat: float) -> float:
        """Move a random node nearer, then improve the edges that this affects; returns the storage saved."""
        tree, graph = self.tree, self.graph
        node = draw.randrange(1, len(graph))
        nearer = [edge for edge in graph.into[node] if tree.change(edge) < 0]
        below = tree.below(node)
        if not nearer or len(below) > _MAX_LIFTED_NODES:
            return 0.0
        edge = draw.choice(nearer)
        spent = float(graph.storage[edge] - tree.stored[node])
        done: Undo = []
        self._move(edge, below, done)
        saved = self._improve(self._touched(node, below), done) - spent
        if saved > heat * math.log(1 - draw.random()):
            return saved
        for old, nodes in reversed(done):
            tree.move(old, nodes)
            self.meter.update(nodes)
        return 0.0

    def _touched(self, node: int, below: list[int]) -> Integers:
        """Edges that may fit now: out of and into the moved nodes, and into nodes that share their budgets."""
        graph = self.graph
        near = [*(graph.out[one] for one in below), *(self.into[one] for one in below)]
        if self.scheme == "independent":
            near.extend(self.into_members(snapshot) for snapshot in {s for one in below for s in graph.owners[one]})
        edges = np.concatenate(near)
        found: Integers = edges[graph.targets[edges] != node]
        return found

    def _into_members(self, snapshot: int) -> Integers:
        return np.concatenate([self.into[node] for node in self.graph.members[snapshot]])

    def _improve(self, edges: Integers, done: Undo) -> float:
        """Try edges in the order of savings per budget used; returns the storage saved."""
        tree, graph = self.tree, self.graph
        targets = graph.targets[edges]
        saving = tree.stored[targets] - graph.storage[edges]
        farther = tree.distances[graph.sources[edges]] + graph.recreation[edges] - tree.distances[targets]
        hopeful = (saving > 0) & (farther <= np.maximum(self.meter.room_at_most(targets), 0))
        worth = saving[hopeful] / np.maximum(farther[hopeful], self.scale)
        return math.fsum(self._try(edge, done) for edge in edges[hopeful][np.argsort(-worth, kind="stable")].tolist())

    def _try(self, edge: int, done: Undo) -> float:
        """Use an edge if it saves storage and keeps all budgets; returns the storage saved."""
        tree = self.tree
        node, source = tree.targets[edge], tree.sources[edge]
        saved = float(tree.stored[node] - self.graph.storage[edge])
        if saved <= 0:
            return 0.0
        self.tries += 1
        below, farther = tree.below(node), tree.change(edge)
        if source in below or (farther > 0 and self.meter.room(below) < farther):
            return 0.0
        self._move(edge, below, done)
        if any(self.meter.weight(one) for one in below):  # over budget by rounding
            old, _ = done.pop()
            tree.move(old, below)
            self.meter.update(below)
            return 0.0
        return saved

    def _move(self, edge: int, below: list[int], done: Undo) -> None:
        done.append((self.tree.move(edge, below), below))
        self.meter.update(below)
