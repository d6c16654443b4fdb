"""The layers of networks, and the differences between two networks.

Two networks of `regatta.network` are aligned by their graphs. Other graphs in the catalog are aligned by the ids of
their nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from regatta.errors import DataError
from regatta.repo.catalog.records import Records

if TYPE_CHECKING:
    from regatta.network import Alignment, Network


@dataclass(frozen=True)
class NetworkLayer:
    """One node of a network. Parameters are (role, name, shape)."""

    id: str
    kind: str
    name: str
    attributes: Mapping[str, Any]
    shape: tuple[int | None, ...] | None
    parameters: tuple[tuple[str, str, tuple[int | None, ...]], ...]
    sources: tuple[str, ...] = field(repr=False)

    def row(self) -> dict[str, Any]:
        names = ", ".join(name for _, name, _ in self.parameters)
        return {"layer": self.name or self.id, "kind": self.kind, **self.attributes, "shape": self.shape,
                "parameters": names}  # fmt: skip


@dataclass(frozen=True)
class LayerDifference:
    """A layer of the left network, of the right one, or a pair; `changes` are (left, right) by attribute.

    `what` is "changed", "rewired", "removed" (only the left has it), "added" (only the right has it) or "same".
    """

    what: str
    kind: str
    left: str | None
    right: str | None
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        changes = ", ".join(f"{name} {a} -> {b}" for name, (a, b) in self.changes.items())
        return {"what": self.what, "kind": self.kind, "left": self.left, "right": self.right, "changes": changes}


@dataclass(frozen=True)
class NetworkDifference:
    """The differences between two networks; the expressions are those of `regatta.network.expression`."""

    layers: Records[LayerDifference]
    left_expression: str | None = None
    right_expression: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)  # names of the left by those of the right

    @property
    def same(self) -> bool:
        return all(layer.what == "same" for layer in self.layers)


def layers_of(network: Mapping[str, Any] | None) -> Records[NetworkLayer]:
    """The nodes of a network, in their order in the file."""
    if network is None:
        return Records()
    sources: dict[str, dict[int, str]] = {node["id"]: {} for node in network["nodes"]}
    for edge in network.get("edges", ()):
        known = edge if isinstance(edge, Mapping) else dict(zip(("source", "target", "position"), edge, strict=False))
        taken = sources[known["target"]]
        taken[int(known.get("position", len(taken)))] = known["source"]
    return Records(_layer(node, sources[node["id"]]) for node in network["nodes"])


def read_network(network: Mapping[str, Any] | None) -> Network | None:
    """The network, if it is one of `regatta.network`."""
    from regatta.network import from_json

    if network is None or network.get("format") != "regatta.network":
        return None
    try:
        return from_json(json.dumps(network))
    except DataError:
        return None


def expression_of(network: Mapping[str, Any] | None) -> str | None:
    """The architecture as a regular expression over the kinds of layers; None for other graphs."""
    from regatta.network import expression

    found = read_network(network)
    return None if found is None else expression(found)


def compare_networks(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> NetworkDifference:
    """The differences, in the order of the left network."""
    if left == right:
        layers, found = layers_of(left), expression_of(left)
        same = [LayerDifference("same", layer.kind, layer.id, layer.id) for layer in layers]
        names = {name: name for layer in layers for _, name, _ in layer.parameters}
        return NetworkDifference(Records(same), found, found, names)
    mine, other = read_network(left), read_network(right)
    if mine is None or other is None:
        return NetworkDifference(Records(_by_id(layers_of(left), layers_of(right))))
    from regatta.network import align, expression

    aligned = align(mine, other)
    return NetworkDifference(
        Records(_aligned(mine, other, aligned)), expression(mine), expression(other), _pairs(mine, other, aligned)
    )


def _layer(node: Mapping[str, Any], sources: Mapping[int, str]) -> NetworkLayer:
    shape = node.get("shape")
    found = tuple((p["role"], p["name"], tuple(p["shape"])) for p in _parameters(node))
    return NetworkLayer(
        node["id"], node["kind"], node.get("name", ""), node.get("attributes", {}),
        tuple(shape) if isinstance(shape, list | tuple) else None, found, tuple(sources[at] for at in sorted(sources)),
    )  # fmt: skip


def _parameters(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The parameters of a node in our format; other graphs may use a field of that name for something else."""
    known = node.get("parameters", ())
    listed = known if isinstance(known, list) else []
    return [
        p
        for p in listed
        if isinstance(p, Mapping)
        and isinstance(p.get("role"), str)
        and isinstance(p.get("name"), str)
        and isinstance(p.get("shape"), list | tuple)
    ]


def _by_id(left: Records[NetworkLayer], right: Records[NetworkLayer]) -> Iterator[LayerDifference]:
    others = {layer.id: layer for layer in right}
    for layer in left:
        other = others.pop(layer.id, None)
        if other is None:
            yield LayerDifference("removed", layer.kind, layer.id, None)
            continue
        names = dict.fromkeys((*layer.attributes, *other.attributes))
        pairs = {name: (layer.attributes.get(name), other.attributes.get(name)) for name in names}
        changes = {"kind": (layer.kind, other.kind), **pairs}
        changes = {name: (a, b) for name, (a, b) in changes.items() if a != b}
        what = "changed" if changes else "rewired" if layer.sources != other.sources else "same"
        yield LayerDifference(what, layer.kind, layer.id, other.id, changes)
    yield from (LayerDifference("added", layer.kind, None, layer.id) for layer in others.values())


def _aligned(left: Network, right: Network, aligned: Alignment) -> Iterator[LayerDifference]:
    """Pairs in the order of the left network; layers of the right only follow their predecessor."""
    partner = {pair.right: pair.left for pair in aligned.pairs}
    added: dict[str | None, list[str]] = {}
    last: str | None = None
    for id in right.order:
        last = partner.get(id, last)
        if id not in partner:
            added.setdefault(last, []).append(id)
    pairs, rewired = {pair.left: pair for pair in aligned.pairs}, set(aligned.rewired)
    yield from (LayerDifference("added", right.by_id[id].kind, None, id) for id in added.get(None, ()))
    for id in left.order:
        kind, pair = left.by_id[id].kind, pairs.get(id)
        if pair is None:
            yield LayerDifference("removed", kind, id, None)
        else:
            what = "changed" if pair.changes else "rewired" if id in rewired else "same"
            yield LayerDifference(what, kind, id, pair.right, dict(pair.changes))
        yield from (LayerDifference("added", right.by_id[new].kind, None, new) for new in added.get(id, ()))


def _pairs(left: Network, right: Network, aligned: Alignment) -> dict[str, str]:
    """Names of the left network's parameters by those of the right one's, where layers and roles correspond."""
    found = {}
    for pair in aligned.pairs:
        mine = {parameter.role: parameter.name for parameter in left.by_id[pair.left].parameters}
        for parameter in right.by_id[pair.right].parameters:
            if parameter.role in mine:
                found[parameter.name] = mine[parameter.role]
    return found
