"""The seeded order of rows: of a data set before it is split, and of a partition before each unit."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from regatta.errors import UsageError

Indices: TypeAlias = npt.NDArray[np.int64]


def permutation(rows: int, seed: int) -> Indices:
    """The numbers 0 to rows - 1, shuffled.

    `replay` depends on this order, so it uses only what NumPy keeps the same in every release: Philox's raw words and
    sorting, not `Generator.permutation`. Each word keeps its upper bits and gets the row's number as its lower bits.
    Sorting the words shuffles the rows.
    """
    words = np.random.Philox(seed).random_raw(rows)
    mask = np.uint64((1 << max(1, rows).bit_length()) - 1)
    words &= ~mask
    words |= np.arange(rows, dtype=np.uint64)
    words.sort()
    words &= mask
    return words.view(np.int64)


def batch_order(rows: int, batch_size: int, seed: int) -> list[Indices]:
    """The rows of one unit in batches: each row once, ordered by (rows, seed) alone. The last batch may be short."""
    if batch_size < 1:
        raise UsageError(f"The batch size is {batch_size}; it must be at least 1.")
    order = permutation(rows, seed)
    return [order[start : start + batch_size] for start in range(0, rows, batch_size)]
