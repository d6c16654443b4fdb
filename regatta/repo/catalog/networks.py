"""Networks in the catalog: canonical JSON by its hash, and the tables of nodes and edges derived from it.

    {"nodes": [{"id": "conv1", "kind": "CONV", "name": "...", "attributes": {...}, ...}, ...],
     "edges": [{"source": "input", "target": "conv1", "position": 0}, ...]}

An edge may also be a list [source, target] or [source, target, position]. Other fields are stored unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from regatta.errors import UsageError

MAX_BYTES = 2**26
_OWN = ("id", "kind", "name", "attributes")


@dataclass(frozen=True)
class NetworkRows:
    """A network as rows of the catalog."""

    hash: str
    json: str
    nodes: tuple[tuple[str, int, str, str, str], ...]  # node, position, kind, name, attributes
    edges: tuple[tuple[str, int, str], ...]  # target, operand, source
    other_names: tuple[tuple[str, str], ...]  # node, name


def network_rows(network: Any) -> NetworkRows:
    """Rows from a network, a mapping, its JSON text, or an object with a method `to_json`."""
    from regatta.network.aliases import other_names

    content = _as_mapping(network)
    text = canonical_json(content, "network")
    if len(text.encode()) > MAX_BYTES:
        raise UsageError(f"The network takes {len(text.encode())} bytes of JSON; {MAX_BYTES} is the limit.")
    try:
        nodes = tuple(_node(node, position) for position, node in enumerate(content["nodes"]))
        edges = _edges(content.get("edges", ()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"The network is not a graph: {error!r:.200}.",
            hint='It is {"nodes": [{"id": ..., "kind": ...}, ...], "edges": [[source, target], ...]}.',
        ) from error
    _check(nodes, edges)
    names = tuple(other_names((id, kind, name) for id, _, kind, name, _ in nodes))
    digest = blake3(b"regatta network 1\n" + text.encode()).hexdigest(length=16)
    return NetworkRows(digest, text, nodes, edges, names)


def canonical_json(value: Any, what: str) -> str:
    """The same text for equal values: sorted keys, no spaces. Values that JSON lacks, such as NaN, are refused."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"The {what} cannot be written as JSON: {error}.") from error
    return text


def _as_mapping(network: Any) -> Mapping[str, Any]:
    from regatta.network import Network, to_json

    made = to_json(network) if isinstance(network, Network) else network
    made = made.to_json() if hasattr(made, "to_json") else made
    if isinstance(made, str | bytes):
        try:
            made = json.loads(made)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"The network is not JSON: {error}.") from error
    if not isinstance(made, Mapping):
        raise UsageError(f"A network is a mapping with its nodes and edges, not {type(network).__name__}.")
    return made


def _node(node: Mapping[str, Any], position: int) -> tuple[str, int, str, str, str]:
    more = {key: value for key, value in node.items() if key not in _OWN}
    attributes = {**more, **node.get("attributes", {})}
    return (
        _text(node["id"]),
        position,
        _text(node["kind"]),
        _text(node.get("name", "")),
        canonical_json(attributes, "node"),
    )


def _edges(edges: Any) -> tuple[tuple[str, int, str], ...]:
    found: list[tuple[str, int, str]] = []
    operands: dict[str, int] = {}
    for edge in edges:
        known = edge if isinstance(edge, Mapping) else dict(zip(("source", "target", "position"), edge, strict=False))
        source, target = _text(known["source"]), _text(known["target"])
        operand = int(known.get("position", operands.get(target, 0)))
        operands[target] = max(operand + 1, operands.get(target, 0))
        found.append((target, operand, source))
    return tuple(found)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a text")
    return value


def _check(nodes: tuple[tuple[str, int, str, str, str], ...], edges: tuple[tuple[str, int, str], ...]) -> None:
    known = {node[0] for node in nodes}
    if len(known) < len(nodes):
        raise UsageError("Two nodes of the network have the same id.")
    for target, operand, source in edges:
        for end in (source, target):
            if end not in known:
                raise UsageError(f"The edge {source!r:.80} -> {target!r:.80} has an unknown node: {end!r:.80}.")
        if operand < 0:
            raise UsageError(f"The edge {source!r:.80} -> {target!r:.80} is operand {operand}.")
    if len({edge[:2] for edge in edges}) < len(edges):
        raise UsageError("Two edges of the network are the same operand of the same node.")
