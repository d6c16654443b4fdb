"""Pooling over windows: the maximum or the mean of each window."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from regatta.network.bounds.balls import (
    DOUBLE,
    MAX_FLOAT32,
    Array,
    Ball,
    Rows,
    between,
    gamma64,
    lower_bound,
    rounding_slack,
)
from regatta.network.bounds.traces import Back, Boxes, NotBounded, Step, Trace
from regatta.network.bounds.windows import Windows, adaptive, sliding
from regatta.network.graph import Node


def pool(node: Node, boxes: Boxes) -> Step:
    get = node.get
    function = get("function")
    if function not in ("max", "avg"):
        raise NotBounded(f"pooling by {function!r} is not bounded")
    made: dict[tuple[int, ...], Windows] = {}

    def step(x: Trace) -> Trace:
        space = x.ball.shape[2:]
        if len(space) != get("dims"):
            raise NotBounded("pooling without a batch is not bounded")
        if space not in made:
            made[space] = _windows(node, space)
        if function == "max":
            return _greatest(x, made[space], space)
        return _mean(x, made[space], space, _counts(node, made[space], space))

    return step


def _windows(node: Node, space: tuple[int, ...]) -> Windows:
    get = node.get
    if get("output"):
        return adaptive(space, get("output"))
    return sliding(space, get("kernel"), get("stride"), get("padding"), get("dilation"), get("ceil"))


def _flat(values: Array) -> Array:
    return values.reshape(*values.shape[:2], -1)


def _greatest(x: Trace, windows: Windows, space: tuple[int, ...]) -> Trace:
    """The maximum is at least any element, and at most one element plus the largest excess of the others over it."""
    low = windows.gather(_flat(x.ball.low), -np.inf)
    high = windows.gather(_flat(x.ball.high), -np.inf)
    shape = (*x.ball.shape[:2], *windows.shape)
    ball = between(low.max(axis=-2).reshape(shape), high.max(axis=-2).reshape(shape))

    leaders = cache(lambda: _window_maxima(low, high))

    def back(a: Array, rows: Rows) -> Back:
        found, flat = leaders(), _flat(a)
        falling = flat < 0
        level = falling & found.is_level[rows]
        offset = np.where(level, found.ceiling[rows], np.where(falling, found.excess[rows], 0.0))
        kept = np.where(level, 0.0, flat)[..., None, :] * (np.arange(len(windows.taps))[:, None] == found.tap[rows])
        part = windows.scatter(kept).reshape(len(a), -1, *space)
        return Back((part,), lower_bound(flat, offset, gamma64(len(windows.taps) + 4) * found.size[rows]))

    return Trace(ball, back, x.batched)


@dataclass(frozen=True)
class _WindowMaxima:
    """For each window: the tap with the largest lower bound, the excess of others over it, and an upper constant.

    `is_level` is true where the constant is closer than the leading tap plus the excess.
    """

    tap: NDArray[np.intp]
    excess: Array
    ceiling: Array
    is_level: NDArray[np.bool_]
    size: Array


def _window_maxima(low: Array, high: Array) -> _WindowMaxima:
    tap = low.argmax(axis=-2, keepdims=True)
    floor = np.take_along_axis(low, tap, -2)[..., 0, :]
    middle = floor / 2 + np.take_along_axis(high, tap, -2)[..., 0, :] / 2
    others = np.where(np.arange(low.shape[-2])[:, None] == tap, -np.inf, high).max(axis=-2)
    excess = np.maximum(others - floor, 0.0) * (1 + 4 * DOUBLE)
    ceiling = high.max(axis=-2)
    return _WindowMaxima(tap, excess, ceiling, middle + excess > ceiling, np.abs(floor) + np.abs(ceiling))


def _mean(x: Trace, windows: Windows, space: tuple[int, ...], counts: Array) -> Trace:
    shape, terms = (*x.ball.shape[:2], *windows.shape), len(windows.taps)

    def mean(values: Array) -> Array:
        return np.asarray((windows.gather(_flat(values)).sum(axis=-2) / counts).reshape(shape))

    mass = mean(x.ball.size)
    slack = rounding_slack(mass, terms + 2) * (1 + gamma64(terms + 8))
    slack = np.where(mass * counts.max(initial=1) <= MAX_FLOAT32, slack, np.inf)  # it is the sum that overflows
    ball = Ball(mean(x.ball.centre), mean(x.ball.radius) * (1 + gamma64(terms + 8)) + 2 * slack)

    def back(a: Array, rows: Rows) -> Back:
        spread = np.broadcast_to((_flat(a) / counts)[..., None, :], (*a.shape[:2], *windows.taps.shape))
        part = windows.scatter(spread).reshape(len(a), -1, *space)
        return Back((part,), lower_bound(a, np.zeros(1), 2 * x.rows(slack, rows)))

    return Trace(ball, back, x.batched)


def _counts(node: Node, windows: Windows, space: tuple[int, ...]) -> Array:
    """The divisor of each mean."""
    get = node.get
    if get("output") or not get("count_padding"):
        return np.asarray(windows.inside.sum(axis=0), np.float64)
    dims = len(space)
    padded = [size + 2 * pad for size, pad in zip(space, get("padding")[:dims], strict=True)]
    around = sliding(padded, get("kernel"), get("stride"), [0] * dims, get("dilation"), get("ceil"))
    if around.shape != windows.shape:
        raise NotBounded("the last windows of this pooling are not bounded")
    return np.asarray(around.inside.sum(axis=0), np.float64)  # the padding counts, but not what is beyond it
