"""A network with a box for each weight: bounds of its outputs, and whether one certainly exceeds another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.network.bounds import activations, affine, arithmetic, norms, pools, shapes
from regatta.network.bounds.balls import Array, Ball, Rows, between, gamma64, lower_bound
from regatta.network.bounds.traces import Boxes, NotBounded, Step, Trace, unchanged
from regatta.network.graph import Network, Node

_LAYERS: Mapping[str, Callable[[Node, Boxes], Step]] = {
    "FULL": affine.full, "CONV": affine.conv, "NORM": norms.norm, "POOL": pools.pool, "EMBED": arithmetic.embed,
    "WEIGHT": arithmetic.weight, "CONSTANT": arithmetic.constant, "ADD": arithmetic.add, "SUB": arithmetic.add,
    "MUL": arithmetic.multiply, "DIV": arithmetic.multiply, "MAXIMUM": arithmetic.extreme,
    "MINIMUM": arithmetic.extreme, "REDUCE": arithmetic.reduce, "MATMUL": arithmetic.matmul,
    "SOFTMAX": arithmetic.softmax, "CONCAT": shapes.concat, "FLATTEN": shapes.flatten, "RESHAPE": shapes.reshape,
    "SQUEEZE": shapes.squeeze, "UNSQUEEZE": shapes.unsqueeze, "TRANSPOSE": shapes.transpose, "SLICE": shapes.cut,
    "PAD": shapes.pad,
    **dict.fromkeys(("DROPOUT", "IDENTITY", "OUTPUT"), lambda node, boxes: unchanged),
    **dict.fromkeys(activations.ACTIVATIONS, activations.activation),
}  # fmt: skip
_WEIGHTED = ("FULL", "CONV")
MAX_TIGHTENED = 2048


@dataclass
class ForwardPass:
    """A forward pass of a batch: the result of each layer, and which inputs have finite bounds everywhere."""

    traces: dict[str, Trace]
    known: NDArray[np.bool_]
    logits: Ball


@dataclass
class Margins:
    """For each pair, a lower bound on the margin between two outputs, and the loss caused by each parameter."""

    least: Array
    costs: dict[str, Array] = field(default_factory=dict)


class BoundedNetwork:
    """A network with one output, a row of numbers, one for each class."""

    def __init__(self, network: Network, boxes: Boxes) -> None:
        self.network = network
        self.output = next(node.id for node in network.nodes if node.kind == "OUTPUT")
        self.steps = {id: _step(network.by_id[id], boxes) for id in network.order if id != network.inputs[0].id}
        self.tail = _tail(network, self.output)
        self.bent = _operands_of_curved_layers(network)

    def forward(self, x: Any, tight: bool = False) -> ForwardPass:
        """Balls from the input to the output: centres and radii through every layer (Rump's interval arithmetic).

        If `tight`, the operands of curved layers get the bounds that go back to the input as well.
        """
        return self.forward_from(shapes.given(x), len(x), tight)

    def forward_from(self, start: Trace, count: int, tight: bool = False) -> ForwardPass:
        """The same for inputs that are themselves balls."""
        traces = {self.network.inputs[0].id: start}
        known = np.ones(count, bool)
        for id in self.network.order:
            if id in traces:
                continue
            traces[id] = self._forward_pass(id, traces)
            if tight and id in self.bent:
                with np.errstate(over="ignore", invalid="ignore"):
                    traces[id] = self._tightened(id, traces)
            known &= _finite(traces[id], count)
        return ForwardPass(traces, known, traces[self.output].ball)

    def _tightened(self, id: str, traces: dict[str, Trace]) -> Trace:
        """The output of a layer, with the bounds on each of its numbers that go back to the input."""
        trace = traces[id]
        inner, size = trace.ball.shape[1:], int(np.prod(trace.ball.shape[1:]))
        if not trace.batched or size > MAX_TIGHTENED:
            return trace
        ball, one = trace.ball, np.eye(size).reshape(size, *inner)
        if self.bent[id]:
            low, high = (end.reshape(-1, size) for end in (ball.low, ball.high))
            for row in range(len(low)):
                least, most = self._range(id, one, traces, np.full(size, row), fine=True)
                low[row], high[row] = np.fmax(low[row], least), np.fmin(high[row], most)
            ball = between(low.reshape(ball.shape), high.reshape(ball.shape))

        def farthest(a: Array, rows: Rows) -> Array:
            flat, centre = a.reshape(len(a), -1), ball.centre.reshape(-1, size)[rows]
            middle = np.einsum("pi,pi->p", flat, centre)
            own_error = gamma64(size + 8) * np.einsum("pi,pi->p", np.abs(flat), np.abs(centre))
            least, most = self._range(id, a, traces, rows)
            return np.asarray(np.fmax(middle - least, most - middle) + own_error)

        return Trace(ball, trace.back, farthest=farthest)

    def _range(
        self, id: str, a: Array, traces: Mapping[str, Trace], rows: Rows, fine: bool = False
    ) -> tuple[Array, Array]:
        """Bounds on products of coefficients with the output of a layer."""
        least = self._least(id, a, traces, rows, fine=fine).least
        return least, -self._least(id, -a, traces, rows, fine=fine).least

    def margins(self, passed: ForwardPass, rows: Rows, better: Rows, worse: Rows, whole: bool) -> Margins:
        """Lower bounds on the margin of output better[i] over output worse[i] for input rows[i].

        The bound goes back through the last layer with weights, or, with `whole`, through the network to its input.
        """
        a = np.zeros((len(rows), passed.logits.shape[1]))
        a[np.arange(len(rows)), better] = 1.0
        a[np.arange(len(rows)), worse] -= 1.0
        return self.take_back(a, passed, rows, whole)

    def take_back(self, a: Array, passed: ForwardPass, rows: Rows, whole: bool) -> Margins:
        """Lower bounds on products of coefficients with the outputs for the inputs `rows`."""
        found = self._least(self.output, a, passed.traces, rows, whole, fine=True)
        found.least[~passed.known[rows]] = -np.inf
        return found

    def _least(
        self, id: str, a: Array, traces: Mapping[str, Trace], rows: Rows, whole: bool = True, fine: bool = False
    ) -> Margins:
        """Lower bounds on products of coefficients with the output of a layer."""
        waiting: dict[str, Array] = {id: a}
        found = Margins(np.zeros(len(rows)))
        with np.errstate(over="ignore", invalid="ignore"):  # where there is no bound
            for id in reversed(self.network.order):
                if id in waiting:
                    self._step_back(id, waiting.pop(id), traces, rows, waiting, found, whole, fine)
        found.least -= 1e-12 * np.abs(found.least)  # for the rounding of the sums over layers
        return found

    def _step_back(
        self,
        id: str,
        a: Array,
        traces: Mapping[str, Trace],
        rows: Rows,
        waiting: dict[str, Array],
        found: Margins,
        whole: bool,
        fine: bool,
    ) -> None:
        trace = traces[id]
        if trace.back is None or not (whole or id in self.tail):
            found.least += lower_bound(a, trace.rows(trace.ball.centre, rows), trace.rows(trace.ball.radius, rows))
            return
        back = (trace.fine or trace.back)(a, rows) if fine else trace.back(a, rows)
        found.least += back.constant
        for name, cost in back.costs.items():
            found.costs[name] = found.costs.get(name, np.zeros(len(rows))) + cost
        for source, part in zip(self.network.sources[id], back.parts, strict=True):
            if part is not None:
                waiting[source] = waiting[source] + part if source in waiting else part

    def _forward_pass(self, id: str, traces: Mapping[str, Trace]) -> Trace:
        node = self.network.by_id[id]
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return self.steps[id](*(traces[source] for source in self.network.sources[id]))
        except (NotBounded, ValueError, IndexError, TypeError) as error:
            raise _refused(node, error) from error


def _step(node: Node, boxes: Boxes) -> Step:
    if node.kind not in _LAYERS:
        raise NotBounded(f"{_called(node)} is not bounded")
    try:
        return _LAYERS[node.kind](node, boxes)
    except NotBounded as error:
        raise _refused(node, error) from error


def _refused(node: Node, error: Exception) -> NotBounded:
    return NotBounded(f"{_called(node)}: {error}")


def _called(node: Node) -> str:
    return f"layer {node.name or node.id!r} ({node.get('type') if node.kind == 'OTHER' else node.kind})"


def _finite(trace: Trace, count: int) -> NDArray[np.bool_]:
    finite = np.isfinite(trace.ball.radius) & np.isfinite(trace.ball.centre)
    whole = finite.reshape(count if trace.batched else 1, -1).all(axis=1)
    return np.asarray(np.broadcast_to(whole, count))


def _operands_of_curved_layers(network: Network) -> dict[str, bool]:
    """The layers whose radii decide what a later layer loses, and whether it needs the radius of each number.

    A normalisation or a softmax looks only at how far the numbers are from their mean. In networks without them and
    without products of what is computed, the radii of the forward pass are enough.
    """
    if not any(node.kind in ("SOFTMAX", "MATMUL") or _normalises_data(node) for node in network.nodes):
        return {}
    curved = (*activations.ACTIVATIONS, "NORM", "SOFTMAX", "MATMUL", "MUL")
    found: dict[str, bool] = {}
    for node in network.nodes:
        for source in network.sources[node.id] if node.kind in curved else ():
            if network.by_id[source].kind not in ("INPUT", "WEIGHT", "CONSTANT"):
                found[source] = found.get(source, False) or node.kind not in ("NORM", "SOFTMAX")
    return found


def _normalises_data(node: Node) -> bool:
    return node.kind == "NORM" and node.get("function") in ("layer", "rms", "group", "instance")


def _tail(network: Network, output: str) -> frozenset[str]:
    """The output and its ancestors, back to the last layers with weights."""
    found: set[str] = set()
    waiting: Sequence[str] = [output]
    while waiting:
        found.update(waiting)
        waiting = [
            source
            for id in waiting
            if network.by_id[id].kind not in _WEIGHTED
            for source in network.sources[id]
            if source not in found
        ]
    return frozenset(found)
