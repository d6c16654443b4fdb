"""The definition of what a bound select means: slow and obvious, over Python objects that are read once.

Null is None. A condition is True, False or None. Sets are Python sets. It knows neither SQL nor the catalog's tables.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import product
from typing import Any

from regatta.dql import bound
from regatta.dql.bound import BoundSelect, Expression, Variable
from regatta.dql.selectors import SelectorPattern
from regatta.dql.templates import AttributeTest, NodeTest
from regatta.network import KINDS
from regatta.network.aliases import layer_names
from regatta.network.kinds import with_default
from regatta.repo import Repo

_SIGNS = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    id: str
    kind: str
    attributes: Mapping[str, Any]
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Model:
    key: int
    columns: Mapping[str, Any]
    run: Mapping[str, Any]
    git: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    metadata: Mapping[str, Any]
    metrics: Mapping[str, Mapping[int, float]]
    tags: frozenset[str]
    layers: Mapping[str, Layer]
    edges: frozenset[tuple[str, str]]


class SlowQueries:
    """Answers selects over the models of a repository."""

    def __init__(self, repo: Repo) -> None:
        versions = repo.versions(order="oldest")
        self.models = {version.key: _read_model(repo, version) for version in sorted(versions, key=lambda v: v.key)}
        keys = {version.id: version.key for version in versions}
        self.parents = {(keys[link.derived], keys[link.base]) for link in repo.links(versions)}

    def rows(self, query: BoundSelect) -> list[tuple[Any, ...]]:
        return [row for row, _ in self._select(query, {})]

    # Queries

    def _select(self, query: BoundSelect, outer: Mapping[Variable, Any]) -> list[tuple[tuple[Any, ...], Any]]:
        """The rows of a select in order, each with what orders it among equal ones."""
        choices = [list(enumerate(self._source(source, outer))) for source in query.sources]
        envs = []
        for chosen in product(*choices):
            values = zip(query.sources, chosen, strict=True)
            env = {**outer, **{source.variable: value for source, (_, value) in values}}
            if query.where is None or self._truth(query.where, env) is True:
                envs.append((env, tuple(place for place, _ in chosen)))
        if query.is_aggregated:
            rows = self._groups(query, envs, outer)
        else:
            rows = [
                (env, place, tuple(self.value(item.expression, env) for item in query.items)) for env, place in envs
            ]
        found = [
            (row, [(self.value(key.expression, env), key.descending) for key in query.order], place)
            for env, place, row in rows
        ]
        if query.distinct:
            unique: dict[Any, Any] = {}
            for row, keys, _ in found:
                unique.setdefault(tuple(map(_canonical, row)), (row, keys, [(value, False) for value in row]))
            found = [(row, keys + rest, ()) for row, keys, rest in unique.values()]
        found.sort(key=cmp_to_key(_by_keys))
        most = None if query.limit is None else (query.offset or 0) + query.limit
        return [(row, place) for row, _, place in found[query.offset or 0 : most]]

    def _groups(self, query: BoundSelect, envs: Sequence[Any], outer: Mapping[Variable, Any]) -> list[Any]:
        groups: dict[Any, list[Any]] = {} if query.group else {(): []}
        for env, _ in envs:
            groups.setdefault(tuple(_canonical(self.value(key, env)) for key in query.group), []).append(env)
        rows = []
        for members in groups.values():
            env = {**outer, **(members[0] if members else {}), _GROUP: members}
            if query.having is not None and self._truth(query.having, env) is not True:
                continue
            place = tuple(_Ordered(self.value(key, env)) for key in query.group)
            rows.append((env, place, tuple(self.value(item.expression, env) for item in query.items)))
        return rows

    def _source(self, source: bound.Source, outer: Mapping[Variable, Any]) -> Iterable[Any]:
        if isinstance(source, bound.VersionSource):
            return self.models.values()
        assert isinstance(source, bound.QuerySource)
        rows = [row for row, _ in self._select(source.query, outer)]
        if source.variable.type == "model":
            return [row[0] for row in rows]
        return [dict(zip((item.name for item in source.query.items), row, strict=True)) for row in rows]

    # Values

    def _truth(self, part: Expression, env: Mapping[Variable, Any]) -> bool | None:
        found = self.value(part, env)
        return found if isinstance(found, bool) else None

    def value(self, part: Expression, env: Mapping[Variable, Any]) -> Any:
        found = getattr(self, f"_{type(part).__name__.lower()}")(part, env)
        return None if isinstance(found, float) and math.isnan(found) else found

    def _constant(self, part: bound.Constant, env: Any) -> Any:
        return part.value

    def _variable(self, part: Variable, env: Any) -> Any:
        return env[part]

    def _columnvalue(self, part: bound.ColumnValue, env: Any) -> Any:
        return env[part.variable][part.name]

    def _attribute(self, part: bound.Attribute, env: Any) -> Any:
        return self.value(part.model, env).columns[part.name]

    def _runattribute(self, part: bound.RunAttribute, env: Any) -> Any:
        return self.value(part.model, env).run.get(part.name)

    def _gitattribute(self, part: bound.GitAttribute, env: Any) -> Any:
        return self.value(part.model, env).git.get(part.name)

    def _hyperparameter(self, part: bound.Hyperparameter, env: Any) -> Any:
        return _deep(self.value(part.model, env).hyperparameters.get(part.name))

    def _metadata(self, part: bound.Metadata, env: Any) -> Any:
        found: Any = self.value(part.model, env).metadata
        for key in part.keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return _deep(found)

    def _metric(self, part: bound.Metric, env: Any) -> Any:
        points = self.value(part.model, env).metrics.get(part.name, {})
        if part.step is not None:
            return points.get(self.value(part.step, env))
        numbers = [value for value in points.values() if not math.isnan(value)]
        if not numbers:
            return None
        return points[max(points)] if part.which == "last" else {"min": min, "max": max}[part.which](numbers)

    def _tags(self, part: bound.Tags, env: Any) -> Any:
        return sorted(self.value(part.model, env).tags)

    def _lineage(self, part: bound.Lineage, env: Any) -> list[Model]:
        steps = self.parents if part.kind in ("parents", "ancestors") else {(b, a) for a, b in self.parents}
        found = {there for here, there in steps if here == self.value(part.model, env).key}
        while part.kind in ("ancestors", "descendants"):
            more = {there for here, there in steps if here in found} - found
            if not more:
                break
            found |= more
        return [self.models[key] for key in found]

    def _arithmetic(self, part: bound.Arithmetic, env: Any) -> Any:
        left, right = _number(self.value(part.left, env)), _number(self.value(part.right, env))
        if left is None or right is None or (part.operator in "/%" and right == 0):
            return None
        if part.operator == "%":
            return math.fmod(left, right)
        return {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[part.operator](
            left, right
        )

    def _negative(self, part: bound.Negative, env: Any) -> Any:
        found = _number(self.value(part.operand, env))
        return None if found is None else -found

    def _function(self, part: bound.Function, env: Any) -> Any:
        values = [self.value(argument, env) for argument in part.arguments]
        if part.name == "coalesce":
            return next((value for value in values if value is not None), None)
        wanted = str if part.name in ("lower", "upper", "length") else int | float
        if any(not isinstance(value, wanted) or isinstance(value, bool) for value in values):
            return None
        functions: Mapping[str, Any] = {
            "abs": abs, "round": round, "lower": str.lower, "upper": str.upper, "length": len,
        }  # fmt: skip
        return functions[part.name](*values)

    def _aggregate(self, part: bound.Aggregate, env: Any) -> Any:
        members = env[_GROUP]
        if part.argument is None:
            return len(members)
        values = [value for each in members if (value := self.value(part.argument, each)) is not None]
        if part.argument.type == "any" and part.name != "count":
            values = [value for value in values if _number(value) is not None]
        if part.distinct:
            values = list({_canonical(value): value for value in values}.values())
        if part.name == "count":
            return len(values)
        if not values:
            return None
        return {"sum": sum, "min": min, "max": max, "avg": lambda v: sum(v) / len(v)}[part.name](values)  # type: ignore[operator]

    def _countitems(self, part: bound.CountItems, env: Any) -> int:
        return len(self.value(part.items, env))

    def _counthas(self, part: bound.CountHas, env: Any) -> int:
        return sum(self._holds_from(part.has, env))

    def _queryvalue(self, part: bound.QueryValue, env: Any) -> Any:
        rows = self._select(part.query, env)
        return rows[0][0][0] if rows else None

    # Conditions

    def _compare(self, part: bound.Compare, env: Any) -> bool | None:
        return _compared(part.operator, self.value(part.left, env), self.value(part.right, env))

    def _like(self, part: bound.Like, env: Any) -> bool | None:
        text, pattern = self.value(part.text, env), self.value(part.pattern, env)
        if not isinstance(text, str) or not isinstance(pattern, str):
            return None
        expression = "".join({"%": ".*", "_": "."}.get(each, re.escape(each)) for each in pattern)
        return re.fullmatch(expression, text, re.DOTALL) is not None

    def _inlist(self, part: bound.InList, env: Any) -> bool | None:
        item = self.value(part.item, env)
        return _any(_compared("=", item, self.value(option, env)) for option in part.options)

    def _inset(self, part: bound.InSet, env: Any) -> bool | None:
        items = self.value(part.items, env)
        return _among(self.value(part.item, env), items)

    def _inquery(self, part: bound.InQuery, env: Any) -> bool | None:
        return _among(self.value(part.item, env), [row[0] for row, _ in self._select(part.query, env)])

    def _exists(self, part: bound.Exists, env: Any) -> bool:
        return bool(self._select(part.query, env))

    def _isnull(self, part: bound.IsNull, env: Any) -> bool:
        return self.value(part.operand, env) is None

    def _has(self, part: bound.Has, env: Any) -> bool:
        found = self._holds_from(part, env)
        return bool(found) and (all(found) if part.every else any(found))

    def _notempty(self, part: bound.NotEmpty, env: Any) -> bool:
        return bool(self.value(part.items, env))

    def _not(self, part: bound.Not, env: Any) -> bool | None:
        found = self._truth(part.operand, env)
        return None if found is None else not found

    def _and(self, part: bound.And, env: Any) -> bool | None:
        found = [self._truth(operand, env) for operand in part.operands]
        return False if False in found else None if None in found else True

    def _or(self, part: bound.Or, env: Any) -> bool | None:
        return _any(self._truth(operand, env) for operand in part.operands)

    # Layers

    def _layerpath(self, part: bound.LayerPath, env: Any) -> list[Layer]:
        model = self.value(part.model, env)
        found: dict[str, Layer] = {}
        for start in _selected(model, part.selector):
            found |= {layer.id: layer for layer in _reached(model, start, part.steps)}
        return list(found.values())

    def _holds_from(self, has: bound.Has, env: Any) -> list[bool]:
        """For each selected layer, whether one that is reached from it passes a test."""
        model = self.value(has.nodes.model, env)
        return [
            any(_passes(layer, test) for layer in _reached(model, start, has.nodes.steps) for test in has.tests)
            for start in _selected(model, has.nodes.selector)
        ]


_GROUP = Variable("the rows of the group", -1, "null")


def _read_model(repo: Repo, version: Any) -> Model:
    network = repo.network(version) or {"nodes": [], "edges": []}
    names = layer_names((node["id"], node["kind"], node.get("name", "")) for node in network["nodes"])
    layers = {
        node["id"]: Layer(node["id"], node["kind"], _deep(node.get("attributes", {})), (*other, node["kind"]))
        for node, other in zip(network["nodes"], names, strict=True)
    }
    points: dict[str, dict[int, float]] = {}
    for point in repo.metrics(version):
        points.setdefault(point.name, {})[point.step] = point.value
    run = repo.catalog.run(version.run)
    names_of_columns = (
        "id",
        "name",
        "number",
        "created",
        "message",
        "parameters",
        "bytes",
        "snapshots",
        "network",
        "config",
    )
    columns = {name: getattr(version, name) for name in names_of_columns}
    return Model(
        version.key, {**columns, "creation_time": version.created, "reference": version.reference},
        {} if run is None else {name: getattr(run, name) for name in ("name", "status", "started", "metric", "mode")},
        version.git or {}, version.hyperparameters, version.metadata, points,
        frozenset(tag.name for tag in repo.tags() if tag.version == version.id), layers,
        frozenset((edge[0], edge[1]) for edge in network["edges"]),
    )  # fmt: skip


def _selected(model: Model, pattern: SelectorPattern) -> list[Layer]:
    return [layer for layer in model.layers.values() if _is_named(pattern, layer)]


def _is_named(pattern: SelectorPattern, layer: Layer) -> bool:
    expression = ""
    for part in pattern.parts:
        expression += (
            {"*": ".*", "?": "."}[part.wildcard] if part.wildcard else f"(?:{'|'.join(map(re.escape, part.texts))})"
        )
    return any(re.fullmatch(expression, name, re.DOTALL) for name in layer.names if name)


def _reached(model: Model, start: Layer, steps: Sequence[bound.PathStep]) -> list[Layer]:
    here = {start.id}
    for step in steps:
        edges = model.edges if step.forward else {(b, a) for a, b in model.edges}
        most = len(model.layers) if step.most is None else step.most
        reached: set[str] = set()
        walk = set(here)
        for depth in range(most + 1):
            reached |= walk if depth >= step.least else set()
            walk = {b for a, b in edges if a in walk}
        here = {id for id in reached if step.test is None or _passes(model.layers[id], step.test)}
    return [model.layers[id] for id in here]


def _passes(layer: Layer, test: NodeTest) -> bool:
    if test.kind is not None and layer.kind != test.kind:
        return False
    if test.name is not None and not _is_named(test.name, layer):
        return False
    return all(_attribute_passes(layer, each) for each in test.attributes)


def _attribute_passes(layer: Layer, test: AttributeTest) -> bool:
    if test.name not in KINDS[layer.kind].types and layer.kind != "OTHER":
        return False
    return test.holds(with_default(layer.kind, layer.attributes, test.name))


def _any(found: Iterable[bool | None]) -> bool | None:
    listed = list(found)
    return True if True in listed else None if None in listed else False


def _among(item: Any, options: Sequence[Any]) -> bool | None:
    """As in SQL: nothing is in an empty set, not even null."""
    return _any(_compared("=", item, option) for option in options)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "model" if isinstance(value, Model) else "list"


def _compared(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None or _kind(left) != _kind(right):
        return None
    if sign not in ("=", "<>") and _kind(left) not in ("number", "text"):
        return None
    return bool(_SIGNS[sign](left, right))


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _deep(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_deep(item) for item in value)
    return {key: _deep(item) for key, item in value.items()} if isinstance(value, dict) else value


def _canonical(value: Any) -> Any:
    """Equal for values that are one group: true is not 1."""
    return (_kind(value), value.key if isinstance(value, Model) else repr(value) if _kind(value) == "list" else value)


class _Ordered:
    """A value in the order of rows: nulls last, then by kind."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Ordered) -> bool:
        return _by_value(self.value, other.value, False) < 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ordered) and _by_value(self.value, other.value, False) == 0


def _by_value(left: Any, right: Any, descending: bool) -> int:
    if left is None or right is None:
        return (left is None) - (right is None)
    ranks = [("number", "text", "boolean", "list", "model").index(_kind(value)) for value in (left, right)]
    if ranks[0] != ranks[1]:
        return ranks[0] - ranks[1]
    one, other = (value.key if isinstance(value, Model) else value for value in (left, right))
    if one == other:
        return 0
    return (-1 if one < other else 1) * (-1 if descending else 1)


def _by_keys(left: Any, right: Any) -> int:
    for (one, descending), (other, _) in zip(left[1], right[1], strict=True):
        found = _by_value(one, other, descending)
        if found:
            return found
    return -1 if left[2] < right[2] else 1 if right[2] < left[2] else 0
