"""Normalisation in evaluation mode: by statistics that are parameters (batch), or by those of the input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

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
from regatta.network.bounds.traces import Back, Boxes, GoBack, NotBounded, Step, Trace, unchanged
from regatta.network.graph import Node

_ROUNDINGS = gamma(24)
_ROWS_AT_A_TIME = 1024
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
        mean_square = _mean_square(x, centred.ball, parts)
        deviation = _Deviation.of(centred.ball, mean_square, among, parts, _along_centre(x, centred.ball, parts))
        return _with_parameters(_normalised(centred, deviation, parts, x), weight, bias, function)

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
    if x.farthest is not None:
        spread = np.fmin(spread, _farthest_from_mean(x, parts))
    ball = Ball(moved, (spread + 2 * slack) * (1 + gamma64(terms + 8)))

    def back(a: Array, rows: Rows) -> Back:
        grouped = a.reshape(len(a), *parts[1:])
        part = (grouped - grouped.mean(-1, keepdims=True)).reshape(a.shape)
        return Back((part,), lower_bound(a, np.zeros(1), 2 * x.rows(slack, rows)))

    return Trace(ball, back, x.batched)


def _farthest_from_mean(x: Trace, parts: tuple[int, ...]) -> Array:
    """How far each number minus the mean of its group can be from its value at the centre."""
    count, size, terms = parts[0], int(np.prod(parts[1:])), parts[-1]
    one = np.eye(size).reshape(size, *parts[1:])
    one = (one - one.mean(-1, keepdims=True)).reshape(size, *x.ball.shape[1:])
    assert x.farthest is not None
    found = np.asarray([x.farthest(one, np.full(size, row)) for row in range(count)]).reshape(x.ball.shape)
    mass = x.ball.size.reshape(parts).sum(-1, keepdims=True)
    return found + (gamma64(terms + 8) * np.broadcast_to(mass, parts)).reshape(x.ball.shape)


def _mean_square(x: Trace, centred: Ball, parts: tuple[int, ...]) -> Array:
    """The largest mean square of each group: that around its mean, and that of the mean."""
    plain = np.asarray((x.ball.size.reshape(parts) ** 2).mean(-1, keepdims=True))
    if x.farthest is None:
        return plain
    groups, terms = int(np.prod(parts[1:-1])), parts[-1]
    one = np.broadcast_to(np.eye(groups).reshape(groups, *parts[1:-1], 1) / terms, (groups, *parts[1:]))
    one = one.reshape(groups, *x.ball.shape[1:])
    found = np.asarray([x.farthest(one, np.full(groups, row)) for row in range(parts[0])]).reshape(*parts[:-1], 1)
    mean = np.abs(x.ball.centre.reshape(parts).mean(-1, keepdims=True)) + found
    around = (centred.size.reshape(parts) ** 2).mean(-1, keepdims=True)
    return np.asarray(np.fmin(plain, (around + mean**2) * (1 + gamma64(terms + 16))))


def _along_centre(x: Trace, centred: Ball, parts: tuple[int, ...]) -> Array | float:
    """For each group, how far the product of the centred x with its own centre can be from its value there."""
    if x.farthest is None:
        return np.inf
    centre = centred.centre.reshape(parts)
    groups = int(np.prod(parts[1:-1]))
    one = np.eye(groups).reshape(groups, *parts[1:-1], 1)
    rows = [(one * row).reshape(groups, *x.ball.shape[1:]) for row in centre]
    found = [x.farthest(row, np.full(groups, at)) for at, row in enumerate(rows)]
    slack = 4 * gamma64(parts[-1] + 16) * (np.abs(centre) * x.ball.size.reshape(parts)).sum(-1, keepdims=True)
    return np.asarray(np.asarray(found).reshape(*parts[:-1], 1) + slack)


@dataclass(frozen=True)
class _Deviation:
    """1 / sqrt(mean square + eps) of each group.

    It is `middle` at the centre c, and inside `ball` for the model, rounding included. At c + d it is
    middle - middle^3 <c, d> / n + `shift`, up to `bent`; `off` is what rounding adds. No result is beyond `limit`: a
    number is at most sqrt(n) deviations from 0.
    """

    middle: Array
    ball: Ball
    shift: Array
    bent: Array
    off: Array
    limit: Array

    @classmethod
    def of(
        cls, x: Ball, mass: Array, eps: tuple[float, float], parts: tuple[int, ...], along: Array | float
    ) -> _Deviation:
        """`mass` is the mean square to which rounding is relative, and `along` bounds <c, d>.

        The mean square changes by 2 <c, d> / n + <d, d> / n. Of this only the first part can be negative.
        """
        terms = parts[-1]
        centre, radius = np.abs(x.centre).reshape(parts), x.radius.reshape(parts)
        upward = 1 + gamma64(terms + 16)
        squares = (radius**2).mean(-1, keepdims=True) * upward
        along = np.minimum(along, (centre * radius).sum(-1, keepdims=True) * upward) / terms
        around = np.maximum(np.sqrt((centre**2).mean(-1, keepdims=True)) - np.sqrt(squares) * upward, 0.0) ** 2
        at = (centre**2).mean(-1, keepdims=True) + eps[1]
        own_error = gamma64(terms + 16) * at
        least = np.maximum(at - 2 * along, around + eps[1]) - own_error
        most = at + 2 * along + squares + own_error
        rounding = np.where(mass <= MAX_FLOAT32 / terms, gamma(2 * terms + 16) * mass + FLOOR, np.inf)
        low = (least - (eps[1] - eps[0]) - rounding) * (1 - _ROUNDINGS)
        ball = _one_over_root(low, (most + rounding) * (1 + _ROUNDINGS))
        with np.errstate(divide="ignore", invalid="ignore"):
            middle, sum_of_squares = 1 / np.sqrt(at), 1 / np.sqrt(at + squares)
            above = np.maximum(
                1 / np.sqrt(least) - middle - along * middle**3,
                1 / np.sqrt(at + 2 * along) - middle + along * middle**3,
            )
            below = sum_of_squares - middle - along * (middle**3 - sum_of_squares**3)
            off = 1 / np.sqrt(low) - 1 / np.sqrt(least) + gamma64(terms + 64) / np.sqrt(low)
            limit = np.sqrt(terms * np.maximum(least / low, 1.0))
            limit = (limit + 4 * gamma(terms + 8) * np.sqrt(terms * mass / low)) * (1 + 2 * _ROUNDINGS)
        known = low > 0
        shift, bent = np.where(known, above / 2 + below / 2, 0.0), np.where(known, above / 2 - below / 2, np.inf)
        off, limit = np.where(known, off, np.inf), np.where(known, limit, np.inf)
        return cls(middle, ball, shift, bent * (1 + gamma64(16)), off * (1 + gamma64(16)), limit)


def _normalised(x: Trace, by: _Deviation, parts: tuple[int, ...], given: Trace) -> Trace:
    """x times the inverse deviation of each group: along its tangent, by a constant factor, or constant.

    At c + d, with normal = c middle, the tangent is c (middle + shift) - middle normal <normal, d> / n + d times the
    centre of the inverse deviation.
    """
    terms, shape = parts[-1], x.ball.shape
    centre, radius, size = (v.reshape(parts) for v in (x.ball.centre, x.ball.radius, x.ball.size))
    rounding = _ROUNDINGS * size * by.ball.size + FLOOR
    unsure = (size * by.off + rounding) * (1 + gamma64(16))
    by_factor = (size * by.ball.radius + rounding) * (1 + gamma64(16))
    bent = (np.abs(centre) * by.bent + radius * by.ball.radius) * (1 + gamma64(16))
    normal, middle = centre * by.middle, centre * (by.middle + by.shift)
    share = np.abs(normal) * radius
    total = share.sum(-1, keepdims=True)
    others = by.middle * np.abs(normal) / terms * (total - share) * (1 + gamma64(terms + 8))
    moved = radius * np.abs(by.ball.centre - by.middle * normal**2 / terms) + others + unsure + bent
    ball = _narrowest(
        (middle, moved),
        (centre * by.ball.centre, np.abs(by.ball.centre) * radius + by_factor),
        (np.zeros_like(normal), np.broadcast_to(by.limit, normal.shape)),
    )
    ball = Ball(ball.centre, ball.radius * (1 + gamma64(terms + 32)))
    losses = [
        np.nan_to_num(loss, nan=np.inf).sum(-1, keepdims=True) for loss in (unsure + bent, by_factor, ball.radius)
    ]
    chosen = np.argmin(np.stack(losses), axis=0)
    tangent, constant = chosen == 0, chosen == 2
    along = by.middle * (normal * centre).sum(-1, keepdims=True) / terms
    at_zero = middle - centre * by.ball.centre + normal * along
    offset = np.where(tangent, at_zero, np.where(constant, ball.centre, 0.0))
    factors = np.abs(by.ball.centre) + by.middle
    own_error = gamma64(terms + 32) * (factors * size + np.abs(normal) * (by.middle * total + along))
    slack = np.where(tangent, unsure, np.where(constant, ball.radius, by_factor)) + own_error
    factor = np.where(constant, 0.0, by.ball.centre)
    direction = np.where(tangent, normal, 0.0)
    bends, changes = np.where(tangent, by.bent, 0.0), np.where(tangent, by.ball.radius, 0.0)

    def back(a: Array, rows: Rows, fine: bool = False) -> Back:
        grouped, towards = a.reshape(len(a), *parts[1:]), x.rows(direction, rows)
        turned = towards * (towards * grouped).mean(-1, keepdims=True) * x.rows(by.middle, rows)
        part = grouped * x.rows(factor, rows) - turned
        away = (np.abs(grouped) * x.rows(radius, rows)).sum(-1, keepdims=True)
        if fine:
            away = np.fmin(away, _farthest_products(given, grouped, rows, parts))
        products = np.abs((grouped * x.rows(centre, rows)).sum(-1, keepdims=True))
        lost = products * x.rows(bends, rows) + away * x.rows(changes, rows)
        least = lower_bound(grouped, x.rows(offset, rows), x.rows(slack, rows))
        upward = 1 + gamma64(a[0].size + 32)
        return Back((part.reshape(a.shape),), least - lost.reshape(len(a), -1).sum(axis=1) * upward)

    fine = partial(back, fine=True) if given.farthest is not None else None
    made = Trace(Ball(ball.centre.reshape(shape), ball.radius.reshape(shape)), back, x.batched, fine=fine)
    return _after(x, made)


def _farthest_products(x: Trace, a: Array, rows: Rows, parts: tuple[int, ...]) -> Array:
    """For each row and group, how far the product with the centred x can be from its value at the centre."""
    centred = a - a.mean(-1, keepdims=True)
    flat = centred.reshape(len(a), -1, parts[-1])
    row, group = np.nonzero(flat.any(-1))
    found = np.zeros(flat.shape[:2])
    for at in range(0, len(row), _ROWS_AT_A_TIME):
        part = slice(at, at + _ROWS_AT_A_TIME)
        one = np.zeros((len(row[part]), *flat.shape[1:]))
        one[np.arange(len(one)), group[part]] = flat[row[part], group[part]]
        assert x.farthest is not None
        found[row[part], group[part]] = x.farthest(one.reshape(len(one), *x.ball.shape[1:]), rows[row[part]])
    mass = (np.abs(a) * x.rows(x.ball.size.reshape(parts), rows)).sum(-1, keepdims=True)
    return np.asarray(found.reshape(*a.shape[:-1], 1) + 4 * gamma64(parts[-1] + 16) * mass)


def _narrowest(*balls: tuple[Array, Array]) -> Ball:
    """Of several balls around each number, the one with the smallest radius."""
    radii = np.stack([np.nan_to_num(radius, nan=np.inf) for _, radius in balls])
    chosen = radii.argmin(axis=0)
    centre = np.choose(chosen, [centre for centre, _ in balls])
    return Ball(centre, radii.min(axis=0))


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
    assert x.back is not None and made.back is not None
    fine = None
    if x.fine is not None or made.fine is not None:
        fine = _through(made.fine or made.back, x.fine or x.back)
    return Trace(made.ball, _through(made.back, x.back), made.batched, fine=fine)


def _through(last_back: GoBack, first_back: GoBack) -> GoBack:
    def back(a: Array, rows: Rows) -> Back:
        last = last_back(a, rows)
        first = first_back(last.parts[0], rows)  # type: ignore[arg-type]
        return Back(first.parts, last.constant + first.constant, last.costs)

    return back
