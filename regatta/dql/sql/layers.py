"""Layers: selectors, steps and tests as conditions on the tables `node`, `edge` and `layer_name`.

A short path of single steps is a join. Its tables are read in a fixed order (CROSS JOIN): from the end that is tested
if its kind is known, since few layers are of one kind, and otherwise from the selector. Other paths are walked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from regatta.dql import bound
from regatta.dql.selectors import SelectorPattern
from regatta.dql.sql.expressions import SqlWriter
from regatta.dql.sql.statement import junction
from regatta.dql.templates import NodeTest

MAX_JOINED = 3  # steps of a path that is a join
MAX_GLOBS = 8  # that are written out; more are one test in Python
_AMBIGUOUS = "shape"  # the table has the shape of the output where a kind has no shape of its own


def some_layers(writer: SqlWriter, nodes: bound.LayerPath) -> str:
    """Whether a path leads to any layer."""
    return f"EXISTS (SELECT 1 {_path(writer, nodes, (), False)})"


def count_layers(writer: SqlWriter, nodes: bound.LayerPath) -> str:
    last: list[str] = []
    path = _path(writer, nodes, (), False, ends=last)
    return f"(SELECT COUNT(DISTINCT {last[-1]}.node) {path})"


def has_layers(writer: SqlWriter, has: bound.Has) -> str:
    """Some layer of the path passes a test; or from every selected layer a path leads to one that does."""
    if not has.every:
        return f"EXISTS (SELECT 1 {_path(writer, has.nodes, has.tests, True)})"
    start = writer.parts.row("n")
    selected = _selected(writer, has.nodes, start)
    fails = f"EXISTS (SELECT 1 FROM {selected} AND NOT {_holds_from(writer, start, has)})"
    other = writer.parts.row("n")
    return f"(EXISTS (SELECT 1 FROM {_selected(writer, has.nodes, other)}) AND NOT {fails})"


def count_has(writer: SqlWriter, has: bound.Has) -> str:
    """For how many selected layers it holds."""
    start = writer.parts.row("n")
    return f"(SELECT COUNT(*) FROM {_selected(writer, has.nodes, start)} AND {_holds_from(writer, start, has)})"


def _selected(writer: SqlWriter, nodes: bound.LayerPath, row: str) -> str:
    """FROM and WHERE of the layers that the selector names."""
    network = writer.column_of_version(nodes.model, "{row}.network")
    return f"node {row} WHERE {row}.network = {network} AND {_is_named(writer, nodes.selector, row)}"


def _holds_from(writer: SqlWriter, start: str, has: bound.Has) -> str:
    """Whether a path from this layer leads to one that passes a test."""
    steps = has.nodes.steps
    if not steps:
        return _passes(writer, has.tests, start)
    if not _is_simple(steps):
        end = writer.parts.row("n")
        walk = _walk(writer, steps, f"{start}.network", f"{start}.node", "")
        here = f"{end}.network = {start}.network AND {end}.node IN ({walk})"
        return f"EXISTS (SELECT 1 FROM node {end} WHERE {here} AND {_passes(writer, has.tests, end)})"
    joins, conditions, end = _joins(writer, steps, start)
    conditions.append(_passes(writer, has.tests, end))
    return f"EXISTS (SELECT 1 FROM {' CROSS JOIN '.join(joins)} WHERE {' AND '.join(conditions)})"


def _path(
    writer: SqlWriter, nodes: bound.LayerPath, tests: Sequence[NodeTest], tested: bool, ends: list[str] | None = None
) -> str:
    """FROM and WHERE of the layers from the selector to the end of the path."""
    start = writer.parts.row("n")
    network = writer.column_of_version(nodes.model, "{row}.network")
    named = f"{start}.network = {network} AND {_is_named(writer, nodes.selector, start)}"
    if not _is_simple(nodes.steps):
        end = writer.parts.row("n")
        walk = _walk(writer, nodes.steps, network, f"{start}.node", f"FROM node {start} WHERE {named}")
        tables, conditions = [f"node {end}"], [f"{end}.network = {network}", f"{end}.node IN ({walk})"]
        conditions += [_passes(writer, tests, end)] if tested else []
    else:
        joins, steps, end = _joins(writer, nodes.steps, start)
        passed = [_passes(writer, tests, end)] if tested else []
        tables, conditions = [f"node {start}", *joins], [named, *steps, *passed]
        if nodes.steps and tests and all(test.kind is not None for test in tests):  # from the end
            tables.reverse()
            conditions = [f"{end}.network = {network}", *passed, *steps, named]
    if ends is not None:
        ends.append(end)
    return f"FROM {' CROSS JOIN '.join(tables)} WHERE {' AND '.join(conditions)}"


def _is_simple(steps: Sequence[bound.PathStep]) -> bool:
    """Whether a path is a join: it has few single steps. A join visits every path, and a long one may have many."""
    return len(steps) <= MAX_JOINED and all(step.least == step.most == 1 for step in steps)


def _joins(writer: SqlWriter, steps: Sequence[bound.PathStep], start: str) -> tuple[list[str], list[str], str]:
    """The tables and conditions of a path of single steps from a layer, and the row of its last layer."""
    tables: list[str] = []
    conditions: list[str] = []
    here = start
    for step in steps:
        edge, after = writer.parts.row("e"), writer.parts.row("n")
        mine, theirs = _ends(step)
        tables += [f"edge {edge}", f"node {after}"]
        conditions += [
            f"{edge}.network = {here}.network AND {edge}.{mine} = {here}.node",
            f"{after}.network = {edge}.network AND {after}.node = {edge}.{theirs}",
        ]
        if step.test is not None:
            conditions.append(_passes(writer, (step.test,), after))
        here = after
    return tables, conditions, here


def _walk(writer: SqlWriter, steps: Sequence[bound.PathStep], network: str, start: str, source: str) -> str:
    """The ids of the layers at the end of a path, as a select.

    Its rows are (how many steps of the path are done, how many edges of the next one, a layer). Each is visited once,
    so that the work is bounded by the size of the network, however many paths it has.
    """
    walk = writer.parts.row("walk")
    terms = [f"SELECT 0, 0, {start} {source}".rstrip()]
    for number, step in enumerate(steps):
        mine, theirs = _ends(step)
        more = f" AND {walk}.depth < {int(step.most)}" if step.most is not None else ""
        depth = f"{walk}.depth + 1" if step.most is not None else f"MIN({walk}.depth + 1, {int(step.least)})"
        terms.append(
            f"SELECT {number}, {depth}, edge.{theirs} FROM {walk} CROSS JOIN edge "
            f"ON edge.network = {network} AND edge.{mine} = {walk}.node WHERE {walk}.done = {number}{more}"
        )
        arrived = f"{walk}.done = {number} AND {walk}.depth >= {int(step.least)}"
        if step.test is None:
            terms.append(f"SELECT {number + 1}, 0, {walk}.node FROM {walk} WHERE {arrived}")
        else:
            row = writer.parts.row("n")
            terms.append(
                f"SELECT {number + 1}, 0, {row}.node FROM {walk} CROSS JOIN node {row} ON {row}.network = {network} "
                f"AND {row}.node = {walk}.node WHERE {arrived} AND {_passes(writer, (step.test,), row)}"
            )
    listed = " UNION ".join(terms)
    return f"WITH RECURSIVE {walk} (done, depth, node) AS ({listed}) SELECT node FROM {walk} WHERE done = {len(steps)}"


def _ends(step: bound.PathStep) -> tuple[str, str]:
    """The columns of an edge where a step begins and ends."""
    return ("source", "target") if step.forward else ("target", "source")


# One layer


def _is_named(writer: SqlWriter, pattern: SelectorPattern, row: str) -> str:
    """Whether a selector names a layer: by its id, name, kind or another name."""
    others = f"EXISTS (SELECT 1 FROM layer_name o WHERE o.network = {row}.network AND o.node = {row}.node AND {{}})"
    columns = [f"{row}.node", f"{row}.name", f"{row}.kind"]
    if all(part.wildcard is None for part in pattern.parts):
        texts = ", ".join(writer.parts.bind(text) for text in pattern.texts())
        tests = [f"{column} IN ({texts})" for column in columns]
        return junction("OR", [*tests, others.format(f"o.name IN ({texts})")])
    globs = pattern.globs()
    if len(globs) > MAX_GLOBS:
        match = _cached(lambda name: bool(name) and pattern.match((name,)) is not None)
        name = writer.parts.row("dql_selects")
        tests = [writer.parts.call(match, column, name=name) for column in columns]
        return junction("OR", [*tests, others.format(writer.parts.call(match, "o.name", name=name))])
    values = [writer.parts.bind(glob) for glob in globs]
    tests = [f"{column} GLOB {value}" for column in columns for value in values]
    return junction("OR", [*tests, others.format(junction("OR", [f"o.name GLOB {value}" for value in values]))])


def _passes(writer: SqlWriter, tests: Sequence[NodeTest], row: str) -> str:
    """Whether a layer passes one of the tests."""
    return junction("OR", [_passes_one(writer, test, row) for test in tests])


def _passes_one(writer: SqlWriter, test: NodeTest, row: str) -> str:
    conditions = []
    if test.kind is not None:
        conditions.append(f"{row}.kind = {writer.parts.bind(test.kind)}")
    if test.name is not None:
        conditions.append(_is_named(writer, test.name, row))
    if test.attributes:
        conditions.append(_attributes_pass(writer, test, row))
    return junction("AND", conditions) if conditions else "1"


def _attributes_pass(writer: SqlWriter, test: NodeTest, row: str) -> str:
    """Hyperparameters are tested in Python, each distinct text of them once."""
    name = writer.parts.row("dql_layer")
    if any(each.name == _AMBIGUOUS for each in test.attributes):
        arguments = (f"(SELECT json FROM network WHERE hash = {row}.network)", f"{row}.node")
        return writer.parts.call(_cached(_own_attributes(test)), *arguments, name=name)

    def passes(kind: str, attributes: str) -> bool:
        return test.matches_attributes(kind, plain(json.loads(attributes)))

    if test.kind is not None:
        known = test.kind
        return writer.parts.call(_cached(lambda text: passes(known, text)), f"{row}.attributes", name=name)
    return writer.parts.call(_cached(passes), f"{row}.kind", f"{row}.attributes", name=name)


def _own_attributes(test: NodeTest) -> Callable[[str, str], bool]:
    """A test of a layer in the JSON of its network, where the shape of its output is not among its attributes."""
    layers = lru_cache(maxsize=4)(lambda text: {node["id"]: node for node in json.loads(text)["nodes"]})

    def passes(network: str, node: str) -> bool:
        layer = layers(network)[node]
        return test.matches_attributes(layer["kind"], plain(layer.get("attributes") or {}))

    return passes


def plain(value: Any) -> Any:
    """JSON as attributes of layers have it: lists are tuples."""
    if isinstance(value, list):
        return tuple(plain(item) for item in value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def _cached(function: Callable[..., Any]) -> Callable[..., Any]:
    return lru_cache(maxsize=100_000)(function)
