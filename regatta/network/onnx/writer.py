"""The operators and weights of an ONNX model while it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regatta.errors import DataError, UsageError, nearest
from regatta.network.graph import Network, Node, arranged, split_role

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 21, 10  # opset 21 is the first with GroupNormalization as PyTorch computes it
MAX_BYTES = 2**31 - 2**20  # protobuf messages end at two gigabytes

Output = Any  # the name of a tensor, or a tuple of them where a layer has several outputs


class CannotExport(Exception):
    """A layer, or this use of it, has no form in ONNX; the text says why."""


class OnnxWriter:
    """The operators and weights that are written so far, and the names of what each layer returns."""

    def __init__(self, network: Network, weights: Mapping[str, Any]) -> None:
        self.network = network
        self.outputs: dict[str, Output] = {}
        self._weights = weights
        self._operators: list[Any] = []
        self._initializers: dict[str, NDArray[Any]] = {}
        self._inputs: list[Any] = []
        self._results: list[Any] = []
        self._used: set[str] = set()

    def op(self, kind: str, *inputs: str, **settings: Any) -> str:
        """Write one operator, and return the name of its output; an empty input is one that is left out."""
        return self.split_op(kind, 1, *inputs, **settings)[0]

    def split_op(self, kind: str, outputs: int, *inputs: str, **settings: Any) -> tuple[str, ...]:
        """Write an operator with several outputs."""
        from onnx import helper

        names = [self._unique(kind.lower()) for _ in range(outputs)]
        known = {name: value for name, value in settings.items() if value is not None}
        self._operators.append(helper.make_node(kind, list(inputs), names, name=names[0], **known))
        return tuple(names)

    def constant(self, value: Any, dtype: Any = np.int64, name: str = "constant") -> str:
        return self._initializer(name, np.asarray(value, dtype))

    def number(self, value: float) -> str:
        """A scalar of the type of the weights, so that arithmetic with it is possible."""
        return self.constant(value, self.float_type, "number")

    @cached_property
    def float_type(self) -> Any:
        """The type of the weights, if they have one type of floats."""
        known = [self._weights[name] for name in self.network.parameters if name in self._weights]
        kinds = {value.dtype for value in known if isinstance(value, np.ndarray) and value.dtype.kind == "f"}
        return kinds.pop() if len(kinds) == 1 else np.dtype(np.float32)

    def weight(self, node: Node, role: str, default: NDArray[Any] | None = None) -> NDArray[Any] | None:
        """A parameter of a node in PyTorch's layout; the default if the node does not have it."""
        for parameter in node.parameters:
            own, layout = split_role(parameter.role)
            if own == role:
                value = self._array(parameter.name)
                return np.asarray(arranged(value, layout))
        return default

    def put(self, node: Node, role: str, value: NDArray[Any] | None) -> str:
        """Store an array as a weight of a node. Its own weight keeps its name, and is stored once."""
        if value is None:
            return ""
        for parameter in node.parameters:
            own, layout = split_role(parameter.role)
            if own == role and not layout and value is self._array(parameter.name):
                return self._initializer(parameter.name, value, shared=True)
        return self._initializer(f"{node.name or node.id}.{role}", np.ascontiguousarray(value))

    def needed(self, node: Node, role: str) -> NDArray[Any]:
        """A parameter that a node must have, in PyTorch's layout."""
        value = self.weight(node, role)
        if value is None:
            raise CannotExport(f"it has no {role}")
        return value

    def known_rank(self, node: Node) -> int | None:
        """The number of axes of the operand, if it is known."""
        shape = self.network.by_id[self.network.sources[node.id][0]].shape
        return None if shape is None else len(shape)

    def rank(self, node: Node, place: int = 0) -> int:
        """The number of axes of an operand."""
        return len(self.shape(node, place))

    def shape(self, node: Node, place: int = 0) -> tuple[int | None, ...]:
        sources = self.network.sources[node.id]
        shape = self.network.by_id[sources[place]].shape
        if shape is None:
            raise CannotExport("the shape of its input is not known")
        return shape

    def add_input(self, node: Node) -> str:
        from onnx import helper

        dtype = np.dtype(str(node.get("dtype") or self._input_type(node)))
        name = self._unique(node.name or node.id)
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        self._inputs.append(helper.make_tensor_value_info(name, kind, self._named_axes(node.shape)))
        return name

    def add_output(self, node: Node, results: Sequence[Output]) -> None:
        from onnx import helper

        for source, result in zip(self.network.sources[node.id], results, strict=True):
            if not isinstance(result, str):
                raise CannotExport("it returns several tensors as one")
            shape = self._named_axes(self.network.by_id[source].shape)
            kind = helper.np_dtype_to_tensor_dtype(self.float_type)
            self._results.append(helper.make_tensor_value_info(self.op("Identity", result), kind, shape))

    def model(self) -> onnx.ModelProto:
        from onnx import helper, numpy_helper

        if sum(value.nbytes for value in self._initializers.values()) > MAX_BYTES:
            raise UsageError("The weights are too large for one ONNX file, which ends at two gigabytes.")
        tensors = [numpy_helper.from_array(value, name) for name, value in self._initializers.items()]
        graph = helper.make_graph(self._operators, self.network.name or "network", self._inputs, self._results, tensors)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        made.producer_name = "regatta"
        return made

    def _named_axes(self, shape: tuple[int | None, ...] | None) -> list[int | str] | None:
        """A shape with names for the axes that vary."""
        if shape is None:
            return None
        return [("batch" if place == 0 else f"axis_{place}") if s is None else s for place, s in enumerate(shape)]

    def _input_type(self, node: Node) -> Any:
        takes = [self.network.by_id[target].kind for target in self.network.targets[node.id]]
        return np.int64 if "EMBED" in takes else self.float_type

    def _array(self, name: str) -> NDArray[Any]:
        if name not in self._weights:
            raise DataError(
                f"The weights do not have {name!r}, which the network needs.", candidates=nearest(name, self._weights)
            )
        value = self._weights[name]
        if not isinstance(value, np.ndarray):
            raise CannotExport(f"{name!r} is of the type {value.dtype}, which NumPy lacks")
        return value

    def _initializer(self, name: str, value: NDArray[Any], shared: bool = False) -> str:
        known = self._initializers.get(name)
        if shared and known is value:
            return name
        name = self._unique(name)
        self._initializers[name] = value
        return name

    def _unique(self, name: str) -> str:
        number, found = 1, name
        while found in self._used:
            number += 1
            found = f"{name}_{number}"
        self._used.add(found)
        return found
