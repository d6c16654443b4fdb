"""Estimates taken over to a board: all at first, then those of models whose times moved, or of partitions that did.

It also remembers the times that the present plan was made for, and says when they moved so far that another is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from regatta.plan.schedule.board import Board
from regatta.plan.schedule.estimates import Times
from regatta.plan.schedule.partition_places import Floats, Places
from regatta.plan.schedule.units import Kind, Unit

OUTDATED = 0.2  # a time that moved by more than this since the plan was made asks for another
WHOLE = 200_000  # so many times, a fraction of a second, are all taken over when any partition moves


@runtime_checkable
class ManyTimes(Times, Protocol):
    """Times that tell those of many units of a model at once: one by one, ten million take a minute."""

    def many(self, kind: Kind, model: str, partitions: Sequence[int], workers: Sequence[str]) -> Sequence[float]:
        """The seconds of the unit on each partition, on the worker beside it."""
        ...


class Timetable:
    def __init__(self, board: Board, times: Times, models: Sequence[str], workers: Sequence[str]) -> None:
        """`models` and `workers` are names by number, and may grow."""
        self._board = board
        self._ask = _asking(times)
        self._models, self._workers = models, workers
        self._places = _Named(board.places, workers)
        self._judges: dict[int, str] = {}  # a worker for each evaluation partition that is held
        self._planned: Floats = board.time.copy()
        self._moved: set[int] = set()  # models whose times were set since then

    def move(self) -> None:
        """Partitions came to workers or left them: take over the times of these, or all where that is quick."""
        board = self._board
        before = self._judges
        self._judges = {j: self._workers[worker] for worker, held in enumerate(board.held_evals) for j in held}
        whole = len(board.models) * (board.partitions + board.eval_partitions) <= WHOLE
        moved = _Named(board.rehold(whole), self._workers)
        judges = {j: worker for j, worker in self._judges.items() if whole or before.get(j) != worker}
        for index in range(len(board.models)):
            self._set(index, moved, judges)
        board.resum()
        for index in range(len(board.models)):
            board.look_ahead(index)
        self._places = _Named(board.places, self._workers)
        self._moved.update(range(len(board.models)))

    def refresh(self, index: int) -> bool:
        """Take over the times of one model; whether they are no longer those of the plan."""
        self._set(index, self._places, self._judges)
        self._board.recount(index)
        self._moved.add(index)
        if index >= self._planned.shape[1]:
            return False
        planned = self._planned[:, index]
        return bool((abs(self._board.time[:, index] - planned) > OUTDATED * planned).any())

    def planned(self) -> None:
        """A plan was made for the times as they are."""
        time = self._board.time
        if self._planned.shape == time.shape and 2 * len(self._moved) < time.shape[1]:
            moved = list(self._moved)
            self._planned[:, moved] = time[:, moved]
        else:
            self._planned = time.copy()
        self._moved.clear()

    def _set(self, index: int, at: _Named, judges: Mapping[int, str]) -> None:
        model, judged = self._models[index], list(judges)
        train = self._ask("train", model, at.partitions, at.workers)
        self._board.set_times(index, at.places, np.array(train, np.float64))
        if judged:
            evals = self._ask("eval", model, judged, list(judges.values()))
            self._board.set_eval_times(index, judged, np.array(evals, np.float64))


def _asking(times: Times) -> Callable[[Kind, str, Sequence[int], Sequence[str]], Sequence[float]]:
    if isinstance(times, ManyTimes):
        return times.many

    def one_by_one(kind: Kind, model: str, partitions: Sequence[int], workers: Sequence[str]) -> list[float]:
        places = zip(partitions, workers, strict=True)
        return [times.seconds(Unit(kind, model, 1, j), worker) for j, worker in places]

    return one_by_one


class _Named:
    """Places, their workers by name."""

    def __init__(self, places: Places, names: Sequence[str]) -> None:
        self.places = places
        self.partitions: list[int] = places.partitions.tolist()
        self.workers = [names[worker] for worker in places.workers.tolist()]
