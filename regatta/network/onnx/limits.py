"""What inference of shapes would compute for a model, counted before it runs.

ONNX infers shapes in C++, without limits of its own. It inlines functions, which may call each other twice each, and it
computes with small integer tensors, which a Range or a chain of Concats makes as large as it likes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from regatta.errors import DataError, LimitError
from regatta.network.graph import MAX_NODES, MAX_RANK

if TYPE_CHECKING:
    import onnx

MAX_COMPUTED = 10_000  # elements of a tensor that inference may compute


def check_nodes(model: onnx.ModelProto, place: str) -> None:
    """Refuse models of too many nodes; those in subgraphs count, and those of a function with each call."""
    functions = {(each.domain, each.name): each for each in model.functions}
    counts: dict[tuple[str, str], int | None] = {}

    def count(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(1 + (of_function((node.domain, node.op_type))) for node in all_nodes(nodes))

    def of_function(key: tuple[str, str]) -> int:
        if key not in functions:
            return 0
        if key not in counts:
            counts[key] = None
            counts[key] = count(functions[key].node)
        if (known := counts[key]) is None:
            raise DataError(f"The function {key[1]!r:.80} of the model calls itself.", place=place)
        return known

    try:
        total = count(model.graph.node)
    except RecursionError as error:
        raise DataError("Functions of the model call each other too deeply.", place=place) from error
    if total > MAX_NODES:
        raise LimitError("nodes in the model, those of functions counted with each call", total, MAX_NODES, place=place)


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes in their order, each followed by those of its subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from all_nodes(attribute.g.node)
            for graph in attribute.graphs:
                yield from all_nodes(graph.node)


def computes_little(model: onnx.ModelProto) -> bool:
    """Whether inference may compute with constants: no tensor that it computes can become long."""
    lengths = {tensor.name: _length(tensor) for tensor in model.graph.initializer}
    bodies = (function.node for function in model.functions)
    for node in all_nodes([*(node for body in bodies for node in body), *model.graph.node]):
        if node.op_type == "Range":
            return False
        given = [lengths.get(name, 0) for name in node.input]
        length = sum(given) if node.op_type == "Concat" else max(given, default=0)
        if node.op_type in ("Shape", "Size"):
            length = MAX_RANK
        elif node.op_type == "Constant":
            length = max((max(_length(a.t), len(a.ints), len(a.floats)) for a in node.attribute), default=0)
        if length > MAX_COMPUTED:
            return False
        lengths.update(dict.fromkeys(node.output, length))
    return True


def _length(tensor: onnx.TensorProto) -> int:
    """The elements of a tensor that inference may compute with: whole numbers in a list."""
    from onnx import TensorProto

    computed = len(tensor.dims) <= 1 and tensor.data_type in (TensorProto.INT32, TensorProto.INT64)
    return math.prod(tensor.dims) if computed else 0


def check_dense(model: onnx.ModelProto, place: str) -> None:
    """Refuse sparse weights, wherever they are: they would be left out."""
    graphs, nodes = [model.graph], [node for function in model.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            nodes += graph.node
            sparse = [tensor.values.name for tensor in graph.sparse_initializer]
        else:
            node = nodes.pop()
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            graphs += [each for attribute in node.attribute for each in attribute.graphs]
            sparse = [node.output[0] for attribute in node.attribute if attribute.HasField("sparse_tensor")]
        if sparse:
            raise DataError(
                f"The weight {sparse[0]!r:.80} is sparse; dense weights can be read.",
                place=place,
                hint="Save the model with dense weights, or add it with --as file.",
            )
