from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.data import batch_order
from regatta.data.order import permutation
from regatta.errors import UsageError

seeds = st.integers(0, 2**63 - 1)


@given(st.integers(0, 3000), st.integers(1, 4000), seeds)
def test_an_epoch_has_each_row_once(rows: int, batch_size: int, seed: int) -> None:
    batches = batch_order(rows, batch_size, seed)
    assert sorted(np.concatenate([np.empty(0, np.int64), *batches])) == list(range(rows))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert all(1 <= len(batch) <= batch_size for batch in batches[-1:])
    assert all(batch.dtype == np.int64 for batch in batches)


@given(st.integers(1, 500), st.integers(1, 50), st.integers(1, 50), seeds)
def test_the_order_does_not_depend_on_the_batch_size(rows: int, one: int, other: int, seed: int) -> None:
    first, second = batch_order(rows, one, seed), batch_order(rows, other, seed)
    assert np.array_equal(np.concatenate(first), np.concatenate(second))


def test_the_order_is_the_same_in_every_release() -> None:
    """Journals are replayed with it: never change these numbers."""
    assert permutation(10, 0).tolist() == [0, 8, 9, 3, 7, 5, 1, 2, 6, 4]
    assert permutation(7, 2**63 - 1).tolist() == [0, 5, 2, 1, 6, 4, 3]


def test_all_orders_are_equally_likely() -> None:
    counts = np.zeros((6, 6))
    for seed in range(6000):
        counts[np.arange(6), permutation(6, seed)] += 1
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_squared < 60  # 25 degrees of freedom: exceeded once in ten thousand times


def test_a_batch_size_of_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="batch size is 0"):
        batch_order(10, 0, 1)
