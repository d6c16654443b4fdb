"""Templates of layers: `POOL("MAX")`, `CONV(kernel = 3, out > 64)`, `RELU("relu$1")`.

After `has` and `->` a template is a test of a layer; in a mutation it is a layer to be made. Its first plain argument
is the function, for kinds that have one (POOL, NORM, ...), and the next one the name. Other kinds have only the name.
In a test the name is a selector. ANY tests layers of every kind.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from regatta.dql import tree
from regatta.dql.parse import QueryError
from regatta.dql.selectors import Captures, SelectorError, SelectorPattern, fill_captures, parse_selector
from regatta.errors import nearest
from regatta.network import KINDS
from regatta.network.graph import Node
from regatta.network.kinds import with_default
from regatta.network.mutate import LayerTemplate

ANY = "ANY"
ENDS = ("INPUT", "OUTPUT")  # kinds that no mutation can make
Constant: TypeAlias = "str | int | float | bool | tuple[int, ...]"
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
# What `function` may be. In the templates of kinds that have one by default, another text is the name of the layer.
_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "POOL": ("max", "avg"), "NORM": ("batch", "layer", "group", "instance", "rms", "local"),
    "DROPOUT": ("elements", "channels", "alpha"), "ATTENTION": ("multihead", "dot_product"),
    "RNN": ("lstm", "gru", "rnn_tanh", "rnn_relu"), "REDUCE": ("mean", "sum", "max", "min"),
}  # fmt: skip
_TYPES = {"int": "a number", "number": "a number", "bool": "true or false", "text": "a text", "ints": "numbers"}


@dataclass(frozen=True)
class AttributeTest:
    """A hyperparameter compared with constants; `in` has several. A layer without the hyperparameter fails the test.

    A list of numbers, such as a kernel, is compared with a number by all its items, and with a list as a whole. Texts
    are equal in any case of letters.
    """

    name: str
    operator: str  # = <> < <= > >= in
    values: tuple[Constant, ...]

    def holds(self, value: Any) -> bool:
        if value is None:
            return False
        compare = _COMPARISONS["=" if self.operator == "in" else self.operator]
        return any(_compared(compare, self.operator, value, wanted) for wanted in self.values)


@dataclass(frozen=True)
class NodeTest:
    """What a layer must be: of this kind (None: any), with a name like this, and with these hyperparameters."""

    kind: str | None
    name: SelectorPattern | None = None
    attributes: tuple[AttributeTest, ...] = ()

    def matches(self, node: Node, names: tuple[str, ...]) -> bool:
        if self.kind is not None and node.kind != self.kind:
            return False
        if self.name is not None and self.name.match(names) is None:
            return False
        return self.matches_attributes(node.kind, node.attributes)

    def matches_attributes(self, kind: str, attributes: Mapping[str, Any]) -> bool:
        """Whether the hyperparameters of a layer of this kind pass; a layer has no others than those of its kind."""
        known = KINDS[kind].types if kind in KINDS else {}
        if kind in KINDS and kind != "OTHER" and any(test.name not in known for test in self.attributes):
            return False
        return all(
            test.holds(with_default(kind, attributes, test.name) if test.name in known else attributes.get(test.name))
            for test in self.attributes
        )


def _compared(compare: Callable[[Any, Any], bool], sign: str, value: Any, wanted: Constant) -> bool:
    if isinstance(wanted, tuple):
        return isinstance(value, tuple) and compare(value, wanted)
    if isinstance(value, tuple):
        items = [_is_like(item, wanted) and compare(item, wanted) for item in value]
        return any(items) if sign == "<>" else bool(items) and all(items)
    if not _is_like(value, wanted):
        return False
    if isinstance(value, str) and isinstance(wanted, str):
        return compare(value.casefold(), wanted.casefold())
    return compare(value, wanted)


def _is_like(value: Any, wanted: Constant) -> bool:
    """Whether two values can be compared: true and false are no numbers."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return isinstance(value, bool) and isinstance(wanted, bool)
    if isinstance(value, str) or isinstance(wanted, str):
        return isinstance(value, str) and isinstance(wanted, str)
    return isinstance(value, int | float) and isinstance(wanted, int | float)


def bind_test(template: tree.NodeTemplate, text: str) -> NodeTest:
    """The test that a template stands for; a QueryError names what is wrong, with the nearest names."""
    kind = _kind(template, text, (*KINDS, ANY))
    function, name, named = _arguments(template, text)
    tests = [_test(kind, each, text) for each in named]
    if function is not None:
        tests.insert(0, AttributeTest("function", "=", (function,)))
    for test in tests:
        _check_function(kind, test, template, text)
    return NodeTest(None if kind == ANY else kind, None if name is None else bind_selector(name, text), tuple(tests))


def _check_function(kind: str, test: AttributeTest, template: tree.NodeTemplate, text: str) -> None:
    """Refuse a misspelt function, and a name in its place: no layer would match. Imported layers may have others."""
    known = _FUNCTIONS.get(kind, ())
    for value in test.values if test.name == "function" else ():
        function = str(value).lower()
        near = nearest(function, known)
        if known and function not in known and (near or re.search(r"[\d*?\[]", function)):
            hint = f'It has {", ".join(known)}. A name is the second text, or that of ANY("name").'
            raise QueryError(f"{kind} has no function {value!r:.60}.", text, template.span, candidates=near, hint=hint)


def bind_layer(template: tree.NodeTemplate, text: str) -> LayerTemplate:
    """The layer that a template stands for in a mutation; its name may hold captures such as $1."""
    kind = _kind(template, text, tuple(name for name in KINDS if name not in ENDS))
    function, name, named = _arguments(template, text)
    attributes: dict[str, Any] = {} if function is None else {"function": function.lower()}
    for each in named:
        if not isinstance(each, tree.CompareTree) or each.operator != "=":
            raise QueryError("A new layer takes values: name = value.", text, each.span)
        test = _test(kind, each, text)
        value = test.values[0]
        attributes[test.name] = value.lower() if test.name == "function" and isinstance(value, str) else value
    chosen, known = attributes.get("function"), _FUNCTIONS.get(kind, ())
    if chosen is not None and known and chosen not in known:
        hint = f"It has {', '.join(known)}."
        raise QueryError(
            f"{kind} has no function {chosen!r:.60}.", text, template.span, candidates=nearest(chosen, known), hint=hint
        )
    return LayerTemplate(kind, attributes, "" if name is None else str(name.value))


def with_captures(layer: LayerTemplate, captures: Captures) -> LayerTemplate:
    """The layer with its captures filled in; raises SelectorError."""
    return LayerTemplate(layer.kind, layer.attributes, fill_captures(layer.name, captures))


def bind_changes(kind: str, comparison: tree.Expression, text: str) -> AttributeTest:
    """`kernel = 5` or `kernel in [3, 5]` of `set(...)`: the hyperparameter, and the values that it gets."""
    test = _test(kind, comparison, text)
    if test.operator not in ("=", "in"):
        raise QueryError("A hyperparameter is set with = or in.", text, comparison.span)
    return test


def bind_selector(value: tree.Value, text: str) -> SelectorPattern:
    try:
        return parse_selector(str(value.value))
    except SelectorError as error:
        raise QueryError(str(error), text, value.span) from None


def as_template(expression: tree.Expression, text: str) -> tree.NodeTemplate:
    """`RELU` and `RELU("relu$1")` are read as expressions where a mutation has them; here they become templates."""
    if isinstance(expression, tree.Path) and not expression.steps:
        return tree.NodeTemplate(expression.root, span=expression.span)
    if isinstance(expression, tree.Call) and not expression.star and not expression.distinct:
        return tree.NodeTemplate(expression.name, expression.arguments, span=expression.span)
    raise QueryError(
        "A template of a layer is expected here.", text, expression.span, hint='For example: RELU, or POOL("MAX").'
    )


def _kind(template: tree.NodeTemplate, text: str, known: tuple[str, ...]) -> str:
    kind = template.kind.upper()
    if kind in known:
        return kind
    if kind in KINDS:
        raise QueryError(f"A mutation cannot make {kind} layers.", text, template.span)
    raise QueryError(
        f"{template.kind!r:.60} is not a kind of layer.", text, template.span, candidates=nearest(kind, known)
    )


def _arguments(template: tree.NodeTemplate, text: str) -> tuple[str | None, tree.Value | None, list[tree.Expression]]:
    """The function, the name, and the arguments with names."""
    plain = [each for each in template.arguments if isinstance(each, tree.Value)]
    named: list[tree.Expression] = [each for each in template.arguments if not isinstance(each, tree.Value)]
    kind = KINDS.get(template.kind.upper())
    has_function = kind is not None and "function" in kind.types
    most = 2 if has_function else 1
    if len(plain) > most or any(not isinstance(each.value, str) for each in plain):
        wrong = next((each for each in plain if not isinstance(each.value, str)), plain[-1])
        takes = "a function and a name" if has_function else "a name"
        raise QueryError(
            f"{template.kind.upper()} takes {takes} in quotes, and hyperparameters as name = value.", text, wrong.span
        )
    first = str(plain[0].value) if plain else ""
    is_function = has_function and plain and (len(plain) == 2 or not _is_name_alone(template.kind.upper(), first))
    function = str(plain.pop(0).value) if is_function else None
    return function, plain[0] if plain else None, named


def _is_name_alone(kind: str, text: str) -> bool:
    """Whether the only text of a template is the name: DROPOUT("drop1")."""
    return "function" in KINDS[kind].defaults and text.lower() not in _FUNCTIONS[kind]


def _test(kind: str, argument: tree.Expression, text: str) -> AttributeTest:
    match argument:
        case tree.CompareTree(sign, tree.Path(name, ()), right):
            return _typed(kind, name, sign, _constants(right, text), argument.left.span, text)
        case tree.Contained(tree.Path(name, ()), tree.List(items), False):
            values = tuple(value for item in items for value in _constants(item, text))
            return _typed(kind, name, "in", values, argument.item.span, text)
        case tree.LikeTree(tree.Path("name", ()), tree.Value(), False):
            raise QueryError(
                "The name of a layer is compared with a selector.", text, argument.span, hint='ANY("conv*")'
            )
    raise QueryError(
        "A template compares hyperparameters with values.", text, argument.span, hint="For example: CONV(kernel = 3)."
    )


def _typed(kind: str, name: str, sign: str, values: tuple[Constant, ...], span: tree.Span, text: str) -> AttributeTest:
    if not values:
        raise QueryError("The list is empty.", text, span)
    if kind == "OTHER":  # has whatever its operator has
        return AttributeTest(name, sign, values)
    if kind == ANY:
        known = {each: kind_.types[each] for kind_ in KINDS.values() for each in kind_.types}
    else:
        known = dict(KINDS[kind].types)
    if name not in known:
        whose = "No layer has" if kind == ANY else f"{kind} has no"
        hint = f"It has {', '.join(known)}." if known and kind != ANY else None
        raise QueryError(
            f"{whose} {'a ' if kind == ANY else ''}hyperparameter {name!r:.60}.", text, span,
            candidates=nearest(name, known), hint=hint,
        )  # fmt: skip
    for value in values:
        if not _fits(known[name], value):
            wanted = _TYPES.get(known[name], "a value")
            whose = name.capitalize() if kind == ANY else f"{kind}'s {name}"
            raise QueryError(f"{whose} is {wanted}, not {_described(value)}.", text, span)
        if sign not in ("=", "<>", "in") and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise QueryError(f"{_described(value).capitalize()} has no order, so {sign} cannot compare it.", text, span)
    return AttributeTest(name, sign, values)


def _fits(kind: str, value: Constant) -> bool:
    match kind:
        case "any":
            return True
        case "text":
            return isinstance(value, str)
        case "bool":
            return isinstance(value, bool)
        case "ints":
            return value == "same" or (isinstance(value, int | tuple) and not isinstance(value, bool))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _described(value: Constant) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f"the text {value!r:.60}"
        case tuple():
            return "a list"
    return "a number"


def _constants(expression: tree.Expression, text: str) -> tuple[Constant, ...]:
    match expression:
        case tree.Value(value) if value is not None:
            return (value,)
        case tree.NegativeTree(tree.Value(int() | float() as number)):
            return (-number,)
        case tree.List(items) if items:
            numbers = [_constants(item, text)[0] for item in items]
            if all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
                return (tuple(numbers),)  # type: ignore[arg-type]
    raise QueryError(
        "A value is expected: a number, a text, true, false or a list of whole numbers.", text, expression.span
    )
