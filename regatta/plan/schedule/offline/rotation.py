"""A schedule for models that take about as long on every worker: all go round one circle.

Lay the models on a circle, each as long as its unit. Every worker goes round the same circle at the same pace but
from another start; it meets each model once, and two workers never meet the same model at once if their starts
lie at least the longest unit apart. So the models are cut into as many groups as there are workers, each group at
least as long as the longest unit (padded if need be), and worker k starts with group k. No worker ever idles if
the padding is nothing: makespan = load, the lower bound. What remains is a bin-covering problem, which is easy
for the many small models that make the scheduling problem hard.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from regatta.plan.schedule.board import Board, Running
from regatta.plan.schedule.rollout import Start


def rotation(board: Board) -> list[Start]:
    """Planned starts of all units that are left, round after round."""
    workers = [worker for worker, held in enumerate(board.held) if held]
    models = [index for index, model in enumerate(board.models) if board.left[index] > 0]
    if not workers or not models:
        return []
    lengths = {index: float(board.time[:, index].mean()) for index in models}
    groups = cut_in_groups([lengths[index] for index in models], len(workers))
    order = [[models[i] for i in group] for group in groups]
    longest = max(lengths.values())
    begins: dict[int, float] = {}
    offsets = []
    clock = 0.0
    for group in order:
        offsets.append(clock)
        at = clock
        for index in group:
            begins[index] = at
            at += lengths[index]
        clock = max(at, clock + longest)
    starts = []
    for place, worker in enumerate(workers):
        for index in models:
            meets = board.now + (begins[index] - offsets[place]) % clock
            starts.extend(_visits(board, worker, index, meets, clock))
    return starts


def _visits(board: Board, worker: int, index: int, meets: float, lap: float) -> list[Start]:
    """A worker meets a model once a lap, each time for another of its partitions, epoch after epoch."""
    model = board.models[index]
    mine = [j for j in board.held[worker] if board.holders[j][0] == worker]
    starts = []
    for epoch in range(model.epoch, model.epochs + 1):
        due = [j for j in mine if epoch > model.epoch or j in model.rest]
        for partition in due:
            starts.append(Start(meets, worker, Running(False, index, epoch, partition)))
            meets += lap
    return starts


def cut_in_groups(lengths: Sequence[float], count: int) -> list[list[int]]:
    """Cut items into groups so that the sum over groups of max(length, longest item) is small.

    Longest first onto the shortest group, as for identical machines: groups come out nearly equal.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    heap = [(0.0, group) for group in range(count)]
    groups: list[list[int]] = [[] for _ in range(count)]
    for item in order:
        total, group = heapq.heappop(heap)
        groups[group].append(item)
        heapq.heappush(heap, (total + lengths[item], group))
    return groups
