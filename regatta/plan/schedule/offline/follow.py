"""Following a schedule that was made ahead: each worker keeps to its order, each model to its.

Keeping the order means waiting now and then for a model that is about to arrive. That pays as long as times are
about as planned; the follower's `patience` says how long: a worker waits for the unit that is due while the wait
is shorter than `patience` times the unit it could run instead. With patience 0 it never waits and takes the
candidate with the earliest planned start: it stays dense. Models that the plan does not know, or has no more to
say about, go to workers that have nothing planned, by the longest rule.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np

from regatta.plan.schedule.board import Board, Choice
from regatta.plan.schedule.rollout import Start
from regatta.plan.schedule.rules import Longest

PATIENCE = 2.0


class Plan:
    """Planned starts as the orders that workers and models keep to."""

    def __init__(self, starts: Iterable[Start], patience: float = PATIENCE) -> None:
        self.patience = patience
        self.by_worker: dict[int, list[Start]] = {}
        self.by_model: dict[int, list[Start]] = {}
        for start in sorted(starts, key=lambda start: (start.time, start.worker)):
            if not start.running.evaluates:
                self.by_worker.setdefault(start.worker, []).append(start)
                self.by_model.setdefault(start.running.model, []).append(start)


class Planned:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._behind_worker: dict[int, int] = {}  # how many of the planned starts are behind us
        self._behind_model: dict[int, int] = {}
        self._board: Board | None = None
        self._upsets = 0
        self._filler = Longest()

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[Choice]:
        if self._board is not board or self._upsets != board.upsets:  # look through the whole plan again
            self._board, self._upsets = board, board.upsets
            self._behind_worker.clear()
            self._behind_model.clear()
        taken: set[int] = set()
        chosen = self._planned(board, idle, taken)
        if not chosen and not board.running:  # nobody would ever wake those who wait
            return self._filler.choose(board, idle)
        lost = [worker for worker in idle if self._head(board, worker) is None]
        if lost:
            ready = np.flatnonzero(board.ready).tolist()
            taken.update(model for model in ready if self._turn(board, model) is not None)
            chosen += self._filler.choose(board, lost, without=taken)
        return chosen

    def _planned(self, board: Board, idle: Sequence[int], taken: set[int]) -> list[Choice]:
        """By planned start, whichever worker it is: what is due later must not take what is due now."""
        heap = [(start.time, worker) for worker in idle if (start := self._candidate(board, worker, taken))]
        heapq.heapify(heap)
        chosen = []
        while heap:
            time, worker = heapq.heappop(heap)
            start = self._candidate(board, worker, taken)
            if start is None:
                continue
            if start.time > time:
                heapq.heappush(heap, (start.time, worker))
            elif self._may_start(board, start):
                taken.add(start.running.model)
                chosen.append(Choice(worker, start.running.model, start.running.partition))
        return chosen

    def _candidate(self, board: Board, worker: int, taken: set[int]) -> Start | None:
        """The worker's first planned start that could happen now."""
        if self._head(board, worker) is None:
            return None
        for start in self._plan.by_worker[worker][self._behind_worker[worker] :]:
            _, model, epoch, partition = start.running
            if not board.ready[model] or not board.open[partition, model] or model in taken:
                continue
            if epoch == board.models[model].epoch:
                return start
        return None

    def _may_start(self, board: Board, start: Start) -> bool:
        """Is it this start's turn; if not, is there time for it before what should come first?"""
        wait = math.inf
        head, turn = self._head(board, start.worker), self._turn(board, start.running.model)
        if head is not None and head is not start:
            wait = min(wait, self._until_model(board, head))
        if turn is not None and turn is not start:
            wait = min(wait, _until_free(board, turn.worker))
        return wait >= self._plan.patience * float(board.time[start.running.partition, start.running.model])

    def _until_model(self, board: Board, start: Start) -> float:
        """Seconds until the model of a planned start is expected to be free for it."""
        where = board.models[start.running.model].worker
        if where >= 0:
            return _until_free(board, where)
        turn = self._turn(board, start.running.model)
        if turn is None or turn is start:
            return 0.0
        return _until_free(board, turn.worker) + float(board.time[turn.running.partition, turn.running.model])

    def _head(self, board: Board, worker: int) -> Start | None:
        """The worker's next planned start."""
        return _advance(board, self._plan.by_worker.get(worker, ()), self._behind_worker, worker)

    def _turn(self, board: Board, model: int) -> Start | None:
        """The model's next planned start."""
        return _advance(board, self._plan.by_model.get(model, ()), self._behind_model, model)


def _advance(board: Board, planned: Sequence[Start], behind: dict[int, int], key: int) -> Start | None:
    at = behind.get(key, 0)
    while at < len(planned) and not _pending(board, planned[at]):
        at += 1
    behind[key] = at
    return planned[at] if at < len(planned) else None


def _until_free(board: Board, worker: int) -> float:
    """Seconds until a worker is free; one that is overdue by some time may well take as long again."""
    return abs(board.until[worker] - board.now) if worker in board.until else 0.0


def _pending(board: Board, start: Start) -> bool:
    """Is it still to come? Not if it was done, is not wanted any more, or its worker is gone."""
    running, model = start.running, board.models[start.running.model]
    if model.stopped or running.epoch > model.epochs or running.partition not in board.held[start.worker]:
        return False
    return running.epoch > model.epoch or (running.epoch == model.epoch and running.partition in model.rest)
