"""No schedule can end before these: what a worker must do, what a model must go through, what all must share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regatta.plan.schedule.estimates import Times
from regatta.plan.schedule.offline.replica_placement import Part, split
from regatta.plan.schedule.units import Kind, Unit

SAME = 1e-6  # what a linear program may be off
Holdings = Mapping[str, tuple[Sequence[int], Sequence[int]]]


@dataclass(frozen=True)
class Bound:
    seconds: float
    by: str  # the worker or model that cannot be done sooner


def lower_bound(
    times: Times, holdings: Holdings, epochs: Mapping[str, int], partitions: int, eval_partitions: int = 0
) -> Bound:
    """The largest of: the work of any worker, the training of any model; by linear programming with replicas."""
    chains = [_chain(times, holdings, model, count, partitions) for model, count in epochs.items()]
    if _replicated(holdings):
        loads = [_shared(times, holdings, epochs, partitions, eval_partitions)]
    else:
        loads = [_load(times, worker, held, epochs) for worker, held in holdings.items()]
    longest = max(chains, default=Bound(0.0, "nothing"), key=lambda bound: bound.seconds)
    busiest = max(loads, default=longest, key=lambda bound: bound.seconds)
    return busiest if busiest.seconds > longest.seconds * (1 + SAME) else longest  # the program knows of chains too


def _chain(times: Times, holdings: Holdings, model: str, epochs: int, partitions: int) -> Bound:
    """A model trains on one partition at a time, on the fastest of its holders at best."""
    total = 0.0
    for partition in range(partitions):
        unit = Unit("train", model, 1, partition)
        holders = [worker for worker, (train, _) in holdings.items() if partition in train]
        total += min((times.seconds(unit, worker) for worker in holders), default=0.0)
    return Bound(total * epochs, f"model {model}")


def _load(times: Times, worker: str, held: tuple[Sequence[int], Sequence[int]], epochs: Mapping[str, int]) -> Bound:
    train, held_out = held
    total = 0.0
    for model, count in epochs.items():
        total += count * sum(times.seconds(Unit("train", model, 1, p), worker) for p in train)
        total += count * sum(times.seconds(Unit("eval", model, 1, p), worker) for p in held_out)
    return Bound(total, f"worker {worker}")


def _replicated(holdings: Holdings) -> bool:
    held = Counter(("train", j) for train, _ in holdings.values() for j in train)
    held.update(("eval", j) for _, evals in holdings.values() for j in evals)
    return max(held.values(), default=0) > 1


def _shared(
    times: Times, holdings: Holdings, epochs: Mapping[str, int], partitions: int, eval_partitions: int
) -> Bound:
    """The least makespan if units could be split among the holders of their partition: a linear program."""
    workers = list(holdings)
    units: list[tuple[int, str, Kind, int]] = []
    for number, model in enumerate(epochs):
        units += [(number, model, "train", partition) for partition in range(partitions)]
        units += [(number, model, "eval", partition) for partition in range(eval_partitions)]
    lone = len(epochs)  # evaluations are no part of a model's chain: each counts as a model of its own
    parts = [
        Part(
            number,
            index,
            model if kind == "train" else lone + number,
            times.seconds(Unit(kind, name, 1, partition), worker) * epochs[name],
        )
        for number, (model, name, kind, partition) in enumerate(units)
        for index, worker in enumerate(workers)
        if partition in holdings[worker][kind == "eval"]
    ]
    return Bound(split(parts, {})[0], "all workers together")
