"""Our default policy: water filling over predicted end times, as long as a change pays for its restart.

While models wait, free devices start the longest of them, with the width that the fluid bound gives it. When no model
waits any more, free devices go one by one to the model that is predicted to end last, inside a node where they fit. A
model changes only if that brings the end nearer by more than twice the cost of a restart. Models do not wait for each
other: each reads the shared data at its own pace.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from regatta.plan.fleet.convergence import Horizon, even
from regatta.plan.fleet.fluid_bound import fluid
from regatta.plan.fleet.policies import Changes, FleetView
from regatta.plan.fleet.rates import Floats

MIN_GAIN = 2.0  # seconds that a change must gain, in restarts
STALE_SHARE = 0.01  # of the models that have converged, after which the fluid bound is computed again


def fill(work: Mapping[int, float], widths: Mapping[int, int], rates: Floats, devices: int) -> dict[int, int]:
    """The widths after `devices` more went, one by one, to the model that ends last; work is in rows.

    A model that is no faster with one more device may be faster with two, on another node. It then takes the fewest
    that help; if there are not enough, the filling ends.
    """
    widths = dict(widths)
    ends = [(-work[model] / rates[model, width - 1], model) for model, width in widths.items()]
    heapq.heapify(ends)
    while devices and ends:
        _, model = heapq.heappop(ends)
        width = widths[model]
        faster = np.flatnonzero(rates[model, width : width + devices] > rates[model, width - 1])
        if not faster.size:
            break
        more = int(faster[0]) + 1
        widths[model] += more
        devices -= more
        heapq.heappush(ends, (-work[model] / rates[model, widths[model] - 1], model))
    return widths


class WaterFilling:
    lockstep = False

    def __init__(self, horizon: Horizon = even, min_gain: float = MIN_GAIN) -> None:
        self.horizon, self.min_gain = horizon, min_gain
        self._queue: list[int] = []  # waiting models, the longest last
        self._wanted: dict[int, int] = {}
        self._alive = 0  # models that had not converged when the queue was made

    def decide(self, view: FleetView) -> Changes:
        if not view.free:
            return {}
        started = self._start(view) if view.waiting else {}
        free = view.free.difference(*started.values())
        if not free or len(started) < len(view.waiting) or not view.groups:
            return started
        return started | self._grow(view, free)

    # -- models that wait --------------------------------------------------------------------------

    def _start(self, view: FleetView) -> dict[int, tuple[int, ...]]:
        if len(view.waiting) <= len(view.free):
            order, widths = self._one_for_each(view)
        else:
            alive = len(view.groups) + len(view.waiting)
            if len(self._queue) != len(view.waiting) or alive <= self._alive * (1 - STALE_SHARE):
                self._line_up(view, alive)
            order, widths = self._next(len(view.free)), self._wanted
        free, changes = set(view.free), {}
        for model in order:
            if free:
                changes[model] = view.nodes.place(min(widths[model], len(free)), free)
                free.difference_update(changes[model])
        return changes

    def _one_for_each(self, view: FleetView) -> tuple[list[int], dict[int, int]]:
        """There is a device for each waiting model: fill all models; running ones get theirs afterwards."""
        work = self._left(view, [*view.waiting, *view.groups])
        widths = dict.fromkeys(view.waiting, 1) | {m: len(devices) for m, devices in view.groups.items()}
        widths = fill(work, widths, view.rates, len(view.free) - len(view.waiting))
        return sorted(view.waiting, key=lambda m: -widths[m]), widths

    def _line_up(self, view: FleetView, alive: int) -> None:
        """Sort the waiting models, the longest last, with the widths of the fluid bound."""
        models = [*view.groups, *view.waiting]
        work = self._left(view, models)
        ideal = fluid(np.array([work[m] for m in models]), view.envelopes.take(models), view.nodes.device_count)
        self._wanted = {m: max(round(width), 1) for m, width in zip(models, ideal.widths.tolist(), strict=True)}
        seconds = {m: work[m] / view.rates[m, self._wanted[m] - 1] for m in view.waiting}
        self._queue = sorted(view.waiting, key=lambda m: (seconds[m], -m))
        self._alive = alive

    def _next(self, free: int) -> list[int]:
        taken: list[int] = []
        while self._queue and free > 0:
            taken.append(self._queue.pop())
            free -= self._wanted[taken[-1]]
        return taken

    # -- models that run ---------------------------------------------------------------------------

    def _grow(self, view: FleetView, free: set[int]) -> dict[int, tuple[int, ...]]:
        """Give free devices to the models that end last, if that gains more than a few restarts cost."""
        work = self._left(view, list(view.groups))
        restart_left = np.maximum(view.ready - view.now, 0.0)
        ends = {m: float(restart_left[m]) + work[m] / view.rate(m, group) for m, group in view.groups.items()}
        widths = fill(work, {m: len(group) for m, group in view.groups.items()}, view.rates, len(free))
        grown = [m for m in widths if widths[m] > len(view.groups[m]) and m not in view.fixed]
        free_devices = FreeDevices(view, free, ends)
        for model in sorted(grown, key=lambda m: -ends[m]):
            wished = min(widths[model], len(view.groups[model]) + len(free_devices.free))
            for moves in free_devices.moves(model, wished):
                after = view.restart + work[model] / view.rate(model, moves[model])
                if ends[model] - after > self.min_gain * view.restart:
                    free_devices.take(moves)
                    break
        return free_devices.changes

    def _left(self, view: FleetView, models: Sequence[int]) -> dict[int, float]:
        """Rows that each model is expected to need until it has converged."""
        return {
            m: max(self.horizon(view.models[m].bounds, float(view.epochs[m])), 1e-6) * view.models[m].rows
            for m in models
        }


class FreeDevices:
    """The devices that are still free while a round of changes is put together."""

    def __init__(self, view: FleetView, free: set[int], ends: Mapping[int, float]) -> None:
        self.view, self.free, self.ends = view, set(free), ends
        self.changes: dict[int, tuple[int, ...]] = {}

    def take(self, moves: Mapping[int, tuple[int, ...]]) -> None:
        for model in moves:
            self.free.update(self.view.groups[model])
        for devices in moves.values():
            self.free.difference_update(devices)
        self.changes.update(moves)

    def moves(self, model: int, width: int) -> Iterator[dict[int, tuple[int, ...]]]:
        """Changes that give a model this width, the best first: inside one node, or where devices are free."""
        nodes, own = self.view.nodes, self.view.groups[model]
        if width <= len(own) or model in self.changes:
            return
        plain = nodes.place(width, self.free | set(own), own)
        if nodes.count_nodes(plain) > nodes.min_nodes[width]:
            together = self._together(model, width)
            if together:
                yield together
        yield {model: plain}

    def _together(self, model: int, width: int) -> dict[int, tuple[int, ...]] | None:
        """Put the model on the node where most of it is; groups there that end soon enough move elsewhere."""
        view, own = self.view, self.view.groups[model]
        node = max({view.nodes.node_of[d] for d in own}, key=lambda n: sum(view.nodes.node_of[d] == n for d in own))
        here = {d for d in (*own, *self.free) if view.nodes.node_of[d] == node}
        outside = (self.free | set(own)) - here
        moves: dict[int, tuple[int, ...]] = {}
        for other in self._neighbours(model, node):
            if len(here) >= width:
                break
            group = view.groups[other]
            if len(group) <= len(outside):
                place = view.nodes.place(len(group), outside)
                if view.nodes.count_nodes(place) == 1:
                    moves[other] = place
                    outside.difference_update(place)
                    here.update(group)
        if len(here) < width:
            return None
        nearest = sorted(here, key=lambda device: (device not in own, device))[:width]
        return {**moves, model: tuple(sorted(nearest))}

    def _neighbours(self, model: int, node: int) -> list[int]:
        """Groups that are wholly on a node and can afford a restart, those that end first in front."""
        view = self.view
        return sorted(
            (
                other
                for other, group in view.groups.items()
                if all(view.nodes.node_of[d] == node for d in group)
                and other != model
                and other not in view.fixed
                and other not in self.changes
                and self.ends[other] + view.restart < self.ends[model]
            ),
            key=lambda other: self.ends[other],
        )
