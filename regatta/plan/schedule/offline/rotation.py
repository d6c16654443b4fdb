"""A schedule for models whose units take about equally long on every worker: all workers rotate through one circle.

Lay the models on a circle, each as long as its unit. Every worker goes round the same circle at the same pace from a
different start, and meets each model once. Two workers never meet the same model at once if their starts are at least
the longest unit apart. So the models are divided into one group per worker, each at least as long as the longest unit
(padded if needed), and worker k starts with group k. Without padding no worker idles, and the makespan equals the load,
which is the lower bound. Forming the groups is a bin-covering problem, which is easy for many small models.
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
    """A worker meets a model once per lap, each time on the next of its partitions, epoch after epoch."""
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
    """Divide items into groups so that the sum over groups of max(length, longest item) is small.

    The longest item goes to the shortest group first, as for identical machines, so groups become nearly equal.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    heap = [(0.0, group) for group in range(count)]
    groups: list[list[int]] = [[] for _ in range(count)]
    for item in order:
        total, group = heapq.heappop(heap)
        groups[group].append(item)
        heapq.heappush(heap, (total + lengths[item], group))
    return groups
