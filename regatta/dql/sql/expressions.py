"""Values and conditions as SQL: a function for each kind of bound part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from regatta.dql import bound
from regatta.dql.bound import Expression, Type, Variable
from regatta.dql.schema import RUN_ATTRIBUTES, TABLES, VERSION_ATTRIBUTES
from regatta.dql.sql import functions
from regatta.dql.sql.statement import StatementParts, junction

MAX_LISTED = 100  # options of `in` that are written out
EXACT_BELOW = 2**53  # the column of numbers holds them as floats, which have no larger whole number exactly


@dataclass(frozen=True)
class SqlRow:
    """What a variable is in SQL: rows under an alias."""

    alias: str
    source: bound.Source


@dataclass
class SqlWriter:
    """Writes the parts of one statement. `rows` has the variables that are in scope, `keys` those of the groups."""

    parts: StatementParts = field(default_factory=StatementParts)
    rows: dict[Variable, SqlRow] = field(default_factory=dict)
    keys: frozenset[Expression] = frozenset()

    def write(self, part: Expression) -> str:
        written = _WRITERS[type(part)](self, part)
        if part.type == "any" and part in self.keys:
            return self.parts.call(functions.canonical, written)
        return written

    def typed(self, part: Expression, wanted: Type) -> str:
        """A value as one of this type; null if it has another."""
        if part.type == wanted:
            return self.write(part)
        if part.type != "any":
            return self._as_any(part) if wanted == "any" else self.write(part)
        if wanted == "number" and isinstance(part, bound.Hyperparameter):
            exact = self.parts.call(functions.number_of, "json")
            return _hyperparameter(self, part, f"CASE WHEN ABS(number) >= {EXACT_BELOW} THEN {exact} ELSE number END")
        casts: dict[Type, Callable[..., Any]] = {
            "number": functions.number_of, "text": functions.text_of, "boolean": functions.boolean_of,
        }  # fmt: skip
        return self.parts.call(casts[wanted], self.write(part)) if wanted in casts else self.write(part)

    def condition(self, part: Expression) -> str:
        return self.typed(part, "boolean")

    def _as_any(self, part: Expression) -> str:
        written = self.write(part)
        if part.type == "boolean":
            return f"(CASE {written} WHEN 1 THEN 'true' WHEN 0 THEN 'false' END)"
        if part.type == "list":
            return written
        return self.parts.call(functions.quote, written)

    def key(self, model: Expression) -> str:
        """The key of a model's version."""
        return self.write(model)

    def column_of_version(self, model: Expression, template: str) -> str:
        """A column of a model's version: {row} in the template stands for the row."""
        if isinstance(model, Variable):
            row = self.rows[model]
            if isinstance(row.source, bound.VersionSource | bound.IdsSource):
                return template.format(row=row.alias)
        row_name = self.parts.row()
        column = template.format(row=row_name)
        return f"(SELECT {column} FROM model_version {row_name} WHERE {row_name}.key = {self.key(model)})"

    def select(self, query: bound.BoundSelect) -> str:
        """A nested query."""
        from regatta.dql.sql.select import write_select

        return write_select(self, query)


# Values


def _constant(writer: SqlWriter, part: bound.Constant) -> str:
    if part.value is None:
        return "NULL"
    if part.type == "model":
        return f"(SELECT key FROM model_version WHERE id = {writer.parts.bind(part.value)})"
    if part.type == "list":
        return writer.parts.bind(json.dumps(part.value, separators=(",", ":"), ensure_ascii=False))
    return writer.parts.bind(part.value)


def _variable(writer: SqlWriter, part: Variable) -> str:
    row = writer.rows[part]
    is_version = isinstance(row.source, bound.VersionSource | bound.IdsSource)
    return f"{row.alias}.key" if is_version else f"{row.alias}.c0"


def _column(writer: SqlWriter, part: bound.ColumnValue) -> str:
    row = writer.rows[part.variable]
    if isinstance(row.source, bound.TableSource):
        return TABLES[row.source.table].columns[part.name].sql.format(row=row.alias)
    assert isinstance(row.source, bound.QuerySource)
    names = [item.name for item in row.source.query.items]
    return f"{row.alias}.c{names.index(part.name)}"


def _attribute(writer: SqlWriter, part: bound.Attribute) -> str:
    return writer.column_of_version(part.model, VERSION_ATTRIBUTES[part.name].sql)


def _run_attribute(writer: SqlWriter, part: bound.RunAttribute) -> str:
    row = writer.parts.row()
    column = RUN_ATTRIBUTES[part.name].sql.format(row=row)
    run = writer.column_of_version(part.model, "{row}.run")
    return f"(SELECT {column} FROM run {row} WHERE {row}.series = {run})"


def _git_attribute(writer: SqlWriter, part: bound.GitAttribute) -> str:
    git = writer.column_of_version(part.model, "{row}.git")
    return f"json_extract({git}, '$.{part.name}')"


def _hyperparameter(writer: SqlWriter, part: bound.Hyperparameter, column: str = "NULLIF(json, 'null')") -> str:
    name = writer.parts.bind(part.name)
    return f"(SELECT {column} FROM hyperparameter WHERE version = {writer.key(part.model)} AND name = {name})"


def _metadata(writer: SqlWriter, part: bound.Metadata) -> str:
    metadata = writer.column_of_version(part.model, "{row}.metadata")
    return writer.parts.call(functions.member, metadata, writer.parts.bind(json.dumps(part.keys)))


_RANGES = {"min": "lowest", "max": "highest", "last": "last"}


def _metric(writer: SqlWriter, part: bound.Metric) -> str:
    where = f"version = {writer.key(part.model)} AND name = {writer.parts.bind(part.name)}"
    if part.step is not None:
        return f"(SELECT value FROM metric WHERE {where} AND step = {writer.typed(part.step, 'number')})"
    return f"(SELECT {_RANGES[part.which]} FROM metric_range WHERE {where})"


def _tags(writer: SqlWriter, part: bound.Tags) -> str:
    """As a column: a list."""
    return f"(SELECT json_group_array(name) FROM ({set_of(writer, part)} ORDER BY name))"


def set_of(writer: SqlWriter, part: Expression) -> str:
    """A select of one column: the texts, or the keys of models, of a set."""
    if isinstance(part, bound.Tags):
        return f"SELECT name FROM tag WHERE version = {writer.key(part.model)}"
    assert isinstance(part, bound.Lineage)
    key = writer.key(part.model)
    mine, theirs = ("derived", "base") if part.kind in ("parents", "ancestors") else ("base", "derived")
    if part.kind in ("parents", "children"):
        return f"SELECT {theirs} FROM parent WHERE {mine} = {key}"
    line = writer.parts.row("line")
    return (
        f"WITH RECURSIVE {line} (key) AS (SELECT {theirs} FROM parent WHERE {mine} = {key} "
        f"UNION SELECT parent.{theirs} FROM parent JOIN {line} ON parent.{mine} = {line}.key) SELECT key FROM {line}"
    )


def _arithmetic(writer: SqlWriter, part: bound.Arithmetic) -> str:
    left, right = (
        writer.typed(side, "number") if side.type == "any" else writer.write(side) for side in (part.left, part.right)
    )
    if part.operator == "%":
        return writer.parts.call(functions.remainder, left, right)
    if part.operator == "/":
        return f"({left} * 1.0 / {right})"
    return f"({left} {part.operator} {right})"


def _negative(writer: SqlWriter, part: bound.Negative) -> str:
    return f"(- {writer.typed(part.operand, part.type)})"


_OWN_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "lower": functions.lowered, "upper": functions.uppered, "length": functions.length_of, "round": functions.rounded,
}  # fmt: skip


def _function(writer: SqlWriter, part: bound.Function) -> str:
    wanted: Type = {"abs": "number", "round": "number", "coalesce": part.type}.get(part.name, "text")
    arguments = [writer.typed(argument, wanted) for argument in part.arguments]
    if part.name in _OWN_FUNCTIONS:
        name = f"dql_{part.name}{len(arguments)}"
        return writer.parts.call(_OWN_FUNCTIONS[part.name], *arguments, name=name)
    return f"{part.name}({', '.join(arguments)})"


def _aggregate(writer: SqlWriter, part: bound.Aggregate) -> str:
    if part.argument is None:
        return "COUNT(*)"
    argument = part.argument
    if argument.type == "any" and part.name != "count":
        written = writer.typed(argument, "number")
    else:
        written = writer.write(argument)
        if argument.type == "any" and part.distinct:
            written = writer.parts.call(functions.canonical, written)
    return f"{part.name.upper()}({'DISTINCT ' if part.distinct else ''}{written})"


def _count_items(writer: SqlWriter, part: bound.CountItems) -> str:
    if isinstance(part.items, bound.LayerPath):
        from regatta.dql.sql.layers import count_layers

        return count_layers(writer, part.items)
    return f"(SELECT COUNT(*) FROM ({set_of(writer, part.items)}))"


def _count_has(writer: SqlWriter, part: bound.CountHas) -> str:
    from regatta.dql.sql.layers import count_has

    return count_has(writer, part.has)


def _query_value(writer: SqlWriter, part: bound.QueryValue) -> str:
    return f"({writer.select(part.query)} LIMIT 1)" if part.query.limit is None else f"({writer.select(part.query)})"


# Conditions


def common_type(left: Type, right: Type) -> Type:
    """The type in which two values are compared."""
    return right if left == "any" else left


def _compare(writer: SqlWriter, part: bound.Compare) -> str:
    wanted = common_type(part.left.type, part.right.type)
    if wanted in ("any", "list"):
        sides = [writer.typed(side, "any") for side in (part.left, part.right)]
        if part.operator in ("=", "<>"):
            found = writer.parts.call(functions.equal, *sides)
            return found if part.operator == "=" else f"(NOT {found})"
        return f"({writer.parts.call(functions.compare, *sides)} {part.operator} 0)"
    left, right = (writer.typed(side, wanted) for side in (part.left, part.right))
    return f"({left} {part.operator} {right})"


def _like(writer: SqlWriter, part: bound.Like) -> str:
    if isinstance(part.pattern, bound.Constant):
        pattern = writer.parts.bind(functions.glob_of_like(part.pattern.value))
    else:
        pattern = writer.parts.call(functions.glob_of_like, writer.typed(part.pattern, "text"))
    return f"({writer.typed(part.text, 'text')} GLOB {pattern})"


def _in_list(writer: SqlWriter, part: bound.InList) -> str:
    """Constants of one type are one test; everything else is compared one by one."""
    constants: dict[Type, list[Any]] = {}
    others: list[Expression] = []
    for option in part.options:
        wanted = common_type(part.item.type, option.type)
        if isinstance(option, bound.Constant) and wanted in ("text", "number", "time", "duration", "boolean"):
            constants.setdefault(wanted, []).append(option.value)
        else:
            others.append(option)
    tests = [_in_constants(writer, writer.typed(part.item, wanted), each) for wanted, each in constants.items()]
    tests += [_compare(writer, bound.Compare("=", part.item, option)) for option in others]
    return junction("OR", tests)


def _in_constants(writer: SqlWriter, item: str, values: list[Any]) -> str:
    if len(values) <= MAX_LISTED:
        return f"({item} IN ({', '.join(writer.parts.bind(value) for value in values)}))"
    known = frozenset(values)

    def is_known(value: Any) -> bool | None:
        return None if value is None else value in known

    return writer.parts.call(is_known, item, name=writer.parts.row("dql_in"))


def _in_set(writer: SqlWriter, part: bound.InSet) -> str:
    item = writer.typed(part.item, "text") if part.items.type == "texts" else writer.write(part.item)
    return f"({item} IN ({set_of(writer, part.items)}))"


def _in_query(writer: SqlWriter, part: bound.InQuery) -> str:
    from regatta.dql.sql.select import write_select

    column = part.query.items[0].expression
    wanted = common_type(part.item.type, column.type)
    if wanted in ("any", "list"):
        item = writer.parts.call(functions.canonical, writer.typed(part.item, "any"))
    else:
        item = writer.typed(part.item, wanted)
    return f"({item} IN ({write_select(writer, part.query, wanted)}))"


def _exists(writer: SqlWriter, part: bound.Exists) -> str:
    return f"EXISTS ({writer.select(part.query)})"


def _is_null(writer: SqlWriter, part: bound.IsNull) -> str:
    return f"({writer.write(part.operand)} IS NULL)"


def _has(writer: SqlWriter, part: bound.Has) -> str:
    from regatta.dql.sql.layers import has_layers

    return has_layers(writer, part)


def _nodes(writer: SqlWriter, part: bound.LayerPath) -> str:
    raise AssertionError("layers are no value")


def _not_empty(writer: SqlWriter, part: bound.NotEmpty) -> str:
    if isinstance(part.items, bound.LayerPath):
        from regatta.dql.sql.layers import some_layers

        return some_layers(writer, part.items)
    return f"EXISTS ({set_of(writer, part.items)})"


def _not(writer: SqlWriter, part: bound.Not) -> str:
    return f"(NOT {writer.condition(part.operand)})"


def _and(writer: SqlWriter, part: bound.And) -> str:
    return junction("AND", _conditions(writer, part.operands))


def _or(writer: SqlWriter, part: bound.Or) -> str:
    return junction("OR", _conditions(writer, part.operands))


def _conditions(writer: SqlWriter, operands: Iterable[Expression]) -> list[str]:
    return [writer.condition(operand) for operand in operands]


_WRITERS: Mapping[type[bound.BoundPart], Callable[[SqlWriter, Any], str]] = {
    bound.Constant: _constant, Variable: _variable, bound.ColumnValue: _column, bound.Attribute: _attribute,
    bound.RunAttribute: _run_attribute, bound.GitAttribute: _git_attribute, bound.Hyperparameter: _hyperparameter,
    bound.Metadata: _metadata, bound.Metric: _metric, bound.Tags: _tags, bound.Arithmetic: _arithmetic,
    bound.Negative: _negative, bound.Function: _function, bound.Aggregate: _aggregate,
    bound.CountItems: _count_items, bound.CountHas: _count_has, bound.QueryValue: _query_value,
    bound.Compare: _compare, bound.Like: _like, bound.InList: _in_list, bound.InSet: _in_set,
    bound.InQuery: _in_query, bound.Exists: _exists, bound.IsNull: _is_null, bound.Has: _has, bound.LayerPath: _nodes,
    bound.NotEmpty: _not_empty, bound.Not: _not, bound.And: _and, bound.Or: _or,
}  # fmt: skip
