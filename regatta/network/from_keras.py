"""The network of a Keras model: functional and sequential models with their connections, subclassed ones by layers.

Shapes and parameters have Keras's order of axes (channels last by default); the role of a parameter gives the order of
its axes. A layer with an activation becomes two nodes, as in PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from regatta.errors import MissingExtraError, UsageError
from regatta.network.axis_order import KERAS, KERAS_CHANNELS_FIRST, KERAS_MIXED
from regatta.network.builder import Builder
from regatta.network.graph import Network, Parameter, Shape
from regatta.network.onnx.from_operators import same_padding
from regatta.network.torch.modules import split_padding

if TYPE_CHECKING:
    import keras


def from_keras(model: keras.Model, *, name: str = "") -> Network:
    """The layers of a Keras model and their connections.

    A subclassed model has no graph; its layers are listed one after another, in the order of their creation.
    """
    try:
        import keras
    except ImportError:
        raise MissingExtraError("keras", "keras", "Reading Keras models") from None
    if not isinstance(model, keras.Model):
        raise UsageError(f"from_keras reads a keras.Model, not {type(model).__name__}: {model!r:.80}.")
    if isinstance(model, keras.Sequential) and not model.built:
        raise UsageError(
            f"The model {model.name!r} has not been built, so its layers have no shapes.",
            hint="Begin it with keras.Input(shape), or call model.build(shape).",
        )
    reader = _KerasReader(Builder(name or model.name, _axis_order(model)))
    if isinstance(model, keras.Sequential):
        model = model._functional  # its graph, which is there once it is built
    if _is_functional(model):
        return reader.connected(model)
    return reader.listed(model)


def _axis_order(model: Any) -> str:
    """Where the layers of a model have their channels, as the source of a network."""
    looking = [layer for layer in _all_layers(model) if _LOOKS_AT_CHANNELS.match(type(layer).__name__)]
    formats = {getattr(layer, "data_format", "channels_last") or "channels_last" for layer in looking}
    if len(formats) > 1:
        return KERAS_MIXED
    return KERAS_CHANNELS_FIRST if formats == {"channels_first"} else KERAS


def _all_layers(layer: Any) -> Iterator[Any]:
    yield from layer._flatten_layers(include_self=False, recursive=True)


_LOOKS_AT_CHANNELS = re.compile(r"(Depthwise|Separable)?(Conv|MaxPool|AveragePool|Global|ZeroPad|UpSampling|Cropping)")


def _is_functional(model: Any) -> bool:
    from keras.src.models.functional import Functional  # it has no public name

    return isinstance(model, Functional)


def _leaves(layer: Any) -> Iterator[Any]:
    """The inner layers that the vocabulary has, or that contain no other layers."""
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        is_known = type(inner).__name__ in _LAYERS and type(inner).__module__.startswith("keras.")
        deeper = [] if is_known else list(_leaves(inner))
        yield from deeper or [inner]


class _KerasReader:
    """Adds the operations of a model to a builder, each with its activation."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._made: dict[int, str] = {}
        self._channels_last = builder.source == KERAS

    def connected(self, model: Any) -> Network:
        for tensor in model.inputs:
            self._input(tensor)
        self._inside(model)
        self._builder.add("OUTPUT", [self._made[id(tensor)] for tensor in model.outputs], name="output")
        return self._builder.network()

    def listed(self, model: Any) -> Network:
        at = self._builder.add("INPUT", name="input")
        for layer in _leaves(model):
            at = self._write(layer, [at], [None], None)
        self._builder.add("OUTPUT", [at], name="output")
        return self._builder.network()

    def _input(self, tensor: Any) -> None:
        name = tensor._keras_history.operation.name
        attributes = {"dtype": str(tensor.dtype)}
        self._made[id(tensor)] = self._builder.add("INPUT", name=name, shape=tuple(tensor.shape), attributes=attributes)

    def _inside(self, model: Any) -> None:
        """Add the operations of a functional model, in order; its inputs are added already."""
        import keras

        for depth in sorted(model._nodes_by_depth, reverse=True):
            for node in model._nodes_by_depth[depth]:
                operation = node.operation
                if node.is_input or isinstance(operation, keras.layers.InputLayer):
                    continue
                if isinstance(operation, keras.Sequential):
                    operation = operation._functional
                if _is_functional(operation):
                    self._nested(operation, node)
                else:
                    self._operation(operation, node)

    def _nested(self, model: Any, node: Any) -> None:
        """Add the layers of a model that is used as a layer."""
        for inner, outer in zip(model.inputs, node.input_tensors, strict=True):
            self._made[id(inner)] = self._made[id(outer)]
        self._inside(model)
        for inner, outer in zip(model.outputs, node.outputs, strict=True):
            self._made[id(outer)] = self._made[id(inner)]

    def _operation(self, operation: Any, node: Any) -> None:
        inputs = [self._made[id(tensor)] for tensor in node.input_tensors]
        shapes = [tuple(tensor.shape) for tensor in node.input_tensors]
        outputs = list(node.outputs)
        shape = tuple(outputs[0].shape) if len(outputs) == 1 else None
        arguments = (*node.arguments.args, *node.arguments.kwargs.values())
        constants = [x for x in arguments if isinstance(x, int | float)]  # as in `x + 1`
        is_left = bool(arguments) and isinstance(arguments[0], int | float)  # as in `1 - x`
        at = self._write(operation, inputs, shapes, shape, constants, is_left)
        if len(outputs) == 1:
            self._made[id(outputs[0])] = at
            return
        for item, tensor in enumerate(outputs):
            part = self._builder.add("SELECT", [at], attributes={"item": item}, shape=tuple(tensor.shape))
            self._made[id(tensor)] = part

    def _write(
        self,
        layer: Any,
        inputs: list[str],
        shapes: Sequence[Shape | None],
        shape: Shape | None,
        constants: Any = (),
        is_left: bool = False,
    ) -> str:
        made = _described(layer, shapes, constants, is_left)
        made = [_with_own_axes(kind, attributes, layer, shapes[0], self._channels_last) for kind, attributes in made]
        for place, (kind, attributes) in enumerate(made):
            last = place == len(made) - 1
            parameters = list(_parameters(layer, kind)) if place == 0 else []
            name = layer.name if place == 0 else f"{layer.name}.{kind.lower()}"
            known = shape if last or kind in ("CONV", "FULL") else None
            at = self._builder.add(kind, inputs, name=name, attributes=attributes, shape=known, parameters=parameters)
            inputs = [at]
        return at


Made = tuple[str, dict[str, Any]]


def _with_own_axes(kind: str, attributes: dict[str, Any], layer: Any, shape: Shape | None, last: bool) -> Made:
    """A layer with the axis that it works on, where that is not the axis of channels of the whole network."""
    if shape is None:
        return kind, attributes
    rank = len(shape)
    if kind == "CONCAT":
        axis = layer.axis % rank
        # In the vocabulary channels are axis 1. Where Keras has them last, axis 1 itself is counted from the end.
        if last and rank != 3:
            axis = 1 if axis == rank - 1 else axis - rank
        return kind, {"axis": axis}
    if kind == "NORM" and attributes.get("function") in ("batch", "group"):
        axis, usual = layer.axis % rank, rank - 1 if last else 1
        if axis != usual:
            return kind, attributes | {"axes": [axis]}
    return kind, attributes


def _described(
    layer: Any, shapes: Sequence[Shape | None], constants: Sequence[Any], is_left: bool = False
) -> list[Made]:
    make = _LAYERS.get(type(layer).__name__)
    known = type(layer).__module__.startswith("keras.")
    if not known or make is None:
        made: list[Made] = [("OTHER", {"type": type(layer).__name__})]
    elif type(layer).__name__ in _ARITHMETIC and len(shapes) == 1:
        kind = make(layer, shapes)[0][0]
        left = is_left and kind in ("SUB", "DIV", "POW")
        made = [(kind, {"value": constants[0] if constants else None, "left": left})]
    else:
        made = make(layer, shapes)
    activation = getattr(layer, "activation", None)
    if known and made[0][0] in ("CONV", "FULL") and activation is not None:
        made = made + _activation(getattr(activation, "__name__", str(activation)))
    return made


def _activation(name: str) -> list[Made]:
    if name == "linear":
        return []
    return [_ACTIVATIONS.get(name, ("OTHER", {"type": name}))]


def _parameters(layer: Any, kind: str) -> Iterator[Parameter]:
    for variable in getattr(layer, "weights", ()):
        if "seed" in variable.path:
            continue
        role = _role(kind, variable.name, len(variable.shape), type(layer).__name__)
        yield Parameter(role, variable.path, tuple(variable.shape))


_NORM_ROLES = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def _role(kind: str, name: str, rank: int, layer: str) -> str:
    """The role of a variable in PyTorch's terms, with the permutation of its axes."""
    if kind == "FULL" and name == "kernel":
        return "weight@10"
    if kind == "CONV" and name == "kernel" and layer.startswith("Depthwise"):
        return "weight@depthwise"
    if kind == "CONV" and name == "kernel" and not layer.startswith("Separable"):
        spatial = "".join(str(axis) for axis in range(rank - 2))
        return f"weight@{rank - 1}{rank - 2}{spatial}"
    if kind == "NORM":
        return _NORM_ROLES.get(name, name)
    return {"embeddings": "weight"}.get(name, name)


def _channels(shape: Shape | None, layer: Any) -> Any:
    if shape is None:
        return None
    return shape[1] if _has_channels_first(layer) else shape[-1]


def _has_channels_first(layer: Any) -> bool:
    return getattr(layer, "data_format", "channels_last") == "channels_first"


def _padding(
    layer: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], shape: Any
) -> list[int]:
    """The padding of "same": starts, then ends if they differ. An unknown size counts as a multiple of the strides."""
    if layer.padding == "causal":
        return [dilation[0] * (kernel[0] - 1), 0]
    if layer.padding != "same":
        return [0] * len(kernel)
    sizes = [None] * len(kernel)
    if shape is not None:
        sizes = shape[2:] if _has_channels_first(layer) else shape[1:-1]
    totals = [
        same_padding(size if size is not None else s * 1024, k, s, d)
        for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    return split_padding(totals)


def _conv(layer: Any, shapes: Sequence[Shape | None], transposed: bool = False, depthwise: bool = False) -> list[Made]:
    kernel, stride, dilation = list(layer.kernel_size), list(layer.strides), list(layer.dilation_rate)
    ins = _channels(shapes[0], layer)
    outs = (ins or 0) * layer.depth_multiplier if depthwise else layer.filters
    cut = _transposed_padding(layer) if transposed else None
    if transposed and cut is None:
        return [("OTHER", {"type": type(layer).__name__, "padding": layer.padding, "kernel": kernel, "stride": stride})]
    attributes = {
        "dims": len(kernel), "in": ins, "out": outs, "kernel": kernel, "stride": stride, "dilation": dilation,
        "padding": cut[0] if cut is not None else _padding(layer, kernel, stride, dilation, shapes[0]),
        "output_padding": cut[1] if cut is not None else None,
        "groups": ins if depthwise else getattr(layer, "groups", 1), "bias": layer.use_bias,
        "transposed": transposed,
    }  # fmt: skip
    return [("CONV", attributes)]


def _transposed_padding(layer: Any) -> tuple[list[int], list[int]] | None:
    """The padding and the output padding of a transposed convolution; None for those that PyTorch does not have."""
    if layer.output_padding is not None:
        return None
    cut, added = [], []
    for kernel, stride, dilation in zip(layer.kernel_size, layer.strides, layer.dilation_rate, strict=True):
        more = dilation * (kernel - 1) + 1 - stride  # of the kernel beyond the stride
        if layer.padding == "same" and more > 0 and more % 2:
            return None  # one more is cut off at one end than at the other
        cut.append(max(more, 0) // 2 if layer.padding == "same" else 0)
        added.append(max(-more, 0))
    return cut, added


def _pool(function: str, layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    kernel, stride = list(layer.pool_size), list(layer.strides)
    padding = _padding(layer, kernel, stride, [1] * len(kernel), shapes[0])
    attributes = {"dims": len(kernel), "function": function, "kernel": kernel, "stride": stride, "padding": padding}
    return [("POOL", attributes | {"count_padding": function == "max" or not any(padding)})]


def _global_pool(dims: int, function: str, layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    pool: Made = ("POOL", {"dims": dims, "function": function, "output": [1] * dims})
    return [pool] if layer.keepdims else [pool, ("FLATTEN", {})]


def _full(layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    ins = shapes[0][-1] if shapes[0] is not None else layer.kernel.shape[0] if layer.built else None
    return [("FULL", {"in": ins, "out": layer.units, "bias": layer.use_bias})]


def _batch_norm(layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    features = shapes[0][layer.axis] if shapes[0] is not None else None
    momentum = round(1 - layer.momentum, 9)
    attributes = {"function": "batch", "features": features, "eps": layer.epsilon, "momentum": momentum}
    return [("NORM", attributes | {"affine": layer.scale or layer.center})]


def _layer_norm(layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    axes = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
    rank = len(shapes[0]) if shapes[0] is not None else 0
    if getattr(layer, "rms_scaling", False) or (
        rank and sorted(axis % rank for axis in axes) != list(range(rank - len(axes), rank))
    ):
        return [("OTHER", {"type": "LayerNormalization", "axes": list(axes)})]
    shape = [shapes[0][axis] for axis in axes] if shapes[0] is not None else None
    attributes = {"function": "layer", "shape": shape, "eps": layer.epsilon, "affine": layer.scale or layer.center}
    return [("NORM", attributes)]


def _group_norm(layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    features = shapes[0][layer.axis] if shapes[0] is not None else None
    groups = features if layer.groups == -1 else layer.groups
    affine = layer.scale or layer.center
    attributes = {"function": "group", "groups": groups, "features": features, "eps": layer.epsilon, "affine": affine}
    return [("NORM", attributes)]


def _attention(layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    features = shapes[0][-1] if shapes[0] is not None else None
    return [("ATTENTION", {"features": features, "heads": layer._num_heads, "dropout": float(layer._dropout)})]


def _recurrent(function: str, layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    ins = shapes[0][-1] if shapes[0] is not None else None
    attributes = {"function": function, "in": ins, "hidden": layer.units, "bias": layer.use_bias}
    return [("RNN", attributes | {"sequences": layer.return_sequences})]


def _relu(layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    if layer.threshold or (layer.max_value is not None and layer.negative_slope):
        return [("OTHER", {"type": "ReLU", "threshold": float(layer.threshold)})]
    if layer.max_value is not None and not layer.negative_slope:
        return [("CLIP", {"min": 0.0, "max": float(layer.max_value)})]
    return [("LEAKY_RELU", {"slope": float(layer.negative_slope)})] if layer.negative_slope else [("RELU", {})]


def _flatten(layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    """With channels first, Keras moves them to the end before it flattens."""
    rank = len(shapes[0]) if shapes[0] is not None else 0
    if _has_channels_first(layer) and rank > 2:
        return [("TRANSPOSE", {"order": [0, *range(2, rank), 1]}), ("FLATTEN", {})]
    return [("FLATTEN", {})]


def _zero_padding(layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    amounts = [list(pair) if isinstance(pair, tuple | list) else [pair, pair] for pair in layer.padding]
    return [("PAD", {"padding": [amount for pair in reversed(amounts) for amount in pair]})]


def _upsampling(layer: Any, shapes: Sequence[Shape | None]) -> list[Made]:
    mode, scale = getattr(layer, "interpolation", "nearest"), [float(s) for s in layer.size]
    if mode not in ("nearest", "bilinear"):
        return [("OTHER", {"type": type(layer).__name__, "mode": mode, "scale": scale})]
    return [("RESIZE", {"scale": scale, "mode": mode})]


def _simple(kind: str, **names: str) -> Callable[..., list[Made]]:
    return lambda layer, shapes: [(kind, {ours: getattr(layer, theirs) for ours, theirs in names.items()})]


_ACTIVATIONS: Mapping[str, Made] = {
    "relu": ("RELU", {}), "relu6": ("CLIP", {"min": 0.0, "max": 6.0}), "sigmoid": ("SIGMOID", {}), "tanh": ("TANH", {}),
    "softmax": ("SOFTMAX", {}), "log_softmax": ("SOFTMAX", {"log": True}), "elu": ("ELU", {}), "selu": ("SELU", {}),
    "gelu": ("GELU", {}), "silu": ("SILU", {}), "swish": ("SILU", {}), "mish": ("MISH", {}),
    "softplus": ("SOFTPLUS", {}), "softsign": ("SOFTSIGN", {}), "hard_sigmoid": ("HARD_SIGMOID", {}),
    "hard_silu": ("HARD_SWISH", {}), "hard_swish": ("HARD_SWISH", {}),
    "leaky_relu": ("LEAKY_RELU", {"slope": 0.2}),
}  # fmt: skip

_ARITHMETIC = ("Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Maximum", "Minimum", "Power")

_LAYERS: Mapping[str, Callable[[Any, Sequence[Shape | None]], list[Made]]] = {
    **{f"Conv{d}D": _conv for d in (1, 2, 3)},
    **{f"Conv{d}DTranspose": partial(_conv, transposed=True) for d in (1, 2, 3)},
    **{f"DepthwiseConv{d}D": partial(_conv, depthwise=True) for d in (1, 2)},
    **{f"MaxPooling{d}D": partial(_pool, "max") for d in (1, 2, 3)},
    **{f"AveragePooling{d}D": partial(_pool, "avg") for d in (1, 2, 3)},
    **{f"GlobalMaxPooling{d}D": partial(_global_pool, d, "max") for d in (1, 2, 3)},
    **{f"GlobalAveragePooling{d}D": partial(_global_pool, d, "avg") for d in (1, 2, 3)},
    "Dense": _full, "BatchNormalization": _batch_norm, "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm, "MultiHeadAttention": _attention,
    "LSTM": partial(_recurrent, "lstm"), "GRU": partial(_recurrent, "gru"),
    "SimpleRNN": partial(_recurrent, "rnn_tanh"),
    "Embedding": _simple("EMBED", count="input_dim", features="output_dim"),
    "Dropout": _simple("DROPOUT", p="rate"),
    **dict.fromkeys(
        [f"SpatialDropout{d}D" for d in (1, 2, 3)],
        lambda layer, shapes: [("DROPOUT", {"p": layer.rate, "function": "channels"})],
    ),
    "Activation": lambda layer, shapes: _activation(layer.activation.__name__) or [("IDENTITY", {})],
    "ReLU": _relu, "LeakyReLU": _simple("LEAKY_RELU", slope="negative_slope"), "ELU": _simple("ELU", alpha="alpha"),
    "PReLU": _simple("PRELU"), "Softmax": _simple("SOFTMAX", axis="axis"), "Flatten": _flatten,
    "Reshape": lambda layer, shapes: [("RESHAPE", {"shape": [0, *layer.target_shape]})],
    "Permute": lambda layer, shapes: [("TRANSPOSE", {"order": [0, *layer.dims]})],
    "Concatenate": _simple("CONCAT", axis="axis"), "Identity": _simple("IDENTITY"),
    **{name: _simple(kind) for name, kind in zip(
        _ARITHMETIC, ("ADD", "SUB", "MUL", "DIV", "DIV", "MAXIMUM", "MINIMUM", "POW"), strict=True
    )},
    **{f"ZeroPadding{d}D": _zero_padding for d in (2, 3)},
    **{f"UpSampling{d}D": _upsampling for d in (2, 3)},
    **{name: _simple(name.upper()) for name in ("Matmul", "Relu", "Sigmoid", "Tanh", "Silu")},
    "Gelu": lambda layer, shapes: [("GELU", {"approximate": "tanh" if layer.approximate else "none"})],
}  # fmt: skip
