"""Predicts a workload on other numbers of workers by simulating the hop scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regatta.plan.schedule.estimates import Times
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.lower_bounds import HeldPartitions, lower_bound
from regatta.plan.schedule.simulate import simulate, spread_partitions
from regatta.plan.schedule.units import Unit


@dataclass(frozen=True)
class HopWorkload:
    epochs: Mapping[str, int]  # by model
    partitions: int
    eval_partitions: int
    times: Times
    pause: float = 0.0  # seconds from the end of a unit to the start of the next one on the same worker

    def hopper(self, held: HeldPartitions, **options: Any) -> Hopper:
        hopper = Hopper(self.partitions, self.eval_partitions, estimates=self.times, **options)
        for worker, (train, evals) in held.items():
            hopper.add_worker(worker, train, evals)
        for model, epochs in self.epochs.items():
            hopper.add_model(model, epochs)
        return hopper


@dataclass(frozen=True)
class _WithPause:
    """The times of units, with the pause after each."""

    times: Times
    pause: float

    @property
    def noise(self) -> float:
        return self.times.noise

    def seconds(self, unit: Unit, worker: str) -> float:
        return self.times.seconds(unit, worker) + self.pause

    def observe(self, unit: Unit, worker: str, seconds: float) -> None:
        """What was simulated teaches nothing."""


def what_if(work: HopWorkload, workers: Sequence[int], rule: str = "auto", seed: int = 0) -> list[dict[str, Any]]:
    """A row for each number of workers, with models that hop; the workers are all of one kind."""
    one_worker = _row(work, 1, rule, seed)["makespan"]
    rows = [_row(work, count, rule, seed) for count in workers]
    return [{**row, "speedup": one_worker / row["makespan"] if row["makespan"] else 1.0} for row in rows]


def _row(work: HopWorkload, workers: int, rule: str, seed: int) -> dict[str, Any]:
    held = spread_partitions(work.partitions, workers, work.eval_partitions)
    times = _WithPause(work.times, work.pause)
    schedule = simulate(work.hopper(held, rule=rule, seed=seed), times, learn=False)
    bound = lower_bound(times, held, work.epochs, work.partitions, work.eval_partitions)
    return {
        "workers": workers,
        "makespan": schedule.makespan,
        "bound": bound.seconds,
        "ratio": schedule.makespan / bound.seconds if bound.seconds else 1.0,
        "utilisation": schedule.utilisation,
        "bound_by": bound.by,
    }
