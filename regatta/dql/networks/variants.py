"""Applies the mutations of a construct to a network: every combination of their options is a variant.

All selectors select layers of the source's network, whatever mutations stand before them. Edits are made in the order
in which they are written; of several layers that are inserted after one, the first stays the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

from regatta.dql.bound import Expression, LayerPath
from regatta.dql.networks.bound_networks import (
    BoundConstruct,
    BoundDelete,
    BoundInsert,
    BoundMutation,
    BoundReplace,
    BoundSet,
)  # fmt: skip
from regatta.dql.networks.layer_sets import NamedLayers, listed_layers
from regatta.dql.selectors import Captures, SelectorError
from regatta.dql.templates import with_captures
from regatta.errors import ConflictError, NotFoundError, UsageError, nearest
from regatta.network.graph import Network, Node, Shape
from regatta.network.mutate import Delete, Edit, Insert, LayerTemplate, Mutation, Replace, SetAttributes, mutate

Option: TypeAlias = "LayerTemplate | Mapping[str, Any] | None"  # what a mutation inserts or sets


@dataclass(frozen=True)
class Variant:
    """One option for each mutation of a query."""

    mutations: tuple[tuple[BoundMutation, Option], ...]


@dataclass(frozen=True)
class Constructed:
    """A network that was made, and what is different in it, in words."""

    network: Network
    changes: tuple[str, ...]


def count_variants(query: BoundConstruct) -> int:
    return math.prod(_count(mutation) for mutation in query.mutations)


def variants(query: BoundConstruct) -> Iterator[Variant]:
    """Every combination of options, the last mutation's changing first."""
    for chosen in product(*(tuple(_options(mutation)) for mutation in query.mutations)):
        yield Variant(tuple(zip(query.mutations, chosen, strict=True)))


def construct(
    layers: NamedLayers, query: BoundConstruct, variant: Variant, reserved: Mapping[str, Shape] | None = None
) -> Constructed:
    """The network of a variant; `reserved` are parameters whose weights no new layer may take."""
    script = _Script(layers, query.conditions)
    for mutation, option in variant.mutations:
        script.add(mutation, option)
    try:
        made = mutate(layers.network, script.edits, fit=query.fit, reserved=reserved)
    except NotFoundError as error:
        raise UsageError(
            f"{error.message} It led to no output any more after the mutations before.",
            hint="All selectors select layers of the source.",
        ) from error
    return Constructed(made.network, (*script.changes, *_side_effects(layers.network, script, made)))


def name_no_layer(layers: NamedLayers, nodes: LayerPath) -> NotFoundError:
    """The error for a selector that selects nothing."""
    ids = [node.id for node in layers.network.nodes]
    known = {name for names in layers.names.values() for name in names if name}
    steps = " with its steps" if nodes.steps else ""
    return NotFoundError(
        f"The selector {nodes.selector.text!r:.200}{steps} selects no layer.",
        hint=f"The layers are {listed_layers(ids)}.",
        candidates=() if nodes.steps else nearest(nodes.selector.text, known),
    )


def _count(mutation: BoundMutation) -> int:
    match mutation:
        case BoundInsert(_, options) | BoundReplace(_, options):
            return len(options)
        case BoundSet(_, changes):
            return math.prod(len(change.values) for change in changes)
    return 1


def _options(mutation: BoundMutation) -> Iterator[Option]:
    match mutation:
        case BoundInsert(_, options) | BoundReplace(_, options):
            yield from options
        case BoundSet(_, changes):
            names = [change.name for change in changes]
            for values in product(*(change.values for change in changes)):
                yield dict(zip(names, values, strict=True))
        case BoundDelete():
            yield None


_WHOLE = ("deleted", "replaced")


class _Script:
    """The edits of one variant, with the names of new layers, and what they change, in words."""

    def __init__(self, layers: NamedLayers, conditions: Sequence[Expression]) -> None:
        network = layers.network
        self._layers, self._conditions = layers, conditions
        self._taken = {node.id for node in network.nodes} | {node.name for node in network.nodes if node.name}
        self._made: set[str] = set()  # names of new layers
        self._last: dict[str, str] = {}  # the layer that was inserted last after this one
        self._renamed: dict[str, str] = {}  # what stands in the place of a layer
        self._done: dict[str, set[str]] = {}  # what was done with a layer: "deleted", "replaced", or what was set
        self.edits: list[Edit] = []
        self.changes: list[str] = []

    @property
    def deleted(self) -> set[str]:
        return {id for id, done in self._done.items() if "deleted" in done}

    @property
    def replaced(self) -> set[str]:
        return set(self._renamed)

    def add(self, mutation: BoundMutation, option: Option) -> None:
        for node, captures in self._chosen(mutation):
            match mutation, option:
                case BoundInsert(), LayerTemplate() as template:
                    self._insert(node, _named(template, captures))
                case BoundReplace(), LayerTemplate() as template:
                    self._replace(node, _named(template, captures))
                case BoundSet(), Mapping() as changes:
                    self._set(node, changes)
                case BoundDelete(_, reconnect), None:
                    self._delete(node, reconnect)

    def _chosen(self, mutation: BoundMutation) -> list[tuple[Node, Captures]]:
        """The layers that a mutation changes; inputs and outputs only if its selector names nothing else."""
        pattern = mutation.layers.selector
        found = self._layers.select(mutation.layers)
        if not found:
            raise name_no_layer(self._layers, mutation.layers)
        if pattern.captures:
            found = {id: each for id, each in found.items() if self._satisfies(each)}
            if not found:
                raise NotFoundError(f"No layer of {pattern.text!r:.200} satisfies the conditions with its captures.")
        ends = ("OUTPUT",) if isinstance(mutation, BoundInsert) else ("INPUT", "OUTPUT")
        nodes = [(self._layers.network.by_id[id], captures) for id, captures in found.items()]
        return [each for each in nodes if each[0].kind not in ends] or nodes

    def _satisfies(self, captures: Captures) -> bool:
        return all(self._layers.holds(condition, captures) for condition in self._conditions)

    def _insert(self, node: Node, template: LayerTemplate) -> None:
        self._check(node, "deleted")
        named = self._fresh(template)
        after = self._last.get(node.id) or self._renamed.get(node.id, node.id)
        self._last[node.id] = named.name
        self.edits.append(Insert(after, named))
        self.changes.append(f"{_shown(named)} inserted after {after}")

    def _replace(self, node: Node, template: LayerTemplate) -> None:
        self._check(node, *_WHOLE, *self._done.get(node.id, ()))
        self._mark(node, "replaced")
        named = template
        if template.name and template.name not in (node.id, node.name):
            named = self._fresh(template)
        else:
            named = replace(template, name="")  # it keeps the name of the layer in whose place it is
        self._renamed[node.id] = named.name or node.id
        self.edits.append(Replace(node.id, named))
        self.changes.append(f"{node.kind} {node.id} replaced by {_shown(named)}")

    def _set(self, node: Node, changes: Mapping[str, Any]) -> None:
        self._check(node, *_WHOLE, *changes)
        self._mark(node, *changes)
        self.edits.append(SetAttributes(node.id, changes))
        self.changes += [
            f"{name} of {node.id} set to {_value(value)}" + _before(node, name) for name, value in changes.items()
        ]

    def _delete(self, node: Node, reconnect: bool) -> None:
        self._check(node, *_WHOLE)
        self._mark(node, "deleted")
        self.edits.append(Delete(node.id, splice=reconnect))
        self.changes.append(f"{node.kind} {node.id} deleted" + ("" if reconnect else " without reconnecting"))

    def _check(self, node: Node, *done: str) -> None:
        """Refuse what an earlier mutation makes impossible."""
        for each in done:
            if each in self._done.get(node.id, ()):
                what = (
                    f"Layer {node.id!r:.200}" if each in _WHOLE else f"The hyperparameter {each!r} of {node.id!r:.200}"
                )
                raise ConflictError(
                    f"{what} is {each if each in _WHOLE else 'set'} by an earlier mutation of the query.",
                    hint="All selectors select layers of the source, whatever mutations stand before.",
                )

    def _mark(self, node: Node, *done: str) -> None:
        self._done.setdefault(node.id, set()).update(done)

    def _fresh(self, template: LayerTemplate) -> LayerTemplate:
        """The template with its own name, or else one after its kind."""
        if template.name:
            if template.name in self._taken:
                known = template.name not in self._made
                raise ConflictError(
                    f"The network has a layer {template.name!r:.200} already."
                    if known
                    else f"Two new layers would be called {template.name!r:.200}.",
                    hint='Number new layers by captures: m["conv*($1)"].insert = RELU("relu$1").',
                )
            name = template.name
        else:
            name, number = template.kind.lower(), 0
            while name in self._taken:
                number += 1
                name = f"{template.kind.lower()}_{number}"
        self._taken.add(name)
        self._made.add(name)
        return replace(template, name=name)


def _named(template: LayerTemplate, captures: Captures) -> LayerTemplate:
    try:
        return with_captures(template, captures)
    except SelectorError as error:
        raise UsageError(str(error), hint='Capture it in the selector: m["conv*($1)"].') from None


def _side_effects(before: Network, script: _Script, made: Mutation) -> list[str]:
    """What changed beside what was asked for: layers that led nowhere any more, and those that were resized to fit."""
    gone = [id for id in before.by_id if id not in made.network.by_id and id not in script.deleted | script.replaced]
    found = [f"{', '.join(gone)} deleted, because they led to no output any more"] if gone else []
    return found + [
        f"{each.attribute} of {each.node} resized from {_value(each.before)} to {_value(each.after)}"
        for each in made.resized
    ]


def _shown(template: LayerTemplate) -> str:
    values = ", ".join(f"{name}={_value(value)}" for name, value in template.attributes.items())
    kind = f"{template.kind}({values})" if values else template.kind
    return f"{kind} {template.name}" if template.name else kind


def _before(node: Node, name: str) -> str:
    value = node.get(name)
    return "" if value is None else f" (was {_value(value)})"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(_value, value)) if len(set(value)) > 1 else _value(value[0]) if value else "()"
    return str(value).lower() if isinstance(value, bool) else str(value)
