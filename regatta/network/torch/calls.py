"""Functional calls of PyTorch in the common vocabulary: F.relu(x), x + y, x.view(...), torch.cat, and aten's twins.

A call is known by its plain name, so that the function, the method, the operator and the operator of an exported
program are all the same entry. Its arguments are constants, outputs of nodes (`Ref`), tensors of the model's state
(`Held`), or sizes of tensors (`Dim`). What is not known, or is called in a way that is not, becomes OTHER.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regatta.network.graph import Shape
from regatta.network.torch.modules import listed, pool, same_padding


@dataclass(frozen=True)
class Ref:
    """The output of a node; `many` if that is a tuple. Two refs with the same `lead` have equally long first axes."""

    id: str
    shape: Shape | None = None
    many: bool = False
    lead: object = None


@dataclass(frozen=True)
class Held:
    """A parameter or buffer of the model."""

    name: str
    shape: Shape
    learned: bool = True


@dataclass(frozen=True)
class Dim:
    """The size of an axis of a node's output, not known until the network runs."""

    of: str
    axis: int
    lead: object = None


@dataclass(frozen=True)
class Unknown:
    """A number or another value that depends on sizes or on data."""


@dataclass(frozen=True)
class Layer:
    """A node to be: tensors of the state that have a role in it are its parameters, all others are operands."""

    kind: str
    inputs: tuple[Ref | Held, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Held | Ref | None] = field(default_factory=dict)
    many: bool = False


class NotKnown(Exception):
    """The call is not one that the vocabulary has."""


Bound = Mapping[str, Any]
MATH = ("sqrt", "rsqrt", "exp", "log", "erf", "neg", "abs", "sin", "cos", "floor", "ceil", "reciprocal")


def plain_name(name: str) -> str:
    """relu_, iadd, __add__ and add.Tensor lose what does not change their meaning."""
    name = name.partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    name = name.rstrip("_")
    return name[1:] if name in ("iadd", "imul", "isub", "itruediv") else name


def translate(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Layer:
    """The layer that a call is."""
    try:
        signature, make = _CALLS[plain_name(name)]
        return _checked(make(_bind(signature, args, kwargs)))
    except (KeyError, NotKnown):
        return _other(plain_name(name), args, kwargs)


def tensors_in(value: Any) -> Iterable[Ref | Held]:
    if isinstance(value, Ref | Held):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))


def _other(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Layer:
    settings = {f"argument {place}": value for place, value in enumerate(args) if _is_json(value)}
    settings |= {key: value for key, value in kwargs.items() if _is_json(value)}
    settings = {key: value for key, value in settings.items() if value is not None}
    return Layer("OTHER", tuple(tensors_in([list(args), dict(kwargs)])), {**settings, "type": name})


def _is_json(value: object) -> bool:
    if isinstance(value, list | tuple):
        return len(value) < 64 and all(_is_json(item) for item in value)
    if isinstance(value, str):
        return len(value) < 1000
    return value is None or (isinstance(value, int | float) and abs(value) < 2**62)


def _bind(signature: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name. `*x` takes what is left, or one list; what is not given is not there."""
    names = signature.split()
    if names[-1].startswith("*"):
        fixed = len(names) - 1
        rest = list(args[fixed:])
        only = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else None
        args = [*args[:fixed], list(only) if only is not None else rest] if rest else args
    names = [name.lstrip("*") for name in names]
    if len(args) > len(names) or any(key not in names and key not in _IGNORED for key in kwargs):
        raise NotKnown
    bound = dict(zip(names, args, strict=False))
    return bound | {key: value for key, value in kwargs.items() if key not in _IGNORED}


_IGNORED = ("inplace", "training", "train", "cudnn", "_stacklevel", "return_indices", "memory_format", "sparse")


def _checked(layer: Layer) -> Layer:
    if not all(isinstance(x, Ref | Held) for x in layer.inputs):
        raise NotKnown
    if not all(_is_json(value) for value in layer.attributes.values()):
        raise NotKnown
    return layer


def _tensor(bound: Bound, name: str = "input") -> Any:
    value = bound.get(name)
    if not isinstance(value, Ref | Held):
        raise NotKnown
    return value


def _weight(bound: Bound, name: str = "weight") -> Held:
    value = bound.get(name)
    if not isinstance(value, Held):
        raise NotKnown
    return value


def _optional(bound: Bound, name: str) -> Held | None:
    return None if bound.get(name) is None else _weight(bound, name)


def _roles(**weights: Held | None) -> dict[str, Held | Ref | None]:
    return {role: held for role, held in weights.items() if held is not None}


# Layers with weights


def _conv(dims: int, transposed: bool = False) -> Callable[[Bound], Layer]:
    def made(bound: Bound) -> Layer:
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
        return Layer("CONV", (_tensor(bound),), attributes, _roles(weight=weight, bias=bias))

    return made


def _linear(bound: Bound) -> Layer:
    weight, bias = _weight(bound), _optional(bound, "bias")
    if len(weight.shape) != 2:
        raise NotKnown
    attributes = {"in": weight.shape[1], "out": weight.shape[0], "bias": bias is not None}
    return Layer("FULL", (_tensor(bound),), attributes, _roles(weight=weight, bias=bias))


def _embedding(bound: Bound) -> Layer:
    held = bound.get("input")  # aten: (weight, indices); F.embedding: (input, weight)
    weight, indices = (held, _tensor(bound, "weight")) if isinstance(held, Held) else (_weight(bound), _tensor(bound))
    padding = bound.get("padding_idx")
    attributes = {"count": weight.shape[0], "features": weight.shape[1]}
    padded = {"padding_index": padding} if padding not in (None, -1) else {}
    return Layer("EMBED", (indices,), attributes | padded, _roles(weight=weight))


def _batch_norm(bound: Bound) -> Layer:
    weight, bias = _optional(bound, "weight"), _optional(bound, "bias")
    mean, var = _optional(bound, "running_mean"), _optional(bound, "running_var")
    known = next((held for held in (weight, mean) if held is not None), None)
    attributes = {
        "function": "batch", "features": known.shape[0] if known else None, "affine": weight is not None,
        "momentum": bound.get("momentum", 0.1), "eps": bound.get("eps", 1e-5), "track": mean is not None,
    }  # fmt: skip
    weights = _roles(weight=weight, bias=bias, running_mean=mean, running_var=var)
    return Layer("NORM", (_tensor(bound),), attributes, weights)


def _layer_norm(function: str) -> Callable[[Bound], Layer]:
    def made(bound: Bound) -> Layer:
        weight, bias = _optional(bound, "weight"), _optional(bound, "bias")
        eps = bound.get("eps")
        attributes = {
            "function": function, "shape": listed(bound["normalized_shape"], 1), "affine": weight is not None,
            "bias": bias is not None or weight is None or function == "rms",
        }  # fmt: skip
        return Layer(
            "NORM", (_tensor(bound),), attributes | ({} if eps is None else {"eps": eps}),
            _roles(weight=weight, bias=bias),
        )  # fmt: skip

    return made


def _group_norm(bound: Bound) -> Layer:
    weight, bias = _optional(bound, "weight"), _optional(bound, "bias")
    attributes = {
        "function": "group", "groups": bound["num_groups"], "features": weight.shape[0] if weight else None,
        "eps": bound.get("eps", 1e-5), "affine": weight is not None,
    }  # fmt: skip
    return Layer("NORM", (_tensor(bound),), attributes, _roles(weight=weight, bias=bias))


def _prelu(bound: Bound) -> Layer:
    weight = _weight(bound)
    return Layer("PRELU", (_tensor(bound),), {"count": weight.shape[0]}, _roles(weight=weight))


def _dot_product(bound: Bound) -> Layer:
    if bound.get("enable_gqa"):
        raise NotKnown
    mask = bound.get("attn_mask")
    inputs = [_tensor(bound, name) for name in ("query", "key", "value")] + ([mask] if mask is not None else [])
    attributes = {
        "function": "dot_product", "dropout": bound.get("dropout_p", 0.0), "causal": bound.get("is_causal", False),
        "scale": bound.get("scale"),
    }  # fmt: skip
    return Layer("ATTENTION", tuple(inputs), attributes)


# Layers without


def _pooling(dims: int, function: str) -> Callable[[Bound], Layer]:
    def made(bound: Bound) -> Layer:
        if bound.get("divisor_override") is not None:
            raise NotKnown
        kind, attributes = pool(
            dims, function, bound["kernel_size"], bound.get("stride"), bound.get("padding", 0),
            bound.get("dilation", 1), bound.get("ceil_mode", False), bound.get("count_include_pad", True),
        )  # fmt: skip
        return Layer(kind, (_tensor(bound),), attributes)

    return made


def _adaptive(dims: int, function: str) -> Callable[[Bound], Layer]:
    def made(bound: Bound) -> Layer:
        output = listed(bound["output_size"], dims)
        return Layer("POOL", (_tensor(bound),), {"dims": dims, "function": function, "output": output})

    return made


def _simple(kind: str, **names: str) -> Callable[[Bound], Layer]:
    """One operand; attributes are arguments under other names."""

    def made(bound: Bound) -> Layer:
        return Layer(
            kind, (_tensor(bound),), {ours: bound[theirs] for ours, theirs in names.items() if theirs in bound}
        )

    return made


def _math(function: str) -> Callable[[Bound], Layer]:
    return lambda bound: Layer("MATH", (_tensor(bound),), {"function": function})


def _clip(low: float | None = None, high: float | None = None) -> Callable[[Bound], Layer]:
    def made(bound: Bound) -> Layer:
        return Layer("CLIP", (_tensor(bound),), {"min": bound.get("min", low), "max": bound.get("max", high)})

    return made


def _softmax(log: bool) -> Callable[[Bound], Layer]:
    def made(bound: Bound) -> Layer:
        tensor, axis = _tensor(bound), bound.get("dim", -1)
        return Layer("SOFTMAX", (tensor,), {"axis": from_the_end(axis, tensor.shape), "log": log})

    return made


def from_the_end(axis: int, shape: Shape | None) -> int:
    """The last axis is -1, however it was said."""
    return -1 if shape is not None and axis == len(shape) - 1 else axis


def _dropout(function: str) -> Callable[[Bound], Layer]:
    return lambda bound: Layer("DROPOUT", (_tensor(bound),), {"p": bound.get("p", 0.5), "function": function})


def _binary(kind: str, swapped: bool = False) -> Callable[[Bound], Layer]:
    def made(bound: Bound) -> Layer:
        a, b = bound["input"], bound["other"]
        a, b = (b, a) if swapped else (a, b)
        if bound.get("alpha", 1) != 1 or bound.get("rounding_mode") is not None:
            raise NotKnown
        if isinstance(a, Ref | Held) and isinstance(b, Ref | Held):
            return Layer(kind, (a, b))
        if isinstance(a, Ref | Held):
            return Layer(kind, (a,), {"value": b})
        return Layer(kind, (b,), {"value": a, "left": kind in ("SUB", "DIV", "POW")})

    return made


def _matmul(bound: Bound) -> Layer:
    return Layer("MATMUL", (_tensor(bound), _tensor(bound, "other")))


def _reduce(function: str) -> Callable[[Bound], Layer]:
    def made(bound: Bound) -> Layer:
        axes = bound.get("dim")
        if axes is None or bound.get("dtype") is not None or (function in ("max", "min") and not _is_several(axes)):
            raise NotKnown
        return Layer("REDUCE", (_tensor(bound),), {
            "function": function, "axes": listed(axes, 1), "keep": bound.get("keepdim", False),
        })  # fmt: skip

    return made


def _is_several(axes: object) -> bool:
    return isinstance(axes, list | tuple)


# Shapes


def _concat(kind: str) -> Callable[[Bound], Layer]:
    def made(bound: Bound) -> Layer:
        tensors, axis = tuple(bound["tensors"]), bound.get("dim", 0)
        shape = getattr(tensors[0], "shape", None)
        return Layer(kind, tensors, {"axis": axis + len(shape) if shape and axis < 0 and kind == "CONCAT" else axis})

    return made


def _split(bound: Bound) -> Layer:
    sizes = bound["size"]
    attributes = {"sizes": list(sizes)} if _is_several(sizes) else {"size": sizes}
    return Layer("SPLIT", (_tensor(bound),), {**attributes, "axis": bound.get("dim", 0)}, many=True)


def _chunk(bound: Bound) -> Layer:
    return Layer("SPLIT", (_tensor(bound),), {"count": bound["chunks"], "axis": bound.get("dim", 0)}, many=True)


def _flatten(bound: Bound) -> Layer:
    return Layer("FLATTEN", (_tensor(bound),), {"start": bound.get("start_dim", 0), "end": bound.get("end_dim", -1)})


def _reshape(bound: Bound) -> Layer:
    """In a shape, -1 is what is left and 0 is the operand's own size at that place."""
    tensor = _tensor(bound)
    if not isinstance(bound.get("shape"), list | tuple):
        raise NotKnown
    shape = [_size(tensor, place, size) for place, size in enumerate(bound["shape"])]
    if sum(size is None or size == -1 for size in shape) > 1:
        raise NotKnown
    shape = [-1 if size is None else size for size in shape]
    if shape == [0, -1]:
        return Layer("FLATTEN", (tensor,))
    return Layer("RESHAPE", (tensor,), {"shape": shape})


def _size(tensor: Ref | Held, place: int, size: Any) -> int | None:
    """What to write for a size of a shape: the operand's own batch is 0; None where only what is left can tell."""
    if isinstance(size, int):
        return size
    if not isinstance(size, Dim) or not isinstance(tensor, Ref):
        return None
    as_long = place == 0 and size.lead is not None and size.lead == tensor.lead
    return 0 if as_long or (size.of == tensor.id and size.axis == place) else None


def _unflatten(bound: Bound) -> Layer:
    tensor, axis = _tensor(bound), bound["dim"]
    if tensor.shape is None or axis not in (-1, len(tensor.shape) - 1):
        raise NotKnown
    return Layer("RESHAPE", (tensor,), {"shape": [0] * (len(tensor.shape) - 1) + list(bound["sizes"])})


def _expand(bound: Bound) -> Layer:
    """An axis as long as the batch of another tensor needs that tensor as a second operand; it is written 0."""
    tensor, shape = _tensor(bound), list(bound["shape"])
    others = {size.of for size in shape if isinstance(size, Dim)}
    if len(others) > 1 or any(not isinstance(s, int) and not (isinstance(s, Dim) and s.axis == 0) for s in shape):
        raise NotKnown
    sizes = [0 if isinstance(size, Dim) else size for size in shape]
    return Layer("EXPAND", (tensor, *(Ref(other) for other in others)), {"shape": sizes})


def _transpose(bound: Bound) -> Layer:
    tensor, a, b = _tensor(bound), bound["dim0"], bound["dim1"]
    if tensor.shape is None:
        return Layer("TRANSPOSE", (tensor,), {"swap": [a, b]})
    order = list(range(len(tensor.shape)))
    order[a], order[b] = order[b], order[a]
    return Layer("TRANSPOSE", (tensor,), {"order": order})


def _permute(bound: Bound) -> Layer:
    return Layer("TRANSPOSE", (_tensor(bound),), {"order": list(bound["dims"])})


def _axes(kind: str) -> Callable[[Bound], Layer]:
    def made(bound: Bound) -> Layer:
        if "dim" not in bound:
            raise NotKnown
        return Layer(kind, (_tensor(bound),), {"axes": listed(bound["dim"], 1)})

    return made


def _getitem(bound: Bound) -> Layer:
    tensor, index = _tensor(bound), bound["index"]
    if isinstance(tensor, Ref) and tensor.many:
        return Layer("SELECT", (tensor,), {"item": index}, many=False)
    items = list(index) if isinstance(index, tuple) else [index]
    return Layer("SLICE", (tensor,), {"index": [_index(item) for item in items]})


def _index(item: Any) -> Any:
    """A slice as text, `start:stop:step`; the rest as JSON has it."""
    if item is Ellipsis:
        return "..."
    if isinstance(item, slice):
        parts = (item.start, item.stop, item.step)
        if not all(part is None or isinstance(part, int) for part in parts):
            raise NotKnown
        return ":".join("" if part is None else str(part) for part in parts)
    if item is None or (isinstance(item, int) and not isinstance(item, bool)):
        return item
    raise NotKnown


def _select(bound: Bound) -> Layer:
    return _along(bound, bound["index"])


def _aten_slice(bound: Bound) -> Layer:
    end = bound.get("end")
    end = None if isinstance(end, int) and end >= 2**31 else end
    return _along(bound, slice(bound.get("start"), end, bound.get("step")))


def _along(bound: Bound, item: Any) -> Layer:
    axis = bound.get("dim", 0)
    if axis < 0:
        raise NotKnown
    return Layer("SLICE", (_tensor(bound),), {"index": [":" + ":"] * axis + [_index(item)]})


def _pad(bound: Bound) -> Layer:
    attributes = {"padding": list(bound["pad"]), "mode": bound.get("mode", "constant"), "value": bound.get("value")}
    return Layer("PAD", (_tensor(bound),), attributes)


def _interpolate(bound: Bound) -> Layer:
    if bound.get("antialias") or bound.get("recompute_scale_factor"):
        raise NotKnown
    size = bound.get("size")
    return Layer("RESIZE", (_tensor(bound),), {
        "size": None if size is None else listed(size, 1), "scale": bound.get("scale_factor"),
        "mode": bound.get("mode", "nearest"), "corners": bound.get("align_corners"),
    })  # fmt: skip


_CONV_ARGS = "input weight bias stride padding dilation groups"
_TRANSPOSED_ARGS = "input weight bias stride padding output_padding groups dilation"
_MAX_ARGS = "input kernel_size stride padding dilation ceil_mode return_indices"
_AVG_ARGS = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"

_CALLS: dict[str, tuple[str, Callable[[Bound], Layer]]] = {
    **{f"conv{d}d": (_CONV_ARGS, _conv(d)) for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": (_TRANSPOSED_ARGS, _conv(d, transposed=True)) for d in (1, 2, 3)},
    "linear": ("input weight bias", _linear),
    "embedding": ("input weight padding_idx scale_grad_by_freq sparse", _embedding),
    "batch_norm": ("input running_mean running_var weight bias training momentum eps", _batch_norm),
    "aten_batch_norm": ("input weight bias running_mean running_var training momentum eps cudnn", _batch_norm),
    "layer_norm": ("input normalized_shape weight bias eps cudnn", _layer_norm("layer")),
    "rms_norm": ("input normalized_shape weight eps", _layer_norm("rms")),
    "group_norm": ("input num_groups weight bias eps cudnn", _group_norm),
    "prelu": ("input weight", _prelu),
    "scaled_dot_product_attention": ("query key value attn_mask dropout_p is_causal scale enable_gqa", _dot_product),
    **{f"max_pool{d}d": (_MAX_ARGS, _pooling(d, "max")) for d in (1, 2, 3)},
    **{f"avg_pool{d}d": (_AVG_ARGS, _pooling(d, "avg")) for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": ("input output_size", _adaptive(d, "avg")) for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": ("input output_size", _adaptive(d, "max")) for d in (1, 2, 3)},
    "relu": ("input", _simple("RELU")),
    "relu6": ("input", _clip(0.0, 6.0)),
    "hardtanh": ("input min max", _clip(-1.0, 1.0)),
    "clamp": ("input min max", _clip()),
    "clip": ("input min max", _clip()),
    "leaky_relu": ("input negative_slope", _simple("LEAKY_RELU", slope="negative_slope")),
    "elu": ("input alpha", _simple("ELU", alpha="alpha")),
    "celu": ("input alpha", _simple("CELU", alpha="alpha")),
    "selu": ("input", _simple("SELU")),
    "gelu": ("input approximate", _simple("GELU", approximate="approximate")),
    "silu": ("input", _simple("SILU")),
    "mish": ("input", _simple("MISH")),
    "sigmoid": ("input", _simple("SIGMOID")),
    "logsigmoid": ("input", _simple("LOG_SIGMOID")),
    "hardsigmoid": ("input", _simple("HARD_SIGMOID")),
    "hardswish": ("input", _simple("HARD_SWISH")),
    "tanh": ("input", _simple("TANH")),
    "softplus": ("input beta threshold", _simple("SOFTPLUS", beta="beta", threshold="threshold")),
    "softsign": ("input", _simple("SOFTSIGN")),
    "softmax": ("input dim _ dtype", _softmax(log=False)),
    "log_softmax": ("input dim _ dtype", _softmax(log=True)),
    "dropout": ("input p train", _dropout("elements")),
    "feature_dropout": ("input p train", _dropout("channels")),
    **{f"dropout{d}d": ("input p train", _dropout("channels")) for d in (1, 2, 3)},
    "alpha_dropout": ("input p train", _dropout("alpha")),
    **{name: ("input other alpha", _binary("ADD")) for name in ("add", "radd")},
    **{name: ("input other", _binary("MUL")) for name in ("mul", "rmul", "multiply")},
    **{name: ("input other alpha", _binary("SUB")) for name in ("sub", "subtract")},
    "rsub": ("input other alpha", _binary("SUB", swapped=True)),
    **{name: ("input other rounding_mode", _binary("DIV")) for name in ("div", "truediv", "true_divide")},
    "rdiv": ("input other", _binary("DIV", swapped=True)),
    "rtruediv": ("input other", _binary("DIV", swapped=True)),
    "pow": ("input other", _binary("POW")),
    "rpow": ("input other", _binary("POW", swapped=True)),
    "maximum": ("input other", _binary("MAXIMUM")),
    "minimum": ("input other", _binary("MINIMUM")),
    **{name: ("input other", _matmul) for name in ("matmul", "bmm", "mm")},
    **{name: ("input", _math(name)) for name in MATH},
    **{name: ("input dim keepdim dtype", _reduce(name)) for name in ("mean", "sum")},
    "amax": ("input dim keepdim", _reduce("max")),
    "amin": ("input dim keepdim", _reduce("min")),
    **{name: ("tensors dim", _concat("CONCAT")) for name in ("cat", "concat", "concatenate")},
    "stack": ("tensors dim", _concat("STACK")),
    "split": ("input size dim", _split),
    "split_with_sizes": ("input size dim", _split),
    "chunk": ("input chunks dim", _chunk),
    "flatten": ("input start_dim end_dim", _flatten),
    **{name: ("input *shape", _reshape) for name in ("view", "reshape", "unsafe_view")},
    "unflatten": ("input dim sizes", _unflatten),
    "expand": ("input *shape", _expand),
    "transpose": ("input dim0 dim1", _transpose),
    "swapaxes": ("input dim0 dim1", _transpose),
    "permute": ("input *dims", _permute),
    "squeeze": ("input *dim", _axes("SQUEEZE")),
    "unsqueeze": ("input dim", _axes("UNSQUEEZE")),
    "getitem": ("input index", _getitem),
    "select": ("input dim index", _select),
    "slice": ("input dim start end step", _aten_slice),
    "pad": ("input pad mode value", _pad),
    "interpolate": ("input size scale_factor mode align_corners recompute_scale_factor antialias", _interpolate),
    **{name: ("input", _simple("IDENTITY")) for name in ("contiguous", "clone", "detach", "alias")},
}  # fmt: skip
