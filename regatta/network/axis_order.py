"""Networks read from Keras in PyTorch's order of axes.

Keras keeps channels last, PyTorch has them as axis 1. A network read from Keras has the layers of its PyTorch twin, so
that both compare, but the shapes, inputs and outputs of the Keras model. To run it, layers that look at the axis of
channels are put between two transpositions. All others work on the axes as Keras has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from regatta.errors import UsageError
from regatta.network.graph import Edge, Network, Node

KERAS, KERAS_CHANNELS_FIRST, KERAS_MIXED = "keras", "keras, channels first", "keras, channels first and last"


def has_channels_last(network: Network) -> bool:
    """Whether the network is of a Keras model with channels last, which is Keras's default."""
    if network.source != KERAS:
        return False
    shaped = [node for node in network.nodes if node.kind == "CONV" and node.shape]
    first = [node.shape and node.shape[1] == node.get("out") != node.shape[-1] for node in shaped]
    return not (first and all(first))  # networks of earlier versions do not say which


def concat_axis(axis: int, rank: int, channels_last: bool) -> int:
    """The axis of a CONCAT. Where channels are last, axis 1 stands for them, except in sequences; see `from_keras`."""
    return rank - 1 if channels_last and axis == 1 and rank != 3 else axis % rank


def in_torch_order(network: Network) -> Network:
    """A network that PyTorch's layers can compute; it takes and gives what the Keras model does."""
    if not network.source.startswith(KERAS):
        return network
    if network.source == KERAS_MIXED:
        raise UsageError("The Keras model has layers with channels first and with channels last; it cannot be run.")
    if any(node.shape is None for node in network.inputs):
        raise UsageError(
            "The network is a list of the layers of a subclassed Keras model, which has no graph; it cannot be run.",
            hint="Build the model with keras.Sequential or keras.Model(inputs, outputs).",
        )
    last = has_channels_last(network)
    ranks = _ranks(network)
    nodes: list[Node] = []
    edges: list[Edge] = []
    for node in network.nodes:
        sources = network.sources[node.id]
        rank = ranks[sources[0]] if sources else None
        axis = _channel_axis(node, rank, last)
        if axis is None or rank is None or axis == 1:
            nodes.append(_plain(node, rank, last))
            edges += [edge for edge in network.edges if edge.target == node.id]
            continue
        made = _between_transpositions(node, axis, rank)
        nodes += made
        edges += [Edge(sources[0], made[0].id)]
        edges += [Edge(one.id, other.id) for one, other in pairwise(made)]
    return Network(tuple(nodes), tuple(edges), network.name, "torch")


def _ranks(network: Network) -> Mapping[str, int | None]:
    """The number of axes of each output; where Keras does not say, a layer keeps that of its operand."""
    found: dict[str, int | None] = {}
    for id in network.order:
        shape, sources = network.by_id[id].shape, network.sources[id]
        found[id] = len(shape) if shape is not None else found[sources[0]] if sources else None
    return found


def _channel_axis(node: Node, rank: int | None, last: bool) -> int | None:
    """The axis that a layer takes for its channels; None for layers that have none."""
    if node.kind in ("CONV", "POOL", "RESIZE", "PAD"):
        return rank - 1 if last and rank is not None else 1
    if node.kind == "NORM" and node.get("function") in ("batch", "group", "instance") and rank is not None:
        axes = node.get("axes")
        return axes[0] % rank if axes else rank - 1 if last else 1
    return None


def _plain(node: Node, rank: int | None, last: bool) -> Node:
    """A layer that works on the axes as they are."""
    attributes = dict(node.attributes)
    if node.kind == "NORM":
        attributes.pop("axes", None)
    if node.kind == "CONCAT" and rank is not None:
        attributes["axis"] = concat_axis(node.get("axis"), rank, last)
    return replace(node, attributes=attributes)


def _between_transpositions(node: Node, axis: int, rank: int) -> list[Node]:
    """The axis of channels moved to the front, the layer, and the axis moved back. The result keeps the layer's id."""
    there = (0, axis, *(other for other in range(1, rank) if other != axis))
    back = tuple(there.index(place) for place in range(rank))
    inner = replace(_plain(node, rank, False), id=f"{node.id} (channels first)", shape=None)
    return [
        Node(f"{node.id} (to channels first)", "TRANSPOSE", attributes={"order": there}),
        inner,
        Node(node.id, "TRANSPOSE", node.name, {"order": back}, node.shape),
    ]
