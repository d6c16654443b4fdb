"""The weights of ONNX files, by the names in their networks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.errors import DataError
from regatta.network import Network, from_onnx
from regatta.network.onnx.from_onnx import load_onnx
from regatta.network.onnx.subgraphs import MIN_WEIGHTS, bodies, functions_of, tensors_inside
from regatta.store.format.tensor_id import Bits, why_not_name

if TYPE_CHECKING:
    import onnx

_AS_BITS = {16: "BF16", 17: "F8_E4M3", 19: "F8_E5M2"}  # types that NumPy lacks, by ONNX's numbers


@dataclass(frozen=True)
class OnnxContent:
    """The network of a file, the tensors that its layers use, and notes about what is not among them."""

    network: Network
    tensors: dict[str, Any]
    notes: tuple[str, ...]


def read_onnx(path: Path) -> OnnxContent:
    network, model = _renamed(from_onnx(path)), load_onnx(path)
    wanted = {parameter.name for node in network.nodes for parameter in node.parameters}
    found: dict[str, Any] = {}
    left_out: dict[str, int] = {}
    for name, tensor in _tensors(model):
        if (safe := _safe(name)) in wanted:
            found[safe] = _value(name, tensor, path)
        elif math.prod(tensor.dims) >= MIN_WEIGHTS:
            left_out[name] = math.prod(tensor.dims)
    if missing := sorted(wanted - found.keys()):
        raise DataError(f"The file has no numbers for {missing[0]!r:.100}.", place=str(path))
    return OnnxContent(network, found, (*_left_out(left_out), *_hidden_layers(model)))


def _left_out(numbers: Mapping[str, int]) -> Iterator[str]:
    if numbers:
        names = ", ".join(list(numbers)[:3]) + (f" and {len(numbers) - 3} more" if len(numbers) > 3 else "")
        yield f"left out: {names} ({sum(numbers.values()):,} numbers), which no layer uses"


def _hidden_layers(model: onnx.ModelProto) -> Iterator[str]:
    functions = functions_of(model)
    inside: Counter[str] = Counter()
    for node in model.graph.node:
        inside[node.op_type] += sum(len(body.nodes) for body in bodies(node, functions))
    for kind, count in inside.items():
        if count:
            yield f"the {count:,} operators inside {kind} are not shown as layers; their weights are read"


def _tensors(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    yield from ((tensor.name, tensor) for tensor in model.graph.initializer)
    for node in model.graph.node:
        if node.op_type == "Constant":
            yield from ((node.output[0], given.t) for given in node.attribute if given.name == "value")
    functions = functions_of(model)
    for node in model.graph.node:
        yield from tensors_inside(node, functions)


def _value(name: str, tensor: onnx.TensorProto, path: Path) -> Any:
    from onnx import TensorProto, numpy_helper

    if tensor.data_location == TensorProto.EXTERNAL:
        raise DataError(
            f"The weight {name!r:.100} is in another file, which is not opened.",
            place=str(path),
            hint="Save the model in one file: onnx.save(model, path, save_as_external_data=False).",
        )
    if tensor.data_type in _AS_BITS and tensor.raw_data:
        return Bits(_AS_BITS[tensor.data_type], tuple(tensor.dims), tensor.raw_data)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"The weight {name!r:.100} cannot be read: {error}.", place=str(path)) from error


def _safe(name: str) -> str:
    """A safe name: exporters use paths as names, but a name must not contain ".." or start with a slash."""
    if why_not_name(name) is None:
        return name
    return "/".join(part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")) or "_"


def _renamed(network: Network) -> Network:
    nodes = [
        replace(node, parameters=tuple(replace(p, name=_safe(p.name)) for p in node.parameters))
        for node in network.nodes
    ]
    return replace(network, nodes=tuple(nodes))
