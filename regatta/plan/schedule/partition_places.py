"""Where partitions lie, and how seconds are told on a board.

Times are rounded to 2**-20 s: sums of them are then exact in floating point, whatever their order, and two models
with equal work stay equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]
QUANTUM = 2.0**-20


@dataclass(frozen=True)
class Places:
    """Where partitions lie: each held partition with each of its holders, partition after partition."""

    workers: Indices
    partitions: Indices
    first: Indices  # where the places of each held partition begin
    counts: Indices  # and how many they are

    @classmethod
    def of(cls, partitions: Iterable[int], holders: Sequence[Sequence[int]]) -> Places:
        held = [j for j in partitions if holders[j]]
        counts = np.array([len(holders[j]) for j in held], np.intp)
        workers = np.array([worker for j in held for worker in holders[j]], np.intp)
        return cls(workers, np.repeat(np.array(held, np.intp), counts), counts.cumsum() - counts, counts)

    def __len__(self) -> int:
        return len(self.workers)


def quantised(seconds: Floats) -> Floats:
    return np.maximum(1.0, np.rint(seconds / QUANTUM)) * QUANTUM
