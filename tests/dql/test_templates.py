"""Templates: tests of layers, layers to be made, and their errors."""

from __future__ import annotations

from typing import Any

import pytest

from regatta.dql import tree
from regatta.dql.parse import QueryError, parse_condition
from regatta.dql.templates import NodeTest, as_template, bind_layer, bind_test, with_captures
from regatta.network import Node
from regatta.network.mutate import LayerTemplate

CONV = Node("c1", "CONV", "c1", {"dims": 2, "in": 3, "out": 64, "kernel": (3, 3), "stride": (2, 1)})
MAX = Node("p1", "POOL", "p1", {"dims": 2, "function": "max", "kernel": (2, 2), "stride": (2, 2)})
RELU = Node("r", "RELU", "r")
OTHER = Node("o", "OTHER", "o", {"type": "Erf", "k": 3})


def test_of(text: str) -> NodeTest:
    found = parse_condition(f"m['x'] has {text}")
    assert isinstance(found, tree.HasTree)
    return bind_test(found.templates[0], text)


test_of.__test__ = False  # type: ignore[attr-defined]


def matches(text: str, node: Node) -> bool:
    return test_of(text).matches(node, (node.id, node.name, node.kind))


@pytest.mark.parametrize(
    ("text", "node", "wanted"),
    [
        ('POOL("MAX")', MAX, True), ('POOL("avg")', MAX, False), ("POOL", MAX, True), ("pool", MAX, True),
        ('POOL("max", "p*")', MAX, True), ('POOL("max", "q*")', MAX, False), ('RELU("r")', RELU, True),
        ("CONV(kernel = 3)", CONV, True), ("CONV(kernel = 5)", CONV, False), ("CONV(kernel = [3, 3])", CONV, True),
        ("CONV(kernel <> [3, 3])", CONV, False), ("CONV(stride = 2)", CONV, False), ("CONV(stride <> 2)", CONV, True),
        ("CONV(stride >= 1)", CONV, True), ("CONV(stride > 1)", CONV, False), ("CONV(out > 63, in = 3)", CONV, True),
        ("CONV(out in [32, 64])", CONV, True), ("CONV(out in [32, 63])", CONV, False), ("CONV(groups = 1)", CONV, True),
        ("CONV(dilation = 1)", CONV, True), ("CONV(bias = true)", CONV, True), ("CONV(bias <> true)", CONV, False),
        ("CONV(padding_mode = 'ZEROS')", CONV, True), ("CONV(kernel in [1, 3])", CONV, True), ("FULL", CONV, False),
        ("POOL(output = 1)", MAX, False), ("POOL(output <> 1)", MAX, False), ("ANY(kernel >= 2)", MAX, True),
        ("ANY(kernel >= 2)", RELU, False), ("ANY", RELU, True), ("OTHER(k = 3)", OTHER, True),
        ("OTHER(k = 'x')", OTHER, False), ("OTHER(type = 'erf')", OTHER, True), ("CONV(in = -3)", CONV, False),
    ],
)  # fmt: skip
def test_which_layers_match(text: str, node: Node, wanted: bool) -> None:
    assert matches(text, node) is wanted


@pytest.mark.parametrize(
    ("text", "message", "candidates"),
    [
        ("POOLL", "'POOLL' is not a kind of layer", ("POOL",)),
        ("CONV(kernal = 3)", "CONV has no hyperparameter 'kernal'", ("kernel",)),
        ("ANY(kernal = 3)", "No layer has a hyperparameter 'kernal'", ("kernel",)),
        ("CONV(out = 'x')", "CONV's out is a number, not the text 'x'", ()),
        ("CONV(kernel = true)", "CONV's kernel is numbers, not true", ()),
        ("CONV(bias > true)", "True has no order", ()),
        ("CONV(kernel < [3, 3])", "A list has no order", ()),
        ("CONV(3)", "CONV takes a name in quotes", ()),
        ("POOL('a', 'b', 'c')", "POOL takes a function and a name", ()),
        ("CONV(out in [])", "The list is empty", ()),
        ("CONV(out = null)", "is expected", ()),
        ("CONV(out + 1)", "compares hyperparameters with values", ()),
        ("RELU('a[')", "A bracket of the selector is not closed", ()),
    ],
)
def test_wrong_templates(text: str, message: str, candidates: tuple[str, ...]) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        test_of(text)
    assert caught.value.candidates[: len(candidates)] == candidates


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("RELU", LayerTemplate("RELU", {}, "")),
        ("RELU('relu$1')", LayerTemplate("RELU", {}, "relu$1")),
        ("POOL('MAX', 'p', kernel = 2)", LayerTemplate("POOL", {"function": "max", "kernel": 2}, "p")),
        ("CONV(out = 8, kernel = [3, 5], padding = 'same')",
            LayerTemplate("CONV", {"out": 8, "kernel": (3, 5), "padding": "same"}, "")),
    ],
)  # fmt: skip
def test_layers_to_be_made(text: str, wanted: Any) -> None:
    assert bind_layer(as_template(parse_condition(text), text), text) == wanted


def test_captures_in_the_name_of_a_layer() -> None:
    assert with_captures(LayerTemplate("RELU", {}, "relu$1"), {1: "4"}).name == "relu4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INPUT", "cannot make INPUT layers"),
        ("CONV(out > 3)", "takes values"),
        ("3", "A template of a layer is expected"),
        ("RELU.x", "A template of a layer is expected"),
        ("ANY", "'ANY' is not a kind of layer"),
    ],
)
def test_layers_that_cannot_be_made(text: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        bind_layer(as_template(parse_condition(text), text), text)
