"""The operators of ONNX in the common vocabulary.

An unknown operator, or an unknown use of one, becomes OTHER. Sizes of tensors (Shape, and what a Reshape computes from
it) are folded, so they do not become nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from regatta.network.graph import Shape
from regatta.network.onnx.shapes import Dims, Size, shape_of
from regatta.network.torch.calls import MATH

MAX_FOLDED = 1_000  # longer lists of sizes are not the sizes of a tensor


@dataclass(frozen=True)
class NodeOutput:
    """The output of a node of the network."""

    id: str
    dims: Dims | None

    @property
    def shape(self) -> Shape | None:
        return shape_of(self.dims)


@dataclass(frozen=True)
class ConstantTensor:
    """A constant of the file: its stored shape, the shape in which it is used, and its numbers if they are few."""

    name: str
    stored: Shape
    shape: Shape
    numbers: tuple[Any, ...] | None


@dataclass(frozen=True)
class Sizes:
    """A list of sizes; some are known, others are sizes of a node's output."""

    sizes: tuple[int | Size, ...]


Given = NodeOutput | ConstantTensor | Sizes


@dataclass(frozen=True)
class Op:
    """One operator: its operands, its settings, the shape of its output, and a bias from an Add that follows."""

    type: str
    inputs: Sequence[Given | None]
    settings: Mapping[str, Any]
    opset: int
    shape: Shape | None
    bias: ConstantTensor | None

    @property
    def operands(self) -> tuple[Given, ...]:
        return tuple(value for value in self.inputs if value is not None)

    def given(self, place: int) -> Given | None:
        return self.inputs[place] if place < len(self.inputs) else None

    def written(self, place: int = 0) -> NodeOutput:
        value = self.given(place)
        if not isinstance(value, NodeOutput):
            raise UnknownOperator
        return value

    def tensor(self, place: int) -> ConstantTensor:
        value = self.given(place)
        if not isinstance(value, ConstantTensor):
            raise UnknownOperator
        return value

    def optional(self, place: int) -> ConstantTensor | None:
        return None if self.given(place) is None else self.tensor(place)

    def numbers(self, place: int, setting: str = "") -> list[Any] | None:
        """A list that is an attribute in old files and a constant operand in new ones; None if it is missing."""
        if setting in self.settings:
            return list(self.settings[setting])
        value = self.given(place)
        if value is None:
            return None
        if isinstance(value, ConstantTensor) and value.numbers is not None:
            return list(value.numbers)
        raise UnknownOperator

    def needed_numbers(self, place: int, setting: str) -> list[Any]:
        found = self.numbers(place, setting)
        if found is None:
            raise UnknownOperator
        return found


@dataclass(frozen=True)
class Made:
    kind: str
    inputs: tuple[Given, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, ConstantTensor | None] = field(default_factory=dict)
    takes_bias: bool = False


class UnknownOperator(Exception):
    """The operator, or this use of it, is not in the vocabulary."""


def translate(op: Op) -> Made | Given:
    try:
        sizes = _fold_sizes(op)
        return sizes if sizes is not None else _OPS[op.type](op)
    except (LookupError, OverflowError, TypeError, UnknownOperator, ValueError):  # such as sizes that are no numbers
        settings = {name: value for name, value in op.settings.items() if value is not None}
        return Made("OTHER", op.operands, {**dict(list(settings.items())[:60]), "type": op.type})


# Sizes


def _fold_sizes(op: Op) -> Given | None:
    """Apply an operator to sizes and constants, where that is possible without running it."""
    first = op.given(0)
    if op.type == "Shape" and isinstance(first, NodeOutput) and first.dims is not None and not op.settings:
        return Sizes(first.dims)
    if op.type in ("Cast", "Identity", "Unsqueeze", "Squeeze") and isinstance(first, Sizes):
        return first
    if op.type == "Cast" and isinstance(first, ConstantTensor) and first.numbers is not None:
        return replace(first, numbers=tuple(map(int, first.numbers)) if op.settings["to"] in (6, 7) else first.numbers)
    if op.type == "Reshape" and isinstance(first, ConstantTensor):
        return _viewed(first, op)
    vectors = [_as_sizes(value) for value in op.inputs]
    if not isinstance(first, Sizes) and not (op.type == "Concat" and any(isinstance(v, Sizes) for v in op.inputs)):
        return None
    if op.type == "Concat" and all(vector is not None for vector in vectors):
        if sum(len(vector) for vector in vectors if vector is not None) > MAX_FOLDED:
            raise UnknownOperator
        return Sizes(tuple(size for vector in vectors if vector is not None for size in vector))
    if op.type == "Slice" and isinstance(first, Sizes):
        return Sizes(first.sizes[_only_slice(op)])
    if op.type == "Gather" and isinstance(first, Sizes):
        return Sizes(tuple(first.sizes[int(place)] for place in op.numbers(1) or ()))
    return None


def _as_sizes(value: Given | None) -> tuple[int | Size, ...] | None:
    if isinstance(value, Sizes):
        return value.sizes
    if isinstance(value, ConstantTensor) and value.numbers is not None:
        return tuple(int(number) for number in value.numbers)
    return None


def _only_slice(op: Op) -> slice:
    starts, ends = op.numbers(1, "starts"), op.numbers(2, "ends")
    steps = op.numbers(4) or [1]
    if not starts or not ends or len(starts) != 1:
        raise UnknownOperator
    return slice(int(starts[0]), int(ends[0]), int(steps[0]))


def _viewed(tensor: ConstantTensor, op: Op) -> ConstantTensor:
    shape = op.needed_numbers(1, "shape")
    if any(size < 1 for size in shape):
        raise UnknownOperator
    return replace(tensor, shape=tuple(int(size) for size in shape))


# Layers with weights


def _conv(op: Op, transposed: bool) -> Made:
    weight = op.tensor(1)
    kernel, groups = list(weight.shape[2:]), op.settings.get("group", 1)
    dims = len(kernel)
    if op.settings.get("output_shape"):
        raise UnknownOperator
    first, second = (size or 0 for size in weight.shape[:2])
    ins, outs = (first, second * groups) if transposed else (second * groups, first)
    role, bias, takes = _bias(op, outs, dims)
    attributes = {
        "dims": dims, "in": ins, "out": outs, "kernel": kernel, "stride": op.settings.get("strides", [1] * dims),
        "padding": _padding(op, kernel, transposed), "dilation": op.settings.get("dilations", [1] * dims),
        "groups": groups, "bias": bias is not None, "transposed": transposed,
        "output_padding": op.settings.get("output_padding") if transposed else None,
    }  # fmt: skip
    return Made("CONV", (op.written(),), attributes, {"weight": weight, role: bias}, takes)


def _bias(op: Op, outs: int, dims: int) -> tuple[str, ConstantTensor | None, bool]:
    own = op.optional(2)
    if own is not None or op.bias is None:
        return "bias", own, False
    wide = (1, outs, *[1] * dims)
    if op.bias.shape not in (wide, wide[1:]):
        return "bias", None, False
    return ("bias" if op.bias.stored == (outs,) else "bias@flat"), op.bias, True


def _padding(op: Op, kernel: Sequence[Any], transposed: bool = False) -> list[int]:
    """Starts, then ends if they differ."""
    dims = len(kernel)
    automatic = op.settings.get("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same(op, kernel, automatic == "SAME_UPPER", transposed)
    else:
        pads = list(op.settings.get("pads", [0] * 2 * dims)) if automatic == "NOTSET" else [0] * 2 * dims
    return pads[:dims] if pads[:dims] == pads[dims:] else pads


def _same(op: Op, kernel: Sequence[Any], upper: bool, transposed: bool) -> list[int]:
    shape = op.written().shape
    if shape is None or transposed:
        raise UnknownOperator
    strides = op.settings.get("strides", [1] * len(kernel))
    dilations = op.settings.get("dilations", [1] * len(kernel))
    short, long = [], []
    for size, k, s, d in zip(shape[2:], kernel, strides, dilations, strict=True):
        if size is None and s != 1:
            raise UnknownOperator
        total = same_padding(size or 1, k, s, d)
        short.append(total // 2)
        long.append(total - total // 2)
    return [*short, *long] if upper else [*long, *short]


def same_padding(size: int, kernel: int, stride: int, dilation: int) -> int:
    """The padding for which the output is as long as the input divided by the stride."""
    return int(max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0))


def _gemm(op: Op) -> Made:
    weight, bias = op.tensor(1), op.optional(2)
    if op.settings.get("transA") or any(op.settings.get(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        raise UnknownOperator
    stored_as_ours = bool(op.settings.get("transB"))
    outs, ins = weight.shape if stored_as_ours else weight.shape[::-1]
    if bias is not None and bias.shape not in ((outs,), (1, outs)):
        raise UnknownOperator
    weights = {"weight" if stored_as_ours else "weight@10": weight, _flat(bias): bias}
    return Made("FULL", (op.written(),), {"in": ins, "out": outs, "bias": bias is not None}, weights)


def _flat(bias: ConstantTensor | None) -> str:
    return "bias" if bias is None or len(bias.stored) == 1 else "bias@flat"


def _matmul(op: Op) -> Made:
    weight = op.given(1)
    if not isinstance(weight, ConstantTensor) or len(weight.shape) != 2 or not isinstance(op.given(0), NodeOutput):
        return Made("MATMUL", op.operands)
    ins, outs = weight.shape
    takes = op.bias is not None and op.bias.shape in ((outs,), (1, outs))
    bias = op.bias if takes else None
    attributes = {"in": ins, "out": outs, "bias": bias is not None}
    return Made("FULL", (op.written(),), attributes, {"weight@10": weight, _flat(bias): bias}, takes)


def _batch_norm(op: Op) -> Made:
    if op.settings.get("training_mode"):
        raise UnknownOperator
    roles = ("weight", "bias", "running_mean", "running_var")
    weights = {role: op.tensor(place) for place, role in enumerate(roles, start=1)}
    attributes = {
        "function": "batch", "features": weights["weight"].shape[0], "eps": op.settings.get("epsilon", 1e-5),
        "momentum": round(1 - op.settings.get("momentum", 0.9), 6),
    }  # fmt: skip
    return Made("NORM", (op.written(),), attributes, weights)


def _layer_norm(op: Op) -> Made:
    weight, bias = op.tensor(1), op.optional(2)
    attributes = {"function": "layer", "shape": list(weight.shape), "eps": op.settings.get("epsilon", 1e-5)}
    return Made("NORM", (op.written(),), attributes | {"bias": bias is not None}, {"weight": weight, "bias": bias})


def _instance_norm(op: Op) -> Made:
    weight, bias = op.tensor(1), op.tensor(2)
    attributes = {
        "function": "instance", "features": weight.shape[0], "eps": op.settings.get("epsilon", 1e-5), "track": False,
    }  # fmt: skip
    return Made("NORM", (op.written(),), attributes, {"weight": weight, "bias": bias})


def _local_norm(op: Op) -> Made:
    get = op.settings.get
    attributes = {"size": get("size"), "alpha": get("alpha", 1e-4), "beta": get("beta", 0.75), "k": get("bias", 1.0)}
    return Made("NORM", (op.written(),), {"function": "local", **attributes})


def _recurrent(function: str, op: Op) -> Made:
    weight = op.tensor(1)
    attributes = {
        "function": function, "in": weight.shape[2], "hidden": op.settings.get("hidden_size"), "batch_first": False,
        "bidirectional": op.settings.get("direction") == "bidirectional", "bias": op.given(3) is not None,
    }  # fmt: skip
    states = tuple(value for value in op.inputs[4:] if isinstance(value, NodeOutput))
    weights = {"W": weight, "R": op.tensor(2), "B": op.optional(3)}
    return Made("RNN", (op.written(), *states), attributes, weights)


def _gather(op: Op) -> Made:
    table, axis = op.given(0), op.settings.get("axis", 0)
    if isinstance(table, ConstantTensor) and len(table.shape) == 2 and axis == 0:
        attributes = {"count": table.shape[0], "features": table.shape[1]}
        return Made("EMBED", (op.written(1),), attributes, {"weight": table})
    index = op.tensor(1)
    if index.shape != () or index.numbers is None or axis < 0:
        raise UnknownOperator
    return Made("SLICE", (op.written(),), {"index": ["::"] * axis + [int(index.numbers[0])]})


def _prelu(op: Op) -> Made:
    slope = op.tensor(1)
    count = math.prod(size or 1 for size in slope.shape)
    role = "weight" if len(slope.stored) == 1 else "weight@flat"
    return Made("PRELU", (op.written(),), {"count": count}, {role: slope})


# Layers without


def _pool(function: str, op: Op) -> Made:
    kernel = op.settings["kernel_shape"]
    padding = _padding(op, kernel)
    attributes = {
        "dims": len(kernel), "function": function, "kernel": kernel, "padding": padding,
        "stride": op.settings.get("strides", [1] * len(kernel)), "dilation": op.settings.get("dilations"),
        "ceil": bool(op.settings.get("ceil_mode", 0)),
        "count_padding": function == "max" or bool(op.settings.get("count_include_pad", 0)) or not any(padding),
    }  # fmt: skip
    return Made("POOL", (op.written(),), attributes)


def _global_pool(function: str, op: Op) -> Made:
    shape = op.written().shape
    dims = 2 if shape is None else len(shape) - 2
    return Made("POOL", (op.written(),), {"dims": dims, "function": function, "output": [1] * dims})


def _simple(kind: str, **names: tuple[str, Any]) -> Callable[[Op], Made]:
    """A layer with one operand; its attributes are renamed settings, with ONNX's defaults."""
    return lambda op: Made(kind, (op.written(),), {o: op.settings.get(t, d) for o, (t, d) in names.items()})


def _clip(op: Op) -> Made:
    low, high = ([op.settings[name]] if name in op.settings else op.numbers(i) for i, name in ((1, "min"), (2, "max")))
    limits = {"min": low[0] if low else None, "max": high[0] if high else None}
    bounded = {name: value for name, value in limits.items() if value is not None and abs(value) < 1e38}
    return Made("CLIP", (op.written(),), bounded)


def _softmax(op: Op, log: bool) -> Made:
    axis = op.settings.get("axis", -1 if op.opset >= 13 else 1)
    shape = op.shape or op.written().shape
    rank = None if shape is None else len(shape)
    last = axis == -1 or (rank is not None and axis == rank - 1)
    if op.opset < 13 and not last:
        raise UnknownOperator  # it was over all the axes from there on
    return Made("SOFTMAX", (op.written(),), {"axis": -1 if last else axis, "log": log})


def _dropout(op: Op) -> Made:
    return Made("DROPOUT", (op.written(),), {"p": op.settings.get("ratio", (op.numbers(1) or [0.5])[0])})


def _binary(kind: str, op: Op) -> Made:
    operands = op.operands
    for place, value in enumerate(operands if len(operands) == 2 else ()):
        number = _single_number(value)
        if number is not None and isinstance(operands[1 - place], NodeOutput):
            left = place == 0 and kind in ("SUB", "DIV", "POW")
            return Made(kind, (operands[1 - place],), {"value": number, "left": left})
    return Made(kind, operands)


def _single_number(value: Given) -> float | None:
    if (
        not isinstance(value, ConstantTensor)
        or value.numbers is None
        or len(value.numbers) != 1
        or len(value.shape) > 1
    ):
        return None
    return float(f"{value.numbers[0]:.7g}")  # float32 as people write it


def _math(function: str, op: Op) -> Made:
    return Made("MATH", (op.written(),), {"function": function})


def _reduce(function: str, op: Op) -> Made:
    axes = op.needed_numbers(1, "axes")
    keep = bool(op.settings.get("keepdims", 1))
    return Made("REDUCE", (op.written(),), {"function": function, "axes": axes, "keep": keep})


# Shapes


def _split(op: Op) -> Made:
    sizes = op.numbers(1, "split")
    attributes = {"count": op.settings.get("num_outputs")} if sizes is None else {"sizes": sizes}
    return Made("SPLIT", (op.written(),), {**attributes, "axis": op.settings.get("axis", 0)})


def _flatten(op: Op) -> Made:
    if op.settings.get("axis", 1) != 1:
        raise UnknownOperator
    return Made("FLATTEN", (op.written(),))


def _reshape(op: Op) -> Made:
    tensor, wanted = op.written(), _as_sizes(op.given(1)) or tuple(op.settings.get("shape", ()))
    if not wanted or op.settings.get("allowzero"):
        raise UnknownOperator
    have = tensor.dims or ()
    own = [0 if isinstance(s, Size) and s in have[place : place + 1] else s for place, s in enumerate(wanted)]
    unknown = [place for place, size in enumerate(own) if not isinstance(size, int)]
    if len(unknown) + own.count(-1) > 1:
        raise UnknownOperator
    shape = [-1 if place in unknown else size for place, size in enumerate(own)]
    return Made("FLATTEN", (tensor,)) if shape == [0, -1] else Made("RESHAPE", (tensor,), {"shape": shape})


def _axes(kind: str, op: Op) -> Made:
    return Made(kind, (op.written(),), {"axes": op.needed_numbers(1, "axes")})


def _slice(op: Op) -> Made:
    starts, ends = op.needed_numbers(1, "starts"), op.needed_numbers(2, "ends")
    axes = op.numbers(3, "axes") or list(range(len(starts)))
    steps = op.numbers(4) or [1] * len(starts)
    if any(axis < 0 for axis in axes) or any(step < 1 for step in steps):
        raise UnknownOperator
    index = ["::"] * (max(axes) + 1)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = f"{start or ''}:{'' if end >= 2**31 - 1 else end}:{'' if step == 1 else step}"
    return Made("SLICE", (op.written(),), {"index": index})


def _pad(op: Op) -> Made:
    pads, mode = op.needed_numbers(1, "pads"), op.settings.get("mode", "constant")
    if mode == "wrap":
        raise UnknownOperator
    half = len(pads) // 2
    ours = [amount for axis in reversed(range(half)) for amount in (pads[axis], pads[half + axis])]
    value = op.settings.get("value", (op.numbers(2) or [0.0])[0])
    mode = "replicate" if mode == "edge" else mode
    while mode != "constant" and ours[-2:] == [0, 0]:
        ours = ours[:-2]  # reflections are of the inner axes only
    return Made("PAD", (op.written(),), {"padding": ours, "mode": mode, "value": value})


def _resize(op: Op) -> Made:
    scales = op.numbers(2 if op.type == "Resize" and op.opset >= 11 else 1, "scales")
    mode = op.settings.get("mode", "nearest")
    if not scales or scales[:2] != [1.0, 1.0] or mode not in ("nearest", "linear"):
        raise UnknownOperator
    where = op.settings.get("coordinate_transformation_mode", "half_pixel")
    asymmetric = where == "asymmetric" and op.settings.get("nearest_mode", "round_prefer_floor") == "floor"
    if mode == "nearest" and (asymmetric or all(scale == int(scale) for scale in scales)):
        return Made("RESIZE", (op.written(),), {"scale": scales[2:]})
    if mode == "linear" and len(scales) == 4 and where in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        corners = where == "align_corners"
        return Made("RESIZE", (op.written(),), {"scale": scales[2:], "mode": "bilinear", "corners": corners})
    raise UnknownOperator


def _cast(op: Op) -> Made:
    names = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64"}
    return Made("CAST", (op.written(),), {"dtype": names[op.settings["to"]]})


_OPS: dict[str, Callable[[Op], Made]] = {
    "Conv": partial(_conv, transposed=False), "ConvTranspose": partial(_conv, transposed=True),
    "Gemm": _gemm, "MatMul": _matmul,
    "BatchNormalization": _batch_norm, "LayerNormalization": _layer_norm, "InstanceNormalization": _instance_norm,
    "LRN": _local_norm, "LSTM": partial(_recurrent, "lstm"), "GRU": partial(_recurrent, "gru"),
    "RNN": partial(_recurrent, "rnn_tanh"),
    "Gather": _gather, "PRelu": _prelu, "MaxPool": partial(_pool, "max"), "AveragePool": partial(_pool, "avg"),
    "GlobalAveragePool": partial(_global_pool, "avg"), "GlobalMaxPool": partial(_global_pool, "max"),
    "Relu": _simple("RELU"), "LeakyRelu": _simple("LEAKY_RELU", slope=("alpha", 0.01)),
    "Elu": _simple("ELU", alpha=("alpha", 1.0)), "Celu": _simple("CELU", alpha=("alpha", 1.0)), "Selu": _simple("SELU"),
    "Gelu": _simple("GELU", approximate=("approximate", "none")), "Sigmoid": _simple("SIGMOID"),
    "HardSigmoid": _simple("HARD_SIGMOID", alpha=("alpha", 0.2), beta=("beta", 0.5)),
    "HardSwish": _simple("HARD_SWISH"), "Tanh": _simple("TANH"), "Softplus": _simple("SOFTPLUS"),
    "Softsign": _simple("SOFTSIGN"), "Mish": _simple("MISH"), "Clip": _clip, "Softmax": partial(_softmax, log=False),
    "LogSoftmax": partial(_softmax, log=True),
    "Dropout": _dropout, "Identity": _simple("IDENTITY"), "Cast": _cast,
    **{name: partial(_binary, name.upper()) for name in ("Add", "Mul", "Sub", "Div", "Pow")},
    "Sum": partial(_binary, "ADD"), "Max": partial(_binary, "MAXIMUM"), "Min": partial(_binary, "MINIMUM"),
    **{name.capitalize(): partial(_math, name) for name in MATH},
    **{f"Reduce{name.capitalize()}": partial(_reduce, name) for name in ("mean", "sum", "max", "min")},
    "Concat": lambda op: Made("CONCAT", op.operands, {"axis": op.settings["axis"]}),
    "Split": _split, "Flatten": _flatten, "Reshape": _reshape,
    "Transpose": lambda op: Made("TRANSPOSE", (op.written(),), {"order": op.settings["perm"]}),
    "Squeeze": partial(_axes, "SQUEEZE"), "Unsqueeze": partial(_axes, "UNSQUEEZE"), "Slice": _slice, "Pad": _pad,
    "Resize": _resize, "Upsample": _resize,
}  # fmt: skip
