from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta import search
from regatta.configuration import config_id
from regatta.errors import UsageError
from regatta.search import Goal, Report, Search, Stop, Train, keeping, require, stopping, top
from regatta.search.keep import BoundsRule, MetricBound
from regatta.testing.search import ITERATIONS, SearchContract, goals, play, played, run_to_end

GOAL = Goal("loss", "min", 6, 0)
SPACE = search.uniform(0, 1)


class TestTopOfAGrid(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return keeping(search.grid(x=[1, 2, 3, 4]), top(2, "loss", 2 * ITERATIONS))


class TestSeveralRules(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        rules = top(2, "loss", 1, "epochs"), require("loss", "<", 1e5, 2), top(1, "accuracy", 25, mode="max")
        return keeping(search.grid(x=[1, 2, 3, 4]), *rules)


class TestTopOfHyperband(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return keeping(search.hyperband(x=SPACE), top(3, "loss", 1, "epochs"))


class TestTopOfAsha(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return keeping(search.asha(n=9, eta=2, at_once=4, x=SPACE), top(2, "loss", ITERATIONS))


class TestTopOfPbt(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        rules = {"x": search.factor(0.5, 2)}
        return keeping(search.pbt(population=4, every=3, mutate=rules, x=SPACE), top(3, "loss", 2, "epochs"))


class TestKeepingInsideStopping(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return stopping(keeping(search.grid(x=[1, 2, 3]), top(2, "loss", 1, "epochs")), patience=2)


def x_of(values: Any, epoch: int) -> float:
    return float(values["x"])


def ends(procedure: Search, metric: Any = x_of, goal: Goal = GOAL) -> dict[int, int]:
    run = run_to_end(procedure, goal, metric)
    return {run.values[config]["x"]: epoch for config, epoch in run.reached.items()}  # type: ignore[misc]


def test_top_stops_all_but_the_best_at_its_point() -> None:
    found = ends(keeping(search.grid(x=[3, 1, 4, 2]), top(2, "loss", 2, "epochs")))
    assert {x: epochs for x, epochs in found.items() if epochs == GOAL.epochs} == {1: 6, 2: 6}
    assert found[3] < 6
    assert found[4] == 2


def test_what_top_keeps_does_not_depend_on_the_order_of_the_reports() -> None:
    values = [5, 1, 4, 2, 3]
    for order in itertools.permutations(values):
        procedure = keeping(search.grid(x=values), top(2, "loss", 1, "epochs"))
        begun = {a.config["x"]: config_id(a.config) for a in procedure.start(GOAL) if isinstance(a, Train)}
        for x in order:
            procedure.hear(Report(begun[x], {"x": x}, 1, {"loss": float(x)}))
        kept = [config for config, rule in procedure.verdicts().items() if rule is None]
        assert sorted(kept) == sorted([begun[1], begun[2]])


@played
@given(goal=goals, data=st.data())
def test_top_keeps_exactly_the_best(goal: Goal, data: st.DataObject) -> None:
    """Against the definition: of all that reached the point, those with the best first report there."""
    procedure = keeping(search.grid(x=list(range(6))), top(2, "loss", 15))
    run = play(procedure, goal, data)
    at_point: dict[str, Report] = {}
    failed = {report.config for report in run.story if report.failed}
    for report in run.story:
        if report.iterations >= 15 and not report.failed:
            at_point.setdefault(report.config, report)
    ranked = sorted(at_point, key=lambda config: (goal.rank(at_point[config].metrics), config))
    broken = {config for config, rule in procedure.verdicts().items() if rule is not None}
    assert broken == set(ranked[2:])
    assert not broken & set(run.open())
    for config in set(run.values) - broken - failed - run.ended:
        assert config in run.open() or run.reached[config] == goal.epochs


def test_a_point_in_iterations_is_the_first_report_at_or_after_it() -> None:
    def epochs_of_the_stopped(after: int) -> int:
        return min(ends(keeping(search.grid(x=[1, 2]), top(1, "loss", after))).values())

    assert [epochs_of_the_stopped(after) for after in (1, 9, 10, 11, 20, 21)] == [1, 1, 1, 2, 2, 3]


def test_top_takes_the_value_at_its_point_and_no_later_one() -> None:
    def crossing(values: Any, epoch: int) -> float:
        return float(values["x"]) if epoch <= 2 else -float(values["x"])

    assert ends(keeping(search.grid(x=[1, 2]), top(1, "loss", 2, "epochs")), crossing) == {1: 6, 2: 2}


def test_missing_values_and_nan_come_last_and_failures_do_not_count() -> None:
    outcomes: dict[int, Any] = {1: math.nan, 2: "missing", 3: None, 4: 7.0, 5: 8.0}

    def metric(values: Any, epoch: int) -> Any:
        return outcomes[values["x"]]

    assert ends(keeping(search.grid(x=list(outcomes)), top(2, "loss", 1, "epochs")), metric) == {
        1: 1, 2: 1, 3: 1, 4: 6, 5: 6
    }  # fmt: skip


def test_require_stops_what_is_not_good_enough_at_its_point() -> None:
    procedure = keeping(search.grid(x=[1, 2, 3]), require("loss", "<=", 2, 3))
    assert ends(procedure) == {1: 6, 2: 6, 3: 3}
    assert {str(rule) for rule in procedure.verdicts().values()} == {"None", "loss <= 2 after 3 epochs"}


def test_alternatives_of_a_bounds_rule() -> None:
    low, high = MetricBound("loss", "<", 2), MetricBound("loss", ">", 2)
    assert ends(keeping(search.grid(x=[1, 2, 3]), BoundsRule(((low,), (high,)), 1))) == {1: 6, 2: 1, 3: 6}
    assert ends(keeping(search.grid(x=[1, 2, 3]), BoundsRule(((low, high),), 1))) == {1: 1, 2: 1, 3: 1}
    assert str(BoundsRule(((low,), (high,)), 1)) == "loss < 2 or loss > 2 after 1 epochs"


def test_rules_combine_all_must_hold() -> None:
    rules = top(3, "loss", 1, "epochs"), top(1, "gain", 2, "epochs", "max")
    procedure = keeping(search.configs([{"x": x} for x in range(5)]), *rules)
    begun = {a.config["x"]: config_id(a.config) for a in procedure.start(GOAL) if isinstance(a, Train)}
    stopped = []
    for epoch in (1, 2):
        for x in range(5):
            report = Report(begun[x], {"x": x}, epoch, {"loss": float(x), "gain": float(x)})
            stopped += [action.config for action in procedure.hear(report) if isinstance(action, Stop)]
    assert stopped == [begun[3], begun[4], begun[0], begun[1]]
    assert [config for config, rule in procedure.verdicts().items() if rule is None] == [begun[2]]


def test_a_failure_or_a_late_report_of_a_stopped_configuration_changes_nothing() -> None:
    procedure = keeping(search.grid(x=[1, 2]), top(1, "loss", 1, "epochs"))
    one, two = (config_id(a.config) for a in procedure.start(GOAL) if isinstance(a, Train))
    procedure.hear(Report(one, {"x": 1}, 1, {"loss": 1.0}))
    assert procedure.hear(Report(two, {"x": 2}, 1, {"loss": 2.0})) == [Stop(two)]
    assert procedure.hear(Report(two, {"x": 2}, 2, {"loss": 0.0})) == []
    assert procedure.hear(Report(two, {"x": 2}, 2, {}, failed=True)) == []


def test_no_rung_waits_for_a_configuration_that_a_rule_stopped() -> None:
    procedure = keeping(search.hyperband(R=6, eta=3, x=SPACE), require("loss", "<", 0.5, 1))
    run = run_to_end(procedure, GOAL, x_of)
    best = min(run.values, key=lambda config: run.values[config]["x"])
    assert run.reached[best] == 6


def test_a_metric_that_is_not_the_sweeps_needs_a_mode() -> None:
    with pytest.raises(UsageError, match="not the metric of the sweep"):
        keeping(search.grid(x=[1]), top(1, "accuracy", 5)).start(GOAL)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: top(0, "loss", 1), "k must be a whole number from 1"),
        (lambda: top(1, "", 1), "the metric is a name"),
        (lambda: top(1, "loss", 0), "after must be a whole number from 1"),
        (lambda: top(1, "loss", 1, "epoch"), "Did you mean epochs"),
        (lambda: top(1, "loss", 1, mode="least"), 'mode must be "min" or "max"'),
        (lambda: require("loss", "~", 1.0), "the comparison is one of"),
        (lambda: require("loss", "<", math.nan), "the bound must be a finite number"),
        (lambda: keeping([1], top(1)), "keeping needs a search"),
        (lambda: keeping(search.grid(x=[1])), "without a rule"),
        (lambda: keeping(search.grid(x=[1]), "top"), "is not a rule"),
    ],
)
def test_wrong_rules(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
