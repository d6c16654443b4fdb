"""Copies estimates to a board: all of them first, then those of models or partitions that changed.

It also remembers the times that the current plan was made for, and tells when they changed so much that a new plan is
needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from regatta.plan.schedule.board import Board
from regatta.plan.schedule.estimates import Times
from regatta.plan.schedule.partition_places import Floats, Places
from regatta.plan.schedule.units import Unit, UnitKind

REPLAN_TOLERANCE = 0.2  # a time that changed by more than this since the plan was made calls for a new plan
MAX_TIMES_RESET = 200_000  # up to this many times are all set again when a partition moves: a fraction of a second


@runtime_checkable
class ManyUnitTimes(Times, Protocol):
    """Times of many units of a model in one call: ten million single calls would take a minute."""

    def seconds_of_many(
        self, kind: UnitKind, model: str, partitions: Sequence[int], workers: Sequence[str]
    ) -> Sequence[float]:
        """The seconds of the unit on each partition and its worker."""
        ...


class Timetable:
    def __init__(self, board: Board, times: Times, models: Sequence[str], workers: Sequence[str]) -> None:
        """`models` and `workers` are names by index, and may grow."""
        self._board = board
        self._seconds_of_many = _batch_times(times)
        self._models, self._workers = models, workers
        self._places = _NamedPlaces(board.places, workers)
        self._evaluators: dict[int, str] = {}  # a worker for each evaluation partition that is held
        self._planned: Floats = board.time.copy()  # the times that the plan was made for
        self._moved: set[int] = set()  # models whose times were set since then

    def on_partitions_moved(self) -> None:
        """Holders of partitions changed: set the times of these partitions, or all times where that is quick."""
        board = self._board
        before = self._evaluators
        self._evaluators = {j: self._workers[worker] for worker, held in enumerate(board.held_evals) for j in held}
        whole = len(board.models) * (board.partitions + board.eval_partitions) <= MAX_TIMES_RESET
        moved = _NamedPlaces(board.begin_partition_moves(whole), self._workers)
        evaluators = {j: worker for j, worker in self._evaluators.items() if whole or before.get(j) != worker}
        for index in range(len(board.models)):
            self._set_times(index, moved, evaluators)
        board.end_partition_moves()
        for index in range(len(board.models)):
            board.update_ahead(index)
        self._places = _NamedPlaces(board.places, self._workers)
        self._moved.update(range(len(board.models)))

    def refresh(self, index: int) -> bool:
        """Set the times of one model. Returns whether they differ too much from those of the plan."""
        self._set_times(index, self._places, self._evaluators)
        self._board.update_sums(index)
        self._moved.add(index)
        if index >= self._planned.shape[1]:
            return False
        planned = self._planned[:, index]
        return bool((abs(self._board.time[:, index] - planned) > REPLAN_TOLERANCE * planned).any())

    def on_planned(self) -> None:
        """Remember the present times as those of the plan."""
        time = self._board.time
        if self._planned.shape == time.shape and 2 * len(self._moved) < time.shape[1]:
            moved = list(self._moved)
            self._planned[:, moved] = time[:, moved]
        else:
            self._planned = time.copy()
        self._moved.clear()

    def _set_times(self, index: int, at: _NamedPlaces, evaluators: Mapping[int, str]) -> None:
        model, eval_partitions = self._models[index], list(evaluators)
        train = self._seconds_of_many("train", model, at.partitions, at.workers)
        self._board.set_times(index, at.places, np.array(train, np.float64))
        if eval_partitions:
            evals = self._seconds_of_many("eval", model, eval_partitions, list(evaluators.values()))
            self._board.set_eval_times(index, eval_partitions, np.array(evals, np.float64))


def _batch_times(times: Times) -> Callable[[UnitKind, str, Sequence[int], Sequence[str]], Sequence[float]]:
    if isinstance(times, ManyUnitTimes):
        return times.seconds_of_many

    def one_by_one(kind: UnitKind, model: str, partitions: Sequence[int], workers: Sequence[str]) -> list[float]:
        places = zip(partitions, workers, strict=True)
        return [times.seconds(Unit(kind, model, 1, j), worker) for j, worker in places]

    return one_by_one


class _NamedPlaces:
    """Places with the names of their workers."""

    def __init__(self, places: Places, names: Sequence[str]) -> None:
        self.places = places
        self.partitions: list[int] = places.partitions.tolist()
        self.workers = [names[worker] for worker in places.workers.tolist()]
