"""The policies of the FLEET paper as published: its two paradigms, and the two that it compares with."""

from __future__ import annotations

import random

from regatta.plan.fleet.policies import Changes, FleetView
from regatta.plan.papers.fleet_assignment import get_gpu_assignment
from regatta.plan.papers.flotilla import create_flotilla

ALPHA = 0.8  # a flotilla stops when less than this share of the devices is busy


class OneDevice:
    """The paper's baseline: a free device takes a random waiting model and trains it to its end."""

    lockstep = False

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._queue: list[int] | None = None

    def decide(self, view: FleetView) -> Changes:
        if self._queue is None:
            self._queue = self.order(view)
        count = min(len(view.free), len(self._queue))
        chosen, self._queue = self._queue[:count], self._queue[count:]
        return {model: (device,) for model, device in zip(chosen, sorted(view.free), strict=False)}

    def order(self, view: FleetView) -> list[int]:
        models = list(view.waiting)
        self._random.shuffle(models)
        return models


class LongestFirst(OneDevice):
    """One device each, the slowest model first: the effect of the order alone."""

    def order(self, view: FleetView) -> list[int]:
        return sorted(view.waiting, key=lambda model: -view.rows[model] / view.rates[model, 0])


class Homogeneous(OneDevice):
    """Sharing as by Pittman et al.: one model per device, and the next models when all have ended."""

    def __init__(self, seed: int = 0, lockstep: bool = True) -> None:
        super().__init__(seed)
        self.lockstep = lockstep

    def decide(self, view: FleetView) -> Changes:
        return {} if view.groups else super().decide(view)


class FleetG:
    """FLEET, global: a flotilla trains until fewer than alpha M devices are busy, then all are allocated again."""

    def __init__(self, alpha: float = ALPHA, lockstep: bool = True) -> None:
        self.alpha, self.lockstep = alpha, lockstep

    def decide(self, view: FleetView) -> Changes:
        active = view.nodes.device_count - len(view.free)
        if view.groups and active >= self.alpha * view.nodes.device_count:
            return {}
        candidates = sorted([*view.groups, *view.waiting])
        if not candidates:
            return {}
        widths = create_flotilla(view.rates, candidates, view.nodes.device_count)
        groups = get_gpu_assignment(widths, view.nodes)
        return {model: groups.get(model, ()) for model in (*view.groups, *groups)}


class FleetL:
    """FLEET, local: free devices take the flotilla that the greedy algorithm forms of the waiting models."""

    lockstep = False

    def decide(self, view: FleetView) -> Changes:
        if not view.free or not view.waiting:
            return {}
        widths = create_flotilla(view.rates, sorted(view.waiting), len(view.free))
        if len(view.free) == view.nodes.device_count:
            return get_gpu_assignment(widths, view.nodes)
        free, changes = set(view.free), {}
        for model in sorted(widths, key=lambda model: -widths[model]):
            changes[model] = view.nodes.place(widths[model], free)
            free.difference_update(changes[model])
        return changes
