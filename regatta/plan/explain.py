"""What a sweep would take, before it is trained: the plan in numbers and in words.

The makespan is not a formula: the hop scheduler is driven through a simulated run on the estimates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regatta.plan.bounds import lower_bound
from regatta.plan.estimates import Times
from regatta.plan.hop import Hopper
from regatta.plan.simulate import Schedule, simulate, spread
from regatta.plan.tree import seconds, size
from regatta.plan.units import Unit

Holdings = Mapping[str, tuple[Sequence[int], Sequence[int]]]  # worker: its training and its evaluation partitions


@dataclass(frozen=True)
class Workload:
    """What is to be trained: models with their epochs, on so many partitions, with these estimated times."""

    epochs: Mapping[str, int]
    partitions: int
    eval_partitions: int
    times: Times
    state_bytes: Mapping[str, int]

    def units(self, kind: str) -> int:
        count = self.partitions if kind == "train" else self.eval_partitions
        return sum(self.epochs.values()) * count

    def hopper(self, holdings: Holdings, rule: str, seed: int) -> Hopper:
        hopper = Hopper(self.partitions, self.eval_partitions, estimates=self.times, rule=rule, seed=seed)
        for worker, (train, held_out) in holdings.items():
            hopper.add_worker(worker, train, held_out)
        for model, epochs in self.epochs.items():
            hopper.add_model(model, epochs)
        return hopper


@dataclass(frozen=True)
class Explanation:
    """A plan for people: `text()` for the terminal, `to_json()` for programs; seconds and bytes throughout."""

    models: int
    epochs: int
    partitions: int
    eval_partitions: int
    workers: int
    train_units: int
    eval_units: int
    shortest_unit: float
    mean_unit: float
    longest_unit: float
    bound: float
    bound_by: str
    makespan: float
    utilisation: float
    hops: int
    hop_bytes: int
    rule: str
    why: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        times = f"{seconds(self.shortest_unit)} to {seconds(self.longest_unit)}, {seconds(self.mean_unit)} on average"
        lines = [
            f"Train {_count(self.models, 'model')} for {_count(self.epochs, 'epoch')} in all, by hops",
            f"├─ data        {_count(self.partitions, 'partition')} to train on, {self.eval_partitions} to evaluate on",
            f"├─ workers     {self.workers}",
            f"├─ units       {self.train_units} of training ({times}), {self.eval_units} of evaluation",
            f"├─ hops        {self.hops}, {size(self.hop_bytes)} in all",
            f"├─ rule        {self.rule}: {self.why}",
            f"├─ at least    {seconds(self.bound)}, bound by {self.bound_by}",
            f"└─ expected    {seconds(self.makespan)}, workers busy {self.utilisation:.0%} of the time",
        ]
        return "\n".join(lines)


def explain(work: Workload, holdings: Holdings, rule: str = "auto", seed: int = 0) -> Explanation:
    """The plan of a workload on workers that hold these partitions."""
    hopper = work.hopper(holdings, rule, seed)
    schedule = simulate(hopper, work.times, learn=False)
    bound = lower_bound(work.times, holdings, work.epochs, work.partitions, work.eval_partitions)
    lengths = _unit_lengths(work, holdings)
    hops = {model: epochs * (work.partitions + work.eval_partitions) - 1 for model, epochs in work.epochs.items()}
    return Explanation(
        models=len(work.epochs),
        epochs=sum(work.epochs.values()),
        partitions=work.partitions,
        eval_partitions=work.eval_partitions,
        workers=len(holdings),
        train_units=work.units("train"),
        eval_units=work.units("eval"),
        shortest_unit=min(lengths, default=0.0),
        mean_unit=sum(lengths) / max(1, len(lengths)),
        longest_unit=max(lengths, default=0.0),
        bound=bound.seconds,
        bound_by=bound.by,
        makespan=schedule.makespan,
        utilisation=_utilisation(schedule, len(holdings)),
        hops=sum(hops.values()),
        hop_bytes=sum(count * work.state_bytes.get(model, 0) for model, count in hops.items()),
        rule=hopper.choice.name,
        why=hopper.choice.why,
    )


def what_if(work: Workload, workers: Sequence[int], rule: str = "auto", seed: int = 0) -> list[dict[str, Any]]:
    """The same workload on other numbers of workers of the same kind."""
    alone = explain(work, spread(work.partitions, 1, work.eval_partitions), rule, seed).makespan
    plans = [explain(work, spread(work.partitions, count, work.eval_partitions), rule, seed) for count in workers]
    return [
        {
            "workers": plan.workers,
            "makespan": plan.makespan,
            "bound": plan.bound,
            "ratio": plan.makespan / plan.bound if plan.bound else 1.0,
            "utilisation": plan.utilisation,
            "speedup": alone / plan.makespan if plan.makespan else 1.0,
            "bound_by": plan.bound_by,
        }
        for plan in plans
    ]


def _unit_lengths(work: Workload, holdings: Holdings) -> list[float]:
    """One training unit per model, partition and holder."""
    return [
        work.times.seconds(Unit("train", model, 1, partition), worker)
        for worker, (train, _) in holdings.items()
        for partition in train
        for model in work.epochs
    ]


def _utilisation(schedule: Schedule, workers: int) -> float:
    available = schedule.makespan * workers
    return sum(row.end - row.start for row in schedule.rows) / available if available else 0.0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
