"""Rewrites of bound queries: plain functions, applied one after the other. None changes what a query means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

from regatta.dql import bound
from regatta.dql.bound import BoundPart, Constant

Rewrite = Callable[[BoundPart], BoundPart]  # of one part; its own parts are rewritten already


B = TypeVar("B", bound=BoundPart)


def rewrite(query: B) -> B:
    """Apply every rewrite to every part of a query, innermost first."""
    for step in REWRITES:
        query = replace_parts(query, step)
    return query


def replace_parts(part: Any, step: Rewrite) -> Any:
    """Apply a function to every part of a part, innermost first; one that stands in two places stays one."""
    done: dict[int, Any] = {}

    def replaced(old: Any) -> Any:
        if isinstance(old, tuple):
            items = tuple(replaced(item) for item in old)
            return items if any(new is not item for new, item in zip(items, old, strict=True)) else old
        if not isinstance(old, BoundPart):
            return old
        if id(old) not in done:
            parts = {each.name: getattr(old, each.name) for each in fields(old)}
            changed = {name: new for name, value in parts.items() if (new := replaced(value)) is not value}
            done[id(old)] = step(replace(old, **changed) if changed else old)
        return done[id(old)]

    return replaced(part)


def remove_double_negation(part: BoundPart) -> BoundPart:
    """not (not x): x"""
    if isinstance(part, bound.Not) and isinstance(part.operand, bound.Not):
        return part.operand.operand
    return part


def flatten_junctions(part: BoundPart) -> BoundPart:
    """(a and b) and c: a and b and c; the same for or."""
    for kind in (bound.And, bound.Or):
        if isinstance(part, kind) and any(isinstance(operand, kind) for operand in part.operands):
            operands: list[Any] = []
            for operand in part.operands:
                operands += operand.operands if isinstance(operand, kind) else (operand,)
            return replace(part, operands=tuple(operands))
    return part


def drop_repeated_conditions(part: BoundPart) -> BoundPart:
    """a and a: a; the same for or."""
    if isinstance(part, bound.And | bound.Or):
        distinct = tuple(dict.fromkeys(part.operands))
        if len(distinct) == 1:
            return distinct[0]
        if len(distinct) < len(part.operands):
            return replace(part, operands=distinct)
    return part


def drop_true_and_false(part: BoundPart) -> BoundPart:
    """a and true: a; a or true: true; a and false: false; a or false: a"""
    if not isinstance(part, bound.And | bound.Or):
        return part
    neutral = isinstance(part, bound.And)
    if any(_is_constant(operand, not neutral) for operand in part.operands):
        return Constant(not neutral, "boolean", span=part.span)
    kept = tuple(operand for operand in part.operands if not _is_constant(operand, neutral))
    if len(kept) == len(part.operands):
        return part
    if not kept:
        return Constant(neutral, "boolean", span=part.span)
    return kept[0] if len(kept) == 1 else replace(part, operands=kept)


def cheap_conditions_first(part: BoundPart) -> BoundPart:
    """SQLite tests the conditions of a row in their order: columns of the version before its layers and lineage."""
    if isinstance(part, bound.And | bound.Or):
        ordered = tuple(sorted(part.operands, key=_cost))
        return part if ordered == part.operands else replace(part, operands=ordered)
    return part


def _cost(part: BoundPart) -> int:
    found = 0
    for each in bound.walk(part):
        if isinstance(each, bound.InQuery | bound.Exists | bound.QueryValue):
            found = max(found, 4)
        elif isinstance(each, bound.Lineage):
            found = max(found, 3 if each.kind in ("ancestors", "descendants") else 1)
        elif isinstance(each, bound.LayerPath):
            found = max(found, 2)
        elif isinstance(each, bound.Metric | bound.Hyperparameter | bound.Tags | bound.RunAttribute | bound.Metadata):
            found = max(found, 1)
    return found


def _is_constant(part: BoundPart, value: bool) -> bool:
    return isinstance(part, Constant) and part.type == "boolean" and part.value is value


def merge_nested_selects(part: BoundPart) -> BoundPart:
    """from (select m where a) n where b: from versions n where a and b, if the nested query does no more than that."""
    if not isinstance(part, bound.BoundSelect):
        return part
    for place, source in enumerate(part.sources):
        if isinstance(source, bound.QuerySource) and _only_filters(source.query):
            inner, outer = source.query.sources[0], source.variable
            where = _renamed(source.query.where, inner.variable, outer)
            conditions = tuple(each for each in (where, part.where) if each is not None)
            made = replace(inner, variable=outer)
            part = replace(
                part,
                sources=(*part.sources[:place], made, *part.sources[place + 1 :]),
                where=bound.And(conditions) if len(conditions) == 2 else (conditions or (None,))[0],
            )
    return part


def _only_filters(query: bound.BoundSelect) -> bool:
    """Whether a query is all versions of one source, in their order, for which a condition holds."""
    if len(query.sources) != 1 or not isinstance(query.sources[0], bound.VersionSource | bound.IdsSource):
        return False
    is_plain = query.models and query.items[0].expression == query.sources[0].variable and not query.is_aggregated
    return is_plain and not (query.order or query.distinct or query.limit is not None or query.offset)


def _renamed(part: Any, old: bound.Variable, new: bound.Variable) -> Any:
    return replace_parts(part, lambda each: replace(new, span=each.span) if each == old else each)


REWRITES: tuple[Rewrite, ...] = (
    merge_nested_selects,
    remove_double_negation,
    flatten_junctions,
    drop_repeated_conditions,
    drop_true_and_false,
    cheap_conditions_first,
)
