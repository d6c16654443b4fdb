"""Open-shop schedules from general solvers: the paper's MILP in HiGHS, and OR-Tools' CP-SAT.

Both serve as baselines and for small sweeps of at most a few hundred operations. Each returns the start of every
operation of a shop, or None if it found no schedule within its limit.
"""

from __future__ import annotations

import importlib.util
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from regatta.errors import MissingExtraError
from regatta.plan.schedule.offline.open_shop import Shop

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint


def solve_milp(shop: Shop, seconds: float = 10.0) -> list[float] | None:
    """Equation 2 of the Cerebro paper, with one binary variable for each pair that must not overlap.

    The variables are the starts, then the makespan, then the binaries (1: the first of the pair goes first).
    """
    from scipy.optimize import Bounds, milp

    count, pairs = len(shop), sorted({pair for group in shop.groups() for pair in combinations(group, 2)})
    if not count:
        return []
    begins = [shop.earliest(i) for i in range(count)]
    big = sum(op.seconds for op in shop.operations) + max(begins)
    binaries = np.ones(len(pairs))
    found = milp(
        np.concatenate([np.zeros(count), [1.0], 0 * binaries]),
        constraints=_constraints(shop, pairs, big),
        integrality=np.concatenate([np.zeros(count + 1), binaries]),
        bounds=Bounds(
            np.concatenate([begins, [shop.bound()], 0 * binaries]),
            np.concatenate([np.full(count + 1, big), binaries]),
        ),
        options={"time_limit": seconds, "mip_rel_gap": 1e-6},
    )
    return None if found.x is None else [float(start) for start in found.x[:count]]


def _constraints(shop: Shop, pairs: list[tuple[int, int]], big: float) -> LinearConstraint:
    """All operations end before the makespan; of each pair (a, b), a runs before b if the binary is 1, else after."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import coo_array

    count = len(shop)
    seconds = [op.seconds for op in shop.operations]
    entries: list[tuple[int, int, float]] = []  # row, column, value
    at_least: list[float] = []
    for number, duration in enumerate(seconds):
        entries += [(len(at_least), count, 1.0), (len(at_least), number, -1.0)]
        at_least.append(duration)
    for binary, (a, b) in enumerate(pairs, count + 1):
        for first, second, sign in ((b, a, 1.0), (a, b, -1.0)):
            row = len(at_least)
            entries += [(row, second, 1.0), (row, first, -1.0), (row, binary, sign * big)]
            at_least.append(seconds[first] - (big if sign < 0 else 0.0))
    rows, columns, values = zip(*entries, strict=True)
    matrix = coo_array((values, (rows, columns)), shape=(len(at_least), count + 1 + len(pairs)))
    return LinearConstraint(matrix.tocsr(), np.asarray(at_least), np.inf)


def require_cpsat() -> None:
    if importlib.util.find_spec("ortools") is None:
        raise MissingExtraError("ortools", "cpsat", "the hop rule 'cpsat'")


def solve_cpsat(shop: Shop, seconds: float = 10.0, seed: int = 0) -> list[float] | None:
    """The same problem as intervals. With one thread and deterministic time, equal shops get equal schedules."""
    require_cpsat()
    from ortools.sat.python import cp_model

    if not shop.operations:
        return []
    longest = max(op.seconds for op in shop.operations)
    scale = 100_000 / longest  # ticks are integers; the longest operation takes 100,000 of them
    ticks = [max(1, round(op.seconds * scale)) for op in shop.operations]
    begins = [round(shop.earliest(i) * scale) for i in range(len(shop))]
    horizon = sum(ticks) + max(begins)
    model = cp_model.CpModel()
    starts = [model.new_int_var(begin, horizon, "") for begin in begins]
    intervals = [model.new_fixed_size_interval_var(s, t, "") for s, t in zip(starts, ticks, strict=True)]
    end = model.new_int_var(0, horizon, "")
    for start, tick in zip(starts, ticks, strict=True):
        model.add(end >= start + tick)
    for group in shop.groups():
        model.add_no_overlap([intervals[number] for number in group])
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = seconds
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [solver.value(start) / scale for start in starts]
