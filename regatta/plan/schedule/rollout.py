"""The schedule that a rule would lead to: a copy of the board is simulated to its end, on the estimates.

This is `simulate` without names, events and noise, because a planner calls it tens of times per second.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from regatta.plan.schedule.board import Board, Floats, Running
from regatta.plan.schedule.rules import Rule


@dataclass(frozen=True, slots=True)
class Start:
    time: float
    worker: int
    running: Running


@dataclass(frozen=True, slots=True)
class RollOutResult:
    """How a roll-out ended. `end` is infinite where it was given up or could not continue."""

    end: float
    starts: list[Start]


def roll_out(board: Board, rule: Rule, give_up: float = math.inf, time_factors: Floats | None = None) -> RollOutResult:
    """Simulate until no unit is left, or until the end is certainly not before `give_up`.

    `time_factors`, by partition and model, make training units longer or shorter than the rule expects.
    """
    board = board.copy()
    heap = [(max(board.now, end), worker) for worker, end in board.until.items()]
    heapq.heapify(heap)
    starts: list[Start] = []
    replicated = bool(board.cost)  # then a worker's load is only its even share
    end = board.now
    while True:
        for worker in start_units(board, rule):
            running = board.running[worker]
            starts.append(Start(board.now, worker, running))
            until = board.until[worker]
            if time_factors is not None and not running.evaluates:
                until = board.now + (until - board.now) * float(time_factors[running.partition, running.model])
            heapq.heappush(heap, (until, worker))
        if not heap or board.now + (0.0 if replicated else board.load.max(initial=0.0)) >= give_up:
            break
        board.now = end = heap[0][0]
        while heap and heap[0][0] <= end:
            board.finish(heapq.heappop(heap)[1])
    given_up = heap or board.left.max(initial=0.0) > 0.0
    return RollOutResult(math.inf if given_up else end, starts)


def start_units(board: Board, rule: Rule) -> list[int]:
    """Start every unit that can start now, evaluations first. Returns the workers that began a unit."""
    begun = []
    if board.evals_waiting:
        for worker in sorted(board.idle):
            partition = board.oldest_eval(worker)
            if partition is not None:
                board.start_eval(worker, partition)
                begun.append(worker)
    idle = board.workers_with_work(board.idle)
    for choice in rule.choose(board, idle) if idle else ():
        board.start(choice)
        begun.append(choice.worker)
    return begun


def earliest_end(board: Board, time_factors: Floats | None = None) -> float:
    """A lower bound on the end: the busiest worker and the longest model start at once and never wait.

    For replicated partitions, only the time on the fastest holder and the sum over all workers are certain.
    """
    free = {worker: max(board.now, end) for worker, end in board.until.items()}
    here = [worker for worker, held in enumerate(board.held) if held]
    alone, left = _sums(board, time_factors)
    ends = np.full(len(board.held), board.now)
    ends[list(free)] = list(free.values())
    shared = (float(ends[here].sum()) + float(left.sum())) / max(1, len(here))
    loads = ends[here] + alone[here]
    chains = board.now + left
    for worker, running in board.running.items():
        if not running.evaluates:
            chains[running.model] = free[worker] + left[running.model]
    return float(max(loads.max(initial=board.now), chains.max(initial=board.now), ends.max(initial=board.now), shared))


def _sums(board: Board, time_factors: Floats | None) -> tuple[Floats, Floats]:
    """The least seconds left by worker, for partitions that it alone holds, and by model."""
    if time_factors is None and not board.cost:
        return board.load, board.left
    work = board.wanted * _fastest(board)
    if time_factors is not None:
        work = work * time_factors[:, : work.shape[1]]
    lone = work.sum(axis=1) * [len(holders) == 1 for holders in board.holders]
    return np.array([lone[list(held)].sum() for held in board.held]), work.sum(axis=0)


def _fastest(board: Board) -> Floats:
    """Seconds of each unit on the fastest worker that holds its partition."""
    times = board.time.copy()
    for partition, holders in enumerate(board.holders):
        rows = [board.cost[worker, partition] for worker in holders if (worker, partition) in board.cost]
        if rows:
            times[partition] = np.min(rows, axis=0)
    return times


def noise_factors(board: Board, deviation: float, seed: int) -> Floats:
    """Random factors around 1 for `time_factors`, the same for every rule that is compared."""
    random = np.random.default_rng(seed)
    return np.exp(deviation * random.standard_normal(board.time.shape))
