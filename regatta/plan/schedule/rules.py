"""Which model an idle worker trains next: one small class per rule, all behind `choose`.

A rule looks at the board and changes nothing on it. It gets the idle workers that hold an open unit of a model
that is ready, and answers with what to start, at most one unit per worker and per model.

| rule       | the idle worker takes ...                                                                      |
|------------|------------------------------------------------------------------------------------------------|
| randomized | any open unit: Algorithm 1 of the Cerebro paper, with its availability map for replicas          |
| lpt        | the longest unit                                                                                 |
| lrm        | the model with the most work left; workers with the most work left choose first                  |
| longest    | the model with the most work left on other workers, or to come; nobody stays idle who need not   |
| match      | what a maximum-weight matching of all idle workers and ready models gives it                     |
| backlog    | from its fullest partition, unless another holder would be done with that unit sooner            |
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from regatta.plan.schedule.board import (
    Board,
    Choice,
    Floats,
    Running,
)


class Rule(Protocol):
    """Chooses what idle workers start; `peek` is set when the answer is only a forecast."""

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[Choice]: ...


@dataclass(frozen=True)
class Request:
    """What a planner may spend and should know: the noise to expect, and the rule in use so far."""

    effort: int = 0
    noise: float = 0.0
    seed: int = 0
    seconds: float = 10.0  # for solvers
    present: Rule | None = None


@dataclass(frozen=True)
class Verdict:
    """The rule to go by from now on, and why."""

    rule: Rule
    name: str
    why: str
    decisions: int = 0


Planner = Callable[[Board, Request], Verdict]


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
            model = best_model(board, worker, free, board.left) if free.any() else -1
            if model >= 0:
                free[model] = False
                chosen.append(Choice(worker, model, board.partition(worker, model)))
        return chosen


class Longest:
    """Longest remaining time on the other workers, repaired by augmenting paths.

    A model with much to do elsewhere is best begun now. Where several workers are idle at one instant and one of
    them finds no model, those already chosen are exchanged so that it does: as many workers as possible start.
    `weights` bend the preferences, a factor per worker and model: roll-outs try many.
    """

    def __init__(self, weights: Floats | None = None) -> None:
        self._weights = weights

    def bent(self, weights: Floats) -> Longest:
        """The same rule with other preferences, by worker and model."""
        return Longest(weights)

    def choose(
        self, board: Board, idle: Sequence[int], *, peek: bool = False, without: Iterable[int] = ()
    ) -> list[Choice]:
        free = board.ready.copy()
        free[list(without)] = False
        taken: dict[int, int] = {}  # model: worker
        missed = []
        most = int(free.sum())
        for worker in busiest_first(board, idle):
            if len(taken) == most:
                break
            model = best_model(board, worker, free, self._score(board, worker))
            if model >= 0:
                free[model] = False
                taken[model] = worker
            else:
                missed.append(worker)
        tried = set(without)
        for worker in missed if len(taken) < most else ():
            if _augment(board, worker, taken, tried):
                tried = set(without)  # what led nowhere before may lead somewhere now
        return [Choice(worker, model, board.partition(worker, model)) for model, worker in taken.items()]

    def _score(self, board: Board, worker: int) -> Floats:
        elsewhere: Floats = board.left + board.ahead - board.here[worker]
        if self._weights is not None and worker < len(self._weights):
            row = self._weights[worker]
            elsewhere[: len(row)] *= row  # workers and models that came later keep theirs
        return elsewhere


class Match:
    """Maximum-weight matching of idle workers and ready models, by work left of both.

    Where all units take equally long this is the constructive proof of Koenig's edge-colouring theorem: each round
    must reach every worker and every model that has the most left to do, and then no worker idles before its time.
    """

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[Choice]:
        if len(idle) == 1:
            models = [best_model(board, idle[0], board.ready, board.left + board.ahead)]
            return [Choice(idle[0], models[0], board.partition(idle[0], models[0]))]
        from scipy.optimize import linear_sum_assignment  # takes a while to import, and many runs never match

        columns = np.flatnonzero(board.ready)
        workers = np.asarray(idle)
        possible = board.count[np.ix_(workers, columns)] > 0
        model_left = board.left[columns] + board.ahead[columns]
        weights = np.where(possible, model_left + board.load[workers][:, None], 0.0)
        rows, places = linear_sum_assignment(weights, maximize=True)
        pairs = [
            (idle[i], int(columns[k])) for i, k in zip(rows.tolist(), places.tolist(), strict=True) if possible[i, k]
        ]
        return [Choice(worker, model, board.partition(worker, model)) for worker, model in pairs]


class Backlog:
    """For replicated partitions on workers of unlike speed: MaxWeight with a tail guard.

    A worker serves the partition with the most work left, the longest remaining model first. Towards the end it
    leaves a unit alone that would outlast everything else while a faster holder could still be done with it sooner.
    """

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[Choice]:
        horizon = self._horizon(board)
        chosen = self._serve(board, idle, horizon)
        if not chosen and not board.running:
            chosen = self._serve(board, idle, math.inf)
        return chosen

    @staticmethod
    def _horizon(board: Board) -> float:
        """When all could be done at best: work shared out evenly, and no chain of one model cut short."""
        here = sum(1 for held in board.held if held)
        busy = sum(max(0.0, end - board.now) for end in board.until.values())
        return board.now + max((float(board.load.sum()) + busy) / here, float(board.left.max(initial=0.0)))

    def _serve(self, board: Board, idle: Sequence[int], horizon: float) -> list[Choice]:
        free = board.ready.copy()
        near = {j for worker in idle for j in board.held[worker]}
        backlog = {j: float((board.wanted[j] * board.time[j]).sum()) for j in near}
        chosen = []
        for worker in idle:
            for partition in sorted(board.held[worker], key=lambda j: (-backlog[j], j)):
                possible = board.open[partition] & free
                model = int(np.where(possible, board.left, -1.0).argmax())
                if not possible[model] or self._better_elsewhere(board, worker, model, partition, horizon):
                    continue
                free[model] = False
                backlog[partition] -= float(board.time[partition, model])
                chosen.append(Choice(worker, model, partition))
                break
        return chosen

    @staticmethod
    def _better_elsewhere(board: Board, worker: int, model: int, partition: int, horizon: float) -> bool:
        unit = Running(False, model, 0, partition)
        end = board.now + board.seconds(worker, unit)
        if end <= horizon:
            return False
        others = (other for other in board.holders[partition] if other != worker)
        return any(board.until.get(v, board.now) + board.seconds(v, unit) < end for v in others)


def _augment(board: Board, worker: int, taken: dict[int, int], tried: set[int]) -> bool:
    """Find a model for the worker, if need be one whose worker finds another; Kuhn's algorithm, depth first.

    The way leads over as many workers as are idle at once: too deep for a function that calls itself.
    """
    way = [(worker, _openings(board, worker))]
    wanted: list[int] = []  # by each worker on the way but the last: the model that the next one would give up
    while way:
        model = next((model for model in way[-1][1] if model not in tried), -1)
        if model < 0:
            way.pop()
            if wanted:
                wanted.pop()
            continue
        tried.add(model)
        wanted.append(model)
        if model not in taken:
            taken.update({model: owner for model, (owner, _) in zip(wanted, way, strict=True)})
            return True
        way.append((taken[model], _openings(board, taken[model])))
    return False


def _openings(board: Board, worker: int) -> Iterator[int]:
    return iter(np.flatnonzero(np.logical_and(board.count[worker], board.ready)).tolist())


def busiest_first(board: Board, idle: Sequence[int]) -> Sequence[int]:
    if len(idle) == 1:
        return idle
    return sorted(idle, key=lambda worker: (-board.load[worker], worker))


def best_model(board: Board, worker: int, free: np.ndarray[tuple[int], np.dtype[np.bool_]], score: Floats) -> int:
    """The free model with an open unit on this worker whose score is highest; -1 if there is none."""
    possible = np.logical_and(board.count[worker], free)
    best = int(np.where(possible, score, -1.0).argmax())
    return best if possible[best] else -1
