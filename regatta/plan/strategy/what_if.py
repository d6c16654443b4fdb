"""The same work on other numbers of workers: each is driven through a simulated run by the hop scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regatta.plan.schedule.estimates import Times
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.lower_bounds import HeldPartitions, lower_bound
from regatta.plan.schedule.simulate import simulate, spread_partitions


@dataclass(frozen=True)
class HopWorkload:
    """What is to be trained: models with their epochs, on so many partitions, with these estimated times."""

    epochs: Mapping[str, int]
    partitions: int
    eval_partitions: int
    times: Times

    def hopper(self, holdings: HeldPartitions, rule: str, seed: int) -> Hopper:
        hopper = Hopper(self.partitions, self.eval_partitions, estimates=self.times, rule=rule, seed=seed)
        for worker, (train, held_out) in holdings.items():
            hopper.add_worker(worker, train, held_out)
        for model, epochs in self.epochs.items():
            hopper.add_model(model, epochs)
        return hopper


def what_if(work: HopWorkload, workers: Sequence[int], rule: str = "auto", seed: int = 0) -> list[dict[str, Any]]:
    """The same workload on other numbers of workers of the same kind, by hops."""
    alone = _row(work, 1, rule, seed)["makespan"]
    rows = [_row(work, count, rule, seed) for count in workers]
    return [{**row, "speedup": alone / row["makespan"] if row["makespan"] else 1.0} for row in rows]


def _row(work: HopWorkload, workers: int, rule: str, seed: int) -> dict[str, Any]:
    holdings = spread_partitions(work.partitions, workers, work.eval_partitions)
    schedule = simulate(work.hopper(holdings, rule, seed), work.times, learn=False)
    bound = lower_bound(work.times, holdings, work.epochs, work.partitions, work.eval_partitions)
    return {
        "workers": workers,
        "makespan": schedule.makespan,
        "bound": bound.seconds,
        "ratio": schedule.makespan / bound.seconds if bound.seconds else 1.0,
        "utilisation": schedule.utilisation,
        "bound_by": bound.by,
    }
