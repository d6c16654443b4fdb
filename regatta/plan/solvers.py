"""Open-shop schedules from general solvers: the paper's MILP in HiGHS, and OR-Tools' CP-SAT.

Both are here as baselines and for small sweeps: a few hundred operations at most. Each answers with the start of
every operation of a shop, or with None where it found no schedule within its limit.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from regatta.errors import MissingExtraError
from regatta.plan.shop import Shop


def solve_milp(shop: Shop, seconds: float = 10.0) -> list[float] | None:
    """Equation 2 of the Cerebro paper: starts, the makespan, and one binary for each pair that must not overlap.

    The variables are the starts, then the makespan, then the binaries (1: the first of the pair goes first).
    """
    count, pairs = len(shop), shop.pairs()
    if not count:
        return []
    durations = [op.seconds for op in shop.operations]
    big = sum(durations) + max(shop.earliest(i) for i in range(count))
    size = count + 1 + len(pairs)
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    lower: list[float] = []

    def at_least(bound: float, terms: list[tuple[int, float]]) -> None:
        for column, value in terms:
            rows.append(len(lower))
            columns.append(column)
            values.append(value)
        lower.append(bound)

    for i, duration in enumerate(durations):
        at_least(duration, [(count, 1.0), (i, -1.0)])
    for number, (a, b) in enumerate(pairs):
        binary = count + 1 + number
        at_least(durations[b], [(a, 1.0), (b, -1.0), (binary, big)])  # b before a unless binary
        at_least(durations[a] - big, [(b, 1.0), (a, -1.0), (binary, -big)])  # a before b if binary
    objective = np.zeros(size)
    objective[count] = 1.0
    least = np.zeros(size)
    least[:count] = [shop.earliest(i) for i in range(count)]
    least[count] = shop.bound()
    most = np.full(size, big)
    most[count + 1 :] = 1.0
    matrix = coo_array((values, (rows, columns)), shape=(len(lower), size)).tocsr()
    found = milp(
        objective,
        constraints=LinearConstraint(matrix, np.asarray(lower), np.inf),
        integrality=np.concatenate([np.zeros(count + 1), np.ones(len(pairs))]),
        bounds=Bounds(least, most),
        options={"time_limit": seconds, "mip_rel_gap": 1e-6},
    )
    return None if found.x is None else [float(start) for start in found.x[:count]]


def require_cpsat() -> None:
    if importlib.util.find_spec("ortools") is None:
        raise MissingExtraError("ortools", "cpsat", "the hop rule 'cpsat'")


def solve_cpsat(shop: Shop, seconds: float = 10.0, seed: int = 0) -> list[float] | None:
    """The same problem as intervals. One thread and deterministic time: the same shop gives the same schedule."""
    require_cpsat()
    from ortools.sat.python import cp_model

    if not shop.operations:
        return []
    longest = max(op.seconds for op in shop.operations)
    scale = 100_000 / longest  # whole ticks, the longest operation takes 100,000 of them
    ticks = [max(1, round(op.seconds * scale)) for op in shop.operations]
    begins = [round(shop.earliest(i) * scale) for i in range(len(shop))]
    horizon = sum(ticks) + max(begins)
    model = cp_model.CpModel()
    starts = [model.new_int_var(begin, horizon, "") for begin in begins]
    intervals = [model.new_fixed_size_interval_var(s, t, "") for s, t in zip(starts, ticks, strict=True)]
    end = model.new_int_var(0, horizon, "")
    for start, tick in zip(starts, ticks, strict=True):
        model.add(end >= start + tick)
    for group in _groups(shop, intervals):
        model.add_no_overlap(group)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = seconds
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [solver.value(start) / scale for start in starts]


def _groups(shop: Shop, intervals: list[Any]) -> list[list[Any]]:
    groups: dict[tuple[str, int], list[Any]] = {}
    for operation, interval in zip(shop.operations, intervals, strict=True):
        groups.setdefault(("model", operation.model), []).append(interval)
        groups.setdefault(("worker", operation.worker), []).append(interval)
    return list(groups.values())
