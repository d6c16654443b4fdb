"""The layers of torch.nn in the common vocabulary, and which of their tensors are parameters of a node.

Layers are identified by the name of their exact class. A subclass may compute something else, so its parts are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from regatta.network.graph import Parameter

if TYPE_CHECKING:
    from torch import nn

Made = tuple[str, dict[str, Any]]

# settings that change results and that no kind has
_UNSUPPORTED_SETTINGS = ("divisor_override", "max_norm", "add_zero_attn")


def is_known(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.") and type(module).__name__ in _LAYERS


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is one node: a known layer, or a layer of PyTorch without inner modules."""
    own = type(module).__module__.startswith(("torch.nn.", "torch.ao.nn."))
    has_parts = any(module.children()) or type(module).__name__ == "Sequential"
    return is_known(module) or (own and not has_parts)


def describe_layer(module: nn.Module) -> Made:
    """The kind and the hyperparameters of a leaf. A layer that does more than its kind allows becomes OTHER."""
    if is_known(module) and not any(getattr(module, name, None) not in (None, False) for name in _UNSUPPORTED_SETTINGS):
        return _LAYERS[type(module).__name__](module)
    return "OTHER", {"type": type(module).__name__, "settings": module.extra_repr()[:4000] or None}


def layer_parameters(module: nn.Module, path: str) -> Iterator[Parameter]:
    """The tensors of a leaf, with their names in the state of the whole model."""
    prefix = f"{path}." if path else ""
    for role, tensor in (*module.named_parameters(), *module.named_buffers()):
        if role != "num_batches_tracked":
            yield Parameter(role, prefix + role, tuple(tensor.shape))


def listed(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] * count


def same_padding(kernel: list[int], dilation: list[int]) -> list[int]:
    """The padding of padding="same" for a convolution with stride 1: starts, then ends if they differ."""
    return split_padding([d * (k - 1) for k, d in zip(kernel, dilation, strict=True)])


def split_padding(totals: list[int]) -> list[int]:
    """Half of each number at the start, the rest at the end: starts, then ends if they differ."""
    begins = [total // 2 for total in totals]
    ends = [total - begin for total, begin in zip(totals, begins, strict=True)]
    return begins if begins == ends else begins + ends


def _conv(dims: int, module: Any, transposed: bool = False) -> Made:
    kernel, dilation = list(module.kernel_size), list(module.dilation)
    padding = module.padding
    if isinstance(padding, str):
        padding = same_padding(kernel, dilation) if padding == "same" else [0] * dims
    return "CONV", {
        "dims": dims, "in": module.in_channels, "out": module.out_channels, "kernel": kernel,
        "stride": list(module.stride), "padding": list(padding), "dilation": dilation, "groups": module.groups,
        "bias": module.bias is not None, "transposed": transposed, "padding_mode": module.padding_mode,
        "output_padding": list(module.output_padding) if transposed else None,
    }  # fmt: skip


def _pool(dims: int, function: str, module: Any) -> Made:
    return pool(
        dims, function, module.kernel_size, module.stride, module.padding, getattr(module, "dilation", 1),
        module.ceil_mode, getattr(module, "count_include_pad", True),
    )  # fmt: skip


def pool(
    dims: int, function: str, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, counted: bool
) -> Made:
    padded = listed(padding, dims)
    return "POOL", {
        "dims": dims, "function": function, "kernel": listed(kernel, dims),
        "stride": listed(kernel if stride in (None, [], ()) else stride, dims), "padding": padded,
        "dilation": listed(dilation, dims), "ceil": bool(ceil), "count_padding": bool(counted) or not any(padded),
    }  # fmt: skip


def _adaptive(dims: int, function: str) -> Callable[[Any], Made]:
    return lambda m: ("POOL", {"dims": dims, "function": function, "output": listed(m.output_size, dims)})


def _batch_norm(function: str, module: Any) -> Made:
    return "NORM", {
        "function": function, "features": module.num_features, "eps": module.eps, "momentum": module.momentum,
        "affine": module.affine, "track": module.track_running_stats,
    }  # fmt: skip


def _layer_norm(module: Any) -> Made:
    biased = module.elementwise_affine and module.bias is not None
    attributes = {"function": "layer", "shape": list(module.normalized_shape), "eps": module.eps}
    return "NORM", attributes | {"affine": module.elementwise_affine, "bias": biased or not module.elementwise_affine}


def _rms_norm(module: Any) -> Made:
    attributes = {"function": "rms", "shape": list(module.normalized_shape), "affine": module.elementwise_affine}
    return "NORM", attributes | ({} if module.eps is None else {"eps": module.eps})


def _group_norm(module: Any) -> Made:
    attributes = {"function": "group", "groups": module.num_groups, "features": module.num_channels}
    return "NORM", attributes | {"eps": module.eps, "affine": module.affine}


def _local_norm(module: Any) -> Made:
    return "NORM", {"function": "local", "size": module.size, "alpha": module.alpha, "beta": module.beta, "k": module.k}


def _dropout(function: str) -> Callable[[Any], Made]:
    return lambda m: ("DROPOUT", {"p": m.p, "function": function})


def _attention(module: Any) -> Made:
    features = module.embed_dim
    return "ATTENTION", {
        "features": features, "heads": module.num_heads, "bias": module.in_proj_bias is not None,
        "dropout": module.dropout, "batch_first": module.batch_first,
        "keys": module.kdim if module.kdim != features else None,
        "values": module.vdim if module.vdim != features else None,
    }  # fmt: skip


def _recurrent(function: str, module: Any) -> Made:
    return "RNN", {
        "function": f"rnn_{module.nonlinearity}" if function == "rnn" else function, "in": module.input_size,
        "hidden": module.hidden_size, "layers": module.num_layers, "bias": module.bias,
        "batch_first": module.batch_first, "dropout": float(module.dropout),
        "bidirectional": module.bidirectional, "projection": module.proj_size,
    }  # fmt: skip


def _simple(kind: str, **names: str) -> Callable[[Any], Made]:
    """A layer whose attributes are renamed attributes of the module."""
    return lambda m: (kind, {ours: getattr(m, theirs) for ours, theirs in names.items()})


def _softmax(log: bool) -> Callable[[Any], Made]:
    return lambda m: ("SOFTMAX", {"axis": -1 if m.dim is None else m.dim, "log": log})


def _upsample(module: Any) -> Made:
    size = None if module.size is None else listed(module.size, 1 if isinstance(module.size, int) else 0)
    scale = module.scale_factor
    return "RESIZE", {"size": size, "scale": scale, "mode": module.mode, "corners": module.align_corners}


_LAYERS: dict[str, Callable[[Any], Made]] = {
    **{f"Conv{d}d": partial(_conv, d) for d in (1, 2, 3)},
    **{f"ConvTranspose{d}d": partial(_conv, d, transposed=True) for d in (1, 2, 3)},
    **{f"MaxPool{d}d": partial(_pool, d, "max") for d in (1, 2, 3)},
    **{f"AvgPool{d}d": partial(_pool, d, "avg") for d in (1, 2, 3)},
    **{f"AdaptiveMaxPool{d}d": _adaptive(d, "max") for d in (1, 2, 3)},
    **{f"AdaptiveAvgPool{d}d": _adaptive(d, "avg") for d in (1, 2, 3)},
    **{f"BatchNorm{d}d": partial(_batch_norm, "batch") for d in (1, 2, 3)},
    **{f"InstanceNorm{d}d": partial(_batch_norm, "instance") for d in (1, 2, 3)},
    "LayerNorm": _layer_norm,
    "RMSNorm": _rms_norm,
    "GroupNorm": _group_norm,
    "LocalResponseNorm": _local_norm,
    "Dropout": _dropout("elements"),
    **{f"Dropout{d}d": _dropout("channels") for d in (1, 2, 3)},
    "AlphaDropout": _dropout("alpha"),
    "MultiheadAttention": _attention,
    "LSTM": partial(_recurrent, "lstm"),
    "GRU": partial(_recurrent, "gru"),
    "RNN": partial(_recurrent, "rnn"),
    "Linear": lambda m: ("FULL", {"in": m.in_features, "out": m.out_features, "bias": m.bias is not None}),
    "NonDynamicallyQuantizableLinear": lambda m: ("FULL", {"in": m.in_features, "out": m.out_features}),
    "Embedding": _simple("EMBED", count="num_embeddings", features="embedding_dim", padding_index="padding_idx"),
    "Flatten": _simple("FLATTEN", start="start_dim", end="end_dim"),
    **{
        name: _simple(name.upper())
        for name in ("Identity", "ReLU", "SELU", "SiLU", "Mish", "Sigmoid", "Tanh", "Softsign")
    },
    **dict.fromkeys(("ReLU6", "Hardtanh"), _simple("CLIP", min="min_val", max="max_val")),
    "LeakyReLU": _simple("LEAKY_RELU", slope="negative_slope"),
    "PReLU": _simple("PRELU", count="num_parameters"),
    "ELU": _simple("ELU", alpha="alpha"),
    "CELU": _simple("CELU", alpha="alpha"),
    "GELU": _simple("GELU", approximate="approximate"),
    "LogSigmoid": _simple("LOG_SIGMOID"),
    "Hardsigmoid": _simple("HARD_SIGMOID"),
    "Hardswish": _simple("HARD_SWISH"),
    "Softplus": _simple("SOFTPLUS", beta="beta", threshold="threshold"),
    "Softmax": _softmax(log=False),
    "LogSoftmax": _softmax(log=True),
    **dict.fromkeys(("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"), _upsample),
    "ZeroPad2d": lambda m: ("PAD", {"padding": list(m.padding)}),
    "ConstantPad2d": lambda m: ("PAD", {"padding": list(m.padding), "value": m.value}),
    "ReflectionPad2d": lambda m: ("PAD", {"padding": list(m.padding), "mode": "reflect"}),
    "ReplicationPad2d": lambda m: ("PAD", {"padding": list(m.padding), "mode": "replicate"}),
}
