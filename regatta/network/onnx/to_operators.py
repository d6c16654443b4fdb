"""Each kind of layer as operators of ONNX, for inference. What ONNX cannot express is a CannotExport."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from regatta.network.graph import Node
from regatta.network.kinds import parse_index
from regatta.network.onnx.recurrent import recurrent
from regatta.network.onnx.writer import CannotExport, OnnxWriter, Output

LARGEST_INDEX = 2**63 - 1


# Layers with weights


def _full(w: OnnxWriter, node: Node, x: str) -> str:
    weight, bias = w.weight(node, "weight"), w.weight(node, "bias")
    if w.known_rank(node) == 2:
        return w.op("Gemm", x, w.put(node, "weight", weight), *_given(w.put(node, "bias", bias)), transB=1)
    product = w.op("MatMul", x, w.put(node, "weight_transposed", w.needed(node, "weight").T))
    return product if bias is None else w.op("Add", product, w.put(node, "bias", bias))


def _conv(w: OnnxWriter, node: Node, x: str) -> str:
    get = node.get
    dims, padding = get("dims"), list(get("padding"))
    pads = padding * 2 if len(padding) == dims else padding
    settings = {"strides": get("stride"), "dilations": get("dilation"), "group": get("groups")}
    settings["kernel_shape"] = get("kernel")
    if get("padding_mode") != "zeros":
        x, pads = _padded(w, x, [0, 0, *pads[:dims], 0, 0, *pads[dims:]], get("padding_mode")), [0] * 2 * dims
    operands = [w.put(node, "weight", w.weight(node, "weight")), *_given(w.put(node, "bias", w.weight(node, "bias")))]
    if get("transposed"):
        return w.op("ConvTranspose", x, *operands, pads=pads, output_padding=get("output_padding"), **settings)
    return w.op("Conv", x, *operands, pads=pads, **settings)


def _embed(w: OnnxWriter, node: Node, x: str) -> str:
    return w.op("Gather", w.put(node, "weight", w.weight(node, "weight")), x, axis=0)


def _norm(w: OnnxWriter, node: Node, x: str) -> str:
    function = node.get("function")
    if function not in _NORMS:
        raise CannotExport(f"the normalization {function!r} has no operator")
    return _NORMS[function](w, node, x)


def _batch_norm(w: OnnxWriter, node: Node, x: str) -> str:
    mean, variance = w.weight(node, "running_mean"), w.weight(node, "running_var")
    if mean is None or variance is None:
        raise CannotExport("it has no running mean and variance, so it depends on the batch")
    weight = w.weight(node, "weight", np.ones_like(mean))
    bias = w.weight(node, "bias", np.zeros_like(mean))
    parts = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": variance}
    return w.op("BatchNormalization", x, *(w.put(node, role, part) for role, part in parts.items()),
                epsilon=node.get("eps"))  # fmt: skip


def _instance_norm(w: OnnxWriter, node: Node, x: str) -> str:
    if w.weight(node, "running_mean") is not None:
        return _batch_norm(w, node, x)  # in evaluation, the running values are taken
    return w.op("InstanceNormalization", x, *_scale_and_bias(w, node, node.get("features")), epsilon=node.get("eps"))


def _layer_norm(w: OnnxWriter, node: Node, x: str) -> str:
    shape = node.get("shape")
    scale, bias = _scale_and_bias(w, node, *shape)
    return w.op("LayerNormalization", x, scale, bias, axis=-len(shape), epsilon=node.get("eps"))


def _group_norm(w: OnnxWriter, node: Node, x: str) -> str:
    operands = _scale_and_bias(w, node, node.get("features"))
    return w.op("GroupNormalization", x, *operands, num_groups=node.get("groups"), epsilon=node.get("eps"))


def _rms_norm(w: OnnxWriter, node: Node, x: str) -> str:
    axes = w.constant(range(-len(node.get("shape")), 0))
    eps = node.get("eps") if "eps" in node.attributes else float(np.finfo(w.float_type).eps)
    mean = w.op("ReduceMean", w.op("Mul", x, x), axes, keepdims=1)
    normed = w.op("Div", x, w.op("Sqrt", w.op("Add", mean, w.number(eps))))
    weight = w.weight(node, "weight")
    return normed if weight is None else w.op("Mul", normed, w.put(node, "weight", weight))


def _local_norm(w: OnnxWriter, node: Node, x: str) -> str:
    get = node.get
    return w.op("LRN", x, size=get("size"), alpha=get("alpha"), beta=get("beta"), bias=get("k"))


_NORMS: dict[str, Callable[[OnnxWriter, Node, str], str]] = {
    "batch": _batch_norm, "instance": _instance_norm, "layer": _layer_norm, "group": _group_norm, "rms": _rms_norm,
    "local": _local_norm,
}  # fmt: skip


def _scale_and_bias(w: OnnxWriter, node: Node, *shape: int) -> tuple[str, str]:
    weight = w.weight(node, "weight", np.ones(shape, w.float_type))
    bias = w.weight(node, "bias", np.zeros(shape, w.float_type))
    return w.put(node, "weight", weight), w.put(node, "bias", bias)


def _prelu(w: OnnxWriter, node: Node, x: str) -> str:
    slope = w.needed(node, "weight")
    if slope.size > 1:
        slope = slope.reshape(-1, *[1] * (w.rank(node) - 2))
    return w.op("PRelu", x, w.put(node, "slope", slope))


def _weight(w: OnnxWriter, node: Node) -> str:
    role = node.parameters[0].role.partition("@")[0]
    return w.put(node, role, w.weight(node, role))


# Attention


def _attention(w: OnnxWriter, node: Node, *operands: str) -> Output:
    get = node.get
    if get("function") == "dot_product":
        return _dot_product(w, node, *operands)
    if get("causal") or len(operands) > 3:
        raise CannotExport("attention with a mask is not written")
    query, key, value = operands[:3]
    if not get("batch_first"):
        query, key, value = (w.op("Transpose", each, perm=[1, 0, 2]) for each in (query, key, value))
    features, heads = get("features"), get("heads")
    split = partial(_split_heads, w, heads, features // heads)
    q, k, v = (split(_project(w, node, each, place)) for place, each in enumerate((query, key, value)))
    scores = w.op("Softmax", _scores(w, q, k, 1 / math.sqrt(features // heads)), axis=-1)
    joined = w.op("Transpose", w.op("MatMul", scores, v), perm=[0, 2, 1, 3])
    merged = w.op("Reshape", joined, w.constant([0, 0, features]))
    result = w.op("MatMul", merged, w.put(node, "out_transposed", w.needed(node, "out_proj.weight").T))
    bias = w.weight(node, "out_proj.bias")
    result = result if bias is None else w.op("Add", result, w.put(node, "out_proj.bias", bias))
    if not get("batch_first"):
        result = w.op("Transpose", result, perm=[1, 0, 2])
    return result, w.op("ReduceMean", scores, w.constant([1]), keepdims=0)


def _project(w: OnnxWriter, node: Node, x: str, place: int) -> str:
    """Multiply by the weights of the query, the key or the value, which PyTorch may hold as one matrix."""
    features, names = node.get("features"), ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    part = slice(place * features, (place + 1) * features)
    joint, bias = w.weight(node, "in_proj_weight"), w.weight(node, "in_proj_bias")
    weight = w.needed(node, names[place]) if joint is None else joint[part]
    made = w.op("MatMul", x, w.put(node, f"{names[place]}_transposed", weight.T))
    return made if bias is None else w.op("Add", made, w.put(node, f"in_proj_bias_{place}", bias[part]))


def _split_heads(w: OnnxWriter, heads: int, width: int, x: str) -> str:
    return w.op("Transpose", w.op("Reshape", x, w.constant([0, 0, heads, width])), perm=[0, 2, 1, 3])


def _dot_product(w: OnnxWriter, node: Node, query: str, key: str, value: str, *masks: str) -> str:
    if masks or node.get("causal"):
        raise CannotExport("attention with a mask is not written")
    width = w.shape(node)[-1]
    if width is None:
        raise CannotExport("the width of its queries is not known")
    scale = node.get("scale") or 1 / math.sqrt(width)
    rank = w.rank(node, 1)
    scores = _scores(w, query, key, scale, [*range(rank - 2), rank - 1, rank - 2])
    return w.op("MatMul", w.op("Softmax", scores, axis=-1), value)


def _scores(w: OnnxWriter, query: str, key: str, scale: float, perm: Sequence[int] = (0, 1, 3, 2)) -> str:
    product = w.op("MatMul", query, w.op("Transpose", key, perm=list(perm)))
    return w.op("Mul", product, w.number(scale))


# Layers without weights


def _pool(w: OnnxWriter, node: Node, x: str) -> str:
    get = node.get
    function, dims, output = get("function"), get("dims"), get("output")
    name = {"max": "MaxPool", "avg": "AveragePool"}.get(function)
    if name is None:
        raise CannotExport(f"the pooling {function!r} has no operator")
    if output:
        if all(length == 1 for length in output):
            return w.op({"max": "GlobalMaxPool", "avg": "GlobalAveragePool"}[function], x)
        have = w.shape(node)[2:]
        if any(size is None or length is None or size % length for size, length in zip(have, output, strict=True)):
            raise CannotExport("its windows have different sizes")
        kernel = [size // length for size, length in zip(have, output, strict=True)]
        return w.op(name, x, kernel_shape=kernel, strides=kernel)
    padding = list(get("padding"))
    settings: dict[str, Any] = {"kernel_shape": get("kernel"), "strides": get("stride"), "ceil_mode": int(get("ceil"))}
    settings["pads"] = padding * 2 if len(padding) == dims else padding
    if function == "max":
        settings["dilations"] = get("dilation")
    else:
        settings["count_include_pad"] = int(get("count_padding"))
    return w.op(name, x, **settings)


def _simple(name: str, **settings: str) -> Callable[..., str]:
    """An operator with one operand; its settings are renamed attributes."""
    return lambda w, node, x: w.op(name, x, **{theirs: node.get(ours) for theirs, ours in settings.items()})


def _silu(w: OnnxWriter, node: Node, x: str) -> str:
    return w.op("Mul", x, w.op("Sigmoid", x))


def _log_sigmoid(w: OnnxWriter, node: Node, x: str) -> str:
    return w.op("Neg", w.op("Softplus", w.op("Neg", x)))


def _softplus(w: OnnxWriter, node: Node, x: str) -> str:
    beta = node.get("beta")
    if beta == 1:
        return w.op("Softplus", x)
    return w.op("Div", w.op("Softplus", w.op("Mul", x, w.number(beta))), w.number(beta))


def _clip(w: OnnxWriter, node: Node, x: str) -> str:
    limits = [None if node.get(name) is None else w.number(node.get(name)) for name in ("min", "max")]
    return w.op("Clip", x, *(limit or "" for limit in limits))


def _softmax(w: OnnxWriter, node: Node, x: str) -> str:
    return w.op("LogSoftmax" if node.get("log") else "Softmax", x, axis=node.get("axis"))


def _binary(name: str, w: OnnxWriter, node: Node, *operands: str) -> str:
    if "value" in node.attributes:
        number = w.number(node.get("value"))
        left = node.get("left") and name in ("Sub", "Div", "Pow")
        return w.op(name, number, operands[0]) if left else w.op(name, operands[0], number)
    made = operands[0]
    for other in operands[1:]:
        made = w.op(name, made, other)
    return made


def _math(w: OnnxWriter, node: Node, x: str) -> str:
    function = node.get("function")
    return w.op("Reciprocal", w.op("Sqrt", x)) if function == "rsqrt" else w.op(function.capitalize(), x)


def _reduce(w: OnnxWriter, node: Node, x: str) -> str:
    name, axes = f"Reduce{node.get('function').capitalize()}", node.get("axes")
    return w.op(name, x, *(() if axes is None else (w.constant(axes),)), keepdims=int(node.get("keep")))


# Shapes


def _stack(w: OnnxWriter, node: Node, *operands: str) -> str:
    axis = node.get("axis")
    return w.op("Concat", *(w.op("Unsqueeze", each, w.constant([axis])) for each in operands), axis=axis)


def _split(w: OnnxWriter, node: Node, x: str) -> Output:
    get = node.get
    axis, sizes, count = get("axis"), get("sizes"), get("count")
    if sizes is None and count is None:
        length = w.shape(node)[axis]
        if length is None:
            raise CannotExport("the length of the axis that it splits is not known")
        full, rest = divmod(length, get("size"))
        sizes = [get("size")] * full + ([rest] if rest else [])
    if sizes is None:
        return w.split_op("Split", count, x, axis=axis, num_outputs=count)
    return w.split_op("Split", len(sizes), x, w.constant(sizes), axis=axis)


def _flatten(w: OnnxWriter, node: Node, x: str) -> str:
    start, end = node.get("start"), node.get("end")
    if (start, end) == (1, -1):
        return w.op("Flatten", x, axis=1)
    shape = w.shape(node)
    first, last = start % len(shape), end % len(shape)
    after = shape[last + 1 :]
    if None in after:
        raise CannotExport("the shape of its input is not known")
    return w.op("Reshape", x, w.constant([*[0] * first, -1, *after]))


def _expand(w: OnnxWriter, node: Node, x: str, *like: str) -> str:
    shape = [1 if size == -1 else size for size in node.get("shape")]
    if 0 not in shape:
        return w.op("Expand", x, w.constant(shape))
    batch = w.op("Slice", w.op("Shape", like[0]), w.constant([0]), w.constant([1]))
    parts = [batch if size == 0 else w.constant([size]) for size in shape]
    return w.op("Expand", x, w.op("Concat", *parts, axis=0))


def _transpose(w: OnnxWriter, node: Node, x: str) -> str:
    order = node.get("order")
    if order is None:
        rank = w.rank(node)
        first, second = (axis % rank for axis in node.get("swap"))
        order = list(range(rank))
        order[first], order[second] = second, first
    return w.op("Transpose", x, perm=[axis % len(order) for axis in order])


def _axes(name: str, w: OnnxWriter, node: Node, x: str) -> str:
    axes = node.get("axes")
    return w.op(name, x, *(() if axes is None else (w.constant(axes),)))


def _slice(w: OnnxWriter, node: Node, x: str) -> str:
    index = parse_index(node.get("index"))
    if ... in index:
        place = index.index(...)
        index = (*index[:place], *[slice(None)] * (w.rank(node) - len(index) + 1), *index[place + 1 :])
    if any(not isinstance(item, int | slice) or isinstance(item, bool) for item in index):
        raise CannotExport("its index is not made of numbers and slices")
    cuts = {
        axis: (item if isinstance(item, slice) else slice(item, item + 1 or None)) for axis, item in enumerate(index)
    }
    cuts = {axis: cut for axis, cut in cuts.items() if cut != slice(None)}
    if any((cut.step or 1) < 1 for cut in cuts.values()):
        raise CannotExport("it goes backwards")
    if cuts:
        starts = [cut.start or 0 for cut in cuts.values()]
        ends = [LARGEST_INDEX if cut.stop is None else cut.stop for cut in cuts.values()]
        steps = [cut.step or 1 for cut in cuts.values()]
        x = w.op("Slice", x, *map(w.constant, (starts, ends, list(cuts), steps)))
    single = [axis for axis, item in enumerate(index) if isinstance(item, int)]
    return w.op("Squeeze", x, w.constant(single)) if single else x


def _pad(w: OnnxWriter, node: Node, x: str) -> str:
    amounts, rank = list(node.get("padding")), w.rank(node)
    pairs = [(0, 0)] * (rank - len(amounts) // 2) + list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    pads = [first for first, _ in pairs] + [last for _, last in pairs]
    return _padded(w, x, pads, node.get("mode"), node.get("value"))


def _padded(w: OnnxWriter, x: str, pads: Sequence[int], mode: str, value: float = 0.0) -> str:
    name = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    filler = [w.number(value)] if name == "constant" else []
    return w.op("Pad", x, w.constant(pads), *filler, mode=name)


def _resize(w: OnnxWriter, node: Node, x: str) -> str:
    get, spatial = node.get, w.rank(node) - 2
    mode, size, scale = get("mode"), get("size"), get("scale")
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}.get(spatial)
    if mode not in ("nearest", linear):
        raise CannotExport(f"the mode {mode!r} is not written")
    if mode == "nearest":
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        where = "align_corners" if get("corners") else "half_pixel"
        how = {"mode": "linear", "coordinate_transformation_mode": where}
    if size is not None:
        lengths = list(size) * (spatial if len(size) == 1 else 1)
        front = w.op("Slice", w.op("Shape", x), w.constant([0]), w.constant([2]))
        return w.op("Resize", x, "", "", w.op("Concat", front, w.constant(lengths), axis=0), **how)
    scales = [float(each) for each in (scale if isinstance(scale, list | tuple) else [scale] * spatial)]
    return w.op("Resize", x, "", w.constant([1.0, 1.0, *scales], np.float32, "scales"), **how)


def _constant(w: OnnxWriter, node: Node) -> str:
    return w.constant(node.get("value"), np.dtype(node.get("dtype") or "float32"))


def _cast(w: OnnxWriter, node: Node, x: str) -> str:
    from onnx import helper

    try:
        return w.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(str(node.get("dtype")))))
    except TypeError:
        raise CannotExport(f"NumPy has no type {node.get('dtype')!r}") from None


def _output(w: OnnxWriter, node: Node, *results: Output) -> None:
    w.add_output(node, results)


def _given(*names: str) -> tuple[str, ...]:
    return tuple(name for name in names if name)


TRANSLATIONS: dict[str, Callable[..., Any]] = {
    "INPUT": lambda w, node: w.add_input(node), "OUTPUT": _output, "WEIGHT": _weight, "CONSTANT": _constant,
    "FULL": _full, "CONV": _conv, "EMBED": _embed, "NORM": _norm, "ATTENTION": _attention, "RNN": recurrent,
    "POOL": _pool, "DROPOUT": lambda w, node, x: x, "IDENTITY": lambda w, node, x: x, "RELU": _simple("Relu"),
    "SELU": _simple("Selu"), "SILU": _silu, "MISH": _simple("Mish"), "SIGMOID": _simple("Sigmoid"),
    "LOG_SIGMOID": _log_sigmoid, "HARD_SWISH": _simple("HardSwish"), "TANH": _simple("Tanh"),
    "SOFTSIGN": _simple("Softsign"), "LEAKY_RELU": _simple("LeakyRelu", alpha="slope"), "PRELU": _prelu,
    "ELU": _simple("Elu", alpha="alpha"), "CELU": _simple("Celu", alpha="alpha"),
    "GELU": _simple("Gelu", approximate="approximate"),
    "HARD_SIGMOID": _simple("HardSigmoid", alpha="alpha", beta="beta"), "SOFTPLUS": _softplus, "CLIP": _clip,
    "SOFTMAX": _softmax,
    **{name.upper(): partial(_binary, name) for name in ("Add", "Mul", "Sub", "Div", "Pow")},
    "MAXIMUM": partial(_binary, "Max"), "MINIMUM": partial(_binary, "Min"),
    "MATMUL": lambda w, node, a, b: w.op("MatMul", a, b), "MATH": _math, "REDUCE": _reduce,
    "CONCAT": lambda w, node, *operands: w.op("Concat", *operands, axis=node.get("axis")), "STACK": _stack,
    "SPLIT": _split, "SELECT": lambda w, node, parts: parts[node.get("item")], "FLATTEN": _flatten,
    "RESHAPE": lambda w, node, x: w.op("Reshape", x, w.constant(node.get("shape"))), "EXPAND": _expand,
    "TRANSPOSE": _transpose, "SQUEEZE": partial(_axes, "Squeeze"), "UNSQUEEZE": partial(_axes, "Unsqueeze"),
    "SLICE": _slice, "PAD": _pad, "RESIZE": _resize, "CAST": _cast,
}  # fmt: skip
