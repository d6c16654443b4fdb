from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.data.split import apportion, evaluation_rows, split_rows
from regatta.errors import DataError

shares = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12)


@given(st.integers(0, 5000), shares)
def test_sizes_add_up_and_none_is_zero(spare: int, proportions: list[float]) -> None:
    rows = len(proportions) + spare
    sizes = apportion(rows, len(proportions), proportions, "training")
    assert sum(sizes) == rows
    assert min(sizes) >= 1


@given(st.integers(1, 5000), st.integers(1, 40))
def test_equal_sizes_differ_by_one_row_at_most(rows: int, partitions: int) -> None:
    sizes = apportion(rows + partitions, partitions, [0.1] * partitions, "training")
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1000, 5000), st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12))
def test_sizes_are_proportional_to_less_than_a_row(rows: int, proportions: list[float]) -> None:
    sizes = apportion(rows, len(proportions), proportions, "training")
    quotas = [share * rows / math.fsum(proportions) for share in proportions]
    assert all(abs(size - quota) < 1 for size, quota in zip(sizes, quotas, strict=True))


def test_proportions_of_any_number_type() -> None:
    assert apportion(60, 3, [1, np.float32(2), np.int64(3)], "training") == [10, 20, 30]  # type: ignore[list-item]


@given(st.integers(8, 400), st.integers(1, 4), st.floats(0, 0.5), st.integers(0, 99))
def test_every_row_is_in_exactly_one_partition(rows: int, partitions: int, fraction: float, seed: int) -> None:
    train, held_out = split_rows(rows, partitions, fraction, None, seed, [1.0] * partitions)
    assert sorted(np.concatenate(train + held_out)) == list(range(rows))
    assert len(train) == partitions
    assert sum(map(len, held_out)) == evaluation_rows(rows, fraction)


def test_the_rows_are_shuffled_before_they_are_cut() -> None:
    train, _ = split_rows(1000, 2, 0.0, None, 3, [1.0, 1.0])
    assert 450 < train[0].mean() < 550
    other, _ = split_rows(1000, 2, 0.0, None, 4, [1.0, 1.0])
    assert not np.array_equal(train[0], other[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 0.2, None, 0, [1]), "no rows"),
        ((10, 0, 0.2, None, 0, []), "number of training partitions is 0"),
        ((3, 4, 0.0, None, 0, [1] * 4), "3 training rows for 4 partitions"),
        ((4, 4, 0.2, None, 0, [1] * 4), "3 training rows for 4 partitions"),
        ((10, 2, 1.0, None, 0, [1, 1]), "eval_fraction is 1.0"),
        ((10, 2, -0.1, None, 0, [1, 1]), "eval_fraction is -0.1"),
        ((10, 2, math.nan, None, 0, [1, 1]), "eval_fraction is nan"),
        ((10, 2, 0.2, 3, 0, [1, 1]), "2 evaluation rows for 3 partitions"),
        ((10, 2, 0.2, 0, 0, [1, 1]), "number of evaluation partitions is 0"),
        ((10, 2, 0.0, 1, 0, [1, 1]), "eval_fraction is 0"),
        ((10, 2, 0.2, None, 0, [1, 1, 1]), "3 numbers for 2 partitions"),
        ((10, 2, 0.2, None, 0, [1, -1]), "greater than 0"),
        ((10, 2, 0.2, None, 0, [0, 0]), "greater than 0"),
        ((10, 2, 0.2, None, 0, [1, 0]), "greater than 0"),
        ((10, 2, 0.2, None, 0, [1, math.inf]), "finite"),
        ((10, 2, 0.2, None, 0, [1, math.nan]), "finite"),
        ((10, 2, 0.2, None, 0, [1, "2"]), "finite number"),
    ],
)
def test_impossible_splits_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(DataError) as error:
        split_rows(*arguments)  # type: ignore[arg-type]
    assert message in str(error.value)
