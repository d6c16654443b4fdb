"""Functional calls of PyTorch in the common vocabulary: F.relu(x), x + y, x.view(...), torch.cat, and aten operators.

A call is identified by its plain name, so the function, the method, the operator and the operator of an exported
program are the same entry. Its arguments are constants, outputs of nodes (`Ref`), tensors of the model's state
(`StateTensor`), or sizes of tensors (`Dim`). An unknown call, or an unknown use of one, becomes OTHER.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from regatta.network.graph import Shape
from regatta.network.torch.modules import listed, pool, same_padding


@dataclass(frozen=True)
class Ref:
    """The output of a node; `many` if it is a tuple. Two refs with the same `lead` have first axes of equal length."""

    id: str
    shape: Shape | None = None
    many: bool = False
    lead: object = None


@dataclass(frozen=True)
class StateTensor:
    """A parameter or buffer of the model."""

    name: str
    shape: Shape
    learned: bool = True


@dataclass(frozen=True)
class Dim:
    """The size of an axis of a node's output, unknown until the network runs."""

    of: str
    axis: int
    lead: object = None


@dataclass(frozen=True)
class UnknownValue:
    """A number or another value that depends on sizes or on data."""


@dataclass(frozen=True)
class LayerCall:
    """A node to add: state tensors that have a role in it are its parameters, all others are operands."""

    kind: str
    inputs: tuple[Ref | StateTensor, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, StateTensor | None] = field(default_factory=dict)
    many: bool = False


class UnknownCall(Exception):
    """The call is not in the vocabulary."""


Bound = Mapping[str, Any]
MATH = ("sqrt", "rsqrt", "exp", "log", "erf", "neg", "abs", "sin", "cos", "floor", "ceil", "reciprocal")


def plain_name(name: str) -> str:
    """The name without what does not change its meaning: relu_, iadd, __add__, add.Tensor."""
    name = name.partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    name = name.rstrip("_")
    return name[1:] if name in ("iadd", "imul", "isub", "itruediv") else name


def translate(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LayerCall:
    """The layer of a call."""
    try:
        signature, make = _CALLS[plain_name(name)]
        return _checked(make(_bind(signature, args, kwargs)))
    except (KeyError, UnknownCall):
        return _other(plain_name(name), args, kwargs)


def tensors_in(value: Any) -> Iterable[Ref | StateTensor]:
    if isinstance(value, Ref | StateTensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))


def _other(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LayerCall:
    settings = {f"argument {place}": value for place, value in enumerate(args) if _is_json(value)}
    settings |= {key: value for key, value in kwargs.items() if _is_json(value)}
    settings = {key: value for key, value in settings.items() if value is not None}
    return LayerCall("OTHER", tuple(tensors_in([list(args), dict(kwargs)])), {**settings, "type": name})


def _is_json(value: object) -> bool:
    if isinstance(value, list | tuple):
        return len(value) < 64 and all(_is_json(item) for item in value)
    if isinstance(value, str):
        return len(value) < 1000
    return value is None or (isinstance(value, int | float) and abs(value) < 2**62)


def _bind(signature: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name. `*x` takes the remaining ones, or one list; arguments that are not given are left out."""
    names = signature.split()
    if names[-1].startswith("*"):
        fixed = len(names) - 1
        rest = list(args[fixed:])
        only = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else None
        args = [*args[:fixed], list(only) if only is not None else rest] if rest else args
    names = [name.lstrip("*") for name in names]
    if len(args) > len(names) or any(key not in names and key not in _IGNORED for key in kwargs):
        raise UnknownCall
    bound = dict(zip(names, args, strict=False))
    return bound | {key: value for key, value in kwargs.items() if key not in _IGNORED}


_IGNORED = ("inplace", "training", "train", "cudnn", "_stacklevel", "return_indices", "memory_format", "sparse")


def _checked(layer: LayerCall) -> LayerCall:
    if not all(isinstance(x, Ref | StateTensor) for x in layer.inputs):
        raise UnknownCall
    if not all(_is_json(value) for value in layer.attributes.values()):
        raise UnknownCall
    return layer


def _tensor(bound: Bound, name: str = "input") -> Any:
    value = bound.get(name)
    if not isinstance(value, Ref | StateTensor):
        raise UnknownCall
    return value


def _weight(bound: Bound, name: str = "weight") -> StateTensor:
    value = bound.get(name)
    if not isinstance(value, StateTensor):
        raise UnknownCall
    return value


def _optional(bound: Bound, name: str) -> StateTensor | None:
    return None if bound.get(name) is None else _weight(bound, name)


# Layers with weights


def _conv(dims: int, bound: Bound, transposed: bool = False) -> LayerCall:
    weight, bias = _weight(bound), _optional(bound, "bias")
    kernel = list(weight.shape[2:])
    dilation, groups = listed(bound.get("dilation", 1), dims), bound.get("groups", 1)
    padding: Any = bound.get("padding", 0)
    if isinstance(padding, str):
        padding = same_padding(kernel, dilation) if padding == "same" else 0  # type: ignore[arg-type]
    first, second = weight.shape[:2]
    ins, outs = (first, (second or 0) * groups) if transposed else ((second or 0) * groups, first)
    attributes = {
        "dims": dims, "in": ins, "out": outs, "kernel": kernel, "stride": listed(bound.get("stride", 1), dims),
        "padding": listed(padding, dims), "dilation": dilation, "groups": groups, "bias": bias is not None,
        "transposed": transposed,
        "output_padding": listed(bound.get("output_padding", 0), dims) if transposed else None,
    }  # fmt: skip
    return LayerCall("CONV", (_tensor(bound),), attributes, {"weight": weight, "bias": bias})


def _linear(bound: Bound) -> LayerCall:
    weight, bias = _weight(bound), _optional(bound, "bias")
    if len(weight.shape) != 2:
        raise UnknownCall
    attributes = {"in": weight.shape[1], "out": weight.shape[0], "bias": bias is not None}
    return LayerCall("FULL", (_tensor(bound),), attributes, {"weight": weight, "bias": bias})


def _embedding(bound: Bound) -> LayerCall:
    held = bound.get("input")  # aten: (weight, indices); F.embedding: (input, weight)
    weight, indices = (
        (held, _tensor(bound, "weight")) if isinstance(held, StateTensor) else (_weight(bound), _tensor(bound))
    )
    padding = bound.get("padding_idx")
    attributes = {"count": weight.shape[0], "features": weight.shape[1]}
    padded = {"padding_index": padding} if padding not in (None, -1) else {}
    return LayerCall("EMBED", (indices,), attributes | padded, {"weight": weight})


def _batch_norm(bound: Bound) -> LayerCall:
    weight, bias = _optional(bound, "weight"), _optional(bound, "bias")
    mean, var = _optional(bound, "running_mean"), _optional(bound, "running_var")
    known = next((held for held in (weight, mean) if held is not None), None)
    attributes = {
        "function": "batch", "features": known.shape[0] if known else None, "affine": weight is not None,
        "momentum": bound.get("momentum", 0.1), "eps": bound.get("eps", 1e-5), "track": mean is not None,
    }  # fmt: skip
    weights = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
    return LayerCall("NORM", (_tensor(bound),), attributes, weights)


def _layer_norm(function: str, bound: Bound) -> LayerCall:
    weight, bias = _optional(bound, "weight"), _optional(bound, "bias")
    eps = bound.get("eps")
    attributes = {
        "function": function, "shape": listed(bound["normalized_shape"], 1), "affine": weight is not None,
        "bias": bias is not None or weight is None or function == "rms",
    }  # fmt: skip
    attributes |= {} if eps is None else {"eps": eps}
    return LayerCall("NORM", (_tensor(bound),), attributes, {"weight": weight, "bias": bias})


def _group_norm(bound: Bound) -> LayerCall:
    weight, bias = _optional(bound, "weight"), _optional(bound, "bias")
    attributes = {
        "function": "group", "groups": bound["num_groups"], "features": weight.shape[0] if weight else None,
        "eps": bound.get("eps", 1e-5), "affine": weight is not None,
    }  # fmt: skip
    return LayerCall("NORM", (_tensor(bound),), attributes, {"weight": weight, "bias": bias})


def _prelu(bound: Bound) -> LayerCall:
    weight = _weight(bound)
    return LayerCall("PRELU", (_tensor(bound),), {"count": weight.shape[0]}, {"weight": weight})


def _dot_product(bound: Bound) -> LayerCall:
    if bound.get("enable_gqa"):
        raise UnknownCall
    mask = bound.get("attn_mask")
    inputs = [_tensor(bound, name) for name in ("query", "key", "value")] + ([mask] if mask is not None else [])
    attributes = {
        "function": "dot_product", "dropout": bound.get("dropout_p", 0.0), "causal": bound.get("is_causal", False),
        "scale": bound.get("scale"),
    }  # fmt: skip
    return LayerCall("ATTENTION", tuple(inputs), attributes)


# Layers without


def _pooling(dims: int, function: str, bound: Bound) -> LayerCall:
    if bound.get("divisor_override") is not None:
        raise UnknownCall
    kind, attributes = pool(
        dims, function, bound["kernel_size"], bound.get("stride"), bound.get("padding", 0),
        bound.get("dilation", 1), bound.get("ceil_mode", False), bound.get("count_include_pad", True),
    )  # fmt: skip
    return LayerCall(kind, (_tensor(bound),), attributes)


def _adaptive(dims: int, function: str, bound: Bound) -> LayerCall:
    output = listed(bound["output_size"], dims)
    return LayerCall("POOL", (_tensor(bound),), {"dims": dims, "function": function, "output": output})


def _simple(kind: str, **names: str) -> Callable[[Bound], LayerCall]:
    """A layer with one operand; its attributes are renamed arguments."""

    def made(bound: Bound) -> LayerCall:
        attributes = {ours: bound[theirs] for ours, theirs in names.items() if theirs in bound}
        return LayerCall(kind, (_tensor(bound),), attributes)

    return made


def _math(function: str, bound: Bound) -> LayerCall:
    return LayerCall("MATH", (_tensor(bound),), {"function": function})


def _clip(bound: Bound, low: float | None = None, high: float | None = None) -> LayerCall:
    return LayerCall("CLIP", (_tensor(bound),), {"min": bound.get("min", low), "max": bound.get("max", high)})


def _softmax(bound: Bound, log: bool) -> LayerCall:
    tensor, axis = _tensor(bound), bound.get("dim", -1)
    is_last = tensor.shape is not None and axis == len(tensor.shape) - 1
    return LayerCall("SOFTMAX", (tensor,), {"axis": -1 if is_last else axis, "log": log})


def _dropout(function: str, bound: Bound) -> LayerCall:
    return LayerCall("DROPOUT", (_tensor(bound),), {"p": bound.get("p", 0.5), "function": function})


def _binary(kind: str, bound: Bound, swapped: bool = False) -> LayerCall:
    a, b = bound["input"], bound["other"]
    a, b = (b, a) if swapped else (a, b)
    if bound.get("alpha", 1) != 1 or bound.get("rounding_mode") is not None:
        raise UnknownCall
    if isinstance(a, Ref | StateTensor) and isinstance(b, Ref | StateTensor):
        return LayerCall(kind, (a, b))
    if isinstance(a, Ref | StateTensor):
        return LayerCall(kind, (a,), {"value": b})
    return LayerCall(kind, (b,), {"value": a, "left": kind in ("SUB", "DIV", "POW")})


def _matmul(bound: Bound) -> LayerCall:
    return LayerCall("MATMUL", (_tensor(bound), _tensor(bound, "other")))


def _reduce(function: str, bound: Bound) -> LayerCall:
    axes = bound.get("dim")
    if axes is None or bound.get("dtype") is not None or (function in ("max", "min") and isinstance(axes, int)):
        raise UnknownCall
    attributes = {"function": function, "axes": listed(axes, 1), "keep": bound.get("keepdim", False)}
    return LayerCall("REDUCE", (_tensor(bound),), attributes)


# Shapes


def _concat(kind: str, bound: Bound) -> LayerCall:
    tensors, axis = tuple(bound["tensors"]), bound.get("dim", 0)
    shape = getattr(tensors[0], "shape", None)
    if shape and axis < 0 and kind == "CONCAT":
        axis += len(shape)
    return LayerCall(kind, tensors, {"axis": axis})


def _split(bound: Bound) -> LayerCall:
    sizes = bound["size"]
    attributes = {"sizes": list(sizes)} if isinstance(sizes, list | tuple) else {"size": sizes}
    return LayerCall("SPLIT", (_tensor(bound),), {**attributes, "axis": bound.get("dim", 0)}, many=True)


def _chunk(bound: Bound) -> LayerCall:
    return LayerCall("SPLIT", (_tensor(bound),), {"count": bound["chunks"], "axis": bound.get("dim", 0)}, many=True)


def _flatten(bound: Bound) -> LayerCall:
    attributes = {"start": bound.get("start_dim", 0), "end": bound.get("end_dim", -1)}
    return LayerCall("FLATTEN", (_tensor(bound),), attributes)


def _reshape(bound: Bound) -> LayerCall:
    """In a shape, -1 is the remaining size and 0 is the operand's own size at that position."""
    tensor = _tensor(bound)
    if not isinstance(bound.get("shape"), list | tuple):
        raise UnknownCall
    shape = [_size(tensor, place, size) for place, size in enumerate(bound["shape"])]
    if sum(size is None or size == -1 for size in shape) > 1:
        raise UnknownCall
    shape = [-1 if size is None else size for size in shape]
    if shape == [0, -1]:
        return LayerCall("FLATTEN", (tensor,))
    return LayerCall("RESHAPE", (tensor,), {"shape": shape})


def _size(tensor: Ref | StateTensor, place: int, size: Any) -> int | None:
    """The number for a size in a shape: 0 for the operand's own batch; None where only the remaining size fits."""
    if isinstance(size, int):
        return size
    if not isinstance(size, Dim) or not isinstance(tensor, Ref):
        return None
    as_long = place == 0 and size.lead is not None and size.lead == tensor.lead
    return 0 if as_long or (size.of == tensor.id and size.axis == place) else None


def _unflatten(bound: Bound) -> LayerCall:
    tensor, axis = _tensor(bound), bound["dim"]
    if tensor.shape is None or axis not in (-1, len(tensor.shape) - 1):
        raise UnknownCall
    return LayerCall("RESHAPE", (tensor,), {"shape": [0] * (len(tensor.shape) - 1) + list(bound["sizes"])})


def _expand(bound: Bound) -> LayerCall:
    """An axis as long as another tensor's batch needs that tensor as a second operand; its size is 0."""
    tensor, shape = _tensor(bound), list(bound["shape"])
    others = {size.of for size in shape if isinstance(size, Dim)}
    if len(others) > 1 or any(not isinstance(s, int) and not (isinstance(s, Dim) and s.axis == 0) for s in shape):
        raise UnknownCall
    sizes = [0 if isinstance(size, Dim) else size for size in shape]
    return LayerCall("EXPAND", (tensor, *(Ref(other) for other in others)), {"shape": sizes})


def _transpose(bound: Bound) -> LayerCall:
    tensor, a, b = _tensor(bound), bound["dim0"], bound["dim1"]
    if tensor.shape is None:
        return LayerCall("TRANSPOSE", (tensor,), {"swap": [a, b]})
    order = list(range(len(tensor.shape)))
    order[a], order[b] = order[b], order[a]
    return LayerCall("TRANSPOSE", (tensor,), {"order": order})


def _axes(kind: str, bound: Bound) -> LayerCall:
    if "dim" not in bound:
        raise UnknownCall
    return LayerCall(kind, (_tensor(bound),), {"axes": listed(bound["dim"], 1)})


def _getitem(bound: Bound) -> LayerCall:
    tensor, index = _tensor(bound), bound["index"]
    if isinstance(tensor, Ref) and tensor.many:
        return LayerCall("SELECT", (tensor,), {"item": index}, many=False)
    items = list(index) if isinstance(index, tuple) else [index]
    return LayerCall("SLICE", (tensor,), {"index": [_index(item) for item in items]})


def _index(item: Any) -> Any:
    """A slice as text, `start:stop:step`; other indices as JSON values."""
    if item is Ellipsis:
        return "..."
    if isinstance(item, slice):
        parts = (item.start, item.stop, item.step)
        if not all(part is None or isinstance(part, int) for part in parts):
            raise UnknownCall
        return ":".join("" if part is None else str(part) for part in parts)
    if item is None or (isinstance(item, int) and not isinstance(item, bool)):
        return item
    raise UnknownCall


def _aten_slice(bound: Bound) -> LayerCall:
    end = bound.get("end")
    end = None if isinstance(end, int) and end >= 2**31 else end
    return _along(bound, slice(bound.get("start"), end, bound.get("step")))


def _along(bound: Bound, item: Any) -> LayerCall:
    axis = bound.get("dim", 0)
    if axis < 0:
        raise UnknownCall
    return LayerCall("SLICE", (_tensor(bound),), {"index": ["::"] * axis + [_index(item)]})


def _interpolate(bound: Bound) -> LayerCall:
    if bound.get("antialias") or bound.get("recompute_scale_factor"):
        raise UnknownCall
    size = bound.get("size")
    attributes = {
        "size": None if size is None else listed(size, 1), "scale": bound.get("scale_factor"),
        "mode": bound.get("mode", "nearest"), "corners": bound.get("align_corners"),
    }  # fmt: skip
    return LayerCall("RESIZE", (_tensor(bound),), attributes)


_CONV_ARGS = "input weight bias stride padding dilation groups"
_TRANSPOSED_ARGS = "input weight bias stride padding output_padding groups dilation"
_MAX_ARGS = "input kernel_size stride padding dilation ceil_mode return_indices"
_AVG_ARGS = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"

_CALLS: dict[str, tuple[str, Callable[[Bound], LayerCall]]] = {
    **{f"conv{d}d": (_CONV_ARGS, partial(_conv, d)) for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": (_TRANSPOSED_ARGS, partial(_conv, d, transposed=True)) for d in (1, 2, 3)},
    "linear": ("input weight bias", _linear),
    "embedding": ("input weight padding_idx scale_grad_by_freq sparse", _embedding),
    "batch_norm": ("input running_mean running_var weight bias training momentum eps", _batch_norm),
    "aten_batch_norm": ("input weight bias running_mean running_var training momentum eps cudnn", _batch_norm),
    "layer_norm": ("input normalized_shape weight bias eps cudnn", partial(_layer_norm, "layer")),
    "rms_norm": ("input normalized_shape weight eps", partial(_layer_norm, "rms")),
    "group_norm": ("input num_groups weight bias eps cudnn", _group_norm),
    "prelu": ("input weight", _prelu),
    "scaled_dot_product_attention": ("query key value attn_mask dropout_p is_causal scale enable_gqa", _dot_product),
    **{f"max_pool{d}d": (_MAX_ARGS, partial(_pooling, d, "max")) for d in (1, 2, 3)},
    **{f"avg_pool{d}d": (_AVG_ARGS, partial(_pooling, d, "avg")) for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": ("input output_size", partial(_adaptive, d, "avg")) for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": ("input output_size", partial(_adaptive, d, "max")) for d in (1, 2, 3)},
    **{
        name: ("input", _simple(name.upper()))
        for name in ("relu", "selu", "silu", "mish", "sigmoid", "tanh", "softsign")
    },
    "relu6": ("input", partial(_clip, low=0.0, high=6.0)),
    "hardtanh": ("input min max", partial(_clip, low=-1.0, high=1.0)),
    **{name: ("input min max", _clip) for name in ("clamp", "clip")},
    "leaky_relu": ("input negative_slope", _simple("LEAKY_RELU", slope="negative_slope")),
    "elu": ("input alpha", _simple("ELU", alpha="alpha")),
    "celu": ("input alpha", _simple("CELU", alpha="alpha")),
    "gelu": ("input approximate", _simple("GELU", approximate="approximate")),
    "logsigmoid": ("input", _simple("LOG_SIGMOID")),
    "hardsigmoid": ("input", _simple("HARD_SIGMOID")),
    "hardswish": ("input", _simple("HARD_SWISH")),
    "softplus": ("input beta threshold", _simple("SOFTPLUS", beta="beta", threshold="threshold")),
    "softmax": ("input dim _ dtype", partial(_softmax, log=False)),
    "log_softmax": ("input dim _ dtype", partial(_softmax, log=True)),
    "dropout": ("input p train", partial(_dropout, "elements")),
    "feature_dropout": ("input p train", partial(_dropout, "channels")),
    **{f"dropout{d}d": ("input p train", partial(_dropout, "channels")) for d in (1, 2, 3)},
    "alpha_dropout": ("input p train", partial(_dropout, "alpha")),
    **{name: ("input other alpha", partial(_binary, "ADD")) for name in ("add", "radd")},
    **{name: ("input other", partial(_binary, "MUL")) for name in ("mul", "rmul", "multiply")},
    **{name: ("input other alpha", partial(_binary, "SUB")) for name in ("sub", "subtract")},
    "rsub": ("input other alpha", partial(_binary, "SUB", swapped=True)),
    **{name: ("input other rounding_mode", partial(_binary, "DIV")) for name in ("div", "truediv", "true_divide")},
    **{name: ("input other", partial(_binary, "DIV", swapped=True)) for name in ("rdiv", "rtruediv")},
    "pow": ("input other", partial(_binary, "POW")),
    "rpow": ("input other", partial(_binary, "POW", swapped=True)),
    "maximum": ("input other", partial(_binary, "MAXIMUM")),
    "minimum": ("input other", partial(_binary, "MINIMUM")),
    **{name: ("input other", _matmul) for name in ("matmul", "bmm", "mm")},
    **{name: ("input", partial(_math, name)) for name in MATH},
    **{name: ("input dim keepdim dtype", partial(_reduce, name)) for name in ("mean", "sum")},
    "amax": ("input dim keepdim", partial(_reduce, "max")),
    "amin": ("input dim keepdim", partial(_reduce, "min")),
    **{name: ("tensors dim", partial(_concat, "CONCAT")) for name in ("cat", "concat", "concatenate")},
    "stack": ("tensors dim", partial(_concat, "STACK")),
    **{name: ("input size dim", _split) for name in ("split", "split_with_sizes")},
    "chunk": ("input chunks dim", _chunk),
    "flatten": ("input start_dim end_dim", _flatten),
    **{name: ("input *shape", _reshape) for name in ("view", "reshape", "unsafe_view")},
    "unflatten": ("input dim sizes", _unflatten),
    "expand": ("input *shape", _expand),
    **{name: ("input dim0 dim1", _transpose) for name in ("transpose", "swapaxes")},
    "permute": ("input *dims", _simple("TRANSPOSE", order="dims")),
    "squeeze": ("input *dim", partial(_axes, "SQUEEZE")),
    "unsqueeze": ("input dim", partial(_axes, "UNSQUEEZE")),
    "getitem": ("input index", _getitem),
    "select": ("input dim index", lambda bound: _along(bound, bound["index"])),
    "slice": ("input dim start end step", _aten_slice),
    "pad": ("input pad mode value", _simple("PAD", padding="pad", mode="mode", value="value")),
    "interpolate": ("input size scale_factor mode align_corners recompute_scale_factor antialias", _interpolate),
    **{name: ("input", _simple("IDENTITY")) for name in ("contiguous", "clone", "detach", "alias")},
}  # fmt: skip
