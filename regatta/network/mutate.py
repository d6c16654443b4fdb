"""Changes of a network: layers are inserted, deleted, replaced, or get other hyperparameters.

Each function returns a new network whose shapes are inferred. A layer that is not changed keeps the names of its
parameters, so it keeps its weights. A layer that cannot take its operands is an error, unless `fit` resizes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from regatta.errors import ConflictError, UsageError, nearest
from regatta.network.graph import Edge, Network, Node, Parameter, Shape
from regatta.network.kinds import KINDS, MAX_DIMS, kind_of
from regatta.network.shapes import Layer, Output, layer_of, output_shape, show_shape

N_ARY = frozenset(("ADD", "MUL", "MAXIMUM", "MINIMUM", "CONCAT", "STACK"))  # take any number of operands
NO_OPERANDS = frozenset(("INPUT", "WEIGHT", "CONSTANT"))


@dataclass(frozen=True)
class LayerTemplate:
    """A layer to be made: sizes that follow from its input may be left out."""

    kind: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class Resized:
    """A hyperparameter of a layer that was changed so that the layer takes its input."""

    node: str
    attribute: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Mutation:
    """A changed network, and the layers that were resized to fit."""

    network: Network
    resized: tuple[Resized, ...] = ()


@dataclass(frozen=True)
class Insert:
    """Put a layer between a node and all nodes that use its output."""

    after: str
    template: LayerTemplate


@dataclass(frozen=True)
class Delete:
    """Remove a layer. What used its output uses its input instead, or without `splice` loses that operand.

    Layers that no longer lead to an output are removed as well.
    """

    node: str
    splice: bool = True


@dataclass(frozen=True)
class Replace:
    """Put another layer in the place of one, with the same inputs. Its weights are new."""

    node: str
    template: LayerTemplate


@dataclass(frozen=True)
class SetAttributes:
    """Change hyperparameters of a layer. It keeps the weights whose shapes stay the same."""

    node: str
    changes: Mapping[str, Any]


Edit: TypeAlias = Insert | Delete | Replace | SetAttributes


def mutate(
    network: Network, edits: Iterable[Edit], *, fit: bool = False, reserved: Mapping[str, Shape] | None = None
) -> Mutation:
    """Apply edits in their order, then infer all shapes once: edits that only fit together are one mutation.

    No new parameter has the name and shape of one that is gone, or of a `reserved` one: it would take its weights.
    """
    draft, new = network, dict[str, LayerTemplate]()
    for edit in edits:
        draft = _edited(draft, edit, new)
    known = {**(reserved or {}), **{name: parameter.shape for name, parameter in network.parameters.items()}}
    return _finish(draft, new, fit, known)


def insert(network: Network, after: str, template: LayerTemplate, *, fit: bool = False) -> Mutation:
    return mutate(network, [Insert(after, template)], fit=fit)


def delete(network: Network, name: str, *, splice: bool = True, fit: bool = False) -> Mutation:
    return mutate(network, [Delete(name, splice)], fit=fit)


def replace_layer(network: Network, name: str, template: LayerTemplate, *, fit: bool = False) -> Mutation:
    return mutate(network, [Replace(name, template)], fit=fit)


def set_attributes(network: Network, name: str, changes: Mapping[str, Any], *, fit: bool = False) -> Mutation:
    return mutate(network, [SetAttributes(name, changes)], fit=fit)


# Edits of the graph; `new` collects the templates of layers whose sizes are not known yet


def _edited(network: Network, edit: Edit, new: dict[str, LayerTemplate]) -> Network:
    match edit:
        case Insert(after, template):
            return _inserted(network, network.find(after), template, new)
        case Delete(name, splice):
            return _deleted(network, network.find(name), splice)
        case Replace(name, template):
            return _replaced(network, network.find(name), template, new)
        case SetAttributes(name, changes):
            return _changed(network, network.find(name), changes, new)


def _inserted(network: Network, source: Node, template: LayerTemplate, new: dict[str, LayerTemplate]) -> Network:
    if source.kind == "OUTPUT":
        raise UsageError(f"Nothing follows the output {source.id!r}, so no layer can be inserted after it.")
    id = _fresh_id(network, template)
    new[id] = template
    edges = [replace(edge, source=id) if edge.source == source.id else edge for edge in network.edges]
    nodes = _insert_after(network.nodes, source.id, Node(id, template.kind, template.name, {}))
    return replace(network, nodes=tuple(nodes), edges=(*edges, Edge(source.id, id)))


def _deleted(network: Network, node: Node, splice: bool) -> Network:
    sources, targets = network.sources[node.id], network.targets[node.id]
    if node.kind in ("INPUT", "OUTPUT"):
        raise UsageError(f"{node.id!r} is an {node.kind.lower()} of the network and cannot be deleted.")
    if splice and len(sources) != 1:
        raise UsageError(
            f"{node.kind} {node.id!r} has {len(sources)} inputs, so deleting it does not say which one goes on.",
            hint="Delete it without reconnecting, or replace it.",
        )
    edges = [edge for edge in network.edges if edge.target != node.id]
    if splice:
        edges = [replace(edge, source=sources[0]) if edge.source == node.id else edge for edge in edges]
    else:
        edges = _without_operand(network, edges, node, targets)
    nodes, edges = _live(network, [other for other in network.nodes if other.id != node.id], edges)
    return replace(network, nodes=tuple(nodes), edges=tuple(edges))


def _replaced(network: Network, node: Node, template: LayerTemplate, new: dict[str, LayerTemplate]) -> Network:
    if node.kind in ("INPUT", "OUTPUT"):
        raise UsageError(f"{node.id!r} is an {node.kind.lower()} of the network and cannot be replaced.")
    id = _fresh_id(network, template, leaving=node) if template.name else node.id
    new.pop(node.id, None)
    new[id] = template
    made = Node(id, template.kind, template.name or node.name, {})
    edges = [
        Edge(id if e.source == node.id else e.source, id if e.target == node.id else e.target, e.position)
        for e in network.edges
    ]
    nodes = [made if other.id == node.id else other for other in network.nodes]
    return replace(network, nodes=tuple(nodes), edges=tuple(edges))


def _changed(network: Network, node: Node, changes: Mapping[str, Any], new: dict[str, LayerTemplate]) -> Network:
    if node.id in new:
        new[node.id] = replace(new[node.id], attributes={**new[node.id].attributes, **changes})
        return network
    attributes = {**node.attributes, **_expanded(node.kind, changes, node.attributes.get("dims"))}
    made = replace(node, attributes=attributes)
    return replace(network, nodes=tuple(made if other.id == node.id else other for other in network.nodes))


# How a changed network is made whole


def _finish(draft: Network, new: Mapping[str, LayerTemplate], fit: bool, reserved: Mapping[str, Shape]) -> Mutation:
    """Give new layers their sizes and parameters, resize layers if that is wanted, and infer all shapes."""
    names = _ParameterNames(set(draft.parameters), reserved)
    outputs: dict[str, Output] = {}
    made: dict[str, Node] = {}
    resized: list[Resized] = []
    for id in draft.order:
        layer = layer_of(draft, draft.by_id[id], outputs)
        _check_operands(layer)
        if id in new:
            layer = _completed(layer, new[id])
        elif fit:
            layer, changes = _fitted(layer)
            resized += changes
        outputs[id] = output_shape(layer)
        shape = outputs[id] if not isinstance(outputs[id], list) else None
        made[id] = _with_parameters(replace(layer.node, shape=shape), names)  # type: ignore[arg-type]
    _check_outputs(draft)
    _check_shared(made.values())
    return Mutation(replace(draft, nodes=tuple(made[node.id] for node in draft.nodes)), tuple(resized))


def _check_shared(nodes: Iterable[Node]) -> None:
    """Layers that share a parameter, as those that are called twice, must still want it with one shape."""
    known: dict[str, tuple[Node, Parameter]] = {}
    for node in nodes:
        for parameter in node.parameters:
            other, same = known.setdefault(parameter.name, (node, parameter))
            if same.shape != parameter.shape:
                raise UsageError(
                    f"{other.id!r} and {node.id!r} share the parameter {parameter.name!r}, but would need it with the "
                    f"shapes {show_shape(same.shape)} and {show_shape(parameter.shape)}.",
                    hint="Replace one of the layers, so that it gets weights of its own.",
                )


@dataclass(frozen=True)
class _ParameterNames:
    """Names that new parameters cannot have: those in use, and of the same shape those of layers that are gone."""

    used: set[str]
    reserved: Mapping[str, Shape]

    def fresh_prefix(self, prefix: str, wanted: Sequence[Parameter]) -> str:
        """The beginning of the names of new parameters: the prefix, with a number if one of the names is taken."""
        made, number = prefix, 0
        while any(self._is_taken(f"{made}.{each.role}", each.shape) for each in wanted):
            number += 1
            made = f"{prefix}_{number}"
        return made

    def _is_taken(self, name: str, shape: Shape) -> bool:
        return name in self.used or self.reserved.get(name) == shape


def _check_operands(layer: Layer) -> None:
    if not layer.operands and layer.node.kind not in NO_OPERANDS and layer.node.kind != "OTHER":
        raise UsageError(f"{layer.node.kind} {layer.node.id!r} has no input left.")


def _check_outputs(network: Network) -> None:
    if not any(node.kind == "OUTPUT" for node in network.nodes):
        raise UsageError("The network has no output left.")


def _completed(layer: Layer, template: LayerTemplate) -> Layer:
    """A new layer with the sizes that follow from its operand."""
    shape, kind = layer.first, kind_of(template.kind)
    rank = None if shape is None else len(shape)
    given = dict(template.attributes)
    dims = given.get("dims", rank - 2 if "dims" in kind.types and rank is not None and rank > 2 else None)
    if "dims" in kind.types:
        given["dims"] = dims
    attributes = _expanded(template.kind, given, dims)
    for name, value in _sizes_from_operand(layer, template.kind, attributes).items():
        attributes.setdefault(name, value)
    needed = [name for name in _REQUIRED.get(template.kind, ()) if attributes.get(name) is None]
    choice = _ONE_OF.get(template.kind, ())
    if choice and all(attributes.get(name) is None for name in choice):
        needed.append(" or ".join(choice))
    if needed:
        shapes = "" if shape is None else f" after an output of shape {show_shape(shape)}"
        raise UsageError(f"{template.kind} {layer.node.id!r}{shapes} needs {' and '.join(needed)}.")
    if template.kind in _SEVERAL_OPERANDS and len(layer.operands) < 2:
        raise UsageError(f"{template.kind} {layer.node.id!r} needs several inputs, and has one here.")
    return replace(layer, node=replace(layer.node, attributes=attributes))


_REQUIRED = {
    "CONV": ("dims", "in", "out", "kernel"), "POOL": ("dims", "function"), "FULL": ("in", "out"), "NORM": ("function",),
    "EMBED": ("count", "features"), "ATTENTION": ("features", "heads"), "RNN": ("function", "in", "hidden"),
    "MATH": ("function",), "REDUCE": ("function",), "RESHAPE": ("shape",), "CAST": ("dtype",), "EXPAND": ("shape",),
    "SELECT": ("item",), "SLICE": ("index",), "PAD": ("padding",), "CONSTANT": ("value",),
}  # fmt: skip
_ONE_OF = {
    "POOL": ("kernel", "output"), "SPLIT": ("count", "size", "sizes"), "TRANSPOSE": ("order", "swap"),
    "RESIZE": ("size", "scale"),
}  # fmt: skip
_SEVERAL_OPERANDS = frozenset(("MATMUL", "ATTENTION"))


def _expanded(kind: str, attributes: Mapping[str, Any], dims: Any) -> dict[str, Any]:
    """`kernel=3` is (3, 3) for images, and padding="same" is what keeps their size."""
    types = KINDS[kind].types
    has_dims = isinstance(dims, int) and 0 < dims <= MAX_DIMS
    made = {
        name: (value,) * dims if types.get(name) == "ints" and isinstance(value, int) and has_dims else value
        for name, value in attributes.items()
    }
    if made.get("padding") == "same" and isinstance(made.get("kernel"), tuple):
        from regatta.network.torch.modules import same_padding

        dilation = made.get("dilation") or (1,) * len(made["kernel"])
        try:
            made["padding"] = tuple(same_padding(list(made["kernel"]), list(dilation)))
        except (ValueError, TypeError):
            problem = f"{kind} has a kernel of {made['kernel']} with a dilation of {dilation}"
            raise UsageError(f"{problem}, so padding='same' has no size.") from None
    return made


def _sizes_from_operand(layer: Layer, kind: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a layer that its operand decides, and those that usually follow from them."""
    shape = layer.first
    if not shape:
        return {}
    channels = shape[layer.channel_axis(len(shape))] if len(shape) > 1 else shape[0]
    if kind in ("CONV", "FULL"):
        size = channels if kind == "CONV" else shape[-1]
        return {"in": size, "out": size}
    if kind == "POOL" and "kernel" in attributes:
        return {"stride": attributes["kernel"]}
    if kind == "NORM":
        function = attributes.get("function")
        if function in ("layer", "rms"):
            return {"shape": (shape[-1],)}
        return {} if function == "local" else {"features": channels}
    if kind == "PRELU" and attributes.get("count", 1) != 1:
        return {"count": channels}
    return {"ATTENTION": {"features": shape[-1]}, "RNN": {"in": shape[-1]}}.get(kind, {})


def _fitted(layer: Layer) -> tuple[Layer, list[Resized]]:
    """A layer that takes its operand, and which of its sizes had to change for that."""
    node, shape = layer.node, layer.first
    if shape is None:
        return layer, []
    wanted = {
        name: size
        for name, size in _sizes_from_operand(layer, node.kind, node.attributes).items()
        if name in ("in", "features", "shape", "count")
        and node.get(name) is not None
        and None not in (size, node.get(name))
    }
    changes = {name: size for name, size in wanted.items() if size != node.get(name)}
    if node.kind == "NORM" and "shape" in changes and len(node.get("shape")) > 1:
        changes["shape"] = shape[-len(node.get("shape")) :]
    if node.kind == "CONV" and "in" in changes and node.get("groups") == node.get("in"):  # it stays depthwise
        changes["groups"] = changes["in"]
        changes["out"] = node.get("out") // node.get("in") * changes["in"]
    found = [Resized(node.id, name, node.get(name), value) for name, value in changes.items()]
    fitted = replace(node, attributes={**node.attributes, **changes}) if changes else node
    return replace(layer, node=fitted), found


def _with_parameters(node: Node, names: _ParameterNames) -> Node:
    """The node with the parameters that its hyperparameters ask for; those with the same shape keep their names."""
    if node.kind in ("WEIGHT", "OTHER") or not (node.parameters or node.kind in _WITH_WEIGHTS):
        return node
    from regatta.network.torch.layers import can_build, node_parameters

    if not can_build(node):
        return node
    before = {parameter.role.partition("@")[0]: parameter for parameter in node.parameters}
    wanted = node_parameters(node)
    prefix = names.fresh_prefix(_common_prefix(node), [made for made in wanted if made.role not in before])
    after: list[Parameter] = []
    for made in wanted:
        old = before.get(made.role)
        if old is None:
            after.append(Parameter(made.role, f"{prefix}.{made.role}", made.shape))
            names.used.add(after[-1].name)
        elif _stored_shape(made.shape, old) == old.shape:
            after.append(old)
        else:
            after.append(replace(old, shape=_stored_shape(made.shape, old)))
    return replace(node, parameters=tuple(after))


_WITH_WEIGHTS = frozenset(("CONV", "FULL", "NORM", "EMBED", "ATTENTION", "RNN", "PRELU"))


def _stored_shape(shape: Shape, like: Parameter) -> Shape:
    """A parameter's shape with the order of axes in which another one is stored."""
    layout = like.role.partition("@")[2]
    if layout == "flat":
        return like.shape if shape == tuple(size for size in like.shape if size != 1) else shape
    if not layout or len(layout) != len(shape):
        return shape
    stored: list[int | None] = [None] * len(shape)
    for place, axis in enumerate(map(int, layout)):
        stored[axis] = shape[place]
    return tuple(stored)


def _common_prefix(node: Node) -> str:
    prefixes = {parameter.name.rpartition(".")[0] for parameter in node.parameters}
    return prefixes.pop() if len(prefixes) == 1 and "" not in prefixes else node.id


def _fresh_id(network: Network, template: LayerTemplate, leaving: Node | None = None) -> str:
    """The id of a new layer: its name, if it has one, which must be free."""
    others = [node for node in network.nodes if node is not leaving]
    taken = {node.id for node in others} | {node.name for node in others if node.name}
    if template.name:
        if template.name in taken:
            raise ConflictError(
                f"The network has a layer {template.name!r:.200} already.",
                hint="Give the new layer another name.",
                candidates=nearest(template.name, taken - {template.name}),
            )
        return template.name
    id, number = template.kind.lower(), 0
    while id in taken:
        number += 1
        id = f"{template.kind.lower()}_{number}"
    return id


def _insert_after(nodes: Sequence[Node], id: str, new: Node) -> list[Node]:
    place = next(place for place, node in enumerate(nodes) if node.id == id)
    return [*nodes[: place + 1], new, *nodes[place + 1 :]]


def _without_operand(network: Network, edges: Sequence[Edge], node: Node, targets: Iterable[str]) -> list[Edge]:
    """The edges without those of a deleted node; only layers that take any number of operands may lose one."""
    for target in targets:
        user = network.by_id[target]
        left = [source for source in network.sources[target] if source != node.id]
        if user.kind not in N_ARY or not left or "value" in user.attributes:
            raise UsageError(
                f"{user.kind} {user.id!r} would lose its input {node.id!r}.",
                hint="Delete with reconnecting, or delete what uses it first.",
            )
    kept = [edge for edge in edges if edge.source != node.id]
    positions: dict[str, int] = {}
    made = []
    for edge in sorted(kept, key=lambda edge: edge.position):
        place = positions[edge.target] = positions.get(edge.target, -1) + 1
        made.append(replace(edge, position=place))
    return made


def _live(network: Network, nodes: Sequence[Node], edges: Sequence[Edge]) -> tuple[list[Node], list[Edge]]:
    """The nodes that lead to an output, and the inputs, which callers pass."""
    sources: dict[str, list[str]] = {}
    for edge in edges:
        sources.setdefault(edge.target, []).append(edge.source)
    waiting = [node.id for node in nodes if node.kind == "OUTPUT"]
    before = {id for id in network.by_id if not network.targets[id]}  # led nowhere already
    alive = {node.id for node in nodes if node.kind == "INPUT" or node.id in before} | set(waiting)
    while waiting:
        for source in sources.get(waiting.pop(), ()):
            if source not in alive:
                alive.add(source)
                waiting.append(source)
    return [node for node in nodes if node.id in alive], [
        edge for edge in edges if edge.source in alive and edge.target in alive
    ]
