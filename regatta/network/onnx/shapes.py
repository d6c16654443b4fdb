"""Which sizes of an operator's output are sizes of its operands, where ONNX's own inference does not know them.

A size that varies is identified by the node where it first appears. So `reshape(x, shape(y)[0], ...)` is recognised
when x and y have the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regatta.network.graph import Shape
from regatta.network.kinds import KINDS


@dataclass(frozen=True)
class Size:
    """The size of an axis of a node's output."""

    of: str
    axis: int


Dims = tuple[int | Size, ...]

_SAME = ("NORM", "SOFTMAX", "DROPOUT", "IDENTITY", "CAST", "MATH")
_SAME_BATCH = ("CONV", "POOL", "RESIZE", "CONCAT", "FLATTEN", "RNN")


def output_dims(
    id: str, kind: str, attributes: Mapping[str, Any], operands: Sequence[Dims | None], shape: Shape | None
) -> Dims | None:
    """The sizes of a node's output, from its kind and ONNX's inference; None if their number is unknown."""
    found = _from_operands(kind, attributes, operands)
    if shape is None:
        return None if found is None else tuple(Size(id, axis) if s is None else s for axis, s in enumerate(found))
    if found is None or len(found) != len(shape):
        found = [None] * len(shape)
    if kind in _SAME_BATCH and operands and operands[0] and shape and attributes.get("axis", 1) != 0:
        found = [operands[0][0], *found[1:]]
    candidates = [(known, f, Size(id, axis)) for axis, (known, f) in enumerate(zip(shape, found, strict=True))]
    return tuple(next(size for size in sizes if size is not None) for sizes in candidates)


def shape_of(dims: Dims | None) -> Shape | None:
    return None if dims is None else tuple(size if isinstance(size, int) else None for size in dims)


def _from_operands(kind: str, attributes: Mapping[str, Any], operands: Sequence[Dims | None]) -> list[Any] | None:
    first = operands[0] if operands else None
    if kind == "RESHAPE":
        return _reshaped(attributes["shape"], first)
    if KINDS[kind].family == "arithmetic":
        return _broadcast(operands)
    if not first:
        return None
    if KINDS[kind].family == "activation" or kind in _SAME:
        return list(first)
    if kind == "TRANSPOSE" and len(attributes["order"]) == len(first):
        return [first[axis] for axis in attributes["order"]]
    if kind == "FULL":
        return [*first[:-1], attributes["out"]]
    if kind == "MATMUL":
        return _multiplied(operands)
    if kind == "SLICE":
        return _sliced(attributes["index"], first)
    if kind == "REDUCE":
        axes, keep = {axis % len(first) for axis in attributes["axes"]}, attributes.get("keep", False)
        return [1 if axis in axes else size for axis, size in enumerate(first) if keep or axis not in axes]
    if kind == "CONCAT":
        return [None if axis == attributes["axis"] % len(first) else size for axis, size in enumerate(first)]
    if kind == "UNSQUEEZE":
        rank = len(first) + len(attributes["axes"])
        new, old = {axis % rank for axis in attributes["axes"]}, iter(first)
        return [1 if axis in new else next(old, None) for axis in range(rank)]
    if kind == "SQUEEZE":
        gone = {axis % len(first) for axis in attributes["axes"]}
        return [size for axis, size in enumerate(first) if axis not in gone]
    return None


def _reshaped(wanted: Sequence[int], first: Dims | None) -> list[Any]:
    own: Any = first if first is not None else ()
    return [
        size if size > 0 else own[place] if size == 0 and place < len(own) else None
        for place, size in enumerate(wanted)
    ]


def _broadcast(operands: Sequence[Dims | None]) -> list[Any] | None:
    if any(dims is None for dims in operands):
        return None
    rank = max((len(dims) for dims in operands if dims is not None), default=0)
    padded = [(1,) * (rank - len(dims)) + dims for dims in operands if dims is not None]
    return [_common_size([dims[axis] for dims in padded]) for axis in range(rank)]


def _common_size(sizes: Sequence[int | Size]) -> int | Size | None:
    """The common size of all that are not 1. A known size wins: a varying size must be equal to it, or 1."""
    others = {size for size in sizes if size != 1}
    known = {size for size in others if isinstance(size, int)}
    return 1 if not others else others.pop() if len(others) == 1 else known.pop() if len(known) == 1 else None


def _multiplied(operands: Sequence[Dims | None]) -> list[Any] | None:
    a, b = operands[0], operands[1] if len(operands) > 1 else None
    if a is None or b is None or len(a) != len(b) or len(a) < 2:
        return None
    return [*a[:-1], b[-1]]


def _sliced(index: Sequence[Any], first: Dims) -> list[Any]:
    kept: list[Any] = []
    for axis, size in enumerate(first):
        item = index[axis] if axis < len(index) else "::"
        if isinstance(item, str):
            kept.append(size if item == "::" else None)
    return kept
