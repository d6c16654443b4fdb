"""Each search against the contract, and the contract against searches that break it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regatta import search
from regatta.configuration import config_id
from regatta.search import Action, Goal, Report, Search, Stop, Train
from regatta.testing.search import SearchContract, SimulatedRun

GOAL = Goal("loss", "min", 4, 0)


class TestGrid(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return search.grid(hidden=[16, 32], lr=[0.1, 0.01], batch_size=8)


class TestRandom(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return search.random(n=6, lr=search.loguniform(1e-4, 1e-1), width=search.integers(1, 64), act=["relu", "tanh"])


class TestConfigs(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return search.configs([{"lr": 0.1}, {"lr": 0.2, "depth": 3}])


class Halving:
    """Successive halving, as small as it can be: shows that the contract has room for searches that react."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "halving"}

    def start(self, goal: Goal) -> list[Action]:
        self.goal = goal
        self.rung = [{"lr": i / 8} for i in range(1, 9)]
        self.epochs = 1
        self.heard: dict[str, float] = {}
        return [Train(dict(config), 1) for config in self.rung]

    def hear(self, report: Report) -> list[Action]:
        if report.epoch < self.epochs and not report.failed:
            return []
        sign = 1 if self.goal.mode == "min" else -1
        value = report.metrics.get(self.goal.metric, float("nan"))
        self.heard[report.config] = float("inf") if value != value else sign * value
        if report.failed:
            self.rung = [c for c in self.rung if config_id(c) != report.config]
        if not all(config_id(c) in self.heard for c in self.rung) or self.epochs == self.goal.epochs:
            return []
        ranked = sorted(self.rung, key=lambda c: self.heard[config_id(c)])
        self.rung, lost = ranked[: (len(ranked) + 1) // 2], ranked[(len(ranked) + 1) // 2 :]
        self.epochs, self.heard = min(self.goal.epochs, 2 * self.epochs), {}
        return [*(Stop(config_id(c)) for c in lost), *(Train(dict(c), self.epochs) for c in self.rung)]


class TestHalving(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return Halving()


@pytest.mark.parametrize(
    "actions",
    [
        lambda: [Train({"lr": 0.1}, 5)],
        lambda: [Train({"lr": 0.1}, 0)],
        lambda: [Train({"lr": 0.1}, 3), Train({"lr": 0.1}, 2)],
        lambda: [Train({"lr": 0.1}, 3), Train({"lr": 0.1}, 3)],
        lambda: [Train({"lr": 0.1}, 3, parent="0123456789")],
        lambda: [Stop("0123456789")],
        lambda: iter(()),
    ],
    ids=["too many epochs", "none", "shrinks", "twice", "unknown parent", "unknown stop", "not a list"],
)
def test_the_contract_detects_violations(actions: Callable[[], list[Action]]) -> None:
    with pytest.raises(AssertionError):
        SimulatedRun(GOAL).act(actions())


def test_the_contract_allows_resuming_a_stopped_configuration() -> None:
    run = SimulatedRun(GOAL)
    config = {"lr": 0.1}
    run.act([Train(config, 2), Stop(config_id(config))])
    assert run.open() == []
    run.act([Train(config, 2)])
    assert run.open() == [config_id(config)]


def test_the_contract_detects_that_a_failed_configuration_is_trained_again() -> None:
    run = SimulatedRun(GOAL)
    run.act([Train({"lr": 0.1}, 2)])
    run.report(config_id({"lr": 0.1}), None)
    with pytest.raises(AssertionError, match="failed and is trained again"):
        run.act([Train({"lr": 0.1}, 3)])


class Remembering:
    """Breaks the rule that `start` begins again."""

    def __init__(self) -> None:
        self.started = 0

    def describe(self) -> dict[str, Any]:
        return {"kind": "remembering"}

    def start(self, goal: Goal) -> list[Action]:
        self.started += 1
        return [Train({"lr": float(self.started)}, goal.epochs)]

    def hear(self, report: Report) -> list[Action]:
        return []


def test_the_contract_detects_state_that_survives_start() -> None:
    with pytest.raises(AssertionError):
        SearchContract().test_the_same_reports_get_the_same_answers(Remembering())  # type: ignore[call-arg]
