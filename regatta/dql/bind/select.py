"""The clauses of `select`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from regatta.dql import bound, tree
from regatta.dql.bind.expressions import bind_condition
from regatta.dql.bind.types import NAMES
from regatta.dql.bound import (
    SET_TYPES,
    Aggregate,
    BoundPart,
    BoundSelect,
    Constant,
    Expression,
    OrderKey,
    ResultColumn,
    Variable,
)
from regatta.dql.schema import TABLES
from regatta.errors import nearest

if TYPE_CHECKING:
    from regatta.dql.bind.binder import Binder

MAX_ITEMS = 200


def bind_select(binder: Binder, select: tree.Select) -> BoundSelect:
    """Sources first, since they declare the variables; then where, items, groups, having and order."""
    sources = _sources(binder, select)
    binder.aggregates = "in where"
    where = None if select.where is None else binder.bind_condition(select.where)
    binder.aggregates = None
    items = _items(binder, select)
    binder.aliases = {item.name: item.expression for item in items}
    binder.aggregates = "in group by"
    group = tuple(_group_key(binder, key) for key in select.group)
    binder.aggregates = None
    having = None if select.having is None else bind_condition(binder, select.having)
    order = tuple(_order_key(binder, key) for key in select.order)
    found = BoundSelect(
        items, sources, where, group, having, order,
        binder.bind_count(select.limit, "limit", select.span), binder.bind_count(select.offset, "offset", select.span),
        select.distinct, span=select.span,
    )  # fmt: skip
    if found.is_aggregated:
        _check_groups(binder, found)
    if found.distinct:
        _check_distinct_order(binder, found)
    return found


# Sources


def _sources(binder: Binder, select: tree.Select) -> tuple[bound.Source, ...]:
    if select.sources:
        return binder.bind_sources(select.sources, _first_new_root(binder, select))
    return binder.bind_sources(_implied_sources(binder, select))


def _first_new_root(binder: Binder, select: tree.Select) -> str | None:
    """What `select m from (...)` calls the rows of the query: the first name that nothing else has."""
    taken = {source.alias or source.name for source in select.sources if isinstance(source, tree.NamedSource)}
    taken |= {source.alias for source in select.sources if source.alias is not None}
    for path in _paths(select):
        if path.root not in taken and binder.find_variable(path.root) is None:
            return path.root
    return None


def _implied_sources(binder: Binder, select: tree.Select) -> tuple[tree.NamedSource, ...]:
    """Without `from`, the names in the columns stand for versions; if there are none, new ones in conditions do."""
    conditions = (select.where, select.having, *select.group, *(key.expression for key in select.order))
    for parts, hides in ((select.items, True), (conditions, False)):
        roots = {
            path.root: tree.NamedSource(path.root, span=path.span)
            for part in parts
            if part is not None
            for path in _paths(part)
            if hides or binder.find_variable(path.root) is None
        }
        if roots:
            return tuple(roots.values())
    place = select.span
    raise binder.error("The query reads from nothing.", place, hint="For example: select count(*) from versions m")


def _paths(part: tree.Tree) -> Iterator[tree.Path]:
    """The paths of a part, in the order of the text, without those of nested queries."""
    if isinstance(part, tree.Path):
        yield part
    inside = sorted(part.children(), key=lambda child: child.span.start)
    for child in inside:
        if not isinstance(child, tree.Query | tree.NodeTemplate | tree.HasTree):
            yield from _paths(child)
        elif isinstance(child, tree.HasTree):
            yield from _paths(child.nodes)


# Columns


def _items(binder: Binder, select: tree.Select) -> tuple[ResultColumn, ...]:
    listed: list[tuple[str, str, Expression]] = []  # name, full name, column
    for item in select.items:
        if isinstance(item, tree.AllColumns):
            listed += [column for source in binder.sources for column in _all_columns(source, item)]
            continue
        expression = binder.bind_expression(item.expression)
        _check_column(binder, expression, item)
        text = " ".join(binder.text[item.expression.span.start : item.expression.span.end].split())
        listed.append((item.alias or _short_name(item.expression, text), item.alias or text, expression))
    if len(listed) > MAX_ITEMS:
        raise binder.error(f"A query has at most {MAX_ITEMS} columns, not {len(listed)}.", select.span)
    named: set[str] = set()
    for item in select.items:
        alias = item.alias if isinstance(item, tree.SelectItem) else None
        if alias in named:
            raise binder.error(f"Two columns are called {alias!r:.60}.", item.span)
        named |= {alias} if alias is not None else set()
    return tuple(ResultColumn(expression, name, span=expression.span) for name, expression in _with_names(listed))


def _with_names(listed: list[tuple[str, str, Expression]]) -> Iterator[tuple[str, Expression]]:
    """Short names, or full ones where several columns have the same short name; never the same twice."""
    short = [name for name, _, _ in listed]
    taken: set[str] = set()
    for name, full, expression in listed:
        chosen = name if short.count(name) == 1 else full
        number = 2
        while chosen in taken:
            chosen, number = f"{full}_{number}", number + 1
        taken.add(chosen)
        yield chosen, expression


def _short_name(expression: tree.Expression, text: str) -> str:
    """m.metric.loss.best is called metric.loss.best; other expressions by their text."""
    if isinstance(expression, tree.Path) and expression.steps and isinstance(expression.steps[0], tree.Field):
        return re.sub(r"^\w+\.", "", text).replace('"', "")
    return text


def _all_columns(source: bound.Source, place: tree.AllColumns) -> Iterator[tuple[str, str, Expression]]:
    variable = source.variable
    if variable.type == "model":
        yield variable.name, variable.name, variable
        return
    if isinstance(source, bound.TableSource):
        types = {name: column.type for name, column in TABLES[source.table].columns.items()}
    else:
        assert isinstance(source, bound.QuerySource)
        types = {item.name: item.expression.type for item in source.query.items}
    for name, type_ in types.items():
        yield name, f"{variable.name}.{name}", bound.ColumnValue(variable, name, type_, span=place.span)


def _check_column(binder: Binder, expression: Expression, item: tree.SelectItem) -> None:
    if isinstance(expression, Variable) and expression.type == "null":
        raise binder.error(f"{expression.name!r:.60} stands for rows.", item.span, hint="Name a column, or take *.")
    if expression.type in ("nodes", "models", "list"):
        hint = "Count them: count(...)" if expression.type != "list" else None
        raise binder.error(f"A column cannot hold {NAMES[expression.type]}.", item.span, hint=hint)


# Groups and order


def _group_key(binder: Binder, key: tree.Expression) -> Expression:
    found = binder.bind_expression(key)
    if found.type in SET_TYPES or found.type == "list":
        raise binder.error(f"Rows cannot be grouped by {NAMES[found.type]}.", key.span)
    if any(isinstance(part, Aggregate) for part in bound.walk(found)):
        raise binder.error("Rows cannot be grouped by an aggregate.", key.span)
    return found


def _order_key(binder: Binder, key: tree.OrderKeyTree) -> OrderKey:
    match key.expression:
        case tree.Value(value) if isinstance(value, int) and not isinstance(value, bool):
            listed = list(binder.aliases.values())
            if not 1 <= value <= len(listed):
                raise binder.error(f"There is no column number {value}.", key.span)
            return OrderKey(listed[value - 1], key.descending, span=key.span)
    found = binder.bind_expression(key.expression)
    if found.type in SET_TYPES or found.type == "list" or (isinstance(found, Variable) and found.type == "null"):
        raise binder.error(f"Rows cannot be ordered by {NAMES[found.type]}.", key.span)
    return OrderKey(found, key.descending, span=key.span)


def _check_groups(binder: Binder, query: BoundSelect) -> None:
    """Outside of aggregates there may only be what all rows of a group have in common."""
    own = {source.variable for source in query.sources}
    keys = frozenset(query.group)
    parts: list[BoundPart] = [*(item.expression for item in query.items), *(key.expression for key in query.order)]
    for part in [*parts, *([query.having] if query.having is not None else [])]:
        lonely = _not_grouped(part, keys, own)
        if lonely is not None:
            text = binder.text[lonely.span.start : lonely.span.end] if lonely.span.end else "A value"
            hint = "Group by it, or take an aggregate of it: min, max, avg, count."
            raise binder.error(f"{text[:60]} may differ within a group.", lonely.span, hint=hint)


def _not_grouped(part: BoundPart, keys: frozenset[BoundPart], own: set[Variable]) -> BoundPart | None:
    if part in keys or isinstance(part, Aggregate | Constant):
        return None
    if isinstance(part, Variable):
        return part if part in own else None
    for child in part.children():
        found = _not_grouped(child, keys, own)
        if found is not None:
            return found if not isinstance(found, Variable) else part
    for query in (getattr(part, "query", None),):
        if isinstance(query, BoundSelect):
            outside = outer_variables(query) & own
            if any(variable not in keys for variable in outside):
                return part
    return None


def outer_variables(query: BoundSelect) -> set[Variable]:
    """The variables of the queries around it that a query uses."""
    own = {source.variable for source in query.sources}
    used: set[Variable] = set()
    for part in query.children():
        used |= {each for each in bound.walk(part) if isinstance(each, Variable)}
        for nested in bound.nested_queries(part):
            used |= outer_variables(nested)
    return used - own


def _check_distinct_order(binder: Binder, query: BoundSelect) -> None:
    columns = {item.expression for item in query.items}
    for key in query.order:
        if key.expression not in columns:
            names = [item.name for item in query.items]
            text = binder.text[key.span.start : key.span.end]
            raise binder.error(
                "With distinct, rows are ordered by their columns alone.", key.span, candidates=nearest(text, names)
            )
