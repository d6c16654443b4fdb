"""The shapes of all outputs of a network, computed from the shapes of its inputs.

A layer whose operands do not fit is an error that names the layer and both shapes. An axis of unknown size, such as
the batch, is None. A layer outside the vocabulary has an output of unknown shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from regatta.errors import DataError
from regatta.network.axis_order import concat_axis, has_channels_last
from regatta.network.graph import Network, Node, Shape
from regatta.network.kinds import KINDS, parse_index

MAX_PARTS = 100_000  # of a split
Output: TypeAlias = "Shape | list[Output] | None"  # a list for layers with several outputs; None if unknown
Rule: TypeAlias = "Callable[[Layer], Output]"


class ShapeError(DataError):
    """A layer cannot take what its operands give."""

    def __init__(self, layer: Layer, problem: str) -> None:
        shapes = ", ".join(f"{source} {show_shape(shape)}" for source, shape in layer.named_operands())
        super().__init__(
            f"{layer.node.kind} {layer.node.id!r:.80} {problem}; its input is {shapes}.", place=f"node {layer.node.id}"
        )
        self.node = layer.node.id


@dataclass(frozen=True)
class Layer:
    """A node with the shapes of its operands."""

    node: Node
    sources: tuple[str, ...]
    operands: tuple[Output, ...]
    channels_last: bool = False

    def get(self, name: str) -> Any:
        return self.node.get(name)

    def named_operands(self) -> list[tuple[str, Output]]:
        return list(zip(self.sources, self.operands, strict=True))

    @property
    def first(self) -> Shape | None:
        return _single(self.operands[0]) if self.operands else None

    def channel_axis(self, rank: int) -> int:
        return rank - 1 if self.channels_last else 1

    def error(self, problem: str) -> ShapeError:
        return ShapeError(self, problem)


def infer_shapes(network: Network) -> Network:
    """The network with the shape of every node that follows from the shapes of its inputs."""
    outputs = output_shapes(network)
    return replace(network, nodes=tuple(replace(node, shape=_single(outputs[node.id])) for node in network.nodes))


def output_shapes(network: Network) -> dict[str, Output]:
    outputs: dict[str, Output] = {}
    for id in network.order:
        outputs[id] = output_shape(layer_of(network, network.by_id[id], outputs))
    return outputs


def layer_of(network: Network, node: Node, outputs: Mapping[str, Output]) -> Layer:
    sources = network.sources[node.id]
    return Layer(node, sources, tuple(outputs[source] for source in sources), has_channels_last(network))


def output_shape(layer: Layer) -> Output:
    """The shape of a layer's output; raises ShapeError if its operands do not fit."""
    node = layer.node
    if node.kind in _RULES:
        try:
            return _RULES[node.kind](layer)
        except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
            if isinstance(error, ShapeError):
                raise
            settings = ", ".join(f"{name}={value}" for name, value in node.attributes.items()) or "no hyperparameters"
            raise layer.error(f"cannot be computed with {settings:.300}") from error
    if KINDS[node.kind].family == "activation" or node.kind in _UNCHANGED:
        return layer.first
    return node.shape  # a layer that only its framework knows


def show_shape(shape: Output) -> str:
    if shape is None:
        return "of unknown shape"
    if isinstance(shape, list):
        return f"[{', '.join(map(show_shape, shape))}]"
    return f"({', '.join('?' if size is None else str(size) for size in shape)})"


def _single(output: Output) -> Shape | None:
    return None if isinstance(output, list) else output


def _product(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def _with(shape: Shape, axis: int, size: int | None) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _axis(layer: Layer, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise layer.error(f"works on axis {axis}")
    return axis % rank


def _check_size(layer: Layer, size: int | None, wanted: int, what: str) -> None:
    if size is not None and size != wanted:
        raise layer.error(f"takes {wanted} {what}, not {size}")


# Layers with weights


def _conv(layer: Layer) -> Output:
    shape, dims, get = layer.first, layer.get("dims"), layer.get
    if shape is None:
        return None
    axis = _check_image(layer, shape, dims)
    _check_size(layer, shape[axis], get("in"), "channels")
    padding = _paddings(get("padding"), dims)
    sizes = _image_sizes(layer, shape)
    sides = zip(sizes, get("kernel"), get("stride"), get("dilation"), padding, strict=True)
    if get("transposed"):
        extra = get("output_padding")
        made = [
            None if size is None else (size - 1) * stride - pads + dilation * (kernel - 1) + more + 1
            for (size, kernel, stride, dilation, pads), more in zip(sides, extra, strict=True)
        ]
    else:
        made = [_windows(layer, *side) for side in sides]
    return _image(layer, shape, get("out"), made)


def _pool(layer: Layer) -> Output:
    shape, dims, get = layer.first, layer.get("dims"), layer.get
    if shape is None:
        return None
    axis = _check_image(layer, shape, dims)
    sizes = _image_sizes(layer, shape)
    if get("output"):
        made = [size if wanted is None else wanted for size, wanted in zip(sizes, get("output"), strict=True)]
    else:
        padding = _paddings(get("padding"), dims)
        ends = [pads - pads // 2 for pads in padding]
        sides = zip(sizes, get("kernel"), get("stride"), get("dilation"), padding, strict=True)
        made = [_windows(layer, *side, ceil=get("ceil")) for side in sides]
        if get("ceil"):  # the last window begins inside the input or its padding at the start
            starts = [(None if m is None else (m - 1) * stride) for m, stride in zip(made, get("stride"), strict=True)]
            limits = [None if size is None else size + end for size, end in zip(sizes, ends, strict=True)]
            made = [
                m if m is None or start is None or limit is None or start < limit else m - 1
                for m, start, limit in zip(made, starts, limits, strict=True)
            ]
    return _image(layer, shape, shape[axis], made)


def _check_image(layer: Layer, shape: Shape, dims: int) -> int:
    """The axis of channels of a batch of images, after a check of the number of axes."""
    if len(shape) != dims + 2:
        raise layer.error(f"takes {dims + 2} axes (samples, channels and {dims} more), not {len(shape)}")
    return layer.channel_axis(len(shape))


def _image_sizes(layer: Layer, shape: Shape) -> Shape:
    return shape[1:-1] if layer.channels_last else shape[2:]


def _image(layer: Layer, shape: Shape, channels: int | None, sizes: Sequence[int | None]) -> Shape:
    return (shape[0], *sizes, channels) if layer.channels_last else (shape[0], channels, *sizes)


def _paddings(padding: Sequence[int], dims: int) -> list[int]:
    """The sum of both sides of each axis."""
    ends = padding if len(padding) == dims else padding[dims:]
    return [start + end for start, end in zip(padding[:dims], ends, strict=True)]


def _windows(
    layer: Layer, size: int | None, kernel: int, stride: int, dilation: int, padding: int, ceil: bool = False
) -> int | None:
    """How often a window fits."""
    if size is None:
        return None
    room = size + padding - dilation * (kernel - 1) - 1
    if room < 0:
        raise layer.error(f"has windows of {dilation * (kernel - 1) + 1}, larger than {size} with padding {padding}")
    return (-(-room // stride) if ceil else room // stride) + 1


def _full(layer: Layer) -> Output:
    shape = layer.first
    if shape is None:
        return None
    if not shape:
        raise layer.error("takes at least one axis")
    _check_size(layer, shape[-1], layer.get("in"), "features")
    return (*shape[:-1], layer.get("out"))


def _norm(layer: Layer) -> Output:
    shape, features, last = layer.first, layer.get("features"), layer.get("shape")
    if shape is None:
        return None
    if features is not None:
        if len(shape) < 2:
            raise layer.error("takes samples and channels")
        axes = layer.get("axes")
        axis = axes[0] % len(shape) if axes else layer.channel_axis(len(shape))
        _check_size(layer, shape[axis], features, "channels")
    if last is not None:
        fits = len(shape) >= len(last) and all(
            size in (None, wanted) for size, wanted in zip(shape[len(shape) - len(last) :], last, strict=True)
        )
        if not fits:
            raise layer.error(f"takes a shape that ends with {show_shape(last)}")
    return shape


def _embed(layer: Layer) -> Output:
    return None if layer.first is None else (*layer.first, layer.get("features"))


def _attention(layer: Layer) -> Output:
    query, value = layer.first, _single(layer.operands[2]) if len(layer.operands) > 2 else None
    if layer.get("function") == "dot_product":
        return None if query is None or value is None else (*query[:-1], value[-1])
    if query is not None:
        _check_size(layer, query[-1], layer.get("features"), "features")
    weights: Output = None
    key = _single(layer.operands[1]) if len(layer.operands) > 1 else None
    if layer.get("weights") and query is not None and key is not None and len(query) == len(key) == 3:
        samples, places = (0, 1) if layer.get("batch_first") else (1, 0)
        weights = (query[samples], query[places], key[places])
    return [query, weights]


def _recurrent(layer: Layer) -> Output:
    shape, get = layer.first, layer.get
    if shape is None:
        return None
    if len(shape) != 3:
        raise layer.error(f"takes 3 axes (samples, steps, features), not {len(shape)}")
    _check_size(layer, shape[-1], get("in"), "features")
    directions = 2 if get("bidirectional") else 1
    each = get("projection") or get("hidden")
    if not get("sequences"):
        return (shape[0], directions * each)
    samples = shape[0] if get("batch_first") else shape[1]
    states: list[Output] = [(directions * get("layers"), samples, each)]
    if get("function") == "lstm":
        states = [[states[0], (directions * get("layers"), samples, get("hidden"))]]
    return [(*shape[:2], directions * each), *states]


def _weight(layer: Layer) -> Output:
    return layer.node.parameters[0].shape if layer.node.parameters else layer.node.shape


def _prelu(layer: Layer) -> Output:
    shape, count = layer.first, layer.get("count")
    if shape is not None and count != 1 and len(shape) > 1:
        _check_size(layer, shape[layer.channel_axis(len(shape))], count, "channels")
    return shape


# Arithmetic


def _arithmetic(layer: Layer) -> Output:
    shapes = [_single(operand) for operand in layer.operands]
    if any(shape is None for shape in shapes):
        return None
    return _broadcast(layer, [shape for shape in shapes if shape is not None])


def _broadcast(layer: Layer, shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    made: list[int | None] = []
    for sizes in zip(*padded, strict=True):
        fixed = {size for size in sizes if size not in (1, None)}
        if len(fixed) > 1:
            raise layer.error("has operands of different sizes")
        made.append(fixed.pop() if fixed else None if None in sizes else 1)
    return tuple(made)


def _matmul(layer: Layer) -> Output:
    left, right = (_single(operand) for operand in layer.operands)
    if left is None or right is None or not left or not right:
        return None
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] is not None and inner is not None and left[-1] != inner:
        raise layer.error(f"multiplies {left[-1]} columns with {inner} rows")
    batch = _broadcast(layer, [left[:-2], right[:-2]])
    return (*batch, *(left[-2:-1]), *(right[-1:] if len(right) > 1 else ()))


def _reduce(layer: Layer) -> Output:
    shape, axes = layer.first, layer.get("axes")
    if shape is None:
        return None
    chosen = {_axis(layer, axis, len(shape)) for axis in axes} if axes else set(range(len(shape)))
    if layer.get("keep"):
        return tuple(1 if axis in chosen else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in chosen)


# Layers that only move numbers


def _concat(layer: Layer) -> Output:
    shapes = [_single(operand) for operand in layer.operands]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or not known:
        return None
    _axis(layer, layer.get("axis"), len(known[0]))
    axis = concat_axis(layer.get("axis"), len(known[0]), layer.channels_last)
    if len({len(shape) for shape in known}) > 1:
        raise layer.error("joins operands with different numbers of axes")
    rest = [_with(shape, axis, 1) for shape in known]
    joined = _broadcast(layer, rest)
    if any(1 in (size, other) and size != other for shape in rest for size, other in zip(shape, joined, strict=True)):
        raise layer.error("joins operands of different sizes")
    sizes = [shape[axis] for shape in known]
    return _with(joined, axis, None if None in sizes else sum(size for size in sizes if size is not None))


def _stack(layer: Layer) -> Output:
    shape = layer.first
    if shape is None:
        return None
    axis = _axis(layer, layer.get("axis"), len(shape) + 1)
    return (*shape[:axis], len(layer.operands), *shape[axis:])


def _split(layer: Layer) -> Output:
    shape = layer.first
    if shape is None:
        return None
    axis, get = _axis(layer, layer.get("axis"), len(shape)), layer.get
    whole, sizes = shape[axis], get("sizes")
    if sizes is None:
        if whole is None:
            return None
        size = get("size") if get("count") is None else -(-whole // get("count"))
        if whole > MAX_PARTS * size:
            raise layer.error(f"makes more than {MAX_PARTS:,} parts")
        sizes = [min(size, whole - start) for start in range(0, whole, size)]
    elif whole is not None and sum(sizes) != whole:
        raise layer.error(f"splits {sum(sizes)}, not {whole}")
    return [_with(shape, axis, size) for size in sizes]


def _select(layer: Layer) -> Output:
    several, item = layer.operands[0], int(layer.get("item"))
    if not isinstance(several, list):
        return layer.node.shape if several is None else several[1:]
    if not -len(several) <= item < len(several):
        raise layer.error(f"takes output {item}")
    return several[item]


def _flatten(layer: Layer) -> Output:
    shape = layer.first
    if shape is None:
        return None
    start, end = _axis(layer, layer.get("start"), len(shape)), _axis(layer, layer.get("end"), len(shape))
    return (*shape[:start], _product(shape[start : end + 1]), *shape[end + 1 :])


def _reshape(layer: Layer) -> Output:
    shape, wanted = layer.first, tuple[int, ...](layer.get("shape"))
    if shape is None:
        return tuple(None if size in (0, -1, None) else size for size in wanted)
    if any(size == 0 and axis >= len(shape) for axis, size in enumerate(wanted)):
        raise layer.error(f"keeps an axis that is not there: it makes {show_shape(wanted)}")
    made: list[int | None] = [shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    # Axes of unknown size that stay are left out on both sides.
    kept = [size for axis, size in enumerate(shape) if not (axis < len(wanted) and wanted[axis] == 0 and size is None)]
    before = _product(kept)
    after = _product([s for s, w in zip(made, wanted, strict=True) if not (w == 0 and s is None) and s != -1])
    if -1 in made:
        place = made.index(-1)
        if before is not None and after and before % after:
            raise layer.error(f"cannot make {show_shape(wanted)} of {before} numbers")
        made[place] = before // after if before is not None and after else None
    elif before is not None and after is not None and before != after:
        raise layer.error(f"makes {after} numbers of {before}")
    return tuple(made)


def _transpose(layer: Layer) -> Output:
    shape, order, swap = layer.first, layer.get("order"), layer.get("swap")
    if shape is None:
        return None
    if order is None:
        one, other = (_axis(layer, axis, len(shape)) for axis in swap)
        order = list(range(len(shape)))
        order[one], order[other] = other, one
    if len(order) != len(shape):
        raise layer.error(f"orders {len(order)} axes, not {len(shape)}")
    return tuple(shape[_axis(layer, axis, len(shape))] for axis in order)


def _squeeze(layer: Layer) -> Output:
    shape, axes = layer.first, layer.get("axes")
    if shape is None or (not axes and None in shape[1:]):
        return None
    chosen = {_axis(layer, axis, len(shape)) for axis in axes} if axes else set(range(len(shape)))
    return tuple(size for axis, size in enumerate(shape) if axis not in chosen or size != 1)


def _unsqueeze(layer: Layer) -> Output:
    if layer.first is None:
        return None
    made = list(layer.first)
    for axis in sorted(layer.get("axes")):
        made.insert(_axis(layer, axis, len(made) + 1), 1)
    return tuple(made)


def _expand(layer: Layer) -> Output:
    shape, wanted = layer.first, layer.get("shape")
    if shape is None:
        return None
    like = _single(layer.operands[1]) if len(layer.operands) > 1 else None
    padded = (None,) * (len(wanted) - len(shape)) + shape
    batch = like[0] if like else None
    return tuple(batch if w == 0 else p if w == -1 else w for w, p in zip(wanted, padded, strict=True))


def _slice(layer: Layer) -> Output:
    shape, index = layer.first, parse_index(layer.get("index"))
    if shape is None:
        return None
    used = sum(item is not None and item is not ... for item in index)
    if used > len(shape):
        raise layer.error(f"takes an index of {used} axes")
    rest = len(shape) - used
    items: list[Any] = []
    for item in index if ... in index else (*index, ...):
        items += [slice(None)] * rest if item is ... else [item]
    made: list[int | None] = []
    axes = iter(shape)
    for item in items:
        if item is None:
            made.append(1)
            continue
        size = next(axes)
        if isinstance(item, slice):
            whole = item == slice(None)
            made.append(size if whole else None if size is None else len(range(*item.indices(size))))
        elif isinstance(item, int):
            if size is not None and not -size <= item < size:
                raise layer.error(f"takes item {item} of {size}")
        else:
            return None  # an index by a list of numbers
    return tuple(made)


def _pad(layer: Layer) -> Output:
    shape, padding = layer.first, layer.get("padding")
    if shape is None:
        return None
    if len(padding) > 2 * len(shape):
        raise layer.error(f"pads {len(padding) // 2} axes")
    made = list(shape)
    last = len(made) - (2 if layer.channels_last else 1)
    for place in range(len(padding) // 2):  # from the last axis on
        size = made[last - place]
        made[last - place] = None if size is None else size + padding[2 * place] + padding[2 * place + 1]
    return tuple(made)


def _resize(layer: Layer) -> Output:
    shape, wanted, scale = layer.first, layer.get("size"), layer.get("scale")
    if shape is None:
        return None
    sizes = _image_sizes(layer, shape)
    if wanted is not None:
        made = list(wanted) * (len(sizes) if len(wanted) == 1 else 1)
    else:
        scales = scale if isinstance(scale, tuple) else [scale] * len(sizes)
        made = [None if size is None else math.floor(size * s) for size, s in zip(sizes, scales, strict=True)]
    return _image(layer, shape, shape[layer.channel_axis(len(shape))], made)


def _constant(layer: Layer) -> Output:
    shape, value = [], layer.get("value")
    while isinstance(value, tuple):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def _output(layer: Layer) -> Output:
    return layer.first if len(layer.operands) == 1 else list(layer.operands)


_UNCHANGED = frozenset(("DROPOUT", "SOFTMAX", "MATH", "IDENTITY", "CAST"))
_RULES: Mapping[str, Rule] = {
    "CONV": _conv, "POOL": _pool, "FULL": _full, "NORM": _norm, "EMBED": _embed, "ATTENTION": _attention,
    "RNN": _recurrent, "WEIGHT": _weight, "PRELU": _prelu, "MATMUL": _matmul, "REDUCE": _reduce,
    **{name: _arithmetic for name, kind in KINDS.items() if kind.family == "arithmetic"},
    "CONCAT": _concat, "STACK": _stack, "SPLIT": _split, "SELECT": _select, "FLATTEN": _flatten, "RESHAPE": _reshape,
    "TRANSPOSE": _transpose, "SQUEEZE": _squeeze, "UNSQUEEZE": _unsqueeze, "EXPAND": _expand, "SLICE": _slice,
    "PAD": _pad, "RESIZE": _resize, "CONSTANT": _constant, "OUTPUT": _output,
}  # fmt: skip
