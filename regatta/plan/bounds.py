"""No schedule can end before these: what a worker must do, what a model must go through, what all must share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, hstack

from regatta.plan.estimates import Times
from regatta.plan.units import Unit

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
    if _replicated(holdings, partitions, eval_partitions):
        loads = [_shared(times, holdings, epochs, partitions, eval_partitions)]
    else:
        loads = [_load(times, worker, held, epochs) for worker, held in holdings.items()]
    return max([*loads, *chains], default=Bound(0.0, "nothing"), key=lambda bound: bound.seconds)


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


def _replicated(holdings: Holdings, partitions: int, eval_partitions: int) -> bool:
    train = sum(len(train) for train, _ in holdings.values())
    held_out = sum(len(held) for _, held in holdings.values())
    return train > partitions or held_out > eval_partitions


def _shared(
    times: Times, holdings: Holdings, epochs: Mapping[str, int], partitions: int, eval_partitions: int
) -> Bound:
    """The least makespan if units could be split among the holders of their partition: a linear program."""
    workers = list(holdings)
    shares: list[tuple[int, int, float]] = []  # of a unit, for a worker: the unit's number, the worker's, seconds
    units = [(m, "train", p) for m in epochs for p in range(partitions)]
    units += [(m, "eval", p) for m in epochs for p in range(eval_partitions)]
    for number, (model, kind, partition) in enumerate(units):
        unit = Unit("train" if kind == "train" else "eval", model, 1, partition)
        for index, worker in enumerate(workers):
            if partition in holdings[worker][0 if kind == "train" else 1]:
                shares.append((number, index, times.seconds(unit, worker) * epochs[model]))
    return Bound(_least_makespan(shares, len(units), len(workers)), "all workers together")


def _least_makespan(shares: list[tuple[int, int, float]], units: int, workers: int) -> float:
    """Minimise C, where each unit's shares add up to one and no worker has more than C to do."""
    count = len(shares)
    numbers, indices, seconds = zip(*shares, strict=True)
    load: Any = coo_array((seconds, (indices, range(count))), shape=(workers, count))
    whole: Any = coo_array((np.ones(count), (numbers, range(count))), shape=(units, count))
    solve: Any = linprog  # its stubs know no sparse matrices
    found = solve(
        np.append(np.zeros(count), 1.0),
        A_ub=hstack([load, coo_array(-np.ones((workers, 1)))]),
        b_ub=np.zeros(workers),
        A_eq=hstack([whole, coo_array((units, 1))]),
        b_eq=np.ones(units),
        method="highs",
    )
    return float(found.fun)
