"""Following a planned schedule: each worker and each model keeps its planned order.

To keep the order, a worker sometimes waits for a model that is about to arrive. That pays while units take about as
long as planned. A worker waits for the unit that is due while the wait is shorter than `patience` times the unit that
it could run instead. With patience 0 it never waits: it takes the candidate with the earliest planned start. Models
without planned units go to workers without planned units, by the rule `longest`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np

from regatta.plan.schedule.board import Board, UnitChoice
from regatta.plan.schedule.rollout import Start
from regatta.plan.schedule.rules import Longest

DEFAULT_PATIENCE = 2.0


class PlannedStarts:
    """Planned starts, ordered by worker and by model."""

    def __init__(self, starts: Iterable[Start], patience: float = DEFAULT_PATIENCE) -> None:
        self.patience = patience
        self.by_worker: dict[int, list[Start]] = {}
        self.by_model: dict[int, list[Start]] = {}
        for start in sorted(starts, key=lambda start: (start.time, start.worker)):
            if not start.running.evaluates:
                self.by_worker.setdefault(start.worker, []).append(start)
                self.by_model.setdefault(start.running.model, []).append(start)


class FollowPlan:
    def __init__(self, plan: PlannedStarts) -> None:
        self._plan = plan
        self._behind_worker: dict[int, int] = {}  # how many of the planned starts are in the past
        self._behind_model: dict[int, int] = {}
        self._board: Board | None = None
        self._disruptions = 0
        self._filler = Longest()

    def choose(self, board: Board, idle: Sequence[int], *, peek: bool = False) -> list[UnitChoice]:
        if self._board is not board or self._disruptions != board.disruptions:  # scan the whole plan again
            self._board, self._disruptions = board, board.disruptions
            self._behind_worker.clear()
            self._behind_model.clear()
        taken: set[int] = set()
        chosen = self._planned(board, idle, taken)
        if not chosen and not board.running:  # no event would ever end the wait
            return self._filler.choose(board, idle)
        lost = [worker for worker in idle if self._head(board, worker) is None]
        if lost:
            ready = np.flatnonzero(board.ready).tolist()
            taken.update(model for model in ready if self._turn(board, model) is not None)
            chosen += self._filler.choose(board, lost, without=taken)
        return chosen

    def _planned(self, board: Board, idle: Sequence[int], taken: set[int]) -> list[UnitChoice]:
        """Choose by planned start over all workers: a later start must not take the model of an earlier one."""
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
                chosen.append(UnitChoice(worker, start.running.model, start.running.partition))
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
        """Whether it is this start's turn, or the unit fits in before the units that should come first."""
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
    """Seconds until a worker is free. A unit that is overdue is expected to take as long again as it is overdue."""
    return abs(board.until[worker] - board.now) if worker in board.until else 0.0


def _pending(board: Board, start: Start) -> bool:
    """Whether a start is still ahead: it is not done, still wanted, and its worker holds the partition."""
    running, model = start.running, board.models[start.running.model]
    if model.stopped or running.epoch > model.epochs or running.partition not in board.held[start.worker]:
        return False
    return running.epoch > model.epoch or (running.epoch == model.epoch and running.partition in model.rest)
