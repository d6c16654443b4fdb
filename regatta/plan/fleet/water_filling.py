"""Our default: water filling over predicted ends, as long as a change pays for its restart.

While models wait, a free device starts the longest of them, with the width that the fluid bound gives it. When nobody
waits any more, free devices go one by one to the model that is predicted to end last, in groups inside a node where
they fit; but only if that brings the end of all nearer by more than twice what a restart costs, and only to models that
hold that end up. Nobody waits for others: each reads the shared data at its own pace.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from regatta.plan.fleet.convergence import Horizon, even
from regatta.plan.fleet.fluid_bound import fluid
from regatta.plan.fleet.policies import Changes, FleetView
from regatta.plan.fleet.rates import Floats

THRESHOLD = 2.0  # restarts that a change must win
STALE = 0.01  # the fluid is computed anew when this share of the models has converged since


def fill(work: Mapping[int, float], widths: Mapping[int, int], rates: Floats, devices: int) -> dict[int, int]:
    """Widths after `devices` more were given, one by one, to the model that ends last; work is in rows.

    A model that is no faster with the next device may be with the next but one, on another node: it then takes the
    fewest that help, or ends the filling if there are not that many.
    """
    widths = dict(widths)
    ends = [(-work[model] / rates[model, width - 1], model) for model, width in widths.items()]
    heapq.heapify(ends)
    while devices and ends:
        _, model = heapq.heappop(ends)
        more = _helps(rates[model], widths[model], devices)
        if not more:
            break
        widths[model] += more
        devices -= more
        heapq.heappush(ends, (-work[model] / rates[model, widths[model] - 1], model))
    return widths


def _helps(rates: Floats, width: int, devices: int) -> int:
    """The fewest further devices that make a model faster; 0 when there are none."""
    reach = rates[width : width + devices]
    better = np.flatnonzero(reach > rates[width - 1])
    return int(better[0]) + 1 if better.size else 0


class WaterFilling:
    lockstep = False

    def __init__(self, horizon: Horizon = even, threshold: float = THRESHOLD) -> None:
        self.horizon, self.threshold = horizon, threshold
        self._queue: list[int] = []  # who waits, the longest last
        self._wanted: dict[int, int] = {}
        self._alive = 0  # models when the queue was made

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
            order, widths = self._shared_out(view)
        else:
            alive = len(view.groups) + len(view.waiting)
            if len(self._queue) != len(view.waiting) or alive <= self._alive * (1 - STALE):
                self._line_up(view, alive)
            order, widths = self._next(len(view.free)), self._wanted
        free, changes = set(view.free), {}
        for model in order:
            if free:
                changes[model] = view.machines.place(min(widths[model], len(free)), free)
                free.difference_update(changes[model])
        return changes

    def _shared_out(self, view: FleetView) -> tuple[list[int], dict[int, int]]:
        """There is a device for each: water filling over all models; those that run get theirs afterwards, if any."""
        work = self._left(view, [*view.waiting, *view.groups])
        widths = dict.fromkeys(view.waiting, 1) | {m: len(devices) for m, devices in view.groups.items()}
        widths = fill(work, widths, view.rates, len(view.free) - len(view.waiting))
        return sorted(view.waiting, key=lambda m: -widths[m]), widths

    def _line_up(self, view: FleetView, alive: int) -> None:
        """Longest first, with the widths that let each end with the fluid."""
        models = [*view.groups, *view.waiting]
        work = self._left(view, models)
        ideal = fluid(np.array([work[m] for m in models]), view.envelopes.take(models), view.machines.count)
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
        """Free devices for those that end last, each if it wins more than a few restarts cost."""
        work = self._left(view, list(view.groups))
        ends = {m: self._busy(view, m) + work[m] / view.rate(m, group) for m, group in view.groups.items()}
        widths = fill(work, {m: len(group) for m, group in view.groups.items()}, view.rates, len(free))
        grown = [m for m in widths if widths[m] > len(view.groups[m]) and m not in view.fixed]
        room = FreeDevices(view, free, ends)
        for model in sorted(grown, key=lambda m: -ends[m]):
            wished = min(widths[model], len(view.groups[model]) + len(room.free))
            for moves in room.ways(model, wished):
                after = view.restart + work[model] / view.rate(model, moves[model])
                if ends[model] - after > self.threshold * view.restart:
                    room.take(moves)
                    break
        return room.changes

    @staticmethod
    def _busy(view: FleetView, model: int) -> float:
        """Seconds that the restart under way still takes."""
        return max(float(view.ready[model]) - view.now, 0.0)

    def _left(self, view: FleetView, models: Sequence[int]) -> dict[int, float]:
        """Rows that a model is expected to need until it has converged."""
        return {
            m: max(self.horizon(view.tasks[m].bounds, float(view.epochs[m])), 1e-6) * view.tasks[m].rows for m in models
        }


class FreeDevices:
    """Devices that are still free while a round of changes is made up."""

    def __init__(self, view: FleetView, free: set[int], ends: Mapping[int, float]) -> None:
        self.view, self.free, self.ends = view, set(free), ends
        self.changes: dict[int, tuple[int, ...]] = {}

    def take(self, moves: Mapping[int, tuple[int, ...]]) -> None:
        for model in moves:
            self.free.update(self.view.groups[model])
        for devices in moves.values():
            self.free.difference_update(devices)
        self.changes.update(moves)

    def ways(self, model: int, width: int) -> Iterator[dict[int, tuple[int, ...]]]:
        """How a model may come to be so wide, the best first: inside one node, where others make room; or as it is."""
        machines, own = self.view.machines, self.view.groups[model]
        if width <= len(own) or model in self.changes:
            return
        plain = machines.place(width, self.free | set(own), own)
        if machines.nodes(plain) > machines.fewest[width]:
            together = self._together(model, width)
            if together:
                yield together
        yield {model: plain}

    def _together(self, model: int, width: int) -> dict[int, tuple[int, ...]] | None:
        """All on the node where most of the model is: groups there that end soon enough go elsewhere."""
        view, own = self.view, self.view.groups[model]
        node = max({view.machines.node[d] for d in own}, key=lambda n: sum(view.machines.node[d] == n for d in own))
        here = {d for d in (*own, *self.free) if view.machines.node[d] == node}
        outside = (self.free | set(own)) - here
        moves: dict[int, tuple[int, ...]] = {}
        for other in self._neighbours(model, node):
            if len(here) >= width:
                break
            group = view.groups[other]
            if len(group) <= len(outside):
                place = view.machines.place(len(group), outside)
                if view.machines.nodes(place) == 1:
                    moves[other] = place
                    outside.difference_update(place)
                    here.update(group)
        if len(here) < width:
            return None
        nearest = sorted(here, key=lambda device: (device not in own, device))[:width]
        return {**moves, model: tuple(sorted(nearest))}

    def _neighbours(self, model: int, node: int) -> list[int]:
        """Groups wholly on a node that can afford a restart, those with the most time first."""
        view = self.view
        return sorted(
            (
                other
                for other, group in view.groups.items()
                if all(view.machines.node[d] == node for d in group)
                and other != model
                and other not in view.fixed
                and other not in self.changes
                and self.ends[other] + view.restart < self.ends[model]
            ),
            key=lambda other: self.ends[other],
        )
