"""The clauses of a select, and the order of its rows.

Rows have a fixed order: that of `order by`, and then that in which versions were committed. Rows of groups and
distinct rows are ordered by their values. Nulls come last. A nested query passes its order on, as a column `o`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from regatta.dql import bound
from regatta.dql.bound import BoundSelect, Expression, OrderKey, ResultColumn, Type
from regatta.dql.schema import TABLES
from regatta.dql.sql import functions
from regatta.dql.sql.expressions import SqlRow, SqlWriter
from regatta.dql.sql.indexed import by_index
from regatta.dql.sql.statement import MAX_PARAMETERS, SqlStatement
from regatta.errors import UsageError
from regatta.repo.catalog.queries import VERSION


def compile_select(query: BoundSelect, whole_versions: bool = False) -> SqlStatement:
    """One statement for a query, and all queries in it; with the whole rows of its models, if they are plain ones."""
    writer = SqlWriter()
    try:
        text = write_select(writer, query, whole_versions=whole_versions)
    except RecursionError:
        raise UsageError("The query is nested too deeply.") from None
    parts = writer.parts
    if len(parts.values) > MAX_PARAMETERS:
        raise UsageError(f"The query has {len(parts.values):,} values; {MAX_PARAMETERS:,} is the limit.")
    made = tuple((name, count, function) for name, (count, function) in parts.functions.items())
    return SqlStatement(text, tuple(parts.values), made, tuple(item.expression.type for item in query.items))


def has_plain_models(query: BoundSelect) -> bool:
    """Whether the result is models that stand in the table of versions as they are."""
    if not query.models or query.is_aggregated or query.distinct:
        return False
    sources = {source.variable: source for source in query.sources}
    found = sources.get(query.items[0].expression)  # type: ignore[arg-type]
    return isinstance(found, bound.VersionSource | bound.IdsSource)


def write_select(
    outer: SqlWriter,
    query: BoundSelect,
    column_type: Type | None = None,
    numbered: bool = False,
    whole_versions: bool = False,
) -> str:
    """A select; of its only column as `column_type`, or with the number of each row as a column `o`."""
    keys = frozenset(query.group)
    writer = replace(outer, rows=dict(outer.rows), keys=keys)
    tables, conditions = [], []
    for source in query.sources:
        table, *more = _source(writer, source)
        tables.append(table)
        conditions += more
    alone = len(query.sources) == 1 and not outer.rows
    for part in () if query.where is None else _conjuncts(query.where):
        conditions.append(by_index(writer, part, alone) or writer.condition(part))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    group = f" GROUP BY {', '.join(map(writer.write, query.group))}" if query.group else ""
    columns = [f"{_column(writer, query, item, column_type)} AS c{i}" for i, item in enumerate(query.items)]
    if whole_versions:
        alias = writer.rows[query.items[0].expression].alias  # type: ignore[index]
        columns = [VERSION.replace("v.", f"{alias}.")]
    rest = f" FROM {', '.join(tables)}{where}{group}"
    limit = _limit(writer, query)
    if query.is_aggregated and not query.group:
        return _one_group(writer, query, columns, rest, limit, numbered)
    if query.having is not None:
        rest += f" HAVING {writer.condition(query.having)}"
    if query.distinct:
        types = [column_type or item.expression.type for item in query.items]
        return _distinct(writer, query, columns, types, rest, limit, numbered)
    keys_of_order = ", ".join(_order(writer, query))
    order = f" ORDER BY {keys_of_order}" if keys_of_order else ""
    if numbered:
        columns.append(f"ROW_NUMBER() OVER ({order}) AS o")
        return f"SELECT {', '.join(columns)}{rest}{' ORDER BY o' if limit else ''}{limit}"
    return f"SELECT {', '.join(columns)}{rest}{order}{limit}"


def _one_group(writer: SqlWriter, query: BoundSelect, columns: list[str], rest: str, limit: str, numbered: bool) -> str:
    """All rows as one, also where no column has an aggregate. SQLite takes `having` without groups from 3.39 on."""
    having = "1" if query.having is None else writer.condition(query.having)
    names = ", ".join(f"c{i}" for i in range(len(columns)))
    number = ", 1 AS o" if numbered else ""
    return (
        f"SELECT {names}{number} FROM (SELECT {', '.join(columns)}, {having} AS h, COUNT(*) AS n{rest}) WHERE h{limit}"
    )


def _distinct(
    writer: SqlWriter, query: BoundSelect, columns: list[str], types: list[Type], rest: str, limit: str, numbered: bool
) -> str:
    """Its order can only name columns, which have these types."""
    row = writer.parts.row("d")
    places = {item.expression: (f"{row}.c{i}", types[i]) for i, item in reversed(list(enumerate(query.items)))}
    order = [*query.order, *(OrderKey(item.expression) for item in query.items)]
    listed = ", ".join(text for key in order for text in _key_texts(writer, key, *places[key.expression]))
    names = ", ".join(f"{row}.c{i}" for i in range(len(columns)))
    number = f", ROW_NUMBER() OVER (ORDER BY {listed}) AS o" if numbered else ""
    return f"SELECT {names}{number} FROM (SELECT DISTINCT {', '.join(columns)}{rest}) {row} ORDER BY {listed}{limit}"


def _column(writer: SqlWriter, query: BoundSelect, item: ResultColumn, column_type: Type | None) -> str:
    expression = item.expression
    written = writer.write(expression) if column_type is None else writer.typed(expression, column_type)
    if (column_type or expression.type) in ("any", "list") and (query.distinct or column_type is not None):
        return writer.parts.call(functions.canonical, written)
    return written


def _source(writer: SqlWriter, source: bound.Source) -> tuple[str, ...]:
    """What stands after FROM, and conditions."""
    alias = f"v{source.variable.number}"
    writer.rows[source.variable] = SqlRow(alias, source)
    match source:
        case bound.VersionSource():
            return (f"model_version {alias}",)
        case bound.IdsSource(ids=ids):
            values = writer.parts.bind(_json_list(ids))
            return f"model_version {alias}", f"{alias}.id IN (SELECT value FROM json_each({values}))"
        case bound.TableSource(table=table):
            return (f"{TABLES[table].sql} {alias}",)
        case bound.QuerySource(query=query):
            return (f"({write_select(writer, query, numbered=True)}) {alias}",)
    raise AssertionError("queries that make versions have run before")


def _json_list(texts: tuple[str, ...]) -> str:
    import json

    return json.dumps(texts)


def _conjuncts(condition: Expression) -> tuple[Expression, ...]:
    return condition.operands if isinstance(condition, bound.And) else (condition,)


def _order(writer: SqlWriter, query: BoundSelect) -> Iterator[str]:
    """The whole order of the rows, so that equal queries have equal answers."""
    for key in query.order:
        yield from _key_texts(writer, key, writer.write(key.expression), key.expression.type)
    if query.is_aggregated:
        for expression in query.group:
            yield from _key_texts(writer, OrderKey(expression), writer.write(expression), expression.type)
        return
    for source in query.sources:
        alias = writer.rows[source.variable].alias
        if isinstance(source, bound.TableSource):
            yield from (f"{alias}.{name}" for name in TABLES[source.table].key)
        else:
            yield f"{alias}.o" if isinstance(source, bound.QuerySource) else f"{alias}.key"


def _key_texts(writer: SqlWriter, key: OrderKey, text: str, type: Type) -> Iterator[str]:
    """Nulls last; values of type `any` by their kind, then as numbers or texts."""
    way = " DESC" if key.descending else ""
    if type == "any":
        yield f"{text} IS NULL"
        yield writer.parts.call(functions.rank, text)
        yield writer.parts.call(functions.number_of, text) + way
        yield writer.parts.call(functions.text_of, text) + way
    yield f"{text}{way} NULLS LAST"


def _limit(writer: SqlWriter, query: BoundSelect) -> str:
    if query.limit is None and not query.offset:
        return ""
    most = writer.parts.bind(-1 if query.limit is None else query.limit)
    return f" LIMIT {most} OFFSET {writer.parts.bind(query.offset)}" if query.offset else f" LIMIT {most}"
