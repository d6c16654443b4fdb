"""Layers that multiply by weights and add: full connections and convolutions, with a box for every weight.

For y = W x + b, let W be within R of Wc and x within a ball. The centre of y is Wc xc + bc. Its radius is |Wc| xr from
the earlier layers, plus the slack (R + rounding)(|xc| + xr) + br, which this layer adds. A bound that is taken back
through the layer loses only the slack.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regatta.network.bounds.balls import FLOOR, MAX_FLOAT32, Array, Ball, Rows, exactly, gamma, gamma64, lower_bound
from regatta.network.bounds.traces import Back, Boxes, NotBounded, Step, Trace
from regatta.network.bounds.windows import Windows, sliding
from regatta.network.graph import Node
from regatta.network.torch.to_torch import split_role


def parameter_box(node: Node, role: str, boxes: Boxes) -> tuple[str, Ball] | None:
    """The name and the box of a parameter, with its axes in PyTorch's order."""
    for parameter in node.parameters:
        plain, layout = split_role(parameter.role)
        if plain != role:
            continue
        box = boxes[parameter.name]
        if layout == "flat":
            box = Ball(box.centre.reshape(-1), box.radius.reshape(-1))
        elif layout:
            order = [int(axis) for axis in layout]
            box = Ball(box.centre.transpose(order), box.radius.transpose(order))
        return parameter.name, box
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

    def spread(self, bias: Array) -> Array:
        return bias.reshape(-1, *[1] * len(self.windows.shape))

    def _matrix(self, weight: Array) -> Array:
        return weight.reshape(self.groups, self.out // self.groups, self.terms)


class _Weighted:
    """A product with the boxes of its weight and of its bias."""

    def __init__(self, weight: tuple[str, Ball], bias: tuple[str, Ball] | None, by: _Full | _Conv) -> None:
        self.name, box = weight
        self.bias_name, added = bias if bias is not None else ("", exactly(np.zeros(box.shape[0])))
        self.by, self.weight = by, box.centre
        self.magnitude = np.abs(box.centre)
        self.rounding = 1.001 * gamma(by.terms + 3)  # includes the float64 error, which is at most a thousandth of it
        self.unknown = box.radius + self.rounding * box.size
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
        lost = slack * (1 + gamma64(by.uses + 8) / self.rounding)

        def back(a: Array, rows: Rows) -> Back:
            loss = made.rows(lost, rows)
            if ball.is_exact:  # nothing is won further back
                return Back((None,), lower_bound(a, made.rows(centre, rows), loss), self._costs(a, loss))
            constant = lower_bound(a, self.bias, loss)
            return Back((by.back(a, self.weight),), constant, self._costs(a, loss))

        return Trace(made.ball, back, x.batched)

    def _costs(self, a: Array, loss: Array) -> dict[str, Array]:
        magnitude = np.abs(a)
        axes = tuple(range(1, a.ndim))
        whole = (magnitude * loss).sum(axis=axes)
        if not self.bias_name:
            return {self.name: whole}
        biased = (magnitude * self.bias_radius).sum(axis=axes)
        return {self.name: whole - biased, self.bias_name: biased}
