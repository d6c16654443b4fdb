"""The network of an ONNX file, without its weights.

Initializers and constants become the names and shapes of parameters. Only short constants, which say how to reshape,
slice or scale, are read. External data is not opened. The weights inside an operator with branches or a body (If, Loop,
Scan, functions of the file) are operands of that operator.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.errors import DataError, MissingExtraError, NotFoundError
from regatta.network.builder import Builder
from regatta.network.graph import MAX_RANK, MAX_SIZE, Network, Parameter, Shape
from regatta.network.onnx.from_operators import ConstantTensor, Given, NodeOutput, Op, Sizes, translate
from regatta.network.onnx.limits import check_dense, check_nodes, computes_little
from regatta.network.onnx.shapes import Dims, output_dims, shape_of
from regatta.network.onnx.subgraphs import functions_of, outer_names, sizes_inside, tensors_inside

if TYPE_CHECKING:
    import onnx

MAX_BYTES = 2**31 - 1  # of a protobuf message
MAX_NUMBERS_READ = 64  # longer constants are not read


def from_onnx(path: str | os.PathLike[str], *, name: str = "") -> Network:
    """The layers of an ONNX model and their connections."""
    path = Path(path)
    model = load_onnx(path)
    check_nodes(model, str(path))
    check_dense(model, str(path))
    return _OnnxReader(model, name or path.stem).network()


def load_onnx(path: Path) -> onnx.ModelProto:
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("onnx", "onnx", "Reading ONNX files") from None
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"The file has {path.stat().st_size} bytes, more than an ONNX file can.", place=str(path))
        model = onnx.load(path, load_external_data=False)
    except FileNotFoundError:
        raise NotFoundError("There is no such file.", place=str(path)) from None
    except DecodeError as error:
        raise DataError(f"This is not an ONNX file: {error}", place=str(path)) from None
    if not model.graph.node or not model.graph.output:
        raise DataError("This ONNX file has no network in it.", place=str(path))
    return model


class _OnnxReader:
    """Reads the nodes of a model in their order, which ONNX requires to be topological."""

    def __init__(self, model: onnx.ModelProto, name: str) -> None:
        self.name, self._graph = name, model.graph
        graph = model.graph
        self._builder = Builder(name, "onnx")
        self._shapes = _infer_shapes(model)
        self._opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
        self._uses = Counter(name for node in graph.node for name in node.input)
        self._uses.update(output.name for output in graph.output)
        self._functions = functions_of(model)
        self._uses.update(name for node in graph.node for name in outer_names(node, self._functions))
        self._follower = {name: node for node in graph.node for name in node.input}
        self._values: dict[str, Given] = {}
        self._weights: dict[str, str] = {}

    def network(self) -> Network:
        graph = self._graph
        for tensor in graph.initializer:
            self._values[tensor.name] = _tensor(tensor.name, tensor)
        for value in graph.input:
            if value.name not in self._values:
                self._input(value)
        for node in graph.node:
            self._read(node)
        results = [self._operand(self._value(output.name)) for output in graph.output]
        self._builder.add("OUTPUT", results, name="output")
        return self._builder.network()

    def _input(self, value: onnx.ValueInfoProto) -> None:
        import onnx

        shape = self._shapes.get(value.name)
        code = value.type.tensor_type.elem_type
        dtype = onnx.TensorProto.DataType.Name(code).lower().replace("float", "float32") if code == 1 else None
        id = self._builder.add("INPUT", name=value.name, shape=shape, attributes={"dtype": dtype})
        self._values[value.name] = NodeOutput(id, output_dims(id, "INPUT", {}, (), shape))

    def _value(self, name: str) -> Given:
        if name not in self._values:
            raise DataError(f"Nothing in the model computes {name!r:.80} before it is used.", place=self.name)
        return self._values[name]

    def _read(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Constant":
            self._values[node.output[0]] = _constant(node)
            return
        if node.output[0] in self._values:  # written along with the node before
            return
        inputs = [self._value(name) if name else None for name in node.input]
        bias = self._following_bias(node)
        settings = {attribute.name: _plain(attribute) for attribute in node.attribute}
        settings |= sizes_inside(node, self._functions)
        is_function = (node.domain, node.op_type) in self._functions
        type = f"{node.domain}::{node.op_type}" if is_function else node.op_type
        op = Op(type, inputs, settings, self._opset, self._shapes.get(node.output[0]), bias)
        made = translate(op)
        if isinstance(made, Sizes | ConstantTensor | NodeOutput):
            self._values[node.output[0]] = made
            return
        self._write(node, op, replace(made, inputs=(*made.inputs, *self._inside(node))))
        if made.takes_bias:
            self._values[self._follower[node.output[0]].output[0]] = self._values[node.output[0]]

    def _inside(self, node: onnx.NodeProto) -> Iterator[Given]:
        """What the branches and bodies of a node use: values of the graph around them, and weights of their own."""
        yield from (self._value(name) for name in outer_names(node, self._functions))
        for name, tensor in tensors_inside(node, self._functions):
            yield _tensor(name, tensor)

    def _write(self, node: onnx.NodeProto, op: Op, made: Any) -> None:
        parameters = [
            Parameter(role, tensor.name, tensor.stored) for role, tensor in made.weights.items() if tensor is not None
        ]
        inputs = [self._operand(value) for value in made.inputs]
        name = node.name or node.output[0]
        dims = [_dims_of(value) for value in made.inputs]
        known = output_dims("", made.kind, made.attributes, dims, op.shape)
        id = self._builder.add(
            made.kind, inputs, name=name, attributes=made.attributes, shape=shape_of(known), parameters=parameters
        )
        outputs = [output for output in node.output if output]
        if len(outputs) == 1 or made.kind == "NORM":
            self._values[outputs[0]] = NodeOutput(id, output_dims(id, made.kind, made.attributes, dims, op.shape))
            return
        for item, output in enumerate(node.output):
            if output:
                shape = self._shapes.get(output)
                selected = self._builder.add("SELECT", [id], attributes={"item": item}, shape=shape, name=output)
                self._values[output] = NodeOutput(selected, output_dims(selected, "SELECT", {}, (), shape))

    def _following_bias(self, node: onnx.NodeProto) -> ConstantTensor | None:
        """The constant of the Add that follows, if no other node uses this node's output."""
        output = node.output[0] if node.output else ""
        if node.op_type not in ("Conv", "MatMul", "ConvTranspose") or self._uses[output] != 1:
            return None
        after = self._follower.get(output)
        if after is None or after.op_type != "Add":
            return None
        other = self._known_or_later(next((name for name in after.input if name != output), ""))
        return other if isinstance(other, ConstantTensor) else None

    def _known_or_later(self, name: str) -> Given | None:
        """A constant may come after the layer that it belongs to, but before the node that uses it."""
        found = self._ahead.get(name)
        if name in self._values or found is None:
            return self._values.get(name)
        if found.op_type == "Constant":
            return _constant(found)
        base, shape = (self._values.get(of) or self._later_constant(of) for of in found.input)
        if isinstance(base, ConstantTensor) and isinstance(shape, ConstantTensor) and shape.numbers is not None:
            return replace(base, shape=tuple(int(n) if n > 0 else None for n in shape.numbers))
        return None

    def _later_constant(self, name: str) -> Given | None:
        found = self._ahead.get(name)
        return _constant(found) if found is not None and found.op_type == "Constant" else None

    @cached_property
    def _ahead(self) -> Mapping[str, onnx.NodeProto]:
        return {
            node.output[0]: node
            for node in self._graph.node
            if node.op_type == "Constant" or (node.op_type == "Reshape" and len(node.input) == 2)
        }

    def _operand(self, value: Given) -> str:
        if isinstance(value, NodeOutput):
            return value.id
        if isinstance(value, Sizes):
            return self._sizes_as_node(value)
        if value.name not in self._weights:
            parameters = [Parameter("weight", value.name, value.stored)]
            id = self._builder.add("WEIGHT", name=value.name, shape=value.stored, parameters=parameters)
            self._weights[value.name] = id
        if value.shape == value.stored:
            return self._weights[value.name]
        sizes = [-1 if size is None else size for size in value.shape]
        return self._builder.add("RESHAPE", [self._weights[value.name]], attributes={"shape": sizes}, shape=value.shape)

    def _sizes_as_node(self, value: Sizes) -> str:
        known = [size if isinstance(size, int) else None for size in value.sizes]
        of = sorted({size.of for size in value.sizes if not isinstance(size, int)})
        return self._builder.add("OTHER", of, attributes={"type": "Shape", "sizes": known}, shape=(len(known),))


def _dims_of(value: Given) -> Dims | None:
    if isinstance(value, NodeOutput):
        return value.dims
    if isinstance(value, ConstantTensor):
        return None if None in value.shape else tuple(size for size in value.shape if size is not None)
    return (len(value.sizes),)


def _infer_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """The shapes that the file states, and those inferred from them; sizes that vary are None."""
    import onnx
    from onnx import shape_inference

    try:
        graph = shape_inference.infer_shapes(model, data_prop=computes_little(model)).graph
    except (shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError):
        graph = model.graph  # the model has a custom operator
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            found[value.name] = tuple(d.dim_value if 0 < d.dim_value <= MAX_SIZE else None for d in dims[:MAX_RANK])
    return found


def _constant(node: onnx.NodeProto) -> Given:
    attribute = next((a for a in node.attribute if a.name == "value"), None)
    if attribute is not None:
        return _tensor(node.output[0], attribute.t)
    for attribute in node.attribute:
        numbers = _plain(attribute)
        listed = numbers if isinstance(numbers, list) else [numbers]
        shape = (len(listed),) if isinstance(numbers, list) else ()
        return ConstantTensor(node.output[0], shape, shape, tuple(listed) if len(listed) <= MAX_NUMBERS_READ else None)
    raise DataError(f"The constant {node.output[0]!r:.80} has no value.")


def _tensor(name: str, tensor: onnx.TensorProto) -> ConstantTensor:
    from onnx import numpy_helper

    shape = tuple(int(size) for size in tensor.dims)
    if len(shape) > MAX_RANK or any(not 0 <= size <= MAX_SIZE for size in shape):
        raise DataError(f"The tensor {name!r:.80} has the shape {shape[:10]}.")
    if math.prod(shape) > MAX_NUMBERS_READ or tensor.external_data or tensor.data_type == 8:
        return ConstantTensor(name, shape, shape, None)
    try:
        return ConstantTensor(name, shape, shape, tuple(numpy_helper.to_array(tensor).ravel().tolist()))
    except (ValueError, TypeError) as error:
        raise DataError(f"The tensor {name!r:.80} does not hold what its shape {shape} says: {error}") from None


def _plain(attribute: onnx.AttributeProto) -> Any:
    """Numbers, strings and lists of them; tensors and graphs inside a node are left out."""
    import onnx

    kinds = onnx.AttributeProto
    match attribute.type:
        case kinds.FLOAT:
            return float(f"{attribute.f:.7g}")  # float32 as people write it
        case kinds.INT:
            return attribute.i
        case kinds.STRING:
            return attribute.s.decode(errors="replace")[:1000]
        case kinds.FLOATS:
            return [float(f"{f:.7g}") for f in attribute.floats[:1000]]
        case kinds.INTS:
            return list(attribute.ints[:1000])
        case kinds.STRINGS:
            return [s.decode(errors="replace")[:1000] for s in attribute.strings[:1000]]
    return None
