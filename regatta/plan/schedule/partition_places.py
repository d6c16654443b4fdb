"""Which workers hold each partition, and how a board rounds times.

Times are rounded to 2**-20 s. Sums of them are then exact in floating point in any order, and two models with equal
work stay equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]
QUANTUM_S = 2.0**-20


@dataclass(frozen=True)
class Places:
    """Each held partition with each of its holders, partition after partition."""

    workers: Indices
    partitions: Indices
    first: Indices  # index of the first place of each held partition
    counts: Indices  # number of places of each held partition

    @classmethod
    def from_holders(cls, partitions: Iterable[int], holders: Sequence[Sequence[int]]) -> Places:
        held = [j for j in partitions if holders[j]]
        counts = np.array([len(holders[j]) for j in held], np.intp)
        workers = np.array([worker for j in held for worker in holders[j]], np.intp)
        return cls(workers, np.repeat(np.array(held, np.intp), counts), counts.cumsum() - counts, counts)

    def __len__(self) -> int:
        return len(self.workers)


def round_to_quantum(seconds: Floats) -> Floats:
    return np.maximum(1.0, np.rint(seconds / QUANTUM_S)) * QUANTUM_S
