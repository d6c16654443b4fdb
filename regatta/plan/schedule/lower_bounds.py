"""Lower bounds on a makespan: the work of a worker, the chain of a model's units, and the work shared by all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regatta.plan.schedule.estimates import Times
from regatta.plan.schedule.offline.replica_placement import UnitOption, split_units
from regatta.plan.schedule.units import Unit, UnitKind

SOLVER_TOLERANCE = 1e-6  # relative error of a linear program
HeldPartitions = Mapping[str, tuple[Sequence[int], Sequence[int]]]


@dataclass(frozen=True)
class Bound:
    seconds: float
    by: str  # the worker or model that sets the bound


def lower_bound(
    times: Times, held_by_worker: HeldPartitions, epochs: Mapping[str, int], partitions: int, eval_partitions: int = 0
) -> Bound:
    """The largest of the work of any worker and the training of any model; with replicas by linear programming."""
    chains = [_chain(times, held_by_worker, model, count, partitions) for model, count in epochs.items()]
    holders = Counter(("train", j) for train, _ in held_by_worker.values() for j in train)
    holders.update(("eval", j) for _, evals in held_by_worker.values() for j in evals)
    if max(holders.values(), default=0) > 1:
        loads = [_shared(times, held_by_worker, epochs, partitions, eval_partitions)]
    else:
        loads = [_load(times, worker, held, epochs) for worker, held in held_by_worker.items()]
    longest = max(chains, default=Bound(0.0, "nothing"), key=lambda bound: bound.seconds)
    busiest = max(loads, default=longest, key=lambda bound: bound.seconds)
    # the linear program includes the chains, so it must be clearly larger
    return busiest if busiest.seconds > longest.seconds * (1 + SOLVER_TOLERANCE) else longest


def _chain(times: Times, held_by_worker: HeldPartitions, model: str, epochs: int, partitions: int) -> Bound:
    """A model trains on one partition at a time, at best on its fastest holder."""
    total = 0.0
    for partition in range(partitions):
        unit = Unit("train", model, 1, partition)
        holders = [worker for worker, (train, _) in held_by_worker.items() if partition in train]
        total += min((times.seconds(unit, worker) for worker in holders), default=0.0)
    return Bound(total * epochs, f"model {model}")


def _load(times: Times, worker: str, held: tuple[Sequence[int], Sequence[int]], epochs: Mapping[str, int]) -> Bound:
    train, held_out = held
    total = 0.0
    for model, count in epochs.items():
        total += count * sum(times.seconds(Unit("train", model, 1, p), worker) for p in train)
        total += count * sum(times.seconds(Unit("eval", model, 1, p), worker) for p in held_out)
    return Bound(total, f"worker {worker}")


def _shared(
    times: Times, held_by_worker: HeldPartitions, epochs: Mapping[str, int], partitions: int, eval_partitions: int
) -> Bound:
    """The smallest makespan if units could be split among the holders of their partition: a linear program."""
    workers = list(held_by_worker)
    units: list[tuple[int, str, UnitKind, int]] = []
    for number, model in enumerate(epochs):
        units += [(number, model, "train", partition) for partition in range(partitions)]
        units += [(number, model, "eval", partition) for partition in range(eval_partitions)]
    lone = len(epochs)  # evaluations are not part of a model's chain, so each counts as a model of its own
    parts = [
        UnitOption(
            number,
            index,
            model if kind == "train" else lone + number,
            times.seconds(Unit(kind, name, 1, partition), worker) * epochs[name],
        )
        for number, (model, name, kind, partition) in enumerate(units)
        for index, worker in enumerate(workers)
        if partition in held_by_worker[worker][kind == "eval"]
    ]
    return Bound(split_units(parts, {})[0], "all workers together")
