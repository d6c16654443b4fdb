"""One epoch as an open-shop problem, for the solvers.

The Cerebro paper formulates hop scheduling as an open-shop problem (section 4.1): each operation belongs to a model and
runs on a worker. Here a worker may hold several partitions, so an operation also names its partition. A replicated
partition goes to its least loaded holder. The schedule of one epoch is repeated for the epochs that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regatta.plan.schedule.board import Board, Running
from regatta.plan.schedule.rollout import Start


@dataclass(frozen=True, slots=True)
class Operation:
    model: int
    partition: int
    worker: int
    seconds: float


@dataclass(frozen=True)
class Shop:
    """The operations left in the current epoch of each model. Times count from now."""

    operations: list[Operation]
    model_free: dict[int, float]
    worker_free: dict[int, float]

    def __len__(self) -> int:
        return len(self.operations)

    def groups(self) -> list[list[int]]:
        """Operations that must not overlap: of one model, or on one worker."""
        by_key: dict[tuple[str, int], list[int]] = {}
        for number, operation in enumerate(self.operations):
            by_key.setdefault(("model", operation.model), []).append(number)
            by_key.setdefault(("worker", operation.worker), []).append(number)
        return list(by_key.values())

    def earliest(self, number: int) -> float:
        operation = self.operations[number]
        return max(self.model_free[operation.model], self.worker_free[operation.worker])

    def bound(self) -> float:
        """No schedule ends before this."""
        sums: dict[tuple[str, int], float] = {}
        for operation in self.operations:
            for key in (("model", operation.model), ("worker", operation.worker)):
                start = self.model_free[key[1]] if key[0] == "model" else self.worker_free[key[1]]
                sums[key] = sums.get(key, start) + operation.seconds
        return max(sums.values(), default=0.0)


def build_shop(board: Board) -> Shop:
    homes = _homes(board)
    operations = [
        Operation(index, j, homes[j], float(board.time[j, index]))
        for index, model in enumerate(board.models)
        if not model.stopped and model.epoch <= model.epochs
        for j in sorted(model.rest)
        if j in homes
    ]
    wait = {worker: max(0.0, end - board.now) for worker, end in board.until.items()}
    return Shop(
        operations,
        {op.model: wait.get(board.models[op.model].worker, 0.0) for op in operations},
        {op.worker: wait.get(op.worker, 0.0) for op in operations},
    )


def _homes(board: Board) -> dict[int, int]:
    """One worker for each partition that is held: the holder with the least work so far."""
    loads = [0.0] * len(board.held)
    homes = {}
    work = (board.wanted * board.time).sum(axis=1)
    for partition in sorted(range(board.partitions), key=lambda j: (len(board.holders[j]), -work[j], j)):
        if board.holders[partition]:
            home = min(board.holders[partition], key=lambda worker: (loads[worker], worker))
            homes[partition] = home
            loads[home] += work[partition]
    return homes


def repeat_each_epoch(board: Board, shop: Shop, times: Sequence[float]) -> list[Start]:
    """The starts of a shop's operations, repeated for every epoch that a model has left."""
    lap = max((t + op.seconds for t, op in zip(times, shop.operations, strict=True)), default=0.0)
    starts = []
    for time, op in zip(times, shop.operations, strict=True):
        model = board.models[op.model]
        for epoch in range(model.epoch, model.epochs + 1):
            running = Running(False, op.model, epoch, op.partition)
            starts.append(Start(board.now + time + (epoch - model.epoch) * lap, op.worker, running))
    return starts
