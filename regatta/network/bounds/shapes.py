"""Layers that only move numbers: the inverse move is applied to coefficients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from regatta.network.bounds.balls import Array, Ball, Rows, exactly, lower_bound
from regatta.network.bounds.traces import Back, Boxes, NotBounded, Step, Trace
from regatta.network.graph import Node
from regatta.network.kinds import parse_index

Shape = tuple[int, ...]


def _reshaping(shape_of: Callable[[Shape], Shape]) -> Step:
    def step(x: Trace) -> Trace:
        before, after = x.ball.shape, shape_of(x.ball.shape)
        ball = Ball(x.ball.centre.reshape(after), x.ball.radius.reshape(after))
        if x.batched and ball.shape[:1] != before[:1]:
            raise NotBounded("a change of the batch's length is not bounded")
        inner = before[1:] if x.batched else before
        return Trace(ball, lambda a, rows: Back((a.reshape(len(a), *inner),), np.zeros(len(a))), x.batched)

    return step


def flatten(node: Node, boxes: Boxes) -> Step:
    start, end = int(node.get("start")), int(node.get("end"))

    def flat(shape: Shape) -> Shape:
        first, last = start % len(shape), end % len(shape)
        return (*shape[:first], int(np.prod(shape[first : last + 1])), *shape[last + 1 :])

    return _reshaping(flat)


def reshape(node: Node, boxes: Boxes) -> Step:
    wanted = node.get("shape")
    return _reshaping(lambda shape: tuple(shape[at] if size == 0 else size for at, size in enumerate(wanted)))


def squeeze(node: Node, boxes: Boxes) -> Step:
    axes = node.get("axes")

    def narrow(shape: Shape) -> Shape:
        gone = {axis % len(shape) for axis in axes} if axes else set(range(1, len(shape)))
        return tuple(size for at, size in enumerate(shape) if size != 1 or at not in gone or at == 0)

    return _reshaping(narrow)


def unsqueeze(node: Node, boxes: Boxes) -> Step:
    axes = node.get("axes")

    def wide(shape: Shape) -> Shape:
        made = list(shape)
        for axis in sorted(axes):
            made.insert(axis if axis >= 0 else len(made) + 1 + axis, 1)
        return tuple(made)

    return _reshaping(wide)


def transpose(node: Node, boxes: Boxes) -> Step:
    order, swap = node.get("order"), node.get("swap")

    def step(x: Trace) -> Trace:
        dims = x.ball.centre.ndim
        axes = [axis % dims for axis in order] if order is not None else list(range(dims))
        if order is None:
            one, other = swap
            axes[one], axes[other] = axes[other], axes[one]
        if not x.batched or axes[0] != 0:
            raise NotBounded("a transposition of the batch is not bounded")
        back = np.argsort(axes)
        ball = Ball(x.ball.centre.transpose(axes), x.ball.radius.transpose(axes))
        return Trace(ball, lambda a, rows: Back((a.transpose(back),), np.zeros(len(a))), x.batched)

    return step


def concat(node: Node, boxes: Boxes) -> Step:
    axis = int(node.get("axis"))

    def step(*operands: Trace) -> Trace:
        at = axis % operands[0].ball.centre.ndim
        if at == 0 or not all(x.batched for x in operands):
            raise NotBounded("a concatenation along the batch, or with a parameter, is not bounded")
        centre = np.concatenate([x.ball.centre for x in operands], axis=at)
        radius = np.concatenate([x.ball.radius for x in operands], axis=at)
        edges = np.cumsum([x.ball.shape[at] for x in operands])[:-1]
        return Trace(Ball(centre, radius), lambda a, rows: Back(tuple(np.split(a, edges, at)), np.zeros(len(a))))

    return step


def cut(node: Node, boxes: Boxes) -> Step:
    """An index of slices and integers; the batch stays whole."""
    index = parse_index(node.get("index"))

    def step(x: Trace) -> Trace:
        if not x.batched or not index or index[0] not in (slice(None), slice(None, None, 1), ...):
            raise NotBounded("an index into the batch is not bounded")
        if any(item is None or not isinstance(item, int | slice | type(...)) for item in index):
            raise NotBounded("an index that is not a slice is not bounded")
        ball = Ball(x.ball.centre[index], x.ball.radius[index])
        if ball.shape[:1] != x.ball.shape[:1]:
            raise NotBounded("an index into the batch is not bounded")
        inner = x.ball.shape[1:]

        def back(a: Array, rows: Rows) -> Back:
            part = np.zeros((len(a), *inner))
            part[index] = a
            return Back((part,), np.zeros(len(a)))

        return Trace(ball, back)

    return step


def pad(node: Node, boxes: Boxes) -> Step:
    """Constant padding; amounts are for the last axis first, as in PyTorch."""
    amounts = node.get("padding")
    value = node.get("value")
    if node.get("mode") != "constant" or any(amount < 0 for amount in amounts):
        raise NotBounded(f"padding by {node.get('mode')!r} is not bounded")

    def step(x: Trace) -> Trace:
        dims = x.ball.centre.ndim
        pairs = [(0, 0)] * (dims - len(amounts) // 2)
        pairs += [(amounts[2 * k], amounts[2 * k + 1]) for k in reversed(range(len(amounts) // 2))]
        if not x.batched or len(pairs) != dims or pairs[0] != (0, 0):
            raise NotBounded("padding of the batch is not bounded")
        centre = np.pad(x.ball.centre, pairs, constant_values=float(np.float32(value)))
        inside = (slice(None), *(slice(b, b + size) for (b, _), size in zip(pairs[1:], x.ball.shape[1:], strict=True)))

        def back(a: Array, rows: Rows) -> Back:
            around = a.copy()
            around[inside] = 0.0
            return Back((a[inside],), lower_bound(around, centre[:1], np.zeros(1)))

        return Trace(Ball(centre, np.pad(x.ball.radius, pairs)), back)

    return step


def given(values: Any) -> Trace:
    """The input itself."""
    ball = exactly(values)
    return Trace(ball, lambda a, rows: Back((), lower_bound(a, ball.centre[rows], ball.radius[rows])))
