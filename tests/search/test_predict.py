"""Forecasts of the epochs that a search will ask for, by simulating the search."""

from __future__ import annotations

import pytest

from regatta import search
from regatta.search.base import Action, Goal, Report, Train
from regatta.search.predict import describe_forecast_limits, forecast

GOAL = Goal("loss", "min", 9, seed=3)


def epochs(of: search.Search, goal: Goal) -> dict[str, int]:
    return {name: action.epochs for name, action in forecast(of, goal).items()}


def test_the_forecast_of_a_list_is_exact() -> None:
    found = epochs(search.grid(lr=[0.1, 0.2], batch_size=[8]), GOAL)
    assert list(found.values()) == [9, 9]


def test_the_forecast_of_hyperband_has_the_epochs_of_its_rungs() -> None:
    space = search.hyperband(lr=search.loguniform(1e-3, 1e-1), batch_size=[8], R=9, eta=3)
    found = epochs(space, GOAL)
    # brackets of 9, 3 and 3: rungs of 9x1, 3x3, 1x9; 3x3, 1x9; 3x9
    assert sorted(found.values()) == sorted([1] * 6 + [3] * 2 + [9] + [3] * 2 + [9] + [9] * 3)
    assert epochs(space, GOAL) == found


@pytest.mark.parametrize("n", [6, 9])
def test_asha_promotes_at_most_a_third(n: int) -> None:
    found = epochs(search.asha(lr=search.loguniform(1e-3, 1e-1), batch_size=[8], n=n, R=9, eta=3), GOAL)
    assert len(found) == n
    assert 1 <= sum(epochs == 9 for epochs in found.values()) <= n // 3


class Choosy:
    """Reads a metric beside the goal's; asks for more later."""

    def __init__(self, name: str) -> None:
        self.name, self.heard = name, 0

    def start(self, goal: Goal) -> list[Action]:
        return [Train({"lr": 0.1, "batch_size": 8}, 1)]

    def hear(self, report: Report) -> list[Action]:
        self.heard += 1
        if self.name == "broken":
            raise ArithmeticError("no such result can be")
        better = report.metrics[self.name] > 0 and report.epoch < 4
        return [Train(report.values, report.epoch + 1)] if better else []

    def describe(self) -> dict[str, object]:
        return {"name": self.name}


def test_a_search_may_read_any_metric() -> None:
    of = Choosy("accuracy")
    assert list(epochs(of, GOAL).values()) == [4]
    assert of.heard == 0  # only a copy received reports


def test_a_search_that_fails_on_made_up_results_is_forecast_by_its_start() -> None:
    assert list(epochs(Choosy("broken"), GOAL).values()) == [1]


def test_an_incomplete_forecast_is_described() -> None:
    def limits(of: search.Search) -> str:
        return describe_forecast_limits(of, GOAL, forecast(of, GOAL))

    grid = search.grid(lr=[0.1, 0.2], batch_size=[8])
    assert limits(grid) == ""
    assert limits(search.random(lr=search.uniform(0, 1), batch_size=[8], n=3)) == ""
    assert "may be stopped" in limits(search.stopping(grid, patience=2))
    hyperband = search.hyperband(lr=search.loguniform(1e-3, 1e-1), batch_size=[8], R=9, eta=3)
    assert limits(hyperband) == ""
    assert (
        describe_forecast_limits(hyperband, GOAL, forecast(hyperband, GOAL, 10), 10)
        == "the search was simulated for 10 epochs, and may continue"
    )
    whole = Choosy("loss")
    assert "begins with" in describe_forecast_limits(
        whole, Goal("loss", "min", 1, 3), forecast(whole, Goal("loss", "min", 1, 3))
    )


def test_only_the_first_configurations_of_an_adaptive_search_are_counted() -> None:
    pytest.importorskip("optuna")
    of = search.optuna(lr=search.uniform(0, 1), batch_size=[8], n=12, at_once=4)
    assert describe_forecast_limits(of, GOAL, forecast(of, GOAL)) == "only the first 4 of 12 are counted"
