"""Tree to bound query, for evaluate.

evaluate m from "query3" with config = "config.toml" vary config.base_lr in [0.1, 0.01] keep top(5, m["loss"], 100)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from regatta.dql import tree
from regatta.dql.bound import BoundSelect, ResultColumn, Variable
from regatta.dql.evaluation.bound_evaluate import BoundAxis, BoundEvaluate, BoundSetting
from regatta.dql.evaluation.keep import bind_rule
from regatta.dql.evaluation.vary import bind_axis, bind_setting, bind_using
from regatta.paths import RUN_NAME

if TYPE_CHECKING:
    from regatta.dql.bind import Binder

P = TypeVar("P", BoundSetting, BoundAxis)


def bind_evaluate(binder: Binder, body: tree.Evaluate) -> BoundEvaluate:
    """Bind an evaluate: which models, with which settings and values, and which of them are kept."""
    binder.bind_sources(body.sources, default=body.name)
    model = _model(binder, body)
    binder.aggregates = "in where"
    where = None if body.where is None else binder.bind_condition(body.where)
    item = ResultColumn(model, model.name, span=model.span)
    models = BoundSelect((item,), tuple(binder.sources), where, distinct=True, span=body.span)
    settings = _once(binder, [bind_setting(binder, setting) for setting in body.settings], "set")
    axes = _once(binder, [bind_axis(binder, varied) for varied in body.vary], "varied")
    for axis in axes:
        if axis.key in [setting.key for setting in settings]:
            raise binder.error(f"config.{axis.key} is set and varied.", axis.span)
    using = None if body.using is None else bind_using(binder, body.using)
    if using is not None and not axes:
        raise binder.error(
            "A search needs values to choose from.", using.span, hint="vary config.base_lr auto using ..."
        )
    names = {body.name, model.name}
    rules = tuple(bind_rule(binder, rule, _name_in(rule, names, body.name)) for rule in body.keep)
    if body.into is not None and not RUN_NAME.fullmatch(body.into):
        raise binder.error(
            f"A run cannot be named {body.into!r:.60}.",
            binder.place_of_text(body.into, body.span),
            hint="Use letters, digits, '.', '-' and '_'.",
        )
    config = next((setting for setting in settings if not setting.key), None)
    return BoundEvaluate(
        body.name, models, config, tuple(each for each in settings if each.key), tuple(axes), using, rules, binder.text,
        body.into, binder.saved[-1] if binder.saved else None, span=body.span,
    )  # fmt: skip


def _model(binder: Binder, body: tree.Evaluate) -> Variable:
    """The variable whose models are trained."""
    models = [variable for variable in binder.variables.values() if variable.type == "model"]
    named = [variable for variable in models if variable.name == body.name]
    if len(named or models) != 1:
        known = ", ".join(binder.variables)
        message = f"It is not known which of {known} is trained." if models else "There are no models to train."
        place = binder.place_of_name(body.name, body.span)
        raise binder.error(message, place, hint="For example: evaluate m from (select m from m where ...)")
    return (named or models)[0]


def _once(binder: Binder, parts: Iterable[P], done: str) -> list[P]:
    found: dict[str, P] = {}
    for part in parts:
        if part.key in found:
            name = f"config.{part.key}" if part.key else "config"
            raise binder.error(f"{name} is {done} twice.", part.span)
        found[part.key] = part
    return list(found.values())


def _name_in(rule: tree.Tree, names: set[str], default: str) -> str:
    """The name under which a rule knows the models: that of the evaluate, or that of their variable."""
    roots = [part.root for part in tree.walk(rule) if isinstance(part, tree.Path)]
    return next((root for root in roots if root in names), default)
