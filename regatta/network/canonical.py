"""Structural hashes of networks, which do not depend on names, and the canonical form that they give.

A node's hash covers its kind, its attributes, how its parameters are shared, and everything that it is connected to.
Names, ids, shapes of tensors and the order of nodes do not count. Operands of ADD, MUL, ... have no order.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Mapping

from blake3 import blake3

from regatta.network.graph import Edge, Network, Node
from regatta.network.kinds import COMMUTATIVE

Hashes = Mapping[str, str]


def structural_hash(network: Network) -> str:
    """Thirty-two hexadecimal digits, equal for networks that compute the same with the same layers."""
    return _hash("network", *sorted(node_hashes(network).values()))


def node_hashes(network: Network) -> dict[str, str]:
    """For each node, the hash of its position in the whole network."""
    colours = own_hashes(network)
    for _ in range(2):  # the second round uses, in each direction, the first round's result of the other
        above = ancestor_hashes(network, colours)
        below = descendant_hashes(network, colours)
        colours = {id: _hash(above[id], below[id]) for id in colours}
    return colours


def own_hashes(network: Network) -> dict[str, str]:
    """For each node, the hash of the node alone."""
    shared = Counter(name for node in network.nodes for name in {p.name for p in node.parameters})
    ports = {node.id: place for place, node in enumerate(network.inputs)}
    return {node.id: _label(node, ports.get(node.id, -1), shared) for node in network.nodes}


def _label(node: Node, port: int, shared: Mapping[str, int]) -> str:
    parameters = sorted((p.role.partition("@")[0], shared[p.name]) for p in node.parameters)  # not how it is stored
    attributes = {name: _number(value) for name, value in node.attributes.items() if node.kind != "INPUT"}
    return _hash(json.dumps([node.kind, attributes, port, parameters], sort_keys=True))


def _number(value: object) -> object:
    """Round to float32, because ONNX stores float32."""
    return f"{value:.6g}" if isinstance(value, float) else value


def ancestor_hashes(network: Network, colours: Hashes) -> dict[str, str]:
    """For each node, the hash of all its ancestors."""
    found: dict[str, str] = {}
    for id in network.order:
        above = [found[source] for source in network.sources[id]]
        ordered = sorted(above) if network.by_id[id].kind in COMMUTATIVE else above
        found[id] = _hash(colours[id], *ordered)
    return found


def descendant_hashes(network: Network, colours: Hashes) -> dict[str, str]:
    """For each node, the hash of all its descendants."""
    ways: dict[str, list[tuple[int, str]]] = {node.id: [] for node in network.nodes}
    for edge in network.edges:
        commutes = network.by_id[edge.target].kind in COMMUTATIVE
        ways[edge.source].append((0 if commutes else edge.position, edge.target))
    found: dict[str, str] = {}
    for id in reversed(network.order):
        found[id] = _hash(colours[id], *sorted(f"{position} {found[target]}" for position, target in ways[id]))
    return found


def canonical(network: Network) -> Network:
    """The same structure without names: nodes in an order that follows from the structure, ids n0, n1, ..."""
    order = _canonical_order(network)
    ids = {id: f"n{place}" for place, id in enumerate(order)}
    nodes = [Node(ids[old.id], old.kind, "", old.attributes, old.shape) for old in (network.by_id[id] for id in order)]
    edges = []
    for id in order:
        sources = [ids[source] for source in network.sources[id]]
        if network.by_id[id].kind in COMMUTATIVE:
            sources.sort(key=lambda new: int(new[1:]))
        edges += [Edge(source, ids[id], position) for position, source in enumerate(sources)]
    return Network(tuple(nodes), tuple(edges), "", network.source)


def _canonical_order(network: Network) -> list[str]:
    """Kahn's order; among the ready nodes, the one with the earliest operands, then the smallest hash, is next."""
    hashes = node_hashes(network)
    ports = {node.id: place for place, node in enumerate(network.inputs)}
    missing = {id: len(sources) for id, sources in network.sources.items()}
    placed: dict[str, int] = {}

    def key(id: str) -> tuple[int, list[int], str, str]:
        return ports.get(id, len(ports)), [placed[s] for s in network.sources[id]], hashes[id], id

    ready = [key(node.id) for node in network.nodes if not missing[node.id]]
    heapq.heapify(ready)
    while ready:
        id = heapq.heappop(ready)[-1]
        placed[id] = len(placed)
        for target in network.targets[id]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(ready, key(target))
    return list(placed)


def _hash(*texts: str) -> str:
    return blake3("\0".join(texts).encode(errors="surrogatepass")).hexdigest(length=16)
