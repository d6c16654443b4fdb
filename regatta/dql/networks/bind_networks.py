"""Tree to bound query, for slice and construct.

slice m2 from m1 where ... mutate m2.input = m1["conv1"] and m2.output = m1["fc7"]
construct m2 from m1 where ... mutate m1["conv*($1)"].insert = RELU("relu$1") and m1["fc8"].set(out in [10, 20])
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from regatta.dql import tree
from regatta.dql.bound import (
    And,
    BoundSelect,
    Constant,
    Expression,
    Has,
    LayerPath,
    Not,
    NotEmpty,
    Or,
    PathStep,
    ResultColumn,
    Variable,
    walk,
)
from regatta.dql.networks.bound_networks import (
    BoundConstruct,
    BoundDelete,
    BoundInsert,
    BoundMutation,
    BoundReplace,
    BoundSet,
    BoundSlice,
    inner_derivation,
)
from regatta.dql.templates import ANY, as_template, bind_changes, bind_layer
from regatta.errors import UsageError, nearest
from regatta.network.mutate import LayerTemplate
from regatta.repo.catalog.names import check_name

if TYPE_CHECKING:
    from regatta.dql.bind import Binder

MUTATIONS = ("insert", "delete", "replace", "set")
MAX_OPTIONS = 10_000  # of one mutation
_ENDS = ("input", "output")
T = TypeVar("T", bound=tree.Tree)


def bind_slice(binder: Binder, body: tree.Slice) -> BoundSlice:
    """Bind a slice: which models, and between which layers."""
    where = _bind_models(binder, body)
    ends: dict[str, LayerPath] = {}
    for part in _parts(body.mutate):
        match part:
            case tree.CompareTree("=", tree.Path(root, (tree.Field(name, None),)), right) if root == body.name:
                if name not in _ENDS:
                    raise binder.error(
                        f"A slice has no {name!r:.60}.", part.left.span, candidates=nearest(name, _ENDS),
                        hint="It has input and output.",
                    )  # fmt: skip
                if name in ends:
                    raise binder.error(f"The {name} of the slice is given twice.", part.span)
                ends[name] = _layers(binder, right, body.name)
            case _:
                raise binder.error(
                    "A slice says where it begins or ends.", part.span, candidates=_meant_ends(part, body),
                    hint=_slice_hint(body),
                )  # fmt: skip
    for name in _ENDS:
        if name not in ends:
            raise binder.error(f"The slice has no {name}.", body.mutate.span, hint=_slice_hint(body))
    model = _one_model(binder, body, list(ends.values()))
    models = _models(binder, body, model, where)
    return BoundSlice(body.name, models, ends["input"], ends["output"], _into(binder, body), span=body.span)


def bind_construct(binder: Binder, body: tree.Construct) -> BoundConstruct:
    """Bind a construct: which models, and what is changed in their networks."""
    where = _bind_models(binder, body)
    mutations = tuple(_mutation(binder, part, body) for part in _parts(body.mutate))
    model = _one_model(binder, body, [mutation.layers for mutation in mutations])
    captures = {number for mutation in mutations for number in mutation.layers.selector.captures}
    conditions = tuple(_conditions_with_captures(binder, where, model, captures))
    models = _models(binder, body, model, where)
    return BoundConstruct(
        body.name, models, mutations, conditions, body.fit, _into(binder, body), span=body.span
    )  # fmt: skip


# Models


def _bind_models(binder: Binder, body: tree.Slice | tree.Construct) -> Expression | None:
    binder.bind_sources(body.sources)
    if body.name in binder.variables:
        raise binder.error(
            f"{body.name!r:.60} is a model that the query reads; what it makes needs another name.",
            binder.place_of_name(body.name, body.span),
        )
    binder.aggregates = "in where"
    where = None if body.where is None else binder.bind_condition(body.where)
    if where is not None and inner_derivation(binder.sources) is not None:
        model = binder.sources[0].variable
        wrong = next((part for part in walk(where) if not _is_on_layers(part, model)), None)
        if wrong is not None:
            raise binder.error(
                "Only conditions on layers can stand here: the query in brackets makes networks, and no versions.",
                wrong.span, hint="Put other conditions into that query.",
            )  # fmt: skip
    return where


def _one_model(binder: Binder, body: tree.Slice | tree.Construct, layers: Sequence[LayerPath]) -> Variable:
    """The variable whose networks are changed."""
    model = layers[0].model
    if not isinstance(model, Variable) or model not in [source.variable for source in binder.sources]:
        raise binder.error("Layers of a model of this query are expected.", layers[0].span)
    for each in layers:
        if each.model != model:
            raise binder.error("All layers are of one model; the query has another one here.", each.span)
    return model


def _models(
    binder: Binder, body: tree.Slice | tree.Construct, model: Variable, where: Expression | None
) -> BoundSelect:
    item = ResultColumn(model, model.name, span=model.span)
    return BoundSelect((item,), tuple(binder.sources), where, distinct=True, span=body.span)


def _into(binder: Binder, body: tree.Slice | tree.Construct) -> str | None:
    if body.into is None:
        return None
    try:
        return check_name(body.into)
    except UsageError as error:
        raise binder.error(error.message, binder.place_of_text(body.into, body.span)) from None


def _layers(binder: Binder, expression: tree.Expression, made: str) -> LayerPath:
    if isinstance(expression, tree.Path) and expression.root == made:
        known = ", ".join(binder.visible())
        raise binder.error(f"{made!r:.60} is what the query makes; layers are selected in {known}.", expression.span)
    return binder.bind_nodes(expression)


def _meant_ends(part: tree.Expression, body: tree.Slice) -> tuple[str, ...]:
    """s.input, where it is written as that of a model that the slice is cut from."""
    match part:
        case tree.CompareTree("=", tree.Path(_, (tree.Field(name, None),))) if name in _ENDS:
            return (f"{body.name}.{name}",)
    return ()


def _slice_hint(body: tree.Slice) -> str:
    return f'For example: mutate {body.name}.input = m["conv1"] and {body.name}.output = m["fc7"]'


# Mutations


def _parts(mutate: tree.Expression) -> tuple[tree.Expression, ...]:
    return mutate.operands if isinstance(mutate, tree.AndTree) else (mutate,)


def _mutation(binder: Binder, part: tree.Expression, body: tree.Construct) -> BoundMutation:
    match part:
        case tree.CompareTree("=", tree.Path() as path, value):
            options: tuple[tree.Expression, ...] | None = (value,)
        case tree.Contained(tree.Path() as path, tree.List(items), False):
            options = items
        case tree.Path() as path:
            options = None
        case tree.OrTree() | tree.NotTree():
            raise binder.error("Mutations are joined with `and`.", part.span, hint="Options are listed: insert in [..]")
        case _:
            raise _no_mutation(binder, part)
    if len(path.steps) < 2 or not isinstance(path.steps[-1], tree.Field):
        raise _no_mutation(binder, part)
    step = path.steps[-1]
    if step.name not in MUTATIONS:
        hint = f"There are {', '.join(MUTATIONS)}. A hyperparameter is set with set({step.name} = ...)."
        raise binder.error(
            f"{step.name!r:.60} is no mutation.", step.span, candidates=nearest(step.name, MUTATIONS), hint=hint
        )
    layers = _layers(binder, replace(path, steps=path.steps[:-1]), body.name)
    if step.name in ("insert", "replace"):
        templates = _templates(binder, step, options, layers)
        kind = BoundInsert if step.name == "insert" else BoundReplace
        return kind(layers, templates, span=part.span)
    if options is not None:
        raise binder.error(f"{step.name} takes no value.", part.span, hint=_HINTS[step.name])
    if step.name == "delete":
        return BoundDelete(layers, _reconnects(binder, step), span=part.span)
    return BoundSet(layers, _changes(binder, step), span=part.span)


_HINTS = {
    "insert": 'For example: m["conv1"].insert = RELU, or insert in [RELU, GELU]',
    "replace": 'For example: m["relu1"].replace = GELU, or replace in [GELU, SILU]',
    "delete": 'For example: m["relu1"].delete, or m["branch"].delete(reconnect = false)',
    "set": 'For example: m["conv1"].set(kernel = 5, out in [32, 64])',
}


def _no_mutation(binder: Binder, part: tree.Expression) -> Exception:
    return binder.error("A mutation of layers is expected here.", part.span, hint=_HINTS["insert"])


def _templates(
    binder: Binder, step: tree.Field, options: tuple[tree.Expression, ...] | None, layers: LayerPath
) -> tuple[LayerTemplate, ...]:
    if step.arguments is not None or not options:
        raise binder.error(f"{step.name} takes a layer, or a list of layers.", step.span, hint=_HINTS[step.name])
    found: list[LayerTemplate] = []
    for option in options:
        template = with_values(binder, as_template(option, binder.text))
        for single in _written_out(template):
            found.append(bind_layer(single, binder.text))
            if len(found) > MAX_OPTIONS:
                raise binder.error(f"There are more than {MAX_OPTIONS:,} options.", step.span)
        missing = [int(number) for number in re.findall(r"\$(\d{1,2})", found[-1].name)]
        missing = [number for number in missing if number not in layers.selector.captures]
        if missing:
            raise binder.error(
                f"The selector {layers.selector.text!r:.60} captures nothing as ${missing[0]}.", option.span,
                hint=f"Capture it: (${missing[0]}) after *, ? or a list, as in \"conv*(${missing[0]})\".",
            )  # fmt: skip
    return tuple(found)


def _written_out(template: tree.NodeTemplate) -> Iterator[tree.NodeTemplate]:
    """CONV(kernel in [3, 5]) is CONV(kernel = 3) and CONV(kernel = 5)."""
    choices: list[tuple[tree.Expression, ...]] = []
    for argument in template.arguments:
        match argument:
            case tree.Contained(item, tree.List(items), False) if items:
                choices.append(tuple(tree.CompareTree("=", item, each, span=argument.span) for each in items))
            case _:
                choices.append((argument,))
    for arguments in product(*choices):
        yield replace(template, arguments=arguments)


def _reconnects(binder: Binder, step: tree.Field) -> bool:
    match tuple(with_values(binder, each) for each in step.arguments or ()):
        case ():
            return True
        case (tree.CompareTree("=", tree.Path("reconnect", ()), tree.Value(bool() as reconnect)),):
            return reconnect
    raise binder.error("delete takes nothing, or reconnect = false.", step.span, hint=_HINTS["delete"])


def _changes(binder: Binder, step: tree.Field) -> tuple[Any, ...]:
    if not step.arguments:
        raise binder.error("set takes hyperparameters.", step.span, hint=_HINTS["set"])
    changes = [bind_changes(ANY, with_values(binder, each), binder.text) for each in step.arguments]
    for place, change in enumerate(changes):
        if change.name in [other.name for other in changes[:place]]:
            raise binder.error(f"{change.name} is set twice.", step.arguments[place].span)
    return tuple(changes)


def with_values(binder: Binder, part: T) -> T:
    """A part of a tree with the values of parameters in their place."""
    if isinstance(part, tree.QueryParameter):
        value = binder.parameter(part)
        if isinstance(value, list):
            return tree.List(tuple(tree.Value(each, span=part.span) for each in value), span=part.span)  # type: ignore[return-value]
        return tree.Value(value, span=part.span)  # type: ignore[return-value]
    changed: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, tree.Tree):
            changed[each.name] = with_values(binder, value)
        elif isinstance(value, tuple):
            changed[each.name] = tuple(
                with_values(binder, item) if isinstance(item, tree.Tree) else item for item in value
            )
    return replace(part, **changed) if changed else part


# Conditions with captures


def _conditions_with_captures(
    binder: Binder, where: Expression | None, model: Variable, captures: set[int]
) -> Iterator[Expression]:
    """The conditions of `where` on layers of the model whose selectors capture what those of mutations do."""
    operands = where.operands if isinstance(where, And) else () if where is None else (where,)
    for operand in operands:
        selected = [part for part in walk(operand) if isinstance(part, LayerPath) and part.selector.captures & captures]
        if not any(nodes.model == model for nodes in selected):
            continue
        wrong = next((part for part in walk(operand) if not _is_on_layers(part, model)), None)
        if wrong is not None:
            raise binder.error(
                "A condition with captures cannot be a part of another kind of condition.", wrong.span,
                hint="Join it with others by `and`.",
            )  # fmt: skip
        yield operand


def _is_on_layers(part: object, model: Variable) -> bool:
    if isinstance(part, LayerPath):
        return part.model == model
    return isinstance(part, Has | NotEmpty | Not | And | Or | Variable | Constant | PathStep)
