"""A network as data: layers, their connections, and the names and shapes of their parameters.

Enters: what an importer has read from a model, or JSON from a catalog or an untrusted source. Leaves: a valid graph (no
cycle, no dangling edge, bounded sizes). It knows no framework and holds no weights.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from regatta.errors import DataError, NotFoundError, nearest
from regatta.network.kinds import Attributes, normalize_attributes, with_default

MAX_NODES = 100_000
MAX_EDGES = 400_000
MAX_PARAMETERS = 1_000  # of one node
MAX_RANK = 32
MAX_SIZE = 2**48
MAX_NAME_CHARACTERS = 1_024

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Parameter:
    """A tensor that a node needs: its role there (weight, bias, ...), its name in the model's state, its shape."""

    role: str
    name: str
    shape: Shape

    def __post_init__(self) -> None:
        _check_text("role", self.role)
        _check_text("name of a parameter", self.name)
        object.__setattr__(self, "shape", check_shape(self.shape, self.name))


@dataclass(frozen=True)
class Node:
    """One layer. `shape` is the shape of its output: None for an axis that varies (the batch), or None if unknown."""

    id: str
    kind: str
    name: str = ""
    attributes: Attributes = field(default_factory=dict)
    shape: Shape | None = None
    parameters: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        _check_text("id", self.id)
        _check_text("name of a node", self.name, empty=True)
        attributes = normalize_attributes(self.kind, self.attributes, place=f"node {self.id!r:.80}")
        object.__setattr__(self, "attributes", MappingProxyType(attributes))
        if self.shape is not None:
            object.__setattr__(self, "shape", check_shape(self.shape, self.id))
        if len(self.parameters) > MAX_PARAMETERS:
            raise DataError(f"Node {self.id!r:.80} has {len(self.parameters)} parameters; {MAX_PARAMETERS} at most.")
        object.__setattr__(self, "parameters", tuple(self.parameters))

    def get(self, name: str) -> Any:
        """An attribute, or its default."""
        return with_default(self.kind, self.attributes, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self.id, self.kind, self.name, dict(self.attributes), self.shape, self.parameters)


@dataclass(frozen=True, order=True)
class Edge:
    """The output of `source` is operand number `position` of `target`."""

    source: str
    target: str
    position: int = 0


@dataclass(frozen=True)
class Network:
    """A directed acyclic graph of layers. Inputs and outputs are in the order of its nodes and edges."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    name: str = ""
    source: str = ""  # the framework that it was read from

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "edges", tuple(self.edges))
        _check_text("name of a network", self.name, empty=True)
        _check_text("source of a network", self.source, empty=True)
        _check_sizes(self)
        _check_edges(self)
        _ = self.order  # a cycle is found here

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        weights = sum(math.prod(size or 1 for size in parameter.shape) for parameter in self.parameters.values())
        name = f"{self.name!r}, " if self.name else ""
        return f"Network({name}{len(self.nodes)} nodes, {len(self.edges)} edges, {weights:,} weights)"

    @cached_property
    def by_id(self) -> Mapping[str, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters by name; one that several nodes share appears once."""
        return {parameter.name: parameter for node in self.nodes for parameter in node.parameters}

    @cached_property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """The operands of each node, in order."""
        found: dict[str, list[str]] = {node.id: [] for node in self.nodes}
        for edge in sorted(self.edges, key=lambda edge: edge.position):
            found[edge.target].append(edge.source)
        return {target: tuple(sources) for target, sources in found.items()}

    @cached_property
    def targets(self) -> Mapping[str, tuple[str, ...]]:
        """The nodes that use each node's output, in the order of edges, once per use."""
        found: dict[str, list[str]] = {node.id: [] for node in self.nodes}
        for edge in self.edges:
            found[edge.source].append(edge.target)
        return {source: tuple(targets) for source, targets in found.items()}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Node ids in topological order: the order of `nodes` where possible."""
        return _topological(self)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind == "INPUT")

    def find(self, name: str) -> Node:
        """The node with this id, or the only one with this name."""
        if name in self.by_id:
            return self.by_id[name]
        found = [node for node in self.nodes if node.name == name]
        if len(found) == 1:
            return found[0]
        known = {node.id for node in self.nodes} | {node.name for node in self.nodes if node.name}
        if not found:
            raise NotFoundError(f"The network has no node {name!r:.200}.", candidates=nearest(name, known))
        raise NotFoundError(
            f"{len(found)} nodes are called {name!r:.200}.", hint=f"Say which: {', '.join(n.id for n in found[:5])}."
        )

    def slice(self, start: str | Iterable[str], end: str | Iterable[str]) -> Network:
        """All nodes on paths from one node, or some, to another. Other operands that they need become inputs.

        Weights and constants come along. Each end that is not an output itself gets an output.
        """
        starts, ends = ([each] if isinstance(each, str) else each for each in (start, end))
        return _sliced(self, [self.find(each).id for each in starts], [self.find(each).id for each in ends])


def split_role(role: str) -> tuple[str, str]:
    """`weight@10` is stored with permuted axes: PyTorch's is stored.permute(1, 0). `bias@flat` has axes of length 1.

    `weight@depthwise` has the axes (..., inputs, outputs of each); in PyTorch they are (all outputs, 1, ...).
    """
    role, _, layout = role.partition("@")
    return role, layout


def arranged(stored: Any, layout: str) -> Any:
    """A stored tensor or array in PyTorch's order of axes."""
    if not layout:
        return stored
    if layout == "flat":
        return stored.reshape(-1)
    order = stored_axes(layout, len(stored.shape))
    moved = stored.permute(order) if hasattr(stored, "permute") else stored.transpose(order)
    return moved.reshape(-1, 1, *moved.shape[2:]) if layout == "depthwise" else moved


def stored_axes(layout: str, rank: int) -> list[int]:
    """The axes of a stored tensor in PyTorch's order."""
    if layout == "depthwise":
        return [rank - 2, rank - 1, *range(rank - 2)]
    return [int(axis) for axis in layout]


def _check_text(what: str, value: object, empty: bool = False) -> None:
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARACTERS or not (value or empty):
        raise DataError(f"The {what} is a text of at most {MAX_NAME_CHARACTERS} characters, not {value!r:.80}.")


def check_shape(shape: Iterable[Any], of: str) -> Shape:
    checked = tuple(shape)
    if len(checked) > MAX_RANK:
        raise DataError(f"The shape of {of!r:.80} has {len(checked)} dimensions; {MAX_RANK} at most.")
    for size in checked:
        is_size = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_SIZE
        if size is not None and not is_size:
            raise DataError(f"The shape of {of!r:.80} has the dimension {size!r:.80}; a size or nothing is expected.")
    return checked


def _check_sizes(network: Network) -> None:
    if len(network.nodes) > MAX_NODES or len(network.edges) > MAX_EDGES:
        raise DataError(
            f"A network of {len(network.nodes)} nodes and {len(network.edges)} edges is too large; "
            f"{MAX_NODES} and {MAX_EDGES} are allowed."
        )
    if len(network.by_id) < len(network.nodes):
        twice = Counter(node.id for node in network.nodes).most_common(1)[0][0]
        raise DataError(f"Two nodes have the id {twice!r:.80}.")


def _check_edges(network: Network) -> None:
    positions: dict[str, set[int]] = {}
    for edge in network.edges:
        for end in (edge.source, edge.target):
            if end not in network.by_id:
                raise DataError(f"The edge {edge.source!r:.80} -> {edge.target!r:.80} leads to no node: {end!r:.80}.")
        taken = positions.setdefault(edge.target, set())
        if edge.position in taken:
            raise DataError(f"Node {edge.target!r:.80} has two operands at position {edge.position}.")
        taken.add(edge.position)
    for target, taken in positions.items():
        if taken != set(range(len(taken))):
            raise DataError(f"The operands of node {target!r:.80} are at {sorted(taken)[:10]}, not at 0, 1, ...")


def _topological(network: Network) -> tuple[str, ...]:
    """Depth first in the order of nodes, without recursion, so that the branches of a network stay together."""
    done: dict[str, None] = {}
    open_nodes: set[str] = set()
    for root in network.nodes:
        stack = [root.id]
        while stack:
            top = stack[-1]
            missing = [] if top in done else [source for source in network.sources[top] if source not in done]
            if missing and top in open_nodes:
                raise DataError(f"The network has a cycle through node {top!r:.80}.")
            if missing:
                open_nodes.add(top)
                stack.extend(reversed(missing))
            else:
                stack.pop()
                open_nodes.discard(top)
                done[top] = None
    return tuple(done)


def _reached(start: Iterable[str], steps: Mapping[str, tuple[str, ...]]) -> set[str]:
    found = set(start)
    waiting = deque(found)
    while waiting:
        for following in steps[waiting.popleft()]:
            if following not in found:
                found.add(following)
                waiting.append(following)
    return found


def _sliced(network: Network, starts: list[str], ends: list[str]) -> Network:
    above, below = _reached(ends, network.sources), _reached(starts, network.targets)
    between = above & below
    alone = [start for start in starts if start not in between] or [end for end in ends if end not in between]
    if alone:
        begin, goal = (alone[:1], ends) if alone[0] in starts else (starts, alone[:1])
        raise NotFoundError(f"There is no path from {_some(begin)} to {_some(goal)}.")
    fed = _reached([*starts, *(node.id for node in network.inputs)], network.targets)
    kept = between | (_reached(between, network.sources) - fed)  # weights and constants that the path needs come along
    outside = {source for id in kept for source in network.sources[id]} - kept
    nodes = [
        replace(node, kind="INPUT", attributes={}, parameters=())
        if node.id in outside and node.kind != "INPUT"
        else node
        for node in network.nodes
        if node.id in kept or node.id in outside
    ]
    edges = [edge for edge in network.edges if edge.target in kept]
    taken = {node.id for node in nodes}
    for end in ends:
        if network.by_id[end].kind == "OUTPUT":
            continue
        result, number = "output", 0
        while result in taken:
            number += 1
            result = f"output_{number}"
        taken.add(result)
        nodes.append(Node(result, "OUTPUT", shape=network.by_id[end].shape))
        edges.append(Edge(end, result))
    return Network(tuple(nodes), tuple(edges), network.name, network.source)


def _some(ids: Sequence[str]) -> str:
    return " and ".join(f"{id!r:.80}" for id in ids[:3]) + (" and others" if len(ids) > 3 else "")
