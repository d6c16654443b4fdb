"""Rewrites of bound queries: plain functions, applied one after the other. None changes what a query means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from regatta.dql import bound
from regatta.dql.bound import Bound, Constant

Rewrite = Callable[[Bound], Bound]  # of one part; its own parts are rewritten already


def rewrite(query: Bound) -> Bound:
    """Apply every rewrite to every part of a query, innermost first."""
    for step in REWRITES:
        query = _everywhere(query, step)
    return query


def _everywhere(part: Any, step: Rewrite) -> Any:
    if isinstance(part, tuple):
        items = tuple(_everywhere(item, step) for item in part)
        return items if any(new is not old for new, old in zip(items, part, strict=True)) else part
    if not isinstance(part, Bound):
        return part
    old = {each.name: getattr(part, each.name) for each in fields(part)}
    changed = {name: new for name, value in old.items() if (new := _everywhere(value, step)) is not value}
    return step(replace(part, **changed) if changed else part)


def remove_double_negation(part: Bound) -> Bound:
    """not (not x): x"""
    if isinstance(part, bound.Not) and isinstance(part.operand, bound.Not):
        return part.operand.operand
    return part


def flatten_junctions(part: Bound) -> Bound:
    """(a and b) and c: a and b and c; the same for or."""
    for kind in (bound.And, bound.Or):
        if isinstance(part, kind) and any(isinstance(operand, kind) for operand in part.operands):
            operands: list[Any] = []
            for operand in part.operands:
                operands += operand.operands if isinstance(operand, kind) else (operand,)
            return replace(part, operands=tuple(operands))
    return part


def drop_repeated_conditions(part: Bound) -> Bound:
    """a and a: a; the same for or."""
    if isinstance(part, bound.And | bound.Or):
        distinct = tuple(dict.fromkeys(part.operands))
        if len(distinct) == 1:
            return distinct[0]
        if len(distinct) < len(part.operands):
            return replace(part, operands=distinct)
    return part


def drop_true_and_false(part: Bound) -> Bound:
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


def cheap_conditions_first(part: Bound) -> Bound:
    """SQLite tests the conditions of a row in their order: columns of the version before its layers and lineage."""
    if isinstance(part, bound.And | bound.Or):
        ordered = tuple(sorted(part.operands, key=_cost))
        return part if ordered == part.operands else replace(part, operands=ordered)
    return part


def _cost(part: Bound) -> int:
    found = 0
    for each in bound.walk(part):
        if isinstance(each, bound.InQuery | bound.Exists | bound.QueryValue):
            found = max(found, 4)
        elif isinstance(each, bound.Lineage):
            found = max(found, 3 if each.kind in ("ancestors", "descendants") else 1)
        elif isinstance(each, bound.Nodes):
            found = max(found, 2)
        elif isinstance(each, bound.Metric | bound.Hyperparameter | bound.Tags | bound.RunAttribute | bound.Metadata):
            found = max(found, 1)
    return found


def _is_constant(part: Bound, value: bool) -> bool:
    return isinstance(part, Constant) and part.type == "boolean" and part.value is value


REWRITES: tuple[Rewrite, ...] = (
    remove_double_negation,
    flatten_junctions,
    drop_repeated_conditions,
    drop_true_and_false,
    cheap_conditions_first,
)
