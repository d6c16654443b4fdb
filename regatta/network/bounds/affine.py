"""Layers that multiply by weights and add: full connections and convolutions, with a box for every weight.

For y = W x + b, let W be within R of Wc and x within a ball. The centre of y is Wc xc + bc. Its radius is |Wc| xr from
the earlier layers, plus the slack (R + rounding)(|xc| + xr) + br, which this layer adds. A bound that is taken back
through the layer loses only the slack.

A weight that is used at several places (the steps of a sequence, the pixels of an image) has the same unknown bits at
each. What it can do to a sum is R times the magnitude of the sum of its uses, not the sum of their magnitudes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from regatta.network.bounds.balls import FLOOR, MAX_FLOAT32, Array, Ball, Rows, exactly, gamma, gamma64, lower_bound
from regatta.network.bounds.traces import Back, Boxes, NotBounded, Step, Trace
from regatta.network.bounds.windows import Windows, sliding
from regatta.network.graph import Node, arranged, split_role


def parameter_box(node: Node, role: str, boxes: Boxes) -> tuple[str, Ball] | None:
    """The name and the box of a parameter, with its axes in PyTorch's order."""
    for parameter in node.parameters:
        plain, layout = split_role(parameter.role)
        if plain != role:
            continue
        box = boxes[parameter.name]
        return parameter.name, Ball(arranged(box.centre, layout), arranged(box.radius, layout))
    return None


def full(node: Node, boxes: Boxes) -> Step:
    weight, bias = _weight(node, boxes), parameter_box(node, "bias", boxes)
    return _Weighted(weight, bias, _Full(*weight[1].shape))


def conv(node: Node, boxes: Boxes) -> Step:
    get = node.get
    if get("transposed"):
        raise NotBounded("transposed convolutions are not bounded")
    if get("padding_mode") != "zeros":
        raise NotBounded(f"padding with {get('padding_mode')!r} is not bounded")
    weight, bias = _weight(node, boxes), parameter_box(node, "bias", boxes)
    made: dict[tuple[int, ...], _Weighted] = {}

    def step(x: Trace) -> Trace:
        space = x.ball.shape[2:]
        if len(space) != get("dims"):
            raise NotBounded("a convolution without a batch is not bounded")
        if space not in made:
            windows = sliding(space, get("kernel"), get("stride"), get("padding"), get("dilation"))
            made[space] = _Weighted(weight, bias, _Conv(windows, get("groups"), weight[1].shape, space))
        return made[space](x)

    return step


def _weight(node: Node, boxes: Boxes) -> tuple[str, Ball]:
    found = parameter_box(node, "weight", boxes)
    if found is None:
        raise NotBounded("its weight is not its own parameter")
    return found


@dataclass(frozen=True)
class _Full:
    """Multiplies the last axis by a matrix. An output sums `terms` products; on the way back, an input sums `uses`."""

    uses: int
    terms: int

    def forward(self, x: Array, weight: Array) -> Array:
        return np.asarray(x @ weight.T)

    def back(self, a: Array, weight: Array) -> Array:
        return np.asarray(a @ weight)

    def uses_of_weights(self, a: Array, x: Array) -> Array:
        """For each row of coefficients, the coefficient of every weight: (rows, outputs, inputs)."""
        return np.asarray(a.reshape(len(a), -1, self.uses).swapaxes(1, 2) @ x.reshape(len(x), -1, self.terms))

    def places(self, shape: tuple[int, ...]) -> int:
        """How often a weight is used for one input, whose output has this shape with its batch."""
        return int(np.prod(shape[1:-1]))

    def spread(self, bias: Array) -> Array:
        """A bias in the shape in which it is added."""
        return bias


class _Conv:
    def __init__(self, windows: Windows, groups: int, shape: tuple[int, ...], space: tuple[int, ...]) -> None:
        self.windows, self.groups, self.space = windows, groups, space
        self.out, self.per_group, taps = shape[0], shape[1], int(np.prod(shape[2:]))
        self.terms, self.uses = self.per_group * taps, self.out // groups * taps

    def forward(self, x: Array, weight: Array) -> Array:
        batch, channels = x.shape[:2]
        columns = self.windows.unfold(x.reshape(batch, channels, -1).transpose(1, 0, 2))
        product = self._matrix(weight) @ columns.reshape(self.groups, self.terms, -1)
        apart = product.reshape(self.out, batch, -1).transpose(1, 0, 2)
        return np.ascontiguousarray(apart).reshape(batch, self.out, *self.windows.shape)

    def back(self, a: Array, weight: Array) -> Array:
        rows = len(a)
        outputs = a.reshape(rows, self.out, -1).transpose(1, 0, 2).reshape(self.groups, self.out // self.groups, -1)
        columns = self._matrix(weight).transpose(0, 2, 1) @ outputs
        columns = columns.reshape(self.groups * self.per_group, len(self.windows.taps), rows, -1)
        return np.ascontiguousarray(self.windows.fold(columns).transpose(1, 0, 2)).reshape(rows, -1, *self.space)

    def uses_of_weights(self, a: Array, x: Array) -> Array:
        rows = len(a)
        columns = self.windows.unfold(x.reshape(rows, x.shape[1], -1).transpose(1, 0, 2)).transpose(2, 0, 1, 3)
        outputs = a.reshape(rows, self.groups, self.out // self.groups, -1)
        uses = outputs @ columns.reshape(rows, self.groups, self.terms, -1).swapaxes(2, 3)
        return np.asarray(uses.reshape(rows, self.out, self.terms))

    def places(self, shape: tuple[int, ...]) -> int:
        return int(np.prod(self.windows.shape))

    def spread(self, bias: Array) -> Array:
        return bias.reshape(-1, *[1] * len(self.windows.shape))

    def _matrix(self, weight: Array) -> Array:
        return weight.reshape(self.groups, self.out // self.groups, self.terms)


class _Weighted:
    """A product with the boxes of its weight and of its bias."""

    def __init__(self, weight: tuple[str, Ball], bias: tuple[str, Ball] | None, by: _Full | _Conv) -> None:
        self.name, self.box = weight
        self.bias_name, added = bias if bias is not None else ("", exactly(np.zeros(self.box.shape[0])))
        self.by, self.weight = by, self.box.centre
        self.magnitude = np.abs(self.box.centre)
        self.rounding = 1.001 * gamma(by.terms + 3)  # includes the float64 error, which is at most a thousandth of it
        self.unknown = self.box.radius + self.rounding * self.box.size
        self.bias = by.spread(added.centre)
        self.bias_radius = by.spread(added.radius)
        self.bias_slack = self.bias_radius + self.rounding * by.spread(added.size) + (by.terms + 2) * FLOOR

    def __call__(self, x: Trace) -> Trace:
        by, ball = self.by, x.ball
        upward = 1 + gamma64(2 * by.terms + 16)
        slack = (by.forward(ball.size, self.unknown) + self.bias_slack) * upward
        slack = np.where(slack <= self.rounding * MAX_FLOAT32, slack, np.inf)
        centre = by.forward(ball.centre, self.weight) + self.bias
        radius = slack if ball.is_exact else (by.forward(ball.radius, self.magnitude) + slack) * upward
        made = Trace(Ball(centre, radius), batched=x.batched)
        places = by.places(centre.shape) if x.batched else 1
        own_error = 1 + gamma64(by.uses + places + 8) / self.rounding
        lost = cache(lambda: (self._loss_of_shared(ball) * upward if places > 1 else slack) * own_error)

        def back(a: Array, rows: Rows) -> Back:
            loss = made.rows(lost(), rows)
            offset = made.rows(centre, rows) if ball.is_exact else self.bias
            constant, costs = lower_bound(a, offset, loss), self._costs(a, loss)
            if places > 1:
                uses = self._lost_to_uses(a, ball.centre[rows])
                constant, costs[self.name] = constant - uses, costs[self.name] + uses
            # where the operand is exact, nothing is won further back
            return Back((None if ball.is_exact else by.back(a, self.weight),), constant, costs)

        return Trace(made.ball, back, x.batched)

    def _loss_of_shared(self, ball: Ball) -> Array:
        """The slack of a layer without R |xc|, which is counted by weights instead of by outputs."""
        loss = self.by.forward(ball.size, self.rounding * self.box.size) + self.bias_slack
        return loss if ball.is_exact else loss + self.by.forward(ball.radius, self.box.radius)

    def _lost_to_uses(self, a: Array, x: Array) -> Array:
        """What the unknown bits of each weight can do, all its uses together."""
        uses, radius = np.abs(self.by.uses_of_weights(a, x)), self.box.radius
        return np.asarray(uses.reshape(len(a), -1) @ radius.reshape(-1)) * (1 + gamma64(radius.size + 8))

    def _costs(self, a: Array, loss: Array) -> dict[str, Array]:
        magnitude = np.abs(a)
        axes = tuple(range(1, a.ndim))
        whole = (magnitude * loss).sum(axis=axes)
        if not self.bias_name:
            return {self.name: whole}
        biased = (magnitude * self.bias_radius).sum(axis=axes)
        return {self.name: whole - biased, self.bias_name: biased}
