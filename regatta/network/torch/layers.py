"""One runnable module for each kind of layer that PyTorch has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from regatta.errors import DataError
from regatta.network.graph import Node
from regatta.network.torch.calls import MATH

if TYPE_CHECKING:
    import torch
    from torch import nn


def can_build(node: Node) -> bool:
    if node.kind == "CONV":
        return _is_symmetric(node) or (not node.get("transposed") and node.get("padding_mode") == "zeros")
    if node.kind == "NORM":
        return node.get("function") in _NORMS
    if node.kind == "MATH":
        return node.get("function") in MATH
    if node.kind == "POOL":
        return node.get("function") in ("max", "avg") and (bool(node.get("output")) or _is_symmetric(node))
    if node.kind == "RNN":
        return node.get("function") in ("lstm", "gru", "rnn_tanh", "rnn_relu") and bool(node.get("sequences"))
    return node.kind in _PARTS


def build_layer(node: Node) -> nn.Module:
    """The module of a node. An error names the node whose hyperparameter PyTorch rejects."""
    from torch import nn

    try:
        made = _PARTS[node.kind](node)
    except (TypeError, ValueError, RuntimeError, AssertionError, ZeroDivisionError) as error:
        attributes = dict(node.attributes)
        raise DataError(f"{node.kind} with {attributes} cannot be built: {error}", place=f"node {node.id!r}") from error
    return made if isinstance(made, nn.Module) else _call(made)


def _call(function: Callable[..., Any]) -> nn.Module:
    from torch import nn

    class Call(nn.Module):
        def forward(self, *operands: Any) -> Any:
            return function(*operands)

    return Call()


def _is_symmetric(node: Node) -> bool:
    dims, padding = node.get("dims"), node.get("padding")
    return isinstance(padding, tuple) and len(padding) == dims


# Layers with weights


def _conv(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
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
    half = len(padding) // 2
    amounts = [amount for axis in reversed(range(half)) for amount in (padding[axis], padding[half + axis])]
    layer.register_forward_pre_hook(lambda _, inputs: (_functional().pad(inputs[0], amounts), *inputs[1:]))
    return layer


def _full(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
    return nn.Linear(get("in"), get("out"), bias=get("bias"))


def _embed(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
    return nn.Embedding(get("count"), get("features"), padding_idx=get("padding_index"))


def _norm(node: Node) -> Any:
    return _NORMS[str(node.get("function"))](node)


def _batch_norm(node: Node) -> Any:
    from torch.nn.modules.batchnorm import _BatchNorm

    class BatchNorm(_BatchNorm):
        def _check_input_dim(self, input: torch.Tensor) -> None:
            """Any rank."""

    get: Any = node.get
    return BatchNorm(
        get("features"), get("eps"), momentum=get("momentum"), affine=get("affine"), track_running_stats=get("track")
    )


def _instance_norm(node: Node) -> Any:
    from torch.nn.modules.instancenorm import _InstanceNorm

    rank = len(node.shape) if node.shape else 4

    class InstanceNorm(_InstanceNorm):
        def _check_input_dim(self, input: torch.Tensor) -> None:
            """Any rank."""

        def _get_no_batch_dim(self) -> int:
            return rank - 1

    get: Any = node.get
    return InstanceNorm(get("features"), get("eps"), get("momentum"), get("affine"), get("track"))


def _layer_norm(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
    return nn.LayerNorm(get("shape"), get("eps"), get("affine"), bias=get("bias"))


def _rms_norm(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
    return nn.RMSNorm(get("shape"), node.attributes.get("eps"), get("affine"))  # type: ignore[arg-type]


def _group_norm(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
    return nn.GroupNorm(get("groups"), get("features"), get("eps"), get("affine"))


def _local_norm(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
    return nn.LocalResponseNorm(get("size"), get("alpha"), get("beta"), get("k"))


_NORMS: dict[str, Callable[[Node], Any]] = {
    "batch": _batch_norm,
    "instance": _instance_norm,
    "layer": _layer_norm,
    "rms": _rms_norm,
    "group": _group_norm,
    "local": _local_norm,
}


def _attention(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
    if get("function") == "dot_product":
        return _dot_product(node)

    class Attention(nn.MultiheadAttention):
        def forward(self, *operands: torch.Tensor) -> Any:  # type: ignore[override]
            masks = dict(zip(get("masks") or (), operands[3:], strict=True))
            query, key, value = operands[:3]
            return super().forward(query, key, value, need_weights=get("weights"), is_causal=get("causal"), **masks)

    return Attention(
        get("features"), get("heads"), get("dropout"), bias=get("bias"), kdim=get("keys"), vdim=get("values"),
        batch_first=get("batch_first"),
    )  # fmt: skip


def _dot_product(node: Node) -> Any:
    from torch import nn

    get: Any = node.get

    class DotProduct(nn.Module):
        def forward(self, *operands: torch.Tensor) -> Any:
            p = get("dropout") if self.training else 0.0
            return _functional().scaled_dot_product_attention(
                *operands, dropout_p=p, is_causal=get("causal"), scale=get("scale")
            )

    return DotProduct()


def _recurrent(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
    function = get("function")
    base: Any = {"lstm": nn.LSTM, "gru": nn.GRU}.get(function, nn.RNN)
    settings = {
        "bias": get("bias"), "batch_first": get("batch_first"), "dropout": get("dropout"),
        "bidirectional": get("bidirectional"),
    }  # fmt: skip
    if function.startswith("rnn_"):
        settings["nonlinearity"] = function.removeprefix("rnn_")
    if get("projection"):
        settings["proj_size"] = get("projection")

    class Recurrent(base):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, *state: torch.Tensor) -> Any:
            start = state if len(state) > 1 else state[0] if state else None
            return super().forward(x, start)

    return Recurrent(get("in"), get("hidden"), get("layers"), **settings)


def _weight(node: Node) -> Any:
    import torch
    from torch import nn

    parameter = node.parameters[0]
    start = torch.zeros([size or 1 for size in parameter.shape])

    class Weight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if parameter.role == "buffer":
                self.register_buffer("buffer", start)
            else:
                self.weight = nn.Parameter(start)

        def forward(self) -> Any:
            return getattr(self, parameter.role)

    return Weight()


# Layers without


def _functional() -> Any:
    from torch.nn import functional

    return functional


def _pool(node: Node) -> Any:
    get: Any = node.get
    dims, function = get("dims"), get("function")
    if get("output"):
        adaptive = getattr(_functional(), f"adaptive_{function}_pool{dims}d")
        return lambda x: adaptive(x, get("output") if dims > 1 else get("output")[0])
    pool = getattr(_functional(), f"{function}_pool{dims}d")
    settings = {"stride": get("stride"), "padding": get("padding"), "ceil_mode": get("ceil")}
    settings |= {"dilation": get("dilation")} if function == "max" else {"count_include_pad": get("count_padding")}
    return lambda x: pool(x, get("kernel"), **settings)


def _dropout(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
    if get("function") == "alpha":
        return nn.AlphaDropout(get("p"))
    if get("function") == "elements":
        return nn.Dropout(get("p"))
    rank = len(node.shape) if node.shape else 4
    return {3: nn.Dropout1d, 5: nn.Dropout3d}.get(rank, nn.Dropout2d)(get("p"))


def _functions(name: str, **arguments: str) -> Callable[[Node], Any]:
    """A function of torch.nn.functional; its arguments are renamed attributes."""

    def made(node: Node) -> Any:
        function = getattr(_functional(), name)
        settings = {theirs: node.get(ours) for theirs, ours in arguments.items()}
        return lambda x: function(x, **settings)

    return made


def _prelu(node: Node) -> Any:
    from torch import nn

    get: Any = node.get
    return nn.PReLU(get("count"))


def _clip(node: Node) -> Any:
    return lambda x: x.clamp(node.get("min"), node.get("max"))


def _hard_sigmoid(node: Node) -> Any:
    get: Any = node.get
    if "alpha" not in node.attributes and "beta" not in node.attributes:
        return _functional().hardsigmoid
    return lambda x: (x * get("alpha") + get("beta")).clamp(0.0, 1.0)


def _softmax(node: Node) -> Any:
    function = _functional().log_softmax if node.get("log") else _functional().softmax
    return lambda x: function(x, dim=node.get("axis"))


def _binary(name: str) -> Callable[[Node], Any]:
    def made(node: Node) -> Any:
        import torch

        function, value = getattr(torch, name), node.get("value")
        if "value" not in node.attributes:
            return _folding(function)
        if name in ("maximum", "minimum"):
            return lambda x: function(x, torch.as_tensor(value, dtype=x.dtype))
        if name in ("add", "mul"):
            return lambda x: function(x, value)
        if node.get("left"):
            return lambda x: value - x if name == "sub" else value / x if name == "div" else value**x
        return lambda x: function(x, value)

    return made


def _folding(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """ADD and MUL of ONNX and Keras may have more than two operands."""

    def folded(first: Any, *others: Any) -> Any:
        for other in others:
            first = function(first, other)
        return first

    return folded


def _matmul(node: Node) -> Any:
    import torch

    return torch.matmul


def _math(node: Node) -> Any:
    import torch

    return getattr(torch, str(node.get("function")))


def _reduce(node: Node) -> Any:
    import torch

    name = {"max": "amax", "min": "amin"}.get(str(node.get("function")), str(node.get("function")))
    function: Any = {"mean": torch.mean, "sum": torch.sum, "amax": torch.amax, "amin": torch.amin}[name]
    return lambda x: function(x, dim=node.get("axes"), keepdim=node.get("keep"))


# Shapes


def _reshape(node: Node) -> Any:
    shape: Any = node.get("shape")
    return lambda x: x.reshape([x.shape[place] if size == 0 else size for place, size in enumerate(shape)])


def _expand(node: Node) -> Any:
    shape: Any = node.get("shape")
    return lambda x, *like: x.expand([like[0].shape[0] if size == 0 else size for size in shape])


def _transpose(node: Node) -> Any:
    order, swap = node.get("order"), node.get("swap")
    if isinstance(order, tuple):
        return lambda x: x.permute(order)
    if not isinstance(swap, tuple) or len(swap) != 2:
        raise ValueError("an order of axes, or two to swap, are expected")
    return lambda x: x.transpose(*swap)


def _split(node: Node) -> Any:
    get: Any = node.get
    if get("count") is not None:
        return lambda x: x.chunk(get("count"), get("axis"))
    return lambda x: x.split(get("size") if get("sizes") is None else get("sizes"), get("axis"))


def _join(name: str) -> Callable[[Node], Any]:
    def made(node: Node) -> Any:
        import torch

        function = getattr(torch, name)
        return lambda *tensors: function(tensors, dim=node.get("axis"))

    return made


def _slice(node: Node) -> Any:
    index = tuple(_index(item) for item in node.get("index") or ())  # type: ignore[union-attr]
    return lambda x: x[index]


def _index(item: Any) -> Any:
    if item == "...":
        return ...
    if not isinstance(item, str):
        return item
    return slice(*(int(part) if part else None for part in item.split(":")))


def _squeeze(node: Node) -> Any:
    axes: Any = node.get("axes")
    return lambda x: x.squeeze(axes)


def _unsqueeze(node: Node) -> Any:
    axes: Any = node.get("axes")

    def unsqueezed(x: torch.Tensor) -> torch.Tensor:
        for axis in sorted(axes):
            x = x.unsqueeze(axis)
        return x

    return unsqueezed


def _pad(node: Node) -> Any:
    get: Any = node.get
    value = get("value") if get("mode") == "constant" else None
    return lambda x: _functional().pad(x, get("padding"), get("mode"), value)


def _resize(node: Node) -> Any:
    get: Any = node.get
    size, scale = get("size"), get("scale")
    one = size[0] if size is not None and len(size) == 1 else size
    settings = {"size": one, "scale_factor": scale, "mode": get("mode"), "align_corners": get("corners")}
    return lambda x: _functional().interpolate(x, **settings)


def _constant(node: Node) -> Any:
    import torch

    dtype = getattr(torch, str(node.get("dtype") or "float32"))
    value = torch.tensor(node.get("value"), dtype=dtype)
    return lambda: value


def _cast(node: Node) -> Any:
    import torch

    dtype = getattr(torch, str(node.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("PyTorch has no such type")
    return lambda x: x.to(dtype)


def _identity(node: Node) -> Any:
    return lambda x: x


def _output(node: Node) -> Any:
    return lambda *results: results[0] if len(results) == 1 else results


_PARTS: dict[str, Callable[[Node], Any]] = {
    "CONV": _conv, "FULL": _full, "EMBED": _embed, "NORM": _norm, "ATTENTION": _attention, "RNN": _recurrent,
    "WEIGHT": _weight, "CONSTANT": _constant, "POOL": _pool, "DROPOUT": _dropout,
    "RELU": _functions("relu"), "LEAKY_RELU": _functions("leaky_relu", negative_slope="slope"), "PRELU": _prelu,
    "ELU": _functions("elu", alpha="alpha"), "CELU": _functions("celu", alpha="alpha"), "SELU": _functions("selu"),
    "GELU": _functions("gelu", approximate="approximate"), "SILU": _functions("silu"), "MISH": _functions("mish"),
    "SIGMOID": _functions("sigmoid"), "LOG_SIGMOID": _functions("logsigmoid"), "HARD_SIGMOID": _hard_sigmoid,
    "HARD_SWISH": _functions("hardswish"), "TANH": _functions("tanh"),
    "SOFTPLUS": _functions("softplus", beta="beta", threshold="threshold"), "SOFTSIGN": _functions("softsign"),
    "CLIP": _clip, "SOFTMAX": _softmax,
    "ADD": _binary("add"), "MUL": _binary("mul"), "SUB": _binary("sub"), "DIV": _binary("div"), "POW": _binary("pow"),
    "MAXIMUM": _binary("maximum"), "MINIMUM": _binary("minimum"), "MATMUL": _matmul, "MATH": _math,
    "REDUCE": _reduce, "CONCAT": _join("cat"), "STACK": _join("stack"), "SPLIT": _split,
    "SELECT": lambda node: lambda parts: parts[node.get("item")],
    "FLATTEN": lambda node: lambda x: x.flatten(node.get("start"), node.get("end")),
    "RESHAPE": _reshape, "EXPAND": _expand, "TRANSPOSE": _transpose, "SQUEEZE": _squeeze, "UNSQUEEZE": _unsqueeze,
    "SLICE": _slice, "PAD": _pad, "RESIZE": _resize, "IDENTITY": _identity, "CAST": _cast, "INPUT": _identity,
    "OUTPUT": _output,
}  # fmt: skip
