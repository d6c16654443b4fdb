"""The graph: its JSON, the documents that it refuses, its names and hashes, and slices of it."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.errors import DataError, NotFoundError
from regatta.network import KINDS, Edge, Network, Node, Parameter, canonical, from_json, structural_hash, to_json
from regatta.network.kinds import MAX_DIMS

VALUES = {
    "int": st.integers(-5, 5), "number": st.floats(-10, 10, width=32), "bool": st.booleans(),
    "text": st.text(max_size=5), "ints": st.lists(st.integers(0, 9), min_size=1, max_size=4),
    "any": st.recursive(st.none() | st.integers(-9, 9), lambda x: st.lists(x, max_size=3), max_leaves=5),
}  # fmt: skip
DIMS = st.integers(1, MAX_DIMS)


@st.composite
def nodes(draw: st.DrawFn, id: str) -> Node:
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    types = {"anything": "any"} if kind.name == "OTHER" else kind.types
    wanted = draw(st.sets(st.sampled_from(sorted(types)), max_size=3)) if types else set()
    attributes = {name: draw(DIMS if name == "dims" else VALUES[types[name]]) for name in sorted(wanted)}
    shape = draw(st.none() | st.lists(st.none() | st.integers(0, 2**40), max_size=4).map(tuple))
    parameters = [
        Parameter(role, f"{id}.{role}", (draw(st.integers(0, 99)),))
        for role in draw(st.lists(st.sampled_from(("weight", "bias")), unique=True))
    ]
    return Node(id, kind.name, draw(st.text(max_size=8)), attributes, shape, tuple(parameters))


@st.composite
def networks(draw: st.DrawFn) -> Network:
    count = draw(st.integers(1, 8))
    made = [draw(nodes(f"id{place}")) for place in range(count)]
    edges = []
    for place in range(1, count):
        sources = draw(st.lists(st.integers(0, place - 1), max_size=3))
        edges += [Edge(f"id{source}", f"id{place}", position) for position, source in enumerate(sources)]
    return Network(tuple(made), tuple(edges), draw(st.text(max_size=5)), "torch")


def shuffled(network: Network, seed: int) -> Network:
    """The same network with other ids and names, written in another order; its inputs stay in theirs."""
    chance = random.Random(seed)
    new = {node.id: f"x{number}" for number, node in enumerate(chance.sample(network.nodes, len(network.nodes)))}
    parameters = {name: f"p{number}" for number, name in enumerate(network.parameters)}
    made = [
        Node(
            new[node.id], node.kind, "other", node.attributes, None,
            tuple(Parameter(p.role, parameters[p.name], ()) for p in node.parameters),
        )
        for node in network.nodes
    ]  # fmt: skip
    inputs = iter([node for node in made if node.kind == "INPUT"])
    mixed = chance.sample(made, len(made))
    placed = [next(inputs) if node.kind == "INPUT" else node for node in mixed]
    edges = [Edge(new[edge.source], new[edge.target], edge.position) for edge in network.edges]
    return Network(tuple(placed), tuple(chance.sample(edges, len(edges))))


@settings(max_examples=60, deadline=None)
@given(networks())
def test_a_network_survives_a_round_trip_through_json(network: Network) -> None:
    text = to_json(network)
    assert from_json(text) == network
    assert to_json(from_json(text.encode())) == text
    assert pickle.loads(pickle.dumps(network)) == network


@settings(max_examples=60, deadline=None)
@given(networks(), st.integers(0, 10**6))
def test_the_hash_depends_only_on_the_structure(network: Network, seed: int) -> None:
    other = shuffled(network, seed)
    assert structural_hash(other) == structural_hash(network)
    assert len(canonical(network)) == len(network)
    assert [node.kind for node in canonical(other).nodes] == [node.kind for node in canonical(network).nodes]


@settings(max_examples=60, deadline=None)
@given(networks(), st.data())
def test_the_order_is_topological_and_the_hash_sees_every_edge(network: Network, data: st.DataObject) -> None:
    place = {id: number for number, id in enumerate(network.order)}
    assert len(place) == len(network)
    assert all(place[edge.source] < place[edge.target] for edge in network.edges)
    targets = {edge.target for edge in network.edges}
    if targets:
        lost = data.draw(st.sampled_from(sorted(targets)))
        edges = tuple(edge for edge in network.edges if edge.target != lost)
        assert structural_hash(Network(network.nodes, edges)) != structural_hash(network)


def chain(*kinds: str, **attributes: Any) -> Network:
    made = [Node(f"n{place}", kind) for place, kind in enumerate(kinds)]
    return Network(tuple(made), tuple(Edge(f"n{i}", f"n{i + 1}") for i in range(len(kinds) - 1)))


def test_the_hash_distinguishes_structures() -> None:
    full, wide = (
        Network((Node("a", "INPUT"), Node("b", "FULL", "", {"out": out})), (Edge("a", "b"),)) for out in (3, 4)
    )
    assert structural_hash(full) != structural_hash(wide)
    assert structural_hash(chain("INPUT", "RELU", "TANH")) != structural_hash(chain("INPUT", "TANH", "RELU"))
    a, b, x = Node("a", "INPUT"), Node("b", "INPUT"), Node("x", "ADD")
    difference = Node("x", "SUB")
    crossed, straight = (Edge("a", "x", 1), Edge("b", "x", 0)), (Edge("a", "x", 0), Edge("b", "x", 1))
    assert structural_hash(Network((a, b, x), crossed)) == structural_hash(Network((a, b, x), straight))
    assert structural_hash(Network((a, b, difference), crossed)) != structural_hash(
        Network((a, b, difference), straight)
    )


def test_shared_weights_are_part_of_the_structure() -> None:
    def two(names: tuple[str, str]) -> Network:
        layers = [
            Node(n, "FULL", "", {}, None, (Parameter("weight", w, (2, 2)),)) for n, w in zip("ab", names, strict=True)
        ]
        return Network(tuple(layers), (Edge("a", "b"),))

    assert structural_hash(two(("w", "w"))) != structural_hash(two(("v", "w")))
    assert structural_hash(two(("v", "w"))) == structural_hash(two(("p", "q")))


def test_defaults_are_not_written() -> None:
    said = Node("a", "CONV", "", {"dims": 2, "stride": [1, 1], "padding": (0, 0), "groups": 1, "kernel": [3, 3]})
    assert dict(said.attributes) == {"dims": 2, "kernel": (3, 3)}
    assert said.get("stride") == (1, 1)
    assert said.get("bias") is True


def document(**changes: Any) -> str:
    good = {
        "format": "regatta.network", "version": 1, "nodes": [{"id": "a", "kind": "INPUT"}, {"id": "b", "kind": "RELU"}],
        "edges": [["a", "b", 0]],
    }  # fmt: skip
    return json.dumps({**good, **changes})


def test_the_valid_document_is_accepted() -> None:
    assert len(from_json(document())) == 2


def node(**changes: Any) -> str:
    return document(nodes=[{"id": "a", "kind": "FULL", **changes}], edges=[])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not the JSON"),
        ("[]", "object is expected"),
        (b"\xff\xfe", "not the JSON"),
        ("[" * 200_000, "nested too deeply|not the JSON"),
        (document(format="onnx"), "format"),
        (document(version=2), "version"),
        (document(version=True), "version"),
        (document(more=1), "'more' is not expected"),
        (document(nodes={}), "list is expected"),
        (document(nodes=[{"id": "a"}], edges=[]), "kind is missing"),
        (document(nodes=[{"id": "a", "kind": "RELU"}] * 2, edges=[]), "Two nodes"),
        (document(nodes=[{"id": "", "kind": "RELU"}], edges=[]), "id"),
        (document(nodes=[{"id": 7, "kind": "RELU"}], edges=[]), "id"),
        (document(nodes=[{"id": "a", "kind": "RELUU"}], edges=[]), "Did you mean RELU"),
        (document(nodes=[{"id": "a" * 5000, "kind": "RELU"}], edges=[]), "1024"),
        (node(attributes={"outs": 3}), "no attribute 'outs'"),
        (node(attributes={"out": "3"}), "not an integer"),
        (node(attributes={"out": True}), "not an integer"),
        (node(attributes={"out": 2**70}), "finite JSON"),
        (node(attributes=[1]), "attributes"),
        (node(attributes={"out": {"a": 1}}), "finite JSON"),
        (node(shape=[-1]), "dimension -1"),
        (node(shape=[1.5]), "dimension 1.5"),
        (node(shape=[1] * 33), "33 dimensions"),
        (node(parameters=[{"role": "weight", "name": "w"}]), "shape is missing"),
        (document(edges=[["a", "c", 0]]), "leads to no node: 'c'"),
        (document(edges=[["a", "b"]]), "An edge is"),
        (document(edges=[["a", "b", True]]), "An edge is"),
        (document(edges=[["a", "b", 1]]), "not at 0, 1"),
        (document(edges=[["a", "b", 0], ["a", "b", 0]]), "two operands"),
        (document(edges=[["a", "b", 0], ["b", "a", 0]]), "cycle"),
        (document(edges=[["a", "a", 0]]), "cycle"),
        ('{"format": "regatta.network", "format": 1}', "twice"),
        (document().replace('"version": 1', '"version": NaN'), "NaN"),
        (document().replace('"version": 1', '"version": ' + "9" * 5000), "not the JSON"),
        (node(attributes={"out": 1}).replace("1}", "1e999}"), "finite JSON"),
    ],
)
def test_hostile_documents_are_refused(text: str | bytes, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        from_json(text)


def test_long_and_deeply_nested_lists_are_refused() -> None:
    deep: Any = 1
    for _ in range(6):
        deep = [deep]
    for value in (deep, list(range(5000)), [[0] * 2000] * 3, "x" * 5000):
        with pytest.raises(DataError, match="anything"):
            Node("a", "OTHER", "", {"anything": value})
    with pytest.raises(DataError, match="attributes"):
        Node("a", "OTHER", "", {str(i): i for i in range(100)})


def test_a_deep_network_needs_no_recursion() -> None:
    network = chain("INPUT", *["RELU"] * 20_000)
    assert network.order[-1] == "n20000"
    backwards = Network(network.nodes[::-1], network.edges)
    assert backwards.order == network.order
    assert structural_hash(network) == structural_hash(backwards)


def test_a_slice_has_all_paths_and_makes_the_rest_inputs() -> None:
    made = [
        Node("in", "INPUT"),
        *(Node(id, "RELU") for id in "abcd"),
        Node("w", "WEIGHT"),
        Node("e", "ADD"),
        Node("z", "OUTPUT"),
    ]
    pairs = [
        ("in", "a"),
        ("a", "b"),
        ("a", "c"),
        ("in", "d"),
        ("b", "e"),
        ("c", "e"),
        ("d", "e"),
        ("w", "e"),
        ("e", "z"),
    ]
    position: dict[str, int] = {}
    edges = []
    for source, target in pairs:
        position[target] = position.get(target, -1) + 1
        edges.append(Edge(source, target, position[target]))
    cut = Network(tuple(made), tuple(edges)).slice("a", "e")
    assert {n.id: n.kind for n in cut.nodes} == {
        "in": "INPUT", "a": "RELU", "b": "RELU", "c": "RELU", "d": "INPUT", "w": "WEIGHT", "e": "ADD",
        "output": "OUTPUT",
    }  # fmt: skip
    assert cut.sources["e"] == ("b", "c", "d", "w")
    with pytest.raises(NotFoundError, match="no path"):
        Network(tuple(made), tuple(edges)).slice("b", "c")


def test_nodes_are_found_by_id_or_by_name() -> None:
    network = Network((Node("a", "RELU", "first"), Node("b", "RELU", "twin"), Node("c", "RELU", "twin")))
    assert network.find("first").id == "a"
    with pytest.raises(NotFoundError, match="Did you mean first"):
        network.find("firts")
    with pytest.raises(NotFoundError, match="Say which: b, c"):
        network.find("twin")
