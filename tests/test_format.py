"""Numbers for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from regatta import Cluster, Dataset, search
from regatta import format as fmt
from regatta.errors import UsageError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 ms"),
        (0.0002, "0.2 ms"),
        (0.034, "34 ms"),
        (0.0999, "0.10 s"),
        (0.25, "0.25 s"),
        (0.999, "1.0 s"),
        (1.24, "1.2 s"),
        (99.4, "99.4 s"),
        (99.96, "1 min 40 s"),
        (125, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (11_520, "3 h 12 min"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert fmt.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (3_400, "3.4 kB"),
        (40_000_000, "40 MB"),
        (999_960, "1.0 MB"),
        (2.5e15, "2500 TB"),
    ],
)
def test_size(value: float, text: str) -> None:
    assert fmt.size(value) == text


def test_counts_agree_with_their_nouns() -> None:
    assert fmt.count(1, "unit") == "1 unit"
    assert fmt.count(12_345, "unit") == "12,345 units"
    assert fmt.count(0, "entry", "entries") == "0 entries"


def test_a_metric_has_four_figures_or_is_named() -> None:
    assert [fmt.metric(v) for v in (0.123456, 1e-7, None, math.nan, math.inf)] == [
        "0.1235", "1e-07", "-", "NaN", "inf",
    ]  # fmt: skip


def test_a_sparkline_rises_with_the_values_and_marks_nan() -> None:
    assert fmt.sparkline([0, 7]) == "▁█"
    assert fmt.sparkline([3.0, 2.0, 1.0])[0] == "█"
    assert fmt.sparkline([1.0, math.nan, 2.0]) == "▁×█"
    assert fmt.sparkline([5.0, 5.0]) == "▄▄"
    assert fmt.sparkline([]) == ""
    assert len(fmt.sparkline(list(range(100)), width=12)) == 12


def test_values_of_users_are_described_in_one_line() -> None:
    x, y = np.zeros((100, 4)), np.zeros(100)
    assert fmt.brief(x) == "a ndarray of shape (100, 4)"
    assert fmt.brief((x, y)) == "a tuple of a ndarray of shape (100, 4), a ndarray of shape (100,)"
    assert fmt.brief([y] * 9).endswith(", 6 more")
    assert fmt.brief({"data": list(range(1000))}) == "a dict"
    assert [fmt.brief(value) for value in ("a", 0.5, None, np.float32(2))] == [
        "'a'",
        "0.5",
        "None",
        repr(np.float32(2)),
    ]


@pytest.mark.parametrize(
    "use",
    [
        lambda data: Dataset.from_arrays(data, data[1], partitions=2),
        lambda data: Dataset.from_arrays(data[0], data[1], partitions=data),
        lambda data: Dataset.from_paths(data),
        lambda data: search.grid(data),
        lambda data: search.grid(x=[data]),
        lambda data: search.configs(data),
        lambda data: search.configs([data]),
        lambda data: search.random(lr=data[0], n=2),
        lambda data: search.stopping(data, patience=2),
        lambda data: Cluster.local(workers=data),
    ],
)
def test_arrays_in_the_wrong_place_are_not_printed(use: Callable[[Any], Any]) -> None:
    with pytest.raises(UsageError) as caught:
        use((np.zeros((100, 4)), np.zeros(100)))
    assert "0., 0." not in str(caught.value) and "\n" not in caught.value.message
