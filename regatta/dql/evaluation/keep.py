"""The rules of `keep`, as those of a search: regatta/search/keep.py.

keep top(5, m["loss"], 100) and where m["accuracy"] > 0.9 after 3 epochs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, get_args

from regatta.checks import is_number, is_whole
from regatta.dql import tree
from regatta.dql.evaluation.bound_evaluate import BoundRule
from regatta.dql.evaluation.values import constant
from regatta.errors import nearest
from regatta.repo.intake.metrics import usual_mode
from regatta.search.keep import AfterUnit, BoundsRule, MetricBound, TopRule

if TYPE_CHECKING:
    from regatta.dql.bind import Binder

MAX_ALTERNATIVES = 64
EXAMPLE = 'For example: keep top(5, {0}["loss"], 100), or keep where {0}["accuracy"] > 0.9 after 3 epochs'
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "<>", "<>": "="}
_MIRRORED: Mapping[Any, Any] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


def bind_rule(binder: Binder, rule: tree.KeepCall | tree.KeepWhere, name: str) -> BoundRule:
    """A rule about the metrics of the models that are called `name`."""
    if isinstance(rule, tree.KeepCall):
        top = _top(binder, rule.call, name)
        return BoundRule(top, (top.metric,), span=rule.span)
    after = binder.bind_count(rule.after, f"number of {rule.unit}", rule.span)
    if not after:
        raise binder.error(f"The number of {rule.unit} is from 1.", rule.span)
    alternatives = _alternatives(binder, rule.condition, name, False)
    metrics = tuple(dict.fromkeys(bound.metric for bounds in alternatives for bound in bounds))
    return BoundRule(BoundsRule(alternatives, after, rule.unit), metrics, span=rule.span)


def _top(binder: Binder, call: tree.Call, name: str) -> TopRule:
    if call.name.lower() != "top":
        raise binder.error(
            f"There is no rule {call.name!r:.60}.", call.span, candidates=nearest(call.name.lower(), ("top", "where")),
            hint=EXAMPLE.format(name),
        )  # fmt: skip
    arguments = list(call.arguments)
    if not 2 <= len(arguments) <= 4:
        raise binder.error(
            f"top takes how many are kept, a metric, and after how many iterations; it has {len(arguments)} arguments.",
            call.span, hint=EXAMPLE.format(name),
        )  # fmt: skip
    k = constant(binder, arguments[0])
    if not is_whole(k):
        raise binder.error(f"top keeps a whole number from 1, not {k!r:.60}.", arguments[0].span)
    metric = _metric(binder, arguments[1], name)
    after = constant(binder, arguments[2]) if len(arguments) > 2 else 1
    if not is_whole(after):
        raise binder.error(f"top decides after a whole number from 1, not {after!r:.60}.", arguments[2].span)
    unit: Any = constant(binder, arguments[3]) if len(arguments) > 3 else "iterations"
    units = get_args(AfterUnit)
    if unit not in units:
        raise binder.error(
            f"top counts iterations or epochs, not {unit!r:.60}.",
            arguments[3].span,
            candidates=nearest(str(unit), units),
        )
    return TopRule(k, metric, after, unit, usual_mode(metric))


def _metric(binder: Binder, expression: tree.Expression, name: str) -> str:
    """The metric that `m["loss"]`, `m.loss` or `m.metric.loss` names."""
    match expression:
        case tree.Path(root, (tree.Selector(str() as metric),)) if root == name:
            return metric
        case tree.Path(root, (tree.Selector(tree.QueryParameter() as parameter),)) if root == name:
            found = binder.parameter(parameter)
            if isinstance(found, str):
                return found
        case tree.Path(root, (tree.Field("metric", None), tree.Field(metric, None))) if root == name:
            return metric
        case tree.Path(root, (tree.Field(metric, None),)) if root == name:
            return metric
    raise binder.error("A metric of a model is expected here.", expression.span, hint=f'For example: {name}["loss"]')


def _alternatives(
    binder: Binder, condition: tree.Expression, name: str, negated: bool
) -> tuple[tuple[MetricBound, ...], ...]:
    """A condition as alternatives; each one is a list of comparisons that must all hold."""
    match condition:
        case tree.NotTree(operand):
            return _alternatives(binder, operand, name, not negated)
        case tree.AndTree(operands) | tree.OrTree(operands):
            parts = [_alternatives(binder, operand, name, negated) for operand in operands]
            if isinstance(condition, tree.OrTree) is not negated:
                return tuple(bounds for part in parts for bounds in part)
            if prod(map(len, parts)) > MAX_ALTERNATIVES:
                raise binder.error("The condition has too many alternatives.", condition.span)
            return tuple(tuple(bound for bounds in choice for bound in bounds) for choice in product(*parts))
        case tree.CompareTree(comparison, left, right):
            if _is_constant(left) and not _is_constant(right):
                return _alternatives(
                    binder, replace(condition, left=right, right=left, operator=_MIRRORED[comparison]), name, negated
                )
            bound = constant(binder, right)
            if not is_number(bound):
                raise binder.error(f"A metric is compared with a number, not {bound!r:.60}.", right.span)
            metric = _metric(binder, left, name)
            return ((MetricBound(metric, _OPPOSITE[comparison] if negated else comparison, float(bound)),),)
        case tree.Between(value, low, high, inverted):
            span = condition.span
            least, most = tree.CompareTree(">=", value, low, span=span), tree.CompareTree("<=", value, high, span=span)
            both = tree.AndTree((least, most), span=span)
            return _alternatives(binder, both, name, negated is not inverted)
    raise binder.error("A rule compares metrics with numbers.", condition.span, hint=EXAMPLE.format(name))


def _is_constant(expression: tree.Expression) -> bool:
    return isinstance(expression, tree.Value | tree.QueryParameter | tree.NegativeTree)
