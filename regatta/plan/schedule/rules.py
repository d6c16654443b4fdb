"""Which model an idle worker trains next: one small class per rule, with the method `choose`.

A rule reads the board and does not change it. It gets the idle workers that hold an open unit of a ready model, and
returns the units to start, at most one per worker and per model.

| rule       | the idle worker takes ...                                                                      |
|------------|------------------------------------------------------------------------------------------------|
| randomized | any open unit: Algorithm 1 of the Cerebro paper, with its availability map for replicas          |
| lpt        | the longest unit                                                                                 |
| lrm        | the model with the most work left; workers with the most work left choose first                  |
| longest    | the model with the most work left on other workers, or in later epochs; no needless idling       |
| match      | its model in a maximum-weight matching of all idle workers and ready models                      |
| backlog    | a unit of its fullest partition, unless another holder would finish that unit sooner             |
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from regatta.plan.schedule.board import Board, Floats, Running, UnitChoice


class Rule(Protocol):
    """Chooses the units that idle workers start; `peek` is set when the answer is only a forecast."""

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[UnitChoice]: ...


@dataclass(frozen=True)
class PlanningRequest:
    """The effort that a planner may spend, the noise to expect, and the current rule."""

    effort: int = 0
    noise: float = 0.0
    seed: int = 0
    seconds: float = 10.0  # time limit of solvers
    present: Rule | None = None


@dataclass(frozen=True)
class ChosenRule:
    """The rule to use from now on, and why it was chosen."""

    rule: Rule
    name: str
    why: str
    decisions: int = 0


Planner = Callable[[Board, PlanningRequest], ChosenRule]


class Randomized:
    """Any open unit, all equally likely; workers choose in the order of their numbers."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._next = self._random.random()

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[UnitChoice]:
        free = board.ready.copy()
        chosen = []
        for worker in idle:
            units = [
                (model, partition)
                for partition in board.held[worker]
                for model in np.flatnonzero(board.open[partition] & free).tolist()
            ]
            if units:
                model, partition = units[int(self._next * len(units))]
                free[model] = False
                chosen.append(UnitChoice(worker, model, partition))
                if not peek:
                    self._next = self._random.random()
        return chosen


class Lpt:
    """The longest unit that the worker could start."""

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[UnitChoice]:
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
                chosen.append(UnitChoice(worker, best[1], best[2]))
        return chosen


class Lrm:
    """Longest remaining model first. Where several workers are idle, the one with the most work left chooses first."""

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[UnitChoice]:
        free = board.ready.copy()
        chosen = []
        for worker in busiest_first(board, idle):
            model = best_model(board, worker, free, board.left) if free.any() else -1
            if model >= 0:
                free[model] = False
                chosen.append(UnitChoice(worker, model, board.choose_partition(worker, model)))
        return chosen


class Longest:
    """Longest remaining time on the other workers, repaired by augmenting paths.

    A model with much work elsewhere should start now. Where several workers are idle at once and one of them finds no
    model, choices already made are exchanged, so that as many workers as possible start. `weights` multiply the scores,
    one factor per worker and model; roll-outs try many.
    """

    def __init__(self, weights: Floats | None = None) -> None:
        self._weights = weights

    def with_weights(self, weights: Floats) -> Longest:
        """The same rule with other weights, by worker and model."""
        return Longest(weights)

    def choose(
        self, board: Board, idle: Sequence[int], *, peek: bool = False, without: Iterable[int] = ()
    ) -> list[UnitChoice]:
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
            if _find_augmenting_path(board, worker, taken, tried):
                tried = set(without)  # the exchange may have opened paths through models already tried
        return [UnitChoice(worker, model, board.choose_partition(worker, model)) for model, worker in taken.items()]

    def _score(self, board: Board, worker: int) -> Floats:
        elsewhere: Floats = board.left + board.ahead - board.here[worker]
        if self._weights is not None and worker < len(self._weights):
            row = self._weights[worker]
            elsewhere[: len(row)] *= row  # workers and models added later have no weight
        return elsewhere


class Match:
    """Maximum-weight matching of idle workers and ready models, weighted by the work left of both.

    Where all units take equally long, this is the constructive proof of Koenig's edge-colouring theorem: each round
    reaches every worker and every model with the most work left, so no worker idles too early.
    """

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[UnitChoice]:
        if len(idle) == 1:
            models = [best_model(board, idle[0], board.ready, board.left + board.ahead)]
            return [UnitChoice(idle[0], models[0], board.choose_partition(idle[0], models[0]))]
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
        return [UnitChoice(worker, model, board.choose_partition(worker, model)) for worker, model in pairs]


class Backlog:
    """For replicated partitions on workers of different speeds: MaxWeight with a tail guard.

    A worker serves the partition with the most work left, the longest remaining model first. Towards the end it skips a
    unit that would end after all others if a faster holder could still finish it sooner.
    """

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[UnitChoice]:
        # The earliest possible end: the work divided evenly, but no earlier than the longest model.
        here = sum(1 for held in board.held if held)
        busy = sum(max(0.0, end - board.now) for end in board.until.values())
        horizon = board.now + max((float(board.load.sum()) + busy) / here, float(board.left.max(initial=0.0)))
        chosen = self._serve(board, idle, horizon)
        if not chosen and not board.running:
            chosen = self._serve(board, idle, math.inf)
        return chosen

    def _serve(self, board: Board, idle: Sequence[int], horizon: float) -> list[UnitChoice]:
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
                chosen.append(UnitChoice(worker, model, partition))
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


def _find_augmenting_path(board: Board, worker: int, taken: dict[int, int], tried: set[int]) -> bool:
    """Find a model for the worker, if needed one whose worker can take another; Kuhn's algorithm, depth first.

    The path may pass through all workers that are idle at once, which is too deep for recursion.
    """
    way = [(worker, _startable_models(board, worker))]
    wanted: list[int] = []  # for each worker on the path but the last, the model that the next one would give up
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
        way.append((taken[model], _startable_models(board, taken[model])))
    return False


def _startable_models(board: Board, worker: int) -> Iterator[int]:
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
