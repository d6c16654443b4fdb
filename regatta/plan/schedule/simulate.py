"""A run on a simulated clock: the real scheduler with simulated workers.

Events at the same time are delivered together before the next decision, as in a real engine. Times that differ only by
rounding count as the same.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regatta.errors import UsageError
from regatta.plan.schedule.estimates import Times
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.units import Unit

Handler = Callable[[float, int, str], None]  # (time, number of the event, worker)
SAME_TIME_TOLERANCE = 1e-12  # relative: times that differ by less differ by rounding


@dataclass(frozen=True, slots=True)
class SimulatedUnit:
    """A unit that finished."""

    worker: str
    unit: Unit
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Outage:
    """A worker that is gone from `start` until `end`; for good when `end` is None."""

    worker: str
    start: float
    end: float | None = None


@dataclass(frozen=True)
class Schedule:
    rows: tuple[SimulatedUnit, ...]
    lost: float = 0.0  # seconds of units that outages cut short
    workers: int = 0

    @property
    def makespan(self) -> float:
        return max((row.end for row in self.rows), default=0.0)

    @property
    def busy(self) -> float:
        return sum(row.end - row.start for row in self.rows)

    @property
    def utilisation(self) -> float:
        """The share of the workers' time, up to the makespan, in which units ran that finished."""
        return self.busy / (self.workers * self.makespan) if self.rows else 1.0

    def visits(self, model: str, epoch: int) -> list[int]:
        """The partitions in the order in which a model was trained on them."""
        rows = sorted(self.rows, key=lambda row: row.start)
        return [r.unit.partition for r in rows if (r.unit.kind, r.unit.model, r.unit.epoch) == ("train", model, epoch)]


def spread_partitions(
    partitions: int, workers: int, evals: int = 0, replicas: int = 1
) -> dict[str, tuple[list[int], list[int]]]:
    """Workers w0, w1, ... and their partitions: worker j mod W and the next ones hold partition j.

    With fewer partitions than workers, worker k holds partition k mod p.
    """
    if min(partitions, workers, replicas) < 1:
        raise UsageError(f"{partitions} partitions, {workers} workers, {replicas} replicas: each must be at least 1.")

    def held(count: int) -> list[list[int]]:
        lists: list[set[int]] = [set() for _ in range(workers)]
        for place in range(max(count, workers) if count else 0):
            for replica in range(min(replicas, workers)):
                lists[(place + replica) % workers].add(place % count)
        return [sorted(found) for found in lists]

    train, evaluate = held(partitions), held(evals)
    return {f"w{k}": (train[k], evaluate[k]) for k in range(workers)}


def simulate(
    hopper: Hopper,
    times: Times,
    *,
    outages: Sequence[Outage] = (),
    noise: float = 0.0,
    seed: int = 0,
    learn: bool = True,
    after: Callable[[Hopper], None] | None = None,
) -> Schedule:
    """Run a hopper that has its workers and models to the end.

    `times` are the real times of units, which may differ from the hopper's estimates. `noise` is the deviation of the
    logarithm of another random factor for each unit. With `learn`, the hopper is given the time that each unit took.
    `after` is called after each event.
    """
    return _Simulation(hopper, times, outages, noise, seed, learn, after).run()


class _Simulation:
    def __init__(
        self,
        hopper: Hopper,
        times: Times,
        outages: Sequence[Outage],
        noise: float,
        seed: int,
        learn: bool,
        after: Callable[[Hopper], None] | None,
    ) -> None:
        self.hopper, self.times, self.noise, self.learn = hopper, times, noise, learn
        self.after = after or (lambda hopper: None)
        self.random = random.Random(seed)
        self.workers = len(hopper.workers())
        self.heap: list[tuple[float, int, Handler, str]] = []  # time, number, handler, worker
        self.number = 0
        self.begun: dict[str, tuple[float, int, Unit]] = {}  # worker: start, number of its end, unit
        self.away: dict[str, tuple[list[int], list[int]]] = {}
        self.rows: list[SimulatedUnit] = []
        self.lost = 0.0
        for outage in outages:
            self._at(outage.start, self._on_worker_down, outage.worker)
            if outage.end is not None:
                self._at(outage.end, self._on_worker_up, outage.worker)

    def run(self) -> Schedule:
        self._assign(0.0)
        while self.heap and not self.hopper.done():
            together = self.heap[0][0] * (1 + SAME_TIME_TOLERANCE)
            while self.heap and self.heap[0][0] <= together:
                now, number, handle, worker = heapq.heappop(self.heap)
                handle(now, number, worker)
                self.after(self.hopper)
            self._assign(now)
        if not self.hopper.done():
            missing = self.hopper.unheld_partitions()
            raise UsageError(
                f"{self.hopper.units_left()} units can never run: no worker holds the partitions {missing}."
            )
        return Schedule(tuple(self.rows), self.lost, self.workers)

    def _at(self, time: float, handle: Handler, worker: str) -> int:
        self.number += 1
        heapq.heappush(self.heap, (time, self.number, handle, worker))
        return self.number

    def _assign(self, now: float) -> None:
        for assignment in self.hopper.assign(now):
            seconds = self.times.seconds(assignment.unit, assignment.worker)
            if self.noise:
                seconds *= self.random.lognormvariate(0.0, self.noise)
            number = self._at(now + seconds, self._on_unit_end, assignment.worker)
            self.begun[assignment.worker] = (now, number, assignment.unit)
        self.after(self.hopper)

    def _on_unit_end(self, now: float, number: int, worker: str) -> None:
        start, expected, unit = self.begun.get(worker, (0.0, -1, None))
        if number != expected or unit is None:  # that unit was lost with its worker
            return
        del self.begun[worker]
        self.rows.append(SimulatedUnit(worker, unit, start, now))
        self.hopper.finish(worker, now, now - start if self.learn else None)

    def _on_worker_down(self, now: float, number: int, worker: str) -> None:
        self.away[worker] = self.hopper.workers()[worker]
        if self.hopper.remove_worker(worker) is not None:
            self.lost += now - self.begun.pop(worker)[0]

    def _on_worker_up(self, now: float, number: int, worker: str) -> None:
        self.hopper.add_worker(worker, *self.away.pop(worker))
