"""Activations: functions of one number, bounded by two lines on the interval of their argument.

On an interval, a function lies between s z + t - d and s z + t + e, where s z + t goes through its ends. Its curvature
gives d and e; where it is convex, e is 0. On an interval so wide that a constant is closer, s is 0. A rectifier has a
better lower line: through the origin, with the slope of the wider side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from scipy import special

from regatta.network.bounds.balls import DOUBLE, FLOOR, SINGLE, Array, Ball, Rows, between, lower_bound
from regatta.network.bounds.traces import Back, Boxes, NotBounded, Step, Trace
from regatta.network.graph import Node

Function: TypeAlias = Callable[[Array], Array]
Ranges: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
_OWN_ERROR = 64 * DOUBLE  # a generous bound on the float64 error of evaluating a function here


@dataclass(frozen=True)
class Curve:
    """A function of one number.

    Its curvature is given by `bend`, the largest |f''|, by `bends`, the bounds of f'' on an interval, or by `slopes`,
    the bounds of f' on an interval. At `turn` it changes from falling to rising. `steps` is the number of float32
    roundings of one evaluation, relative to f(z), to `follow` times z, and to `level`.
    """

    value: Function
    bend: float = 0.0
    bends: Ranges | None = None
    slopes: Ranges | None = None
    turn: float | None = None
    steps: int = 8
    follow: float = 0.0
    level: float = 0.0


@dataclass(frozen=True)
class LinearBounds:
    """low_slope z + low <= f(z) <= high_slope z + high. `cushion` is the rounding error of computing with them."""

    low_slope: Array
    low: Array
    high_slope: Array
    high: Array
    cushion: Array


def activation(node: Node, boxes: Boxes) -> Step:
    curve = _CURVES[node.kind](node)
    slope = _rectifier_slope(node)

    def step(x: Trace) -> Trace:
        image = _image(curve, x.ball)
        mass = image.size + curve.follow * x.ball.size + curve.level
        slack = curve.steps * (SINGLE * mass + FLOOR)
        ball = Ball(image.centre, image.radius + slack)

        lines = cache(lambda: _rectifier_bounds(x.ball, slope) if slope is not None else _linear_bounds(curve, x.ball))

        def back(a: Array, rows: Rows) -> Back:
            return _take_back(a, lines(), x, slack, rows)

        return Trace(ball, back, x.batched)

    return step


def _take_back(a: Array, lines: LinearBounds, x: Trace, slack: Array, rows: Rows) -> Back:
    rising = a >= 0
    slope = np.where(rising, x.rows(lines.low_slope, rows), x.rows(lines.high_slope, rows))
    offset = np.where(rising, x.rows(lines.low, rows), x.rows(lines.high, rows))
    return Back((a * slope,), lower_bound(a, offset, x.rows(slack + lines.cushion, rows)))


def _image(curve: Curve, ball: Ball) -> Ball:
    """The smallest and the largest value on the interval."""
    ends = curve.value(ball.low), curve.value(ball.high)
    low, high = np.minimum(*ends), np.maximum(*ends)
    if curve.turn is not None:
        bottom = curve.value(np.array(curve.turn))
        low = np.where((ball.low < curve.turn) & (curve.turn < ball.high), np.minimum(bottom, low), low)
        low = low - _OWN_ERROR * (1 + np.abs(low))  # the position of the turn is itself rounded
    image = between(low, high)
    return Ball(image.centre, image.radius + _OWN_ERROR * image.size)


def _linear_bounds(curve: Curve, ball: Ball) -> LinearBounds:
    low, high = ball.low, ball.high
    at_low, at_high = curve.value(low), curve.value(high)
    width = high - low
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(width > 0, (at_high - at_low) / width, 0.0)
    image = _image(curve, ball)
    above, below = _deviation(curve, low, high)
    slope = np.where(above / 2 + below / 2 < image.radius, slope, 0.0)
    through = at_low / 2 + at_high / 2 - slope * (low / 2 + high / 2) + above / 2 - below / 2
    apart = np.abs((at_high - at_low) - slope * width) / 2 + above / 2 + below / 2
    centre, radius = np.where(slope == 0, image.centre, through), np.where(slope == 0, image.radius, apart)
    radius = radius + _OWN_ERROR * (np.abs(at_low) + np.abs(at_high) + np.abs(slope) * ball.size)
    cushion = _OWN_ERROR * (np.abs(slope) * ball.size + np.abs(centre) + radius)
    return LinearBounds(slope, centre - radius, slope, centre + radius, cushion)


def _deviation(curve: Curve, low: Array, high: Array) -> tuple[Array, Array]:
    """The largest distances of the function above and below the line through its ends."""
    if curve.slopes is not None:
        flattest, steepest = curve.slopes(low, high)
        apart = np.asarray((steepest - flattest) * (high - low) / 4)
        return apart, apart
    least, most = (-curve.bend, curve.bend) if curve.bends is None else curve.bends(low, high)
    square = (high - low) ** 2 / 8 * (1 + _OWN_ERROR)
    return np.maximum(-least, 0.0) * square, np.maximum(most, 0.0) * square


def _rectifier_bounds(ball: Ball, slope: float) -> LinearBounds:
    """The bounds of max(z, slope z): the chord above, the wider side below."""
    low, high = ball.low, ball.high
    on, off = low >= 0, high <= 0
    width = np.where(on | off, 1.0, high - low)
    chord = np.where(on, 1.0, np.where(off, slope, (high - slope * low) / width))
    above = np.where(on | off, 0.0, (slope - 1) * low * high / width)
    above = above + np.where(on | off, 0.0, _OWN_ERROR * (np.abs(low) + np.abs(high)))
    below = np.where(on, 1.0, np.where(off, slope, np.where(high > -low, 1.0, slope)))
    return LinearBounds(below, np.zeros_like(low), chord, above, _OWN_ERROR * (ball.size + above))


def _rectifier_slope(node: Node) -> float | None:
    if node.kind == "RELU":
        return 0.0
    slope = node.get("slope") if node.kind == "LEAKY_RELU" else None
    return slope if slope is not None and 0 <= slope <= 1 else None


# The functions


def _sigmoid(z: Array) -> Array:
    return np.asarray(special.expit(z))


def _gelu(node: Node) -> Curve:
    if node.get("approximate") == "tanh":
        factor = math.sqrt(2 / math.pi)
        return Curve(
            lambda z: z * _sigmoid(2 * factor * (z + 0.044715 * z**3)), bend=0.85, turn=-0.7524614220710162, follow=1.0
        )
    return Curve(lambda z: z * special.ndtr(z), bends=_gelu_bends, turn=-0.7517915246935645, follow=1.0)


def _gelu_bends(low: Array, high: Array) -> tuple[Array, Array]:
    """The bounds of (2 - z^2) times the normal density: it falls from 0 to 2, then rises to 0, and is even."""
    near = np.maximum(np.maximum(low, -high), 0.0)
    far = np.maximum(np.abs(low), np.abs(high))

    def second(z: Array) -> Array:
        return np.asarray((2 - z**2) * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))

    at_near, at_far = second(near), second(far)
    most = np.maximum(at_near, at_far)
    least = np.where((near < 2) & (far > 2), second(np.array(2.0)), np.minimum(at_near, at_far))
    return least - _OWN_ERROR, most + _OWN_ERROR


def _between_kinks(kinks: Sequence[float], slopes: Sequence[float]) -> Ranges:
    """The slopes of a function that is linear between its kinks."""
    edges = (-math.inf, *kinks, math.inf)

    def found(low: Array, high: Array) -> tuple[Array, Array]:
        flattest, steepest = np.full(low.shape, np.inf), np.full(low.shape, -np.inf)
        for slope, begin, end in zip(slopes, edges[:-1], edges[1:], strict=True):
            touched = (high >= begin) & (low <= end)
            steepest = np.where(touched, np.maximum(steepest, slope), steepest)
            flattest = np.where(touched, np.minimum(flattest, slope), flattest)
        return flattest, steepest

    return found


def _exponential(alpha: float, scale: float = 1.0, stretch: float = 1.0) -> Curve:
    """ELU and similar functions: z above 0, alpha (exp(z / stretch) - 1) below."""
    if alpha <= 0 or stretch <= 0:
        raise NotBounded("an exponential unit that does not rise is not bounded")

    def value(z: Array) -> Array:
        return np.asarray(scale * np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0.0) / stretch)))

    def slopes(low: Array, high: Array) -> tuple[Array, Array]:
        left = scale * alpha / stretch * np.exp(np.minimum(low, 0.0) / stretch)
        right = scale * alpha / stretch * np.exp(np.minimum(high, 0.0) / stretch)
        least_slope, most = np.where(low < 0, left, scale), np.where(low < 0, right, scale)
        above = high > 0
        flattest = np.where(above, np.minimum(least_slope, scale), least_slope)
        return flattest, np.where(above, np.maximum(most, scale), most)

    return Curve(value, slopes=slopes, follow=scale, level=scale * alpha)


def _hard_swish(node: Node) -> Curve:
    def slopes(low: Array, high: Array) -> tuple[Array, Array]:
        inner = (2 * np.clip(low, -3, 3) + 3) / 6, (2 * np.clip(high, -3, 3) + 3) / 6
        flattest, steepest = np.minimum(inner[0], np.where(low <= -3, 0.0, np.inf)), inner[1]
        flattest = np.minimum(flattest, np.where(high >= 3, 1.0, np.inf))
        steepest = np.maximum(steepest, np.where(low <= -3, 0.0, -np.inf))
        return flattest, np.maximum(steepest, np.where(high >= 3, 1.0, -np.inf))

    return Curve(lambda z: z * np.clip(z + 3, 0, 6) / 6, slopes=slopes, turn=-1.5, follow=1.0)


def _clip(node: Node) -> Curve:
    low = -math.inf if node.get("min") is None else float(node.get("min"))
    high = math.inf if node.get("max") is None else float(node.get("max"))
    kinks = tuple(edge for edge in (low, high) if math.isfinite(edge))
    slopes = tuple(s for s, there in ((0.0, math.isfinite(low)), (1.0, True), (0.0, math.isfinite(high))) if there)
    return Curve(lambda z: np.clip(z, low, high), slopes=_between_kinks(kinks, slopes), steps=1)


def _hard_sigmoid(node: Node) -> Curve:
    alpha, beta = float(node.get("alpha")), float(node.get("beta"))
    if alpha <= 0:
        raise NotBounded("a hard sigmoid that does not rise is not bounded")
    edges = (-beta / alpha, (1 - beta) / alpha)
    slopes = _between_kinks(edges, (0.0, alpha, 0.0))
    return Curve(lambda z: np.clip(alpha * z + beta, 0, 1), slopes=slopes, follow=alpha, level=abs(beta))


def _leaky(node: Node) -> Curve:
    slope = float(node.get("slope"))
    if slope < 0:
        raise NotBounded("a rectifier with a negative slope is not bounded")
    return Curve(lambda z: np.where(z >= 0, z, slope * z), slopes=_between_kinks((0.0,), (slope, 1.0)), steps=2)


def _softplus(node: Node) -> Curve:
    beta = float(node.get("beta"))
    threshold = float(node.get("threshold"))
    if beta <= 0 or threshold < 10:
        raise NotBounded(f"a softplus with beta {beta:g} and the threshold {threshold:g} is not bounded")
    jump = math.exp(-threshold) / threshold / SINGLE  # the step at the threshold, beyond which it is z itself
    return Curve(lambda z: np.logaddexp(0, beta * z) / beta, bend=beta / 4, steps=8 + math.ceil(jump), follow=1.0)


_SELU = 1.0507009873554805, 1.6732632423543772

_CURVES: dict[str, Callable[[Node], Curve]] = {
    "RELU": lambda node: Curve(lambda z: np.maximum(z, 0.0), steps=0),
    "LEAKY_RELU": _leaky,
    "ELU": lambda node: _exponential(float(node.get("alpha"))),
    "CELU": lambda node: _exponential(float(node.get("alpha")), stretch=float(node.get("alpha"))),
    "SELU": lambda node: _exponential(_SELU[1], scale=_SELU[0]),
    "GELU": _gelu,
    "SILU": lambda node: Curve(lambda z: z * _sigmoid(z), bend=0.5, turn=-1.2784645427610738, follow=1.0),
    "MISH": lambda node: Curve(
        lambda z: z * np.tanh(np.logaddexp(0, z)), bend=0.8, turn=-1.1924312145154243, steps=16, follow=1.0
    ),
    "SIGMOID": lambda node: Curve(_sigmoid, bend=0.0963),
    "LOG_SIGMOID": lambda node: Curve(lambda z: -np.logaddexp(0, -z), bend=0.25, follow=1.0),
    "HARD_SIGMOID": _hard_sigmoid,
    "HARD_SWISH": _hard_swish,
    "TANH": lambda node: Curve(np.tanh, bend=0.77),
    "SOFTPLUS": _softplus,
    "SOFTSIGN": lambda node: Curve(lambda z: z / (1 + np.abs(z)), bend=2.0),
    "CLIP": _clip,
}
ACTIVATIONS = frozenset(_CURVES)
