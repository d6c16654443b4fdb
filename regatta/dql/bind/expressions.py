"""Values and conditions: a function for each kind of tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from regatta.dql import bound, tree
from regatta.dql.bind.paths import bind_path
from regatta.dql.bind.types import (
    NAMES,
    ORDERED,
    common,
    comparable,
    is_text_constant,
    parse_number,
    parse_time,
    type_of_value,
)
from regatta.dql.bound import SET_TYPES, Constant, Expression, Type
from regatta.dql.templates import bind_test
from regatta.errors import nearest

if TYPE_CHECKING:
    from regatta.dql.bind.binder import Binder

AGGREGATES = ("count", "sum", "avg", "min", "max")
LINEAGE = ("parents", "children", "ancestors", "descendants")
_NUMERIC = ("number", "any")
_TIMES = 'A time is written "2026-01-31", "2026-01-31 12:00" or now() - 7d.'


def bind_expression(binder: Binder, expression: tree.Expression) -> Expression:
    return _BINDERS[type(expression)](binder, expression)


def bind_condition(binder: Binder, expression: tree.Expression) -> Expression:
    return as_condition(binder, bind_expression(binder, expression), expression)


def as_condition(binder: Binder, found: Expression, place: tree.Tree) -> Expression:
    if found.type in SET_TYPES:
        return bound.NotEmpty(found, span=place.span)
    if found.type not in ("boolean", "any", "null"):
        raise binder.error(f"A condition is true or false, but this is {NAMES[found.type]}.", place.span)
    return found


# Values


def _value(binder: Binder, value: tree.Value) -> Expression:
    return constant(binder, value.value, value)


def constant(binder: Binder, value: Any, place: tree.Tree) -> Constant:
    """A Python value in a query: of a literal, or of a parameter."""
    if hasattr(value, "reference") and hasattr(value, "hyperparameters"):  # a version, from Python
        return Constant(value.id, "model", span=place.span)
    if isinstance(value, datetime | date):
        found = parse_time(value.isoformat())
        if found is not None:
            return Constant(found, "time", span=place.span)
    if isinstance(value, timedelta):
        return Constant(value.total_seconds(), "duration", span=place.span)
    if hasattr(value, "item") and not hasattr(value, "__len__"):  # a number of NumPy
        value = value.item()
    type_ = type_of_value(value)
    if type_ is None or (isinstance(value, float) and value != value):
        raise binder.error(f"A query cannot use the value {value!r:.60}.", place.span)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        raise binder.error("The number is too large.", place.span)
    if type_ == "list":
        value = tuple(constant(binder, item, place).value for item in value)
    return Constant(value, type_, span=place.span)


def _query_parameter(binder: Binder, parameter: tree.QueryParameter) -> Expression:
    return constant(binder, binder.parameter(parameter), parameter)


def _duration(binder: Binder, duration: tree.Duration) -> Expression:
    return Constant(duration.seconds, "duration", span=duration.span)


def _list(binder: Binder, found: tree.List) -> Expression:
    items = [binder.bind_expression(item) for item in found.items]
    if not all(isinstance(item, Constant) for item in items):
        raise binder.error("A list of expressions can only stand after in.", found.span)
    return Constant(tuple(item.value for item in items if isinstance(item, Constant)), "list", span=found.span)


def _negative(binder: Binder, negative: tree.NegativeTree) -> Expression:
    operand = binder.bind_expression(negative.operand)
    if operand.type not in ("number", "any", "duration"):
        raise binder.error(f"{NAMES[operand.type].capitalize()} has no negative.", negative.span)
    return bound.Negative(operand, "duration" if operand.type == "duration" else "number", span=negative.span)


_ARITHMETIC: Mapping[tuple[str, Type, Type], Type] = {
    ("+", "time", "duration"): "time", ("-", "time", "duration"): "time", ("+", "duration", "time"): "time",
    ("-", "time", "time"): "duration", ("+", "duration", "duration"): "duration",
    ("-", "duration", "duration"): "duration", ("*", "duration", "number"): "duration",
    ("*", "number", "duration"): "duration", ("/", "duration", "number"): "duration",
    ("/", "duration", "duration"): "number",
}  # fmt: skip


def _arithmetic(binder: Binder, found: tree.ArithmeticTree) -> Expression:
    left, right = binder.bind_expression(found.left), binder.bind_expression(found.right)
    if found.operator in "+-":  # "2026-01-01" - 7d, now() - "2026-01-01"
        left = _as_time(left) if right.type == "duration" or (right.type == "time" and found.operator == "-") else left
        right = _as_time(right) if left.type == "time" and found.operator == "-" else right
    if left.type in _NUMERIC and right.type in _NUMERIC:
        return bound.Arithmetic(found.operator, left, right, "number", span=found.span)
    type_ = _ARITHMETIC.get((found.operator, left.type, right.type))
    if type_ is None:
        raise binder.error(
            f"{NAMES[left.type].capitalize()} {found.operator} {NAMES[right.type]} has no meaning.", found.span
        )
    return bound.Arithmetic(found.operator, left, right, type_, span=found.span)


def _as_time(found: Expression) -> Expression:
    if isinstance(found, Constant) and found.type == "text":
        seconds = parse_time(found.value)
        if seconds is not None:
            return Constant(seconds, "time", span=found.span)
    return found


# Calls


def _call(binder: Binder, call: tree.Call) -> Expression:
    name = call.name.lower()
    if name == "count" and not call.star and len(call.arguments) == 1 and not call.distinct:
        counted = _count_of_a_set(binder, call)
        if counted is not None:
            return counted
    if name in AGGREGATES:
        return _aggregate(binder, name, call)
    if call.star or call.distinct:
        raise binder.error(f"Only aggregates ({', '.join(AGGREGATES)}) take * and distinct.", call.span)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](binder, name, call)
    known = (*AGGREGATES, *_FUNCTIONS)
    raise binder.error(
        f"There is no function {call.name!r:.60}.", call.span, candidates=nearest(name, known),
        hint=f"There are {', '.join(known)}.",
    )  # fmt: skip


def _count_of_a_set(binder: Binder, call: tree.Call) -> Expression | None:
    argument = call.arguments[0]
    if isinstance(argument, tree.HasTree):
        found = _has(binder, argument)
        assert isinstance(found, bound.Has)
        if found.every:
            raise binder.error("count counts layers for which something holds: leave all out.", argument.span)
        return bound.CountHas(found, span=call.span)
    if isinstance(argument, tree.Path | tree.Call) and (not isinstance(argument, tree.Call) or _is_lineage(argument)):
        items = binder.bind_expression(argument)
        if items.type in SET_TYPES:
            return bound.CountItems(items, span=call.span)
    return None


def _is_lineage(call: tree.Call) -> bool:
    return call.name.lower() in LINEAGE


def _aggregate(binder: Binder, name: str, call: tree.Call) -> Expression:
    if binder.aggregates is not None:
        where = "inside of another" if binder.aggregates == "inside" else binder.aggregates
        hint = "Conditions on groups stand after having." if binder.aggregates == "in where" else None
        raise binder.error(f"The aggregate {name} cannot stand {where}.", call.span, hint=hint)
    if call.star:
        if name != "count":
            raise binder.error(f"{name} needs a value; only count takes *.", call.span)
        return bound.Aggregate("count", None, False, "number", span=call.span)
    if len(call.arguments) != 1:
        raise binder.error(f"{name} takes one value.", call.span)
    with _aggregates(binder, "inside"):
        argument = binder.bind_expression(call.arguments[0])
    allowed = {
        "count": tuple(set(NAMES) - set(SET_TYPES) - {"list"}),
        "min": ORDERED, "max": ORDERED, "sum": ("number", "any", "duration"), "avg": ("number", "any", "duration"),
    }[name]  # fmt: skip
    if argument.type not in allowed:
        raise binder.error(f"{name} of {NAMES[argument.type]} has no meaning.", call.arguments[0].span)
    type_: Type = "number" if name == "count" or argument.type == "any" else argument.type
    return bound.Aggregate(name, argument, call.distinct, type_, span=call.span)  # type: ignore[arg-type]


@contextmanager
def _aggregates(binder: Binder, where: str) -> Iterator[None]:
    before, binder.aggregates = binder.aggregates, where
    try:
        yield
    finally:
        binder.aggregates = before


def _arguments(binder: Binder, call: tree.Call, least: int, most: int) -> list[Expression]:
    if not least <= len(call.arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise binder.error(f"{call.name} takes {wanted} values, not {len(call.arguments)}.", call.span)
    return [binder.bind_expression(argument) for argument in call.arguments]


def _typed_argument(binder: Binder, call: tree.Call, found: Expression, wanted: Type) -> None:
    if found.type not in (wanted, "any"):
        raise binder.error(f"{call.name} takes {NAMES[wanted]}, not {NAMES[found.type]}.", found.span)


def _lineage(binder: Binder, name: str, call: tree.Call) -> Expression:
    (model,) = _arguments(binder, call, 1, 1)
    if model.type != "model":
        raise binder.error(f"{name} takes a model, not {NAMES[model.type]}.", call.arguments[0].span)
    return bound.Lineage(name, model, span=call.span)  # type: ignore[arg-type]


def _now(binder: Binder, name: str, call: tree.Call) -> Expression:
    _arguments(binder, call, 0, 0)
    return Constant(binder.now, "time", span=call.span)


def _date(binder: Binder, name: str, call: tree.Call) -> Expression:
    (text,) = _arguments(binder, call, 1, 1)
    found = _as_time(text)
    if found.type != "time":
        raise _no_time(binder, call.arguments[0])
    return found


def _no_time(binder: Binder, place: tree.Tree) -> Exception:
    return binder.error("This is not a time.", place.span, hint=_TIMES)


def _of_number(binder: Binder, name: str, call: tree.Call) -> Expression:
    arguments = _arguments(binder, call, 1, 2 if name == "round" else 1)
    for argument in arguments:
        _typed_argument(binder, call, argument, "number")
    return bound.Function(name, tuple(arguments), "number", span=call.span)


def _of_text(binder: Binder, name: str, call: tree.Call) -> Expression:
    (argument,) = _arguments(binder, call, 1, 1)
    _typed_argument(binder, call, argument, "text")
    return bound.Function(name, (argument,), "number" if name == "length" else "text", span=call.span)


def _coalesce(binder: Binder, name: str, call: tree.Call) -> Expression:
    arguments = _arguments(binder, call, 2, 16)
    type_ = common([argument.type for argument in arguments])
    if type_ is None or type_ in SET_TYPES:
        listed = ", ".join(dict.fromkeys(NAMES[argument.type] for argument in arguments))
        raise binder.error(f"coalesce takes values of one type, not {listed}.", call.span)
    return bound.Function(name, tuple(arguments), type_, span=call.span)


_Function = Callable[["Binder", str, tree.Call], Expression]
_FUNCTIONS: Mapping[str, _Function] = {
    **dict.fromkeys(LINEAGE, _lineage), "now": _now, "date": _date, "abs": _of_number, "round": _of_number,
    "lower": _of_text, "upper": _of_text, "length": _of_text, "coalesce": _coalesce,
}  # fmt: skip


# Conditions


def _compare(binder: Binder, found: tree.CompareTree) -> Expression:
    left, right = binder.bind_expression(found.left), binder.bind_expression(found.right)
    return _compared(binder, found.operator, left, right, found)


def _compared(binder: Binder, operator: str, left: Expression, right: Expression, place: tree.Tree) -> Expression:
    left, right = _aligned(binder, left, right)
    if "null" in (left.type, right.type) and left.type not in SET_TYPES and right.type not in SET_TYPES:
        raise binder.error("A comparison with null is never true.", place.span, hint="Write: is null, or is not null")
    if not comparable(left.type, right.type):
        hint = _TIMES if "time" in (left.type, right.type) else _hint_for_set(left if left.type in SET_TYPES else right)
        raise binder.error(
            f"{_named(left).capitalize()} cannot be compared with {_named(right)}.", place.span, hint=hint
        )
    _check_kept(binder, left, right, place)
    shown = left.type if left.type != "any" else right.type
    if operator not in ("=", "<>") and shown not in ORDERED:
        raise binder.error(f"{NAMES[shown].capitalize()} has no order, so {operator} cannot compare it.", place.span)
    return bound.Compare(operator, left, right, span=place.span)  # type: ignore[arg-type]


def _aligned(binder: Binder, left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """A text that is compared with a time is a time."""
    if left.type == "time" and is_text_constant(right):
        right = _time_of(binder, right)
    elif right.type == "time" and is_text_constant(left):
        left = _time_of(binder, left)
    return left, right


def _time_of(binder: Binder, found: Expression) -> Expression:
    made = _as_time(found)
    if made.type != "time":
        raise _no_time(binder, tree.Value(None, span=found.span))
    return made


def _named(found: Expression) -> str:
    return "the tags of a model" if isinstance(found, bound.Tags) else NAMES[found.type]


def _check_kept(binder: Binder, left: Expression, right: Expression, place: tree.Tree) -> None:
    """Refuse to compare a hyperparameter with a type of values that it has nowhere: no model could match."""
    for found, other in ((left, right), (right, left)):
        if not (isinstance(found, bound.Hyperparameter) and isinstance(other, Constant)):
            continue
        held = binder.known.types_of(found.name)
        if held and isinstance(place, tree.CompareTree) and other.type not in held:
            is_number = isinstance(other.value, str) and parse_number(other.value) is not None
            names = " or ".join(NAMES[type_] for type_ in NAMES if type_ in held)
            raise binder.error(
                f"The hyperparameter {found.name!r:.60} is {names} in all versions, and is compared with "
                f"{NAMES[other.type]}.", place.span, candidates=[other.value.strip()] if is_number else (),
            )  # fmt: skip


def _hint_for_set(found: Expression) -> str | None:
    match found:
        case bound.LayerPath(selector=selector):
            return f'A value of a metric is m.metric."{selector.text:.40}"; layers are tested with has.'
        case bound.Tags():
            return 'For example: "best" in m.tags'
        case bound.Lineage(kind=kind):
            return f"For example: m1 in {kind}(m2)"
    return None


def _like(binder: Binder, found: tree.LikeTree) -> Expression:
    text, pattern = binder.bind_expression(found.text), binder.bind_expression(found.pattern)
    for part, place, what in ((text, found.text, "What is compared"), (pattern, found.pattern, "The pattern of like")):
        if part.type not in ("text", "any"):
            raise binder.error(f"{what} is a text, not {NAMES[part.type]}.", place.span)
    match found.pattern:
        case tree.Value(str() as written) if re.search(r"[*?]", written) and not re.search("[%_]", written):
            meant = written.replace("*", "%").replace("?", "_")
            raise binder.error(
                "The pattern has no wildcard of like.", found.pattern.span, candidates=[f'"{meant:.60}"'],
                hint="In like, % is any text and _ one character. The text itself is compared with =.",
            )  # fmt: skip
    return _negated(bound.Like(text, pattern, span=found.span), found.negated)


def _contained(binder: Binder, found: tree.Contained) -> Expression:
    item = binder.bind_expression(found.item)
    return _negated(_in(binder, item, found), found.negated)


def _in(binder: Binder, item: Expression, found: tree.Contained) -> Expression:
    options = found.options
    if isinstance(options, tree.Subquery):
        return _in_query(binder, item, options, found)
    if isinstance(options, tree.List):
        return _in_list(binder, item, [binder.bind_expression(each) for each in options.items], found)
    right = binder.bind_expression(options)
    if isinstance(options, tree.QueryParameter) and right.type == "list":  # of dates or versions, perhaps
        return _in_list(binder, item, [constant(binder, value, options) for value in binder.parameter(options)], found)
    wanted: dict[Type, tuple[Type, ...]] = {"models": ("model",), "texts": ("text", "any")}
    if right.type not in wanted:
        raise binder.error(
            f"After in stands a list, a query or a set, not {NAMES[right.type]}.", options.span,
            hint="For example: m.param.lr in [0.1, 0.01]",
        )  # fmt: skip
    if item.type not in wanted[right.type]:
        raise binder.error(f"{NAMES[item.type].capitalize()} cannot be in {NAMES[right.type]}.", found.span)
    return bound.InSet(item, right, span=found.span)


def _in_list(binder: Binder, item: Expression, options: list[Expression], found: tree.Contained) -> Expression:
    if not options:
        raise binder.error("The list is empty.", found.options.span)
    aligned = []
    for option in options:
        compared = _compared(binder, "=", item, option, found)
        assert isinstance(compared, bound.Compare)
        item = compared.left
        aligned.append(compared.right)
    return bound.InList(item, tuple(aligned), span=found.span)


def _in_query(binder: Binder, item: Expression, options: tree.Subquery, found: tree.Contained) -> Expression:
    query = _one_column(binder, options)
    column = query.items[0].expression
    if not comparable(item.type, column.type):
        raise binder.error(
            f"{NAMES[item.type].capitalize()} cannot be in a query for {NAMES[column.type]}.", found.span
        )
    return bound.InQuery(item, query, span=found.span)


def _one_column(binder: Binder, place: tree.Subquery) -> bound.BoundSelect:
    query = binder.bind_select(place.query)
    if len(query.items) != 1:
        raise binder.error(f"This query has one column, not {len(query.items)}.", place.span)
    return query


def _subquery(binder: Binder, place: tree.Subquery) -> Expression:
    query = _one_column(binder, place)
    return bound.QueryValue(query, query.items[0].expression.type, span=place.span)


def _exists(binder: Binder, found: tree.ExistsTree) -> Expression:
    return bound.Exists(binder.bind_select(found.query), span=found.span)


def _between(binder: Binder, found: tree.Between) -> Expression:
    item, low, high = (binder.bind_expression(each) for each in (found.item, found.low, found.high))
    least = _compared(binder, ">=", item, low, found)
    most = _compared(binder, "<=", item, high, found)
    return _negated(bound.And((least, most), span=found.span), found.negated)


def _is_null(binder: Binder, found: tree.IsNullTree) -> Expression:
    operand = binder.bind_expression(found.operand)
    if operand.type in SET_TYPES:
        raise binder.error(
            f"{NAMES[operand.type].capitalize()} are never null.", found.span, hint="Write: count(...) = 0"
        )
    return _negated(bound.IsNull(operand, span=found.span), found.negated)


def _has(binder: Binder, found: tree.HasTree) -> Expression:
    nodes = binder.bind_nodes(found.nodes)
    tests = tuple(bind_test(template, binder.text) for template in found.templates)
    return bound.Has(nodes, tests, found.quantifier == "all", span=found.span)


def _not(binder: Binder, found: tree.NotTree) -> Expression:
    return bound.Not(binder.bind_condition(found.operand), span=found.span)


def _and(binder: Binder, found: tree.AndTree) -> Expression:
    return bound.And(tuple(binder.bind_condition(each) for each in found.operands), span=found.span)


def _or(binder: Binder, found: tree.OrTree) -> Expression:
    return bound.Or(tuple(binder.bind_condition(each) for each in found.operands), span=found.span)


def _negated(condition: Expression, negated: bool) -> Expression:
    return bound.Not(condition, span=condition.span) if negated else condition


_BINDERS: Mapping[type[tree.Tree], Callable[[Any, Any], Expression]] = {
    tree.Value: _value, tree.QueryParameter: _query_parameter, tree.Duration: _duration, tree.List: _list,
    tree.Path: bind_path, tree.Call: _call, tree.ArithmeticTree: _arithmetic, tree.NegativeTree: _negative,
    tree.CompareTree: _compare, tree.LikeTree: _like, tree.Contained: _contained, tree.Between: _between,
    tree.IsNullTree: _is_null, tree.HasTree: _has, tree.NotTree: _not, tree.AndTree: _and, tree.OrTree: _or,
    tree.Subquery: _subquery, tree.ExistsTree: _exists,
}  # fmt: skip
