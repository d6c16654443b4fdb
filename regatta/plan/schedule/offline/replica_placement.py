"""Which holder of a replicated partition trains which model: a linear program, then the rule `longest`.

With replicas, a schedule also chooses where a unit runs. The linear program splits the units among the holders of their
partition so that the busiest worker and the longest model end as early as possible. A vertex of its solution set splits
few units; each of these goes to the holder with the largest share. The problem that remains has no replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regatta.plan.schedule.board import Board, Floats, Running, UnitChoice
from regatta.plan.schedule.rules import Backlog


class FollowPlacement:
    """Longest remaining time on other workers, where each worker takes the units that were placed on it.

    A worker that can start none of its own units helps the busiest worker, if that does not delay the end.
    """

    def __init__(self, models: int, home: NDArray[np.int32], seconds: Floats, weights: Floats | None = None) -> None:
        self._models = models
        self._home = home  # by partition and model: a worker
        self._seconds = seconds  # by partition and model: on that worker
        self._weights = weights

    def with_weights(self, weights: Floats) -> FollowPlacement:
        """The same rule with other weights, by worker and model."""
        return FollowPlacement(self._models, self._home, self._seconds, weights)

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[UnitChoice]:
        if len(board.models) > self._models:  # models were added after the placement
            return Backlog().choose(board, idle)
        state = _PlacementState(board, self._home, self._seconds, self._weights)
        chosen = []
        for worker in sorted(idle, key=lambda w: (-state.ends[w], w)):
            choice = state.own_unit(worker) or state.helping_unit(worker)
            if choice:
                state.free[choice.model] = False
                chosen.append(choice)
        if chosen or board.running:
            return chosen
        return Backlog().choose(board, idle)  # only units of lost workers are left


class _PlacementState:
    """The inputs of one decision: work left by unit and by model, and when each worker would be done."""

    def __init__(self, board: Board, home: NDArray[np.int32], seconds: Floats, weights: Floats | None) -> None:
        size = home.shape[1]
        self.board, self.home, self.weights = board, home, weights
        self.free = board.ready[:size].copy()
        self.work = board.wanted[:, :size] * seconds
        self.left = self.work.sum(axis=0)
        free_at = [max(board.now, board.until.get(worker, 0.0)) for worker in range(len(board.held))]
        self.ends: Floats = np.bincount(home.ravel(), self.work.ravel(), len(board.held)) + np.array(free_at)
        self.horizon = max(self.ends.max(), board.now + self.left.max(initial=0.0))

    def own_unit(self, worker: int) -> UnitChoice | None:
        held = list(self.board.held[worker])
        mine = self.home[held] == worker
        elsewhere = self.left - (self.work[held] * mine).sum(axis=0)
        if self.weights is not None and worker < len(self.weights):
            elsewhere[: self.weights.shape[1]] *= self.weights[worker]
        possible = self.board.open[held, : len(self.free)] & mine & self.free
        score = np.where(possible, elsewhere, -1.0)
        row, model = divmod(int(score.argmax()), len(self.free))
        return UnitChoice(worker, model, held[row]) if possible[row, model] else None

    def helping_unit(self, worker: int) -> UnitChoice | None:
        """A unit that would end sooner here, without delaying its model beyond the horizon."""
        best, found = self.board.now, None
        for partition in self.board.held[worker]:
            for model in np.flatnonzero(self.board.open[partition, : len(self.free)] & self.free).tolist():
                there = float(self.ends[self.home[partition, model]])
                if there <= best:
                    continue
                end = self.board.now + self.board.seconds(worker, Running(False, model, 0, partition))
                model_end = end + float(self.left[model] - self.work[partition, model])
                if end < there and model_end <= self.horizon:
                    best, found = there, UnitChoice(worker, model, partition)
        return found


def place_units(board: Board) -> FollowPlacement | None:
    """Place units by a linear program. None where no unit is left or a partition has no holder."""
    units = np.argwhere(board.wanted > 0)
    if not len(units) or not all(board.holders):
        return None
    parts = [
        UnitOption(number, worker, model, board.seconds(worker, Running(False, model, 0, partition)))
        for number, (partition, model) in enumerate(units.tolist())
        for worker in board.holders[partition]
    ]
    times = board.wanted[tuple(units.T)]
    busy = {worker: max(0.0, end - board.now) for worker, end in board.until.items()}
    _, shares = split_units([part._replace(seconds=part.seconds * times[part.unit]) for part in parts], busy)
    home = np.zeros(board.wanted.shape, np.int32)
    seconds = np.zeros(board.wanted.shape)
    largest = np.zeros(len(units))
    for part, share in zip(parts, shares.tolist(), strict=True):
        if share > largest[part.unit]:
            largest[part.unit] = share
            home[tuple(units[part.unit])] = part.worker
            seconds[tuple(units[part.unit])] = part.seconds
    return FollowPlacement(len(board.models), home, seconds)


class UnitOption(NamedTuple):
    """A unit, a worker that could run it, its model, and the seconds that it would take."""

    unit: int
    worker: int
    model: int
    seconds: float


def split_units(parts: Sequence[UnitOption], busy: Mapping[int, float]) -> tuple[float, Floats]:
    """Split units into shares so that the longest work C of any worker or model is as short as possible.

    `busy`: seconds for which a worker is not available. Returns C and the share of each option.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, hstack

    if not parts:
        return 0.0, np.zeros(0)
    numbers, workers, models, seconds = (np.array(column) for column in zip(*parts, strict=True))
    count, units, first_model = len(parts), numbers.max() + 1, workers.max() + 1
    limits = first_model + models.max() + 1
    columns = np.arange(count)
    rows = np.concatenate([workers, first_model + models])
    work = coo_array((np.tile(seconds, 2), (rows, np.tile(columns, 2))), shape=(limits, count))
    whole = coo_array((np.ones(count), (numbers, columns)), shape=(units, count))
    least = np.zeros(limits)
    for worker, before in busy.items():
        if worker < first_model:
            least[worker] = before
    solve: Any = linprog  # its type stubs do not include sparse matrices
    found = solve(
        np.append(np.zeros(count), 1.0),
        A_ub=hstack([work, coo_array(-np.ones((limits, 1)))]),
        b_ub=-least,
        A_eq=hstack([whole, coo_array((units, 1))]),
        b_eq=np.ones(units),
        method="highs-ds",  # the simplex method ends in a vertex
    )
    return float(found.fun), np.asarray(found.x[:count], dtype=np.float64)
