"""The matrix storage graph: all options to store each matrix, and their costs.

A node is a matrix. An edge is one option to store its target: directly (from the null node, whose name is None) or as
a delta to its source, in one encoding and one place. There may be several edges between two nodes. Each has a storage
cost and a recreation cost, in units of the caller. A snapshot is a set of matrices that are read together.

A plan picks one edge into each matrix, such that every chain of deltas starts at the null node: a spanning
arborescence. The terms are those of the ModelHub paper (Miao et al., ICDE 2017, section IV-C).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from regatta.errors import CorruptError, UsageError, nearest

Node: TypeAlias = Hashable
Scheme = Literal["independent", "parallel", "reusable"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
NULL = 0  # the index of the null node


@dataclass(frozen=True, slots=True)
class StorageEdge:
    """One option to store `target`; `option` describes it for the caller."""

    source: Node | None
    target: Node
    storage: float
    recreation: float
    option: Hashable = None


class StorageGraph:
    """The edges in arrays, ordered by target; nodes and snapshots are indices, in the order of their first use."""

    def __init__(self, edges: Iterable[StorageEdge], snapshots: Mapping[str, Iterable[Node]]) -> None:
        self.edges = tuple(edges)
        found = dict.fromkeys(edge.target for edge in self.edges)
        self.nodes: tuple[Node, ...] = (None, *found)
        index = {node: number for number, node in enumerate(self.nodes)}
        _check_edges(self.edges, index)
        self.edges = tuple(sorted(self.edges, key=lambda edge: index[edge.target]))
        self.sources: Integers = np.array([index[edge.source] for edge in self.edges], np.int64)
        self.targets: Integers = np.array([index[edge.target] for edge in self.edges], np.int64)
        self.storage: Floats = np.array([edge.storage for edge in self.edges], np.float64)
        self.recreation: Floats = np.array([edge.recreation for edge in self.edges], np.float64)
        self.snapshots = tuple(snapshots)
        self.members = tuple(_indices(name, nodes, index) for name, nodes in snapshots.items())
        self._check_reachable()

    def __len__(self) -> int:
        """The number of nodes, including the null node."""
        return len(self.nodes)

    @cached_property
    def into(self) -> tuple[range, ...]:
        bounds = np.searchsorted(self.targets, np.arange(len(self) + 1))
        return tuple(range(a, b) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))

    @cached_property
    def out(self) -> tuple[Integers, ...]:
        order = np.argsort(self.sources, kind="stable")
        bounds = np.searchsorted(self.sources[order], np.arange(1, len(self)))
        return tuple(np.split(order, bounds))

    @cached_property
    def owners(self) -> tuple[tuple[int, ...], ...]:
        """The snapshots that contain each node."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for snapshot, members in enumerate(self.members):
            for node in members:
                found[node].append(snapshot)
        return tuple(map(tuple, found))

    def _check_reachable(self) -> None:
        seen = {NULL}
        waiting = [NULL]
        while waiting:
            for target in self.targets[self.out[waiting.pop()]].tolist():
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        if len(seen) < len(self):
            lost = [str(self.nodes[node]) for node in range(len(self)) if node not in seen]
            raise UsageError(
                f"{len(lost)} of {len(self) - 1} matrices cannot be recreated by any chain of edges: {_some(lost)}.",
                hint="Give each matrix an edge from the null node (source None), or a delta to one that has it.",
            )


@dataclass(frozen=True, eq=False)
class StoragePlan:
    """One edge into each node: `chosen` holds their numbers, -1 for the null node."""

    graph: StorageGraph
    chosen: tuple[int, ...]

    @property
    def storage(self) -> float:
        return math.fsum(self.graph.storage[edge] for edge in self.chosen[1:])

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Every node after its base; CorruptError if the edges are not an arborescence."""
        children: list[list[int]] = [[] for _ in self.chosen]
        for node, edge in enumerate(self.chosen[1:], 1):
            if self.graph.targets[edge] != node:
                raise CorruptError(f"The plan stores {self.graph.nodes[node]} by an edge into another matrix.")
            children[int(self.graph.sources[edge])].append(node)
        order = [NULL]
        for node in order:
            order.extend(children[node])
        if len(order) < len(self.chosen):
            lost = [str(self.graph.nodes[n]) for n in set(range(len(self.chosen))) - set(order)]
            raise CorruptError(f"The plan's deltas form a cycle: {_some(lost)} are never recreated.")
        return tuple(order)

    @cached_property
    def distances(self) -> Floats:
        """The cost of recreating each node, including its whole chain."""
        found = np.zeros(len(self.chosen))
        for node in self.order[1:]:
            edge = self.chosen[node]
            found[node] = found[self.graph.sources[edge]] + self.graph.recreation[edge]
        return found

    @cached_property
    def hops(self) -> Integers:
        """The number of edges between the null node and each node."""
        found = np.zeros(len(self.chosen), np.int64)
        for node in self.order[1:]:
            found[node] = found[self.graph.sources[self.chosen[node]]] + 1
        return found

    def recreation(self, scheme: Scheme) -> Floats:
        """The cost of recreating each snapshot."""
        if scheme == "reusable":
            return np.array([self._union(members) for members in self.graph.members])
        return snapshot_costs(self.graph, self.distances, scheme)

    def _union(self, members: Sequence[int]) -> float:
        """In a tree, intermediate results are shared best by walking each edge of the paths once."""
        walked: set[int] = set()
        for node in members:
            while node != NULL and node not in walked:
                walked.add(node)
                node = int(self.graph.sources[self.chosen[node]])
        return math.fsum(self.graph.recreation[self.chosen[node]] for node in walked)

    def edges(self) -> dict[Node, StorageEdge]:
        """The edge by which each matrix is stored, bases first."""
        return {self.graph.nodes[node]: self.graph.edges[self.chosen[node]] for node in self.order[1:]}


def snapshot_costs(graph: StorageGraph, distances: Floats | Sequence[float], scheme: Scheme) -> Floats:
    """The sum (independent) or the maximum (parallel) of the distances of each snapshot's members.

    Sums always have the same order, so equal distances give equal bits.
    """
    check_scheme(scheme)
    far = [float(distance) for distance in distances]
    costs = [[far[node] for node in members] for members in graph.members]
    return np.array([sum(each) if scheme == "independent" else max(each, default=0.0) for each in costs], np.float64)


def check_scheme(scheme: str) -> None:
    """Only the first two schemes can be planned for: the reusable scheme would need Steiner trees."""
    if scheme not in ("independent", "parallel"):
        raise UsageError(
            f"There is no plan for the retrieval scheme {scheme!r}; there are independent and parallel.",
            candidates=nearest(scheme, SCHEMES[:2]),
            hint="A plan for the independent scheme also bounds what the reusable one costs.",
        )


def _indices(name: str, nodes: Iterable[Node], index: Mapping[Node, int]) -> tuple[int, ...]:
    """The members of a snapshot, each once: a matrix with two names is recreated once."""
    wanted = dict.fromkeys(nodes)
    unknown = [str(node) for node in wanted if node not in index or node is None]
    if unknown:
        raise UsageError(f"Snapshot {name} has {len(unknown)} matrices without any edge: {_some(unknown)}.")
    return tuple(index[node] for node in wanted)


def _check_edges(edges: Iterable[StorageEdge], index: Mapping[Node, int]) -> None:
    for edge in edges:
        if edge.target is None or edge.target == edge.source:
            raise UsageError(f"An edge leads from {edge.source} to {edge.target}: its target must be another matrix.")
        if edge.source not in index:
            raise UsageError(f"The edge into {edge.target} starts at {edge.source}, which no edge leads to.")
        if not (0 <= edge.storage < math.inf and 0 <= edge.recreation < math.inf):
            raise UsageError(
                f"The edge from {edge.source} to {edge.target} costs {edge.storage} to store and {edge.recreation} to "
                "recreate; both must be finite and not negative."
            )


def _some(names: Sequence[str], count: int = 3) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
