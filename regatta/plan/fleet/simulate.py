"""Simulates an allocation policy: models converge after their real number of epochs, and restarts cost time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regatta.errors import RegattaError, UsageError
from regatta.plan.fleet.fluid_bound import Envelopes, fluid
from regatta.plan.fleet.nodes import Nodes
from regatta.plan.fleet.policies import FleetModel, FleetView, Policy
from regatta.plan.fleet.rates import RateModel, rate, rate_table

TOLERANCE = 1e-9  # relative: times that differ only by rounding are equal


@dataclass(frozen=True, slots=True)
class Allocation:
    """A model on a group of devices, from its start there until it left them or converged."""

    model: str
    devices: tuple[int, ...]
    start: float
    end: float


@dataclass(frozen=True)
class FleetSchedule:
    allocations: tuple[Allocation, ...]
    ends: Mapping[str, float]  # when each model converged
    restarts: int
    rounds: int  # decisions that changed an allocation
    devices: int

    @property
    def makespan(self) -> float:
        return max(self.ends.values(), default=0.0)

    @property
    def utilisation(self) -> float:
        """The share of the time for which devices belonged to a model."""
        held = sum(len(allocation.devices) * (allocation.end - allocation.start) for allocation in self.allocations)
        return held / (self.devices * self.makespan) if self.makespan else 1.0


@dataclass(frozen=True)
class GroundTruth:
    """What a policy does not know: the epochs that each model needs, and its real rates if they differ."""

    epochs: Sequence[int]
    rates: Sequence[RateModel] | None = None


def simulate(
    policy: Policy,
    models: Sequence[FleetModel],
    nodes: Nodes,
    truth: GroundTruth,
    *,
    restart: float = 0.0,
    stops: int | None = None,
    after: Callable[[FleetView], None] | None = None,
) -> FleetSchedule:
    """Simulate the training of all models until they converge.

    A model loses `restart` seconds when its devices change after it has begun. It can change `stops` times in an epoch:
    1 is only at the ends of its epochs, None is at any moment, by a checkpoint. `after` is called with the view after
    each decision.
    """
    if len(truth.epochs) != len(models):
        raise UsageError(f"{len(models)} models, but the epochs of {len(truth.epochs)}.")
    return _FleetSimulation(policy, models, nodes, truth, restart, stops, after or (lambda view: None)).run()


def malleable_bound(models: Sequence[FleetModel], nodes: Nodes, truth: GroundTruth) -> float:
    """No schedule ends before this, even one that knows all epochs and restarts for nothing."""
    rates = rate_table(truth.rates or [model.rate for model in models], nodes)
    work = np.array([model.rows * epochs for model, epochs in zip(models, truth.epochs, strict=True)], dtype=float)
    return fluid(work, Envelopes(rates), nodes.device_count).seconds


class _FleetSimulation:
    def __init__(
        self,
        policy: Policy,
        models: Sequence[FleetModel],
        nodes: Nodes,
        truth: GroundTruth,
        restart: float,
        stops: int | None,
        after: Callable[[FleetView], None],
    ) -> None:
        count = len(models)
        self.policy, self.models, self.truth, self.stops, self.after = policy, models, truth, stops, after
        self.view = FleetView(nodes, models, restart, epochs=np.zeros(count), ready=np.zeros(count))
        self.view.waiting = dict.fromkeys(range(count))
        self.view.free = set(range(nodes.device_count))
        self.speeds = np.zeros(count)  # epochs per second on the devices that each has
        self.pace = np.zeros(count)  # the same, as it really goes
        self.since = np.zeros(count)  # when `view.epochs` of a model was right; it may be ahead, during a restart
        self.versions = [0] * count
        self.heap: list[tuple[float, int, int, float]] = []  # time, model, version, epochs done then
        self.begun: dict[int, float] = {}
        self.allocations: list[Allocation] = []
        self.ends: dict[str, float] = {}
        self.restarts = self.rounds = 0

    def run(self) -> FleetSchedule:
        self._decide(set())
        while self.heap:
            now = self.heap[0][0]
            stopped: set[int] = set()
            while self.heap and self.heap[0][0] <= now * (1 + TOLERANCE):
                _, model, version, epochs = heapq.heappop(self.heap)
                if version == self.versions[model]:
                    self._advance(now)
                    self._stop(model, epochs, stopped)
            if stopped:
                self._decide(stopped)
        if len(self.ends) < len(self.models):
            raise UsageError(f"The policy left {len(self.models) - len(self.ends)} models waiting forever.")
        return FleetSchedule(
            tuple(self.allocations), self.ends, self.restarts, self.rounds, self.view.nodes.device_count
        )

    def _advance(self, now: float) -> None:
        view = self.view
        if now <= view.now and view.now > 0:
            return
        spans = np.maximum(now - self.since, 0.0)
        view.epochs += self.pace * spans
        self.since = np.maximum(self.since, now)
        view.now = now

    def _stop(self, model: int, epochs: float, stopped: set[int]) -> None:
        """A model is at one of its stops: it has converged, or continues to the next."""
        self.view.epochs[model] = epochs
        stopped.add(model)
        if epochs >= self.truth.epochs[model]:
            self._release(model)
            self.ends[self.models[model].name] = self.view.now
        else:
            self._schedule(model)

    def _release(self, model: int) -> None:
        view = self.view
        devices = view.groups.pop(model)
        view.free.update(devices)
        self.allocations.append(Allocation(self.models[model].name, devices, self.begun.pop(model), view.now))
        self.speeds[model] = self.pace[model] = 0.0
        self.versions[model] += 1

    def _decide(self, stopped: set[int]) -> None:
        view = self.view
        view.fixed = set() if self.stops is None else set(view.groups) - stopped
        running = set(view.groups)
        changes = self.policy.decide(view)
        for model in changes:
            if model in view.fixed:
                raise RegattaError(f"{self.models[model].name} was moved between two of its stops.")
            if model not in view.groups and model not in view.waiting:
                raise RegattaError(f"{self.models[model].name} has converged and was given {changes[model]}.")
        for model in [m for m in changes if m in running]:
            self._release(model)
            view.waiting[model] = None
        for model, devices in changes.items():
            if devices:
                self._begin(model, devices)
        self.rounds += bool(changes)
        if self.policy.lockstep:
            self._keep_pace()
        for model in changes:
            if model in view.groups and not self.policy.lockstep:
                self._schedule(model)
        self.after(view)

    def _begin(self, model: int, devices: tuple[int, ...]) -> None:
        view = self.view
        if len(set(devices)) < len(devices) or not view.free.issuperset(devices):
            raise RegattaError(f"{self.models[model].name} was given {devices}; free are {sorted(view.free)}.")
        del view.waiting[model]
        view.groups[model] = devices
        view.free.difference_update(devices)
        again = bool(view.epochs[model] > 0)
        self.restarts += again
        view.ready[model] = self.since[model] = view.now + (view.restart if again else 0.0)
        self.begun[model] = view.now
        if self.truth.rates is None:
            real_rate = view.rate(model, devices)
        else:
            real_rate = rate(self.truth.rates[model], len(devices), view.nodes.count_nodes(devices))
        self.speeds[model] = self.pace[model] = real_rate / self.models[model].rows

    def _keep_pace(self) -> None:
        """Running models read one stream of rows: all start when the last is ready, and the slowest sets the pace."""
        running = list(self.view.groups)
        if not running:
            return
        rows = np.array([self.models[m].rows for m in running], dtype=float)
        slowest = float((self.speeds[running] * rows).min())
        self.pace[running] = slowest / rows
        self.since[running] = self.since[running].max()
        for model in running:
            self._schedule(model)

    def _schedule(self, model: int) -> None:
        """Schedule the next stop of a model: after a part of an epoch, or at its end."""
        parts = self.stops or 1
        done = float(self.view.epochs[model])
        target = (math.floor(done * parts * (1 + TOLERANCE) + TOLERANCE) + 1) / parts
        self.versions[model] += 1
        time = float(self.since[model]) + (target - done) / float(self.pace[model])
        heapq.heappush(self.heap, (time, model, self.versions[model], target))
