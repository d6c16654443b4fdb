"""Networks as JSON, written and read. The input may be malicious, so everything is checked.

{"format": "regatta.network", "version": 1, "name": "", "source": "torch",
 "nodes": [{"id", "kind", "name", "attributes", "shape", "parameters": [{"role", "name", "shape"}]}],
 "edges": [[source, target, position]]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from regatta.errors import DataError
from regatta.network.graph import MAX_EDGES, MAX_NODES, Edge, Network, Node, Parameter, Shape

FORMAT = "regatta.network"
VERSION = 1
MAX_BYTES = 128 * 2**20


def to_json(network: Network) -> str:
    """The text of a network, in one line; equal networks have equal texts."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "name": network.name,
        "source": network.source,
        "nodes": [_to_dict(node) for node in network.nodes],
        "edges": [[edge.source, edge.target, edge.position] for edge in network.edges],
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def from_json(text: str | bytes) -> Network:
    """The network in a text, or a DataError that says what is wrong with it."""
    if len(text) > MAX_BYTES:
        raise DataError(f"The JSON of a network has {len(text)} bytes; {MAX_BYTES} are allowed.")
    document = _object(_parse(text), "the document", {"format", "version", "nodes", "edges"}, {"name", "source"})
    if document["format"] != FORMAT:
        raise DataError(f"The format is {document['format']!r:.80}, not {FORMAT!r}.")
    if document["version"] != VERSION or isinstance(document["version"], bool):
        raise DataError(
            f"This is version {document['version']!r:.80} of the format; version {VERSION} can be read.",
            hint="A newer Regatta may have written it.",
        )
    nodes = [_node(node, index) for index, node in enumerate(_list(document["nodes"], "nodes", MAX_NODES))]
    edges = [_edge(edge, index) for index, edge in enumerate(_list(document["edges"], "edges", MAX_EDGES))]
    return Network(tuple(nodes), tuple(edges), document.get("name", ""), document.get("source", ""))


def _to_dict(node: Node) -> dict[str, Any]:
    written: dict[str, Any] = {"id": node.id, "kind": node.kind}
    if node.name:
        written["name"] = node.name
    if node.attributes:
        written["attributes"] = dict(node.attributes)
    if node.shape is not None:
        written["shape"] = list(node.shape)
    if node.parameters:
        written["parameters"] = [{"role": p.role, "name": p.name, "shape": list(p.shape)} for p in node.parameters]
    return written


def _parse(text: str | bytes) -> object:
    try:
        return json.loads(text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)
    except RecursionError:
        raise DataError("The JSON of a network is nested too deeply.") from None
    except ValueError as error:  # wrong JSON, wrong UTF-8, a number of thousands of digits
        raise DataError(f"This is not the JSON of a network: {error}.") from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _object(value: object, place: str, needed: set[str], allowed: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"An object is expected, not {value!r:.80}.", place=place)
    missing, unknown = needed - value.keys(), value.keys() - needed - allowed
    if missing:
        raise DataError(f"{', '.join(sorted(missing))} {'is' if len(missing) == 1 else 'are'} missing.", place=place)
    if unknown:
        raise DataError(f"{sorted(unknown)[0]!r:.80} is not expected here.", place=place)
    return value


def _list(value: object, place: str, limit: int) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"A list is expected, not {value!r:.80}.", place=place)
    if len(value) > limit:
        raise DataError(f"{len(value)} items are too many; {limit} are allowed.", place=place)
    return value


def _node(value: object, index: int) -> Node:
    place = f"node {index}"
    node = _object(value, place, {"id", "kind"}, {"name", "attributes", "shape", "parameters"})
    if not isinstance(node["kind"], str):
        raise DataError(f"The kind is a text, not {node['kind']!r:.80}.", place=place)
    attributes = node.get("attributes", {})
    if not isinstance(attributes, dict):
        raise DataError(f"The attributes are an object, not {attributes!r:.80}.", place=place)
    parameters = [_parameter(p, place) for p in _list(node.get("parameters", []), place, MAX_NODES)]
    shape = None if node.get("shape") is None else _shape(node["shape"], place)
    return Node(node["id"], node["kind"], node.get("name", ""), attributes, shape, tuple(parameters))


def _parameter(value: object, place: str) -> Parameter:
    parameter = _object(value, f"a parameter of {place}", {"role", "name", "shape"}, set())
    return Parameter(parameter["role"], parameter["name"], _shape(parameter["shape"], place))


def _shape(value: object, place: str) -> Shape:
    return tuple(_list(value, f"the shape of {place}", 1_000))


def _edge(value: object, index: int) -> Edge:
    match value:
        case [str(source), str(target), int(position)] if not isinstance(position, bool):
            return Edge(source, target, position)
    raise DataError(f"An edge is [source, target, position], not {value!r:.80}.", place=f"edge {index}")
