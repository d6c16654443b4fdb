"""What is inside a node of an ONNX graph: the branches of If, the bodies of Loop and Scan, functions of the file.

Their operators are not layers of the network. Their weights, and all else that they use, belong to the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

MAX_DEPTH = 16  # of functions that call functions
MIN_WEIGHTS = 65  # a shorter tensor of integers says how to reshape or slice

Functions = Mapping[tuple[str, str], "onnx.FunctionProto"]


@dataclass(frozen=True)
class Body:
    """The operators inside a node. `name` tells the bodies of a node from each other."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    initializers: Sequence[onnx.TensorProto] = ()
    inputs: tuple[str, ...] = ()


def functions_of(model: onnx.ModelProto) -> Functions:
    return {(function.domain, function.name): function for function in model.functions}


def bodies(node: onnx.NodeProto, functions: Functions) -> Iterator[Body]:
    function = functions.get((node.domain, node.op_type))
    if function is not None:
        yield Body(function.name, function.node, (), tuple(function.input))
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else []
        for place, graph in enumerate([*graphs, *attribute.graphs]):
            name = attribute.name if attribute.HasField("g") else f"{attribute.name}/{place}"
            inputs = tuple(value.name for value in graph.input)
            yield Body(name, graph.node, graph.initializer, inputs)


def outer_names(node: onnx.NodeProto, functions: Functions) -> list[str]:
    """The names of the graph around a node that its bodies use, each once."""
    found: dict[str, None] = {}
    if (node.domain, node.op_type) in functions:
        return []  # a function sees only its operands
    for body in bodies(node, functions):
        own = {*body.inputs, *(tensor.name for tensor in body.initializers)}
        own.update(output for inner in body.nodes for output in inner.output)
        for inner in body.nodes:
            used = [*inner.input, *outer_names(inner, functions)]
            found.update((name, None) for name in used if name and name not in own)
    return list(found)


def tensors_inside(
    node: onnx.NodeProto, functions: Functions, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, onnx.TensorProto]]:
    """The weights inside a node, with names that say where they are: the node, its body, and the tensor."""
    if depth > MAX_DEPTH:
        return
    at = f"{prefix}{next((output for output in node.output if output), node.name)}"
    for body in bodies(node, functions):
        for tensor in body.initializers:
            if _is_weight(tensor):
                yield f"{at}/{body.name}/{tensor.name}", tensor
        for inner in body.nodes:
            if inner.op_type == "Constant":
                for attribute in inner.attribute:
                    if attribute.name == "value" and _is_weight(attribute.t):
                        yield f"{at}/{body.name}/{inner.output[0]}", attribute.t
            yield from tensors_inside(inner, functions, f"{at}/{body.name}/", depth + 1)


def sizes_inside(node: onnx.NodeProto, functions: Functions) -> dict[str, Any]:
    """How many operators each body has, for people: these are not layers of the network."""
    return {body.name: f"{len(body.nodes)} operators" for body in bodies(node, functions)}


def _is_weight(tensor: onnx.TensorProto) -> bool:
    from onnx import TensorProto

    numbers = 1
    for size in tensor.dims:
        numbers *= size
    whole = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.STRING)
    return tensor.data_type not in whole or numbers >= MIN_WEIGHTS
