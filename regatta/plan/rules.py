"""Which model an idle worker trains next: one small class per rule, all behind `choose`.

A rule looks at the board and changes nothing on it. It gets the idle workers that hold an open unit of a model
that is ready, and answers with what to start, at most one unit per worker and per model.

| rule       | the idle worker takes ...                                                                      |
|------------|------------------------------------------------------------------------------------------------|
| randomized | any open unit: Algorithm 1 of the Cerebro paper, with its availability map for replicas          |
| lpt        | the longest unit                                                                                 |
| lrm        | the model with the most work left; workers with the most work left choose first                  |
| longest    | the model with the most work left on other workers; nobody stays idle who need not               |
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from regatta.plan.board import Board, Choice, Floats


class Rule(Protocol):
    """Chooses what idle workers start; `peek` is set when the answer is only a forecast."""

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[Choice]: ...


class Randomized:
    """Any open unit, each as likely as the other; the workers take turns by number."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._next = self._random.random()

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[Choice]:
        free = board.ready.copy()
        chosen = []
        for worker in idle:
            units = self._units(board, worker, free)
            if units:
                model, partition = units[int(self._next * len(units))]
                free[model] = False
                chosen.append(Choice(worker, model, partition))
                if not peek:
                    self._next = self._random.random()
        return chosen

    @staticmethod
    def _units(board: Board, worker: int, free: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
        return [
            (model, partition)
            for partition in board.held[worker]
            for model in np.flatnonzero(board.open[partition] & free).tolist()
        ]


class Lpt:
    """The longest unit that the worker could start."""

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[Choice]:
        free = board.ready.copy()
        chosen = []
        for worker in idle:
            best = (0.0, -1, -1)
            for partition in board.held[worker]:
                seconds = np.where(board.open[partition] & free, board.time[partition], 0.0)
                model = int(seconds.argmax())
                best = max(best, (float(seconds[model]), model, partition), key=lambda found: found[0])
            if best[1] >= 0:
                free[best[1]] = False
                chosen.append(Choice(worker, best[1], best[2]))
        return chosen


class Lrm:
    """Longest remaining model first; where several workers are idle, the one with most left to do chooses first."""

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[Choice]:
        free = board.ready.copy()
        chosen = []
        for worker in busiest_first(board, idle):
            model = best_model(board, worker, free, board.left)
            if model >= 0:
                free[model] = False
                chosen.append(Choice(worker, model, board.partition(worker, model)))
        return chosen


class Longest:
    """Longest remaining time on the other workers, repaired by augmenting paths.

    A model with much to do elsewhere is best begun now. Where several workers are idle at one instant and one of
    them finds no model, those already chosen are exchanged so that it does: as many workers as possible start.
    `weights` bend the preferences, one factor per model: roll-outs try several.
    """

    def __init__(self, weights: Floats | None = None) -> None:
        self._weights = weights

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[Choice]:
        free = board.ready.copy()
        taken: dict[int, int] = {}  # model: worker
        missed = []
        for worker in busiest_first(board, idle):
            elsewhere = board.left - board.here[worker]
            if self._weights is not None:
                elsewhere *= self._weights
            model = best_model(board, worker, free, elsewhere)
            if model >= 0:
                free[model] = False
                taken[model] = worker
            else:
                missed.append(worker)
        for worker in missed:
            _augment(board, worker, taken, set())
        return [Choice(worker, model, board.partition(worker, model)) for model, worker in taken.items()]


def _augment(board: Board, worker: int, taken: dict[int, int], tried: set[int]) -> bool:
    """Find a model for the worker, if need be one whose worker finds another; Kuhn's algorithm."""
    for model in np.flatnonzero(np.logical_and(board.count[worker], board.ready)).tolist():
        if model in tried:
            continue
        tried.add(model)
        if model not in taken or _augment(board, taken[model], taken, tried):
            taken[model] = worker
            return True
    return False


def busiest_first(board: Board, idle: Sequence[int]) -> Sequence[int]:
    if len(idle) == 1:
        return idle
    return sorted(idle, key=lambda worker: (-board.load[worker], worker))


def best_model(board: Board, worker: int, free: np.ndarray[tuple[int], np.dtype[np.bool_]], score: Floats) -> int:
    """The free model with an open unit on this worker whose score is highest; -1 if there is none."""
    possible = np.logical_and(board.count[worker], free)
    best = int(np.where(possible, score, -1.0).argmax())
    return best if possible[best] else -1
