"""Normalisation in evaluation mode: by statistics that are parameters (batch), or by those of the input."""

from __future__ import annotations

import numpy as np

from regatta.network.bounds.affine import parameter_box
from regatta.network.bounds.balls import (
    FLOOR,
    MAX_FLOAT32,
    Array,
    Ball,
    Rows,
    between,
    exactly,
    gamma,
    gamma64,
    lower_bound,
)
from regatta.network.bounds.traces import Back, Boxes, NotBounded, Step, Trace, unchanged
from regatta.network.graph import Node

_ROUNDINGS = gamma(24)
_TINY = FLOOR / _ROUNDINGS  # a scale that is too small for a normal number is off by more than its digits


def norm(node: Node, boxes: Boxes) -> Step:
    function = node.get("function")
    if function == "batch":
        return _batch(node, boxes)
    if function in ("layer", "rms", "group", "instance"):
        return _by_itself(node, boxes)
    raise NotBounded(f"the normalisation {function!r} is not bounded")


def _product(one: Ball, other: Ball) -> Ball:
    centre = one.centre * other.centre
    radius = one.radius * other.size + np.abs(one.centre) * other.radius
    return Ball(centre, (radius + gamma64(8) * one.size * other.size) * (1 + gamma64(8)))


def _difference(one: Ball, other: Ball) -> Ball:
    radius = one.radius + other.radius + gamma64(4) * (one.size + other.size)
    return Ball(one.centre - other.centre, radius * (1 + gamma64(4)))


def _one_over_root(low: Array, high: Array) -> Ball:
    """1 / sqrt, which decreases; there is no bound where the argument may not be positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ball = between(1 / np.sqrt(high), 1 / np.sqrt(low))
    radius = ball.radius * (1 + gamma64(8)) + gamma64(8) * ball.size
    return Ball(np.where(low > 0, ball.centre, 0.0), np.where(low > 0, radius, np.inf))


def _batch(node: Node, boxes: Boxes) -> Step:
    found = {role: parameter_box(node, role, boxes) for role in ("weight", "bias", "running_mean", "running_var")}
    mean, variance = found["running_mean"], found["running_var"]
    if mean is None or variance is None:
        raise NotBounded("batch normalisation without kept statistics is not bounded")
    eps = node.get("eps")
    low, high = variance[1].low + eps, variance[1].high + eps
    scale = _one_over_root(low * (1 - _ROUNDINGS), high * (1 + _ROUNDINGS))
    if found["weight"] is not None:
        scale = _product(scale, found["weight"][1])
    added = found["bias"][1] if found["bias"] is not None else exactly(np.zeros(scale.shape))
    shift = _difference(added, _product(mean[1], scale))
    mass = mean[1].size * (scale.size + _TINY) + added.size
    names = [pair[0] for pair in found.values() if pair is not None]

    def step(x: Trace) -> Trace:
        if x.ball.centre.ndim < 2:
            raise NotBounded("normalisation without a batch is not bounded")
        dims = x.ball.centre.ndim
        return _scaled(x, _along(scale, dims), _along(shift, dims), mass.reshape(-1, *[1] * (dims - 2)), names)

    return step


def _along(ball: Ball, dims: int) -> Ball:
    """A number for each channel, in a shape that broadcasts to (batch, channels, ...)."""
    shape = (-1, *[1] * (dims - 2))
    return Ball(ball.centre.reshape(shape), ball.radius.reshape(shape))


def _scaled(x: Trace, scale: Ball, shift: Ball, mass: Array, names: list[str]) -> Trace:
    """scale x + shift, each with a box; `mass` is the magnitude that float32 sums in addition to x."""
    moved = (scale.size + _TINY) * x.ball.size
    slack = scale.radius * x.ball.size + shift.radius + _ROUNDINGS * (moved + mass) + FLOOR * (1 + scale.size)
    slack = np.where(moved + mass <= MAX_FLOAT32, slack * (1 + gamma64(16)), np.inf)
    centre = scale.centre * x.ball.centre + shift.centre
    radius = (np.abs(scale.centre) * x.ball.radius + slack) * (1 + gamma64(16))

    def back(a: Array, rows: Rows) -> Back:
        loss = x.rows(slack, rows)
        constant = lower_bound(a, shift.centre, loss)
        lost = (np.abs(a) * loss).sum(axis=tuple(range(1, a.ndim)))
        return Back((a * scale.centre,), constant, {name: lost / len(names) for name in names})

    return Trace(Ball(centre, radius), back, x.batched)


def _by_itself(node: Node, boxes: Boxes) -> Step:
    get = node.get
    function, eps = get("function"), get("eps")
    weight, bias = parameter_box(node, "weight", boxes), parameter_box(node, "bias", boxes)
    if function == "instance" and get("track"):
        raise NotBounded("instance normalisation with kept statistics is not bounded")
    among = (eps, eps)
    if function == "rms" and "eps" not in node.attributes:  # that of the type in which it is computed
        among = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)

    def step(x: Trace) -> Trace:
        parts = _grouping(node, x.ball.shape)
        centred = _centred(x, parts) if function != "rms" else unchanged(x)
        mean_square = np.asarray((x.ball.size.reshape(parts) ** 2).mean(-1, keepdims=True))
        inverse = _inverse_deviation(centred.ball, mean_square, among, parts)
        normal = _by_data(centred, inverse)
        return _with_parameters(normal, weight, bias, function)

    return step


def _grouping(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which the last axis holds the numbers that are normalised together."""
    get = node.get
    function = get("function")
    if function in ("layer", "rms"):
        kept = shape[: len(shape) - len(get("shape"))]
        if tuple(shape[len(kept) :]) != tuple(get("shape")) or not kept:
            raise NotBounded("the shape that is normalised is not that of the input")
        return (*kept, int(np.prod(get("shape"))))
    groups = get("groups") if function == "group" else shape[1]
    return (shape[0], groups, int(np.prod(shape[1:])) // groups)


def _centred(x: Trace, parts: tuple[int, ...]) -> Trace:
    """x minus its mean, which is linear."""
    shape, terms = x.ball.shape, parts[-1]
    centre, radius, size = (v.reshape(parts) for v in (x.ball.centre, x.ball.radius, x.ball.size))
    average = radius.mean(-1, keepdims=True)
    mass = size + size.mean(-1, keepdims=True)
    slack = np.where(mass <= MAX_FLOAT32 / terms, 1.01 * gamma(terms + 8) * mass + FLOOR, np.inf).reshape(shape)
    moved = (centre - centre.mean(-1, keepdims=True)).reshape(shape)
    spread = (radius * (1 - 2 / terms) + average if terms > 1 else radius).reshape(shape)
    ball = Ball(moved, (spread + 2 * slack) * (1 + gamma64(terms + 8)))

    def back(a: Array, rows: Rows) -> Back:
        grouped = a.reshape(len(a), *parts[1:])
        part = (grouped - grouped.mean(-1, keepdims=True)).reshape(a.shape)
        return Back((part,), lower_bound(a, np.zeros(1), 2 * x.rows(slack, rows)))

    return Trace(ball, back, x.batched)


def _inverse_deviation(centred: Ball, mass: Array, eps: tuple[float, float], parts: tuple[int, ...]) -> Ball:
    """1 / sqrt(mean square + eps), by the triangle inequality for the norm; rounding is relative to the input."""
    terms = parts[-1]
    middle = np.sqrt((centred.centre.reshape(parts) ** 2).sum(-1, keepdims=True))
    around = np.sqrt((centred.radius.reshape(parts) ** 2).sum(-1, keepdims=True)) * (1 + gamma64(terms + 8))
    around = around + gamma64(terms + 8) * middle
    off = np.where(mass <= MAX_FLOAT32 / terms, gamma(2 * terms + 16) * mass + FLOOR, np.inf)
    low = np.maximum(middle - around, 0.0) ** 2 / terms * (1 - gamma64(8)) + eps[0] - off
    high = (middle + around) ** 2 / terms * (1 + gamma64(8)) + eps[1] + off
    return _one_over_root(low * (1 - _ROUNDINGS), high * (1 + _ROUNDINGS))


def _by_data(x: Trace, factor: Ball) -> Trace:
    """x times a factor for each group; the factor is a ball."""
    groups = (*factor.shape[:-1], -1)
    size = (x.ball.size.reshape(groups) * factor.size).reshape(x.ball.shape)
    unsure = (x.ball.size.reshape(groups) * factor.radius).reshape(x.ball.shape)
    slack = (unsure + _ROUNDINGS * size + FLOOR) * (1 + gamma64(16))
    centre = (x.ball.centre.reshape(groups) * factor.centre).reshape(x.ball.shape)
    radius = (x.ball.radius.reshape(groups) * np.abs(factor.centre)).reshape(x.ball.shape)

    def back(a: Array, rows: Rows) -> Back:
        scaled = (a.reshape(len(a), *groups[1:]) * x.rows(factor.centre, rows)).reshape(a.shape)
        return Back((scaled,), lower_bound(a, np.zeros(1), x.rows(slack, rows)))

    return _after(x, Trace(Ball(centre, (radius + slack) * (1 + gamma64(16))), back, x.batched))


def _with_parameters(x: Trace, weight: tuple[str, Ball] | None, bias: tuple[str, Ball] | None, function: str) -> Trace:
    """The learned scale and shift, which apply to the normalised axes or, for groups, to the channels."""
    if weight is None and bias is None:
        return x
    shape = (weight or bias)[1].shape  # type: ignore[index]
    scale = weight[1] if weight is not None else exactly(np.ones(shape))
    shift = bias[1] if bias is not None else exactly(np.zeros(shape))
    if function in ("group", "instance"):
        scale, shift = _along(scale, x.ball.centre.ndim), _along(shift, x.ball.centre.ndim)
    names = [pair[0] for pair in (weight, bias) if pair is not None]
    return _after(x, _scaled(x, scale, shift, shift.size, names))


def _after(x: Trace, made: Trace) -> Trace:
    """What was made of x, with a step back that goes through x too."""
    last_back, first_back = made.back, x.back

    def back(a: Array, rows: Rows) -> Back:
        assert last_back is not None and first_back is not None
        last = last_back(a, rows)
        first = first_back(last.parts[0], rows)  # type: ignore[arg-type]
        return Back(first.parts, last.constant + first.constant, last.costs)

    return Trace(made.ball, back, made.batched)
