"""One runnable module for each kind of layer that PyTorch has."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from regatta.errors import DataError
from regatta.network.graph import Node, Parameter
from regatta.network.kinds import parse_index
from regatta.network.torch.calls import MATH
from regatta.network.torch.modules import layer_parameters


def can_build(node: Node) -> bool:
    if node.kind == "CONV":
        return _is_symmetric(node) or (not node.get("transposed") and node.get("padding_mode") == "zeros")
    if node.kind == "NORM":
        return node.get("function") in _NORMS
    if node.kind == "MATH":
        return node.get("function") in MATH
    if node.kind == "REDUCE":
        return node.get("function") in _REDUCTIONS
    if node.kind == "POOL":
        if bool(node.get("output")) or _is_symmetric(node):
            return node.get("function") in ("max", "avg")
        return node.get("function") == "max" or (node.get("function") == "avg" and not node.get("count_padding"))
    if node.kind == "RNN":
        return node.get("function") in ("lstm", "gru", "rnn_tanh", "rnn_relu") and bool(node.get("sequences"))
    return node.kind in _PARTS


def build_layer(node: Node) -> nn.Module:
    """The module of a node. An error names the node whose hyperparameter PyTorch rejects."""
    try:
        made = _PARTS[node.kind](node)
    except (TypeError, ValueError, RuntimeError, AssertionError, ArithmeticError, IndexError) as error:
        attributes = dict(node.attributes)
        raise DataError(f"{node.kind} with {attributes} cannot be built: {error}", place=f"node {node.id!r}") from error
    return made if isinstance(made, nn.Module) else _FunctionLayer(made)


def node_parameters(node: Node) -> tuple[Parameter, ...]:
    """The parameters that the module of a node has, named by their roles. Nothing is allocated."""
    if node.kind == "WEIGHT":
        return tuple(Parameter(each.role, each.role, each.shape) for each in node.parameters)
    try:
        return _parameters_of(node.kind, tuple(node.attributes.items()))
    except DataError as error:
        raise DataError(error.message, place=f"node {node.id!r}") from error


@lru_cache(maxsize=4096)
def _parameters_of(kind: str, attributes: tuple[tuple[str, Any], ...]) -> tuple[Parameter, ...]:
    node = Node(kind.lower(), kind, attributes=dict(attributes))
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensors without elements
        return tuple(layer_parameters(build_layer(node), ""))


class _FunctionLayer(nn.Module):
    """Calls a function. Two of them compute the same if their functions do: packs compare modules by what they hold."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Any) -> Any:
        return self.function(*operands)


def _is_symmetric(node: Node) -> bool:
    dims, padding = node.get("dims"), node.get("padding")
    return isinstance(padding, tuple) and len(padding) == dims


# Layers with weights


def _conv(node: Node) -> Any:
    get = node.get
    name = f"Conv{'Transpose' if get('transposed') else ''}{get('dims')}d"
    padded = _is_symmetric(node)
    settings = {
        "kernel_size": get("kernel"), "stride": get("stride"), "padding": get("padding") if padded else 0,
        "dilation": get("dilation"), "groups": get("groups"), "bias": get("bias"), "padding_mode": get("padding_mode"),
    }  # fmt: skip
    if get("transposed"):
        settings["output_padding"] = get("output_padding")
    layer = getattr(nn, name)(get("in"), get("out"), **settings)
    return layer if padded else _pad_then_layer(layer, get("padding"))


def _pad_then_layer(layer: nn.Module, padding: Sequence[int]) -> nn.Module:
    """A layer with different padding at its starts and its ends."""
    amounts = _pad_amounts(padding)
    layer.register_forward_pre_hook(lambda _, inputs: (functional.pad(inputs[0], amounts), *inputs[1:]))
    return layer


def _pad_amounts(padding: Sequence[int]) -> list[int]:
    """Starts, then ends, in the order of torch.nn.functional.pad: the last axis first."""
    half = len(padding) // 2
    return [amount for axis in reversed(range(half)) for amount in (padding[axis], padding[half + axis])]


class _AnyRankBatchNorm(_BatchNorm):
    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Any rank."""


def _batch_norm(node: Node) -> Any:
    get = node.get
    return _AnyRankBatchNorm(
        get("features"), get("eps"), momentum=get("momentum"), affine=get("affine"), track_running_stats=get("track")
    )


class _AnyRankInstanceNorm(_InstanceNorm):
    def __init__(self, rank: int, *settings: Any) -> None:
        super().__init__(*settings)
        self.rank = rank

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Any rank."""

    def _get_no_batch_dim(self) -> int:
        return self.rank - 1


def _instance_norm(node: Node) -> Any:
    get, rank = node.get, len(node.shape) if node.shape else 4
    return _AnyRankInstanceNorm(rank, get("features"), get("eps"), get("momentum"), get("affine"), get("track"))


def _rms_norm(node: Node) -> Any:
    return nn.RMSNorm(node.get("shape"), node.attributes.get("eps"), node.get("affine"))  # type: ignore[arg-type]


_NORMS: dict[str, Callable[[Node], Any]] = {
    "batch": _batch_norm,
    "instance": _instance_norm,
    "rms": _rms_norm,
    "layer": lambda node: nn.LayerNorm(node.get("shape"), node.get("eps"), node.get("affine"), bias=node.get("bias")),
    "group": lambda node: nn.GroupNorm(node.get("groups"), node.get("features"), node.get("eps"), node.get("affine")),
    "local": lambda node: nn.LocalResponseNorm(node.get("size"), node.get("alpha"), node.get("beta"), node.get("k")),
}


class _MultiheadAttention(nn.MultiheadAttention):
    """Takes query, key, value, and then the masks in the order that the node says."""

    def __init__(self, node: Node) -> None:
        get = node.get
        super().__init__(
            get("features"), get("heads"), get("dropout"), bias=get("bias"), kdim=get("keys"), vdim=get("values"),
            batch_first=get("batch_first"),
        )  # fmt: skip
        self.settings = {"need_weights": get("weights"), "is_causal": get("causal")}
        self.masks = tuple(get("masks") or ())

    def forward(self, *operands: torch.Tensor) -> Any:  # type: ignore[override]
        query, key, value = operands[:3]
        return super().forward(query, key, value, **self.settings, **dict(zip(self.masks, operands[3:], strict=True)))


class _DotProductAttention(nn.Module):
    def __init__(self, node: Node) -> None:
        super().__init__()
        self.dropout = node.get("dropout")
        self.settings = {"is_causal": node.get("causal"), "scale": node.get("scale")}

    def forward(self, *operands: Any) -> Any:
        settings = {**self.settings, "dropout_p": self.dropout if self.training else 0.0}
        return functional.scaled_dot_product_attention(*operands, **settings)


def _attention(node: Node) -> Any:
    return _DotProductAttention(node) if node.get("function") == "dot_product" else _MultiheadAttention(node)


def _start_state(state: tuple[torch.Tensor, ...]) -> Any:
    return state if len(state) > 1 else state[0] if state else None


class _Lstm(nn.LSTM):
    def forward(self, x: torch.Tensor, *state: torch.Tensor) -> Any:  # type: ignore[override]
        return super().forward(x, _start_state(state))


class _Gru(nn.GRU):
    def forward(self, x: torch.Tensor, *state: torch.Tensor) -> Any:  # type: ignore[override]
        return super().forward(x, _start_state(state))


class _Rnn(nn.RNN):
    def forward(self, x: torch.Tensor, *state: torch.Tensor) -> Any:  # type: ignore[override]
        return super().forward(x, _start_state(state))


def _recurrent(node: Node) -> Any:
    get = node.get
    function = get("function")
    made: Any = {"lstm": _Lstm, "gru": _Gru}.get(function, _Rnn)
    settings = {
        "bias": get("bias"), "batch_first": get("batch_first"), "dropout": get("dropout"),
        "bidirectional": get("bidirectional"),
    }  # fmt: skip
    if function.startswith("rnn_"):
        settings["nonlinearity"] = function.removeprefix("rnn_")
    if get("projection"):
        settings["proj_size"] = get("projection")
    return made(get("in"), get("hidden"), get("layers"), **settings)


class _WeightModule(nn.Module):
    """A weight or a buffer that the network uses by itself."""

    def __init__(self, parameter: Parameter) -> None:
        super().__init__()
        self.role = parameter.role
        start = torch.zeros([size or 1 for size in parameter.shape])
        if parameter.role == "buffer":
            self.register_buffer("buffer", start)
        else:
            self.weight = nn.Parameter(start)

    def forward(self) -> Any:
        return getattr(self, self.role)


# Layers without


def _pool(node: Node) -> Any:
    get = node.get
    dims, function = get("dims"), get("function")
    if get("output"):
        adaptive = getattr(functional, f"adaptive_{function}_pool{dims}d")
        return lambda x: adaptive(x, get("output") if dims > 1 else get("output")[0])
    pool = getattr(functional, f"{function}_pool{dims}d")
    symmetric = _is_symmetric(node)
    settings = {"stride": get("stride"), "padding": get("padding") if symmetric else 0, "ceil_mode": get("ceil")}
    settings |= {"dilation": get("dilation")} if function == "max" else {"count_include_pad": get("count_padding")}
    if symmetric:
        return lambda x: pool(x, get("kernel"), **settings)
    amounts = _pad_amounts(get("padding"))
    if function == "max":
        return lambda x: pool(functional.pad(x, amounts, value=-torch.inf), get("kernel"), **settings)

    def mean_inside(x: torch.Tensor) -> Any:
        inside = functional.pad(torch.ones_like(x[:1, :1]), amounts)
        return pool(functional.pad(x, amounts), get("kernel"), **settings) / pool(inside, get("kernel"), **settings)

    return mean_inside


def _dropout(node: Node) -> Any:
    get = node.get
    if get("function") == "alpha":
        return nn.AlphaDropout(get("p"))
    if get("function") == "elements":
        return nn.Dropout(get("p"))
    rank = len(node.shape) if node.shape else 4
    return {3: nn.Dropout1d, 5: nn.Dropout3d}.get(rank, nn.Dropout2d)(get("p"))


def _functional(name: str, **arguments: str) -> Callable[[Node], Any]:
    """A function of torch.nn.functional; its arguments are renamed attributes."""
    function = getattr(functional, name)
    return lambda node: partial(function, **{theirs: node.get(ours) for theirs, ours in arguments.items()})


def _hard_sigmoid(node: Node) -> Any:
    get = node.get
    if "alpha" not in node.attributes and "beta" not in node.attributes:
        return functional.hardsigmoid
    return lambda x: (x * get("alpha") + get("beta")).clamp(0.0, 1.0)


def _softmax(node: Node) -> Any:
    function = functional.log_softmax if node.get("log") else functional.softmax
    return lambda x: function(x, dim=node.get("axis"))


def _binary(node: Node, name: str) -> Any:
    function, value = getattr(torch, name), node.get("value")
    if "value" not in node.attributes:
        return lambda *operands: reduce(function, operands)  # ONNX and Keras may have more than two
    if name in ("maximum", "minimum"):
        return lambda x: function(x, torch.as_tensor(value, dtype=x.dtype))
    if node.get("left") and name not in ("add", "mul"):
        return lambda x: value - x if name == "sub" else value / x if name == "div" else value**x
    return lambda x: function(x, value)


_REDUCTIONS: dict[Any, Any] = {"mean": torch.mean, "sum": torch.sum, "max": torch.amax, "min": torch.amin}


def _reduce(node: Node) -> Any:
    function = _REDUCTIONS[node.get("function")]
    return lambda x: function(x, dim=node.get("axes"), keepdim=node.get("keep"))


# Shapes


def _reshape(node: Node) -> Any:
    shape = node.get("shape")
    return lambda x: x.reshape([x.shape[place] if size == 0 else size for place, size in enumerate(shape)])


def _expand(node: Node) -> Any:
    shape = node.get("shape")
    return lambda x, *like: x.expand([like[0].shape[0] if size == 0 else size for size in shape])


def _transpose(node: Node) -> Any:
    order, swap = node.get("order"), node.get("swap")
    if isinstance(order, tuple):
        return lambda x: x.permute(order)
    if not isinstance(swap, tuple) or len(swap) != 2:
        raise ValueError("an order of axes, or two to swap, are expected")
    return lambda x: x.transpose(*swap)


def _split(node: Node) -> Any:
    get = node.get
    if get("count") is not None:
        return lambda x: x.chunk(get("count"), get("axis"))
    return lambda x: x.split(get("size") if get("sizes") is None else get("sizes"), get("axis"))


def _slice(node: Node) -> Any:
    index = parse_index(node.get("index"))
    return lambda x: x[index]


def _unsqueeze(node: Node) -> Any:
    axes = node.get("axes")

    def unsqueezed(x: torch.Tensor) -> torch.Tensor:
        for axis in sorted(axes):
            x = x.unsqueeze(axis)
        return x

    return unsqueezed


def _pad(node: Node) -> Any:
    get = node.get
    value = get("value") if get("mode") == "constant" else None
    return lambda x: functional.pad(x, get("padding"), get("mode"), value)


def _resize(node: Node) -> Any:
    get = node.get
    size, scale = get("size"), get("scale")
    one = size[0] if size is not None and len(size) == 1 else size
    settings = {"size": one, "scale_factor": scale, "mode": get("mode"), "align_corners": get("corners")}
    return lambda x: functional.interpolate(x, **settings)


def _constant(node: Node) -> Any:
    value = torch.tensor(node.get("value"), dtype=getattr(torch, node.get("dtype") or "float32"))
    return lambda: value


def _cast(node: Node) -> Any:
    dtype = getattr(torch, str(node.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("PyTorch has no such type")
    return lambda x: x.to(dtype)


_PARTS: dict[str, Callable[[Node], Any]] = {
    "CONV": _conv, "FULL": lambda node: nn.Linear(node.get("in"), node.get("out"), bias=node.get("bias")),
    "EMBED": lambda node: nn.Embedding(node.get("count"), node.get("features"), padding_idx=node.get("padding_index")),
    "NORM": lambda node: _NORMS[node.get("function")](node),
    "ATTENTION": _attention, "RNN": _recurrent, "WEIGHT": lambda node: _WeightModule(node.parameters[0]),
    "CONSTANT": _constant, "POOL": _pool,
    "DROPOUT": _dropout, "RELU": _functional("relu"), "LEAKY_RELU": _functional("leaky_relu", negative_slope="slope"),
    "PRELU": lambda node: nn.PReLU(node.get("count")), "ELU": _functional("elu", alpha="alpha"),
    "CELU": _functional("celu", alpha="alpha"), "SELU": _functional("selu"),
    "GELU": _functional("gelu", approximate="approximate"), "SILU": _functional("silu"), "MISH": _functional("mish"),
    "SIGMOID": _functional("sigmoid"), "LOG_SIGMOID": _functional("logsigmoid"), "HARD_SIGMOID": _hard_sigmoid,
    "HARD_SWISH": _functional("hardswish"), "TANH": _functional("tanh"),
    "SOFTPLUS": _functional("softplus", beta="beta", threshold="threshold"), "SOFTSIGN": _functional("softsign"),
    "CLIP": lambda node: lambda x: x.clamp(node.get("min"), node.get("max")), "SOFTMAX": _softmax,
    **{name.upper(): partial(_binary, name=name) for name in ("add", "mul", "sub", "div", "pow", "maximum", "minimum")},
    "MATMUL": lambda node: torch.matmul, "MATH": lambda node: getattr(torch, node.get("function")), "REDUCE": _reduce,
    "CONCAT": lambda node: lambda *tensors: torch.cat(tensors, dim=node.get("axis")),
    "STACK": lambda node: lambda *tensors: torch.stack(tensors, dim=node.get("axis")),
    "SPLIT": _split,
    "SELECT": lambda node: lambda parts: parts[node.get("item")],
    "FLATTEN": lambda node: lambda x: x.flatten(node.get("start"), node.get("end")),
    "RESHAPE": _reshape, "EXPAND": _expand, "TRANSPOSE": _transpose,
    "SQUEEZE": lambda node: lambda x: x.squeeze(node.get("axes")), "UNSQUEEZE": _unsqueeze,
    "SLICE": _slice, "PAD": _pad, "RESIZE": _resize, "CAST": _cast,
    "IDENTITY": lambda node: lambda x: x, "INPUT": lambda node: lambda x: x,
    "OUTPUT": lambda node: lambda *results: results[0] if len(results) == 1 else results,
}  # fmt: skip
