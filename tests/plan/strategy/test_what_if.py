"""Predictions for other numbers of workers."""

from __future__ import annotations

import pytest

from regatta.plan.schedule.estimates import KnownTimes
from regatta.plan.strategy.what_if import HopWorkload, what_if


def test_predictions_for_more_workers() -> None:
    times = KnownTimes({(m, j): 1.0 for m in "abc" for j in range(4)}, {(m, j): 0.2 for m in "abc" for j in range(2)})
    rows = what_if(HopWorkload({"a": 3, "b": 3, "c": 3}, 4, 2, times), [1, 2, 4])
    assert [row["workers"] for row in rows] == [1, 2, 4]
    assert rows[0]["speedup"] == pytest.approx(1.0)
    assert rows[0]["makespan"] > rows[1]["makespan"] > rows[2]["makespan"]
    assert all(row["makespan"] >= row["bound"] * (1 - 1e-9) for row in rows)
    assert all(0 < row["utilisation"] <= 1 + 1e-9 for row in rows)
