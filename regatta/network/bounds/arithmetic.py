"""Layers that add or multiply the outputs of other layers, reduce them over axes, or look up rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from regatta.network.bounds.affine import parameter_box
from regatta.network.bounds.balls import (
    Array,
    Ball,
    Rows,
    between,
    exactly,
    gamma,
    gamma64,
    lower_bound,
    rounding_slack,
)
from regatta.network.bounds.traces import Back, Boxes, NotBounded, Step, Trace, unbroadcast
from regatta.network.graph import Node


def weight(node: Node, boxes: Boxes) -> Step:
    """A parameter that other layers take as an operand."""
    ball = boxes[node.parameters[0].name]
    name = node.parameters[0].name

    def back(a: Array, rows: Rows) -> Back:
        a = a.reshape(len(a), *ball.shape)
        lost = (np.abs(a) * ball.radius).reshape(len(a), -1).sum(axis=1)
        return Back((), lower_bound(a, ball.centre, ball.radius), {name: lost})

    return lambda: Trace(ball, back, batched=False)


def constant(node: Node, boxes: Boxes) -> Step:
    ball = exactly(np.asarray(node.get("value"), np.float32))
    return lambda: Trace(ball, batched=False)


def embed(node: Node, boxes: Boxes) -> Step:
    """Rows of a table. The inputs are row numbers, so bounds end here."""
    found = parameter_box(node, "weight", boxes)
    if found is None:
        raise NotBounded("its table is not its own parameter")
    name, table = found

    def step(x: Trace) -> Trace:
        if not x.ball.is_exact:
            raise NotBounded("an embedding of what is computed is not bounded")
        places = x.ball.centre.astype(np.intp)
        if places.size and not (places.min() >= 0 and places.max() < len(table.centre)):
            raise NotBounded(f"the input has numbers beyond the {len(table.centre)} rows of its table")
        ball = Ball(table.centre[places], table.radius[places])

        def back(a: Array, rows: Rows) -> Back:
            radius = x.rows(ball.radius, rows)
            lost = (np.abs(a) * radius).reshape(len(a), -1).sum(axis=1)
            return Back((None,), lower_bound(a, x.rows(ball.centre, rows), radius), {name: lost})

        return Trace(ball, back, x.batched)

    return step


def add(node: Node, boxes: Boxes) -> Step:
    """Sums and differences, of operands or with a number."""
    minus = node.kind == "SUB"
    value: Any = node.attributes.get("value")
    left = bool(node.get("left"))

    def step(*operands: Trace) -> Trace:
        signs = [1.0] + [-1.0 if minus else 1.0] * (len(operands) - 1)
        shift = 0.0 if value is None else float(np.float32(value)) * (-1.0 if minus and not left else 1.0)
        if minus and left and value is not None:
            signs = [-1.0]
        _check_meeting(operands)
        with_signs = list(zip(signs, operands, strict=True))
        centre = np.asarray(sum(sign * x.ball.centre for sign, x in with_signs)) + shift
        mass = np.asarray(sum(x.ball.size for x in operands)) + abs(shift)
        slack = rounding_slack(mass, len(operands) + 3)
        radius = (np.asarray(sum(x.ball.radius for x in operands)) + slack) * (1 + gamma64(8))
        made = Trace(Ball(centre, radius), batched=any(x.batched for x in operands))

        def back(a: Array, rows: Rows) -> Back:
            parts = tuple(unbroadcast(sign * a, x.ball.shape, x.batched) for sign, x in with_signs)
            return Back(parts, lower_bound(a, np.full(1, shift), made.rows(slack, rows)))

        return Trace(made.ball, back, made.batched)

    return step


def multiply(node: Node, boxes: Boxes) -> Step:
    """Products: x y is xc y + x yc - xc yc, with an error of at most the product of the radii."""
    value: Any = node.attributes.get("value")
    divides = node.kind == "DIV"
    if divides and (value is None or not value or node.get("left")):
        raise NotBounded("a division by what is computed is not bounded")

    def step(*operands: Trace) -> Trace:
        if value is not None:
            factor = float(np.float32(value))
            return _times(operands[0], 1 / factor if divides else factor)
        if len(operands) != 2:
            raise NotBounded("a product of several operands is not bounded")
        return _product(*operands)

    return step


def _times(x: Trace, factor: float) -> Trace:
    slack = rounding_slack(abs(factor) * x.ball.size, 4)
    ball = Ball(factor * x.ball.centre, (abs(factor) * x.ball.radius + slack) * (1 + gamma64(8)))
    return Trace(ball, lambda a, rows: Back((factor * a,), lower_bound(a, np.zeros(1), x.rows(slack, rows))), x.batched)


def _product(one: Trace, other: Trace) -> Trace:
    _check_meeting((one, other))
    x, y = one.ball, other.ball
    mass = x.size * y.size
    centre = x.centre * y.centre
    unsure = x.radius * y.radius * (1 + gamma64(8)) + rounding_slack(mass, 4)
    radius = (np.abs(x.centre) * y.radius + x.radius * np.abs(y.centre) + unsure) * (1 + gamma64(8))
    made = Trace(Ball(centre, radius), batched=one.batched or other.batched)

    def back(a: Array, rows: Rows) -> Back:
        towards_x = unbroadcast(a * other.rows(y.centre, rows), x.shape, one.batched)
        towards_y = unbroadcast(a * one.rows(x.centre, rows), y.shape, other.batched)
        return Back((towards_x, towards_y), lower_bound(a, -made.rows(centre, rows), made.rows(unsure, rows)))

    return Trace(made.ball, back, made.batched)


def extreme(node: Node, boxes: Boxes) -> Step:
    """The maximum or minimum of operands, or of one operand and a number."""
    choose = np.maximum if node.kind == "MAXIMUM" else np.minimum
    value: Any = node.attributes.get("value")

    def step(*operands: Trace) -> Trace:
        _check_meeting(operands)
        lows, highs = [x.ball.low for x in operands], [x.ball.high for x in operands]
        if value is not None:
            number = np.asarray(np.float32(value), np.float64)
            lows, highs = [*lows, number], [*highs, number]
        low, high = lows[0], highs[0]
        for other_low, other_high in zip(lows[1:], highs[1:], strict=True):
            low, high = choose(low, other_low), choose(high, other_high)
        return Trace(between(low, high), batched=any(x.batched for x in operands))

    return step


def reduce(node: Node, boxes: Boxes) -> Step:
    function, keep = node.get("function"), bool(node.get("keep"))
    axes = node.get("axes")
    if function not in ("mean", "sum", "max", "min") or axes is None:
        raise NotBounded(f"the reduction {function!r} is not bounded")

    def step(x: Trace) -> Trace:
        dims = x.ball.centre.ndim
        along = tuple(sorted(axis % dims for axis in axes))
        if not x.batched or 0 in along:
            raise NotBounded("a reduction over the batch is not bounded")
        if function in ("max", "min"):
            choose = np.max if function == "max" else np.min
            return Trace(between(choose(x.ball.low, along, keepdims=keep), choose(x.ball.high, along, keepdims=keep)))
        return _summed(x, along, keep, function == "mean")

    return step


def _summed(x: Trace, along: tuple[int, ...], keep: bool, mean: bool) -> Trace:
    terms = int(np.prod([x.ball.shape[axis] for axis in along]))
    share = 1 / terms if mean else 1.0

    def total(values: Array) -> Array:
        return np.asarray(values.sum(axis=along, keepdims=keep) * share)

    mass = total(x.ball.size) * (1 + gamma64(terms + 8))
    slack = np.where(np.isfinite(rounding_slack(mass / share, terms + 2)), rounding_slack(mass, terms + 2), np.inf)
    ball = Ball(total(x.ball.centre), (total(x.ball.radius) + slack) * (1 + gamma64(terms + 8)))
    inner = x.ball.shape[1:]

    def back(a: Array, rows: Rows) -> Back:
        wide = a if keep else np.expand_dims(a, along)
        part = np.broadcast_to(wide * share, (len(a), *inner))
        return Back((part,), lower_bound(a, np.zeros(1), x.rows(slack, rows)))

    return Trace(ball, back)


def matmul(node: Node, boxes: Boxes) -> Step:
    """The product of two matrices that are both computed: X Y is Xc Y + X Yc - Xc Yc, up to the radii's product."""

    def step(one: Trace, other: Trace) -> Trace:
        x, y = one.ball, other.ball
        if min(x.centre.ndim, y.centre.ndim) < 2 or (one.batched and other.batched and x.centre.ndim < 3):
            raise NotBounded("a product of vectors is not bounded")
        if (one.batched and not other.batched and y.centre.ndim > 2) or (other.batched and not one.batched):
            raise NotBounded("a product of a matrix that has no batch is not bounded")
        if one.batched and other.batched and x.shape[:-2] != y.shape[:-2]:
            raise NotBounded("a product of matrices that are broadcast is not bounded")
        terms, uses = x.shape[-1], max(x.shape[-2], y.shape[-1])
        centre, mass = x.centre @ y.centre, x.size @ y.size
        own_error = gamma64(2 * (terms + uses) + 16)
        unsure = (x.radius @ y.radius + rounding_slack(mass, terms + 2) + own_error * mass) * (1 + own_error)
        radius = (np.abs(x.centre) @ y.radius + x.radius @ np.abs(y.centre) + unsure) * (1 + own_error)
        made = Trace(Ball(centre, radius), batched=one.batched or other.batched)

        def back(a: Array, rows: Rows) -> Back:
            towards_x = a @ other.rows(y.centre, rows).swapaxes(-1, -2)
            towards_y = one.rows(x.centre, rows).swapaxes(-1, -2) @ a
            parts = towards_x, unbroadcast(towards_y, y.shape, other.batched)
            return Back(parts, lower_bound(a, -made.rows(centre, rows), made.rows(unsure, rows)))

        return Trace(made.ball, back, made.batched)

    return step


def softmax(node: Node, boxes: Boxes) -> Step:
    """A softmax inside a network. One at the end does not change the order of outputs and is left out."""
    axis = node.get("axis")
    if node.get("log"):
        raise NotBounded("the logarithm of a softmax inside a network is not bounded")

    def step(x: Trace) -> Trace:
        at, terms = axis % x.ball.centre.ndim, x.ball.shape[axis]
        if at == 0 and x.batched:
            raise NotBounded("a softmax over the batch is not bounded")
        scores = _scores_around_their_mean(x, at)
        low, high = scores.low, scores.high
        floor, ceiling = special.expit(low - _log_of_others(high, at)), special.expit(high - _log_of_others(low, at))
        # exp(a - b) is off by the rounding of a - b, which is absolute
        relative = gamma(terms + 32) + 4 * gamma(2) * (1 + x.ball.size.max(axis=at, keepdims=True))
        made = between(np.maximum(floor - 1e-12, 0.0), np.minimum(ceiling + 1e-12, 1.0))
        slack = 2 * relative * made.size + rounding_slack(made.size, 4)
        ball = Ball(made.centre, (made.radius + slack) * (1 + gamma64(8)))
        tangent = cache(lambda: _SoftmaxTangent.at(scores, made, at))

        def back(a: Array, rows: Rows) -> Back:
            found, made_rows = tangent(), partial(x.rows, rows=rows)
            share, is_level = made_rows(found.share), made_rows(found.is_level)
            sloped = np.where(is_level, 0.0, a)
            centred = sloped - (share * sloped).sum(axis=at, keepdims=True)
            by_output = (np.abs(centred) * made_rows(found.bent)).sum(axis=at, keepdims=True)
            together = np.ptp(sloped, axis=at, keepdims=True) * made_rows(found.variance) / 2
            lost = np.where(is_level, 0.0, np.minimum(by_output, together)).reshape(len(a), -1).sum(axis=1)
            least = lower_bound(a, made_rows(found.offset), made_rows(found.unsure + slack))
            return Back((share * centred,), least - lost * (1 + gamma64(a[0].size + 16)))

        return Trace(ball, back, x.batched)

    return step


def _scores_around_their_mean(x: Trace, axis: int) -> Ball:
    """Scores to which a number may be added, the same for all: only how far they are from each other matters."""
    if x.farthest is None:
        return x.ball
    size, shape = int(np.prod(x.ball.shape[1:])), x.ball.shape[1:]
    one, share = np.eye(size).reshape(size, *shape), special.softmax(x.ball.centre, axis=axis)
    radius = np.empty_like(x.ball.radius)
    for row in range(len(radius)):
        around = one - one.sum(axis=axis, keepdims=True) * share[row]
        radius[row] = x.farthest(around, np.full(size, row)).reshape(shape)
    mass = x.ball.size.sum(axis=axis, keepdims=True)
    radius = radius + gamma64(x.ball.shape[axis] + 8) * mass
    closer = radius.sum(axis=axis, keepdims=True) < x.ball.radius.sum(axis=axis, keepdims=True)
    return Ball(x.ball.centre, np.where(closer, radius, x.ball.radius))


@dataclass(frozen=True)
class _SoftmaxTangent:
    """softmax(s) is near `offset` + J s, where J = diag(share) - share share^T is its slope at the centre.

    Along a line of direction d, its second derivative is p ((d - m)^2 - v), where m is the mean of d weighted by p, and
    v is the variance. These sum to 0, so a number that is added to all coefficients changes nothing. What the tangent
    loses is at most `bent` times the magnitudes of coefficients around their mean, and at most half of `variance` times
    their range. Where the outputs are surer than that (`is_level`), they are taken as constants.
    """

    share: Array
    offset: Array
    unsure: Array
    bent: Array
    variance: Array
    is_level: NDArray[np.bool_]

    @classmethod
    def at(cls, scores: Ball, image: Ball, axis: int) -> _SoftmaxTangent:
        share = special.softmax(scores.centre, axis=axis)
        # a number that is added to all scores changes nothing: it is chosen so that sizes are small
        moved = scores.centre - (share * scores.centre).sum(axis=axis, keepdims=True)
        most = np.minimum(image.high, 1.0)
        widest = scores.radius.max(axis=axis, keepdims=True)
        mean = np.minimum((most * scores.radius).sum(axis=axis, keepdims=True), widest)
        variance = np.minimum((most * scores.radius**2).sum(axis=axis, keepdims=True), widest**2)
        bent = 0.5 * most * np.maximum((scores.radius + mean) ** 2, variance)
        terms = share.shape[axis]
        own_error = gamma64(terms + 64) * (1 + scores.size.max(axis=axis, keepdims=True)) * (1 + np.abs(scores.centre))
        is_level = image.radius.sum(axis=axis, keepdims=True) < bent.sum(axis=axis, keepdims=True)
        offset = np.where(is_level, image.centre, share * (1 - moved))
        unsure = np.where(is_level, image.radius, own_error)
        return cls(share, offset, unsure, bent, variance, is_level)


def _log_of_others(values: Array, axis: int) -> Array:
    """The logarithm of the sum of exponentials of all others along an axis; a subtraction would lose digits."""
    ends = np.full_like(values.take([0], axis), -np.inf)
    before = np.concatenate([ends, np.logaddexp.accumulate(values, axis)], axis)
    after = np.flip(np.concatenate([ends, np.logaddexp.accumulate(np.flip(values, axis), axis)], axis), axis)
    count = values.shape[axis]
    return np.asarray(np.logaddexp(before.take(range(count), axis), after.take(range(1, count + 1), axis)))


def _check_meeting(operands: tuple[Trace, ...]) -> None:
    """Check that shapes broadcast only behind the batch axis."""
    batched = [x.ball.shape for x in operands if x.batched]
    ranks = {len(shape) for shape in batched}
    if len(ranks) > 1 or len({shape[0] for shape in batched}) > 1:
        raise NotBounded("operands of unlike ranks are not bounded")
    for x in operands:
        shape = x.ball.shape
        if not x.batched and ranks and (len(shape) > max(ranks) or (len(shape) == max(ranks) and shape[0] != 1)):
            raise NotBounded("a parameter that has the shape of a batch is not bounded")
