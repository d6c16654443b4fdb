from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta import search
from regatta.errors import UsageError
from regatta.search import Goal, Report, Search, Stop, Train, stopping
from regatta.testing.search import SearchContract, SimulatedRun, goals, play, played, run_to_end

GOAL = Goal("loss", "min", 9, 0)
SPACE = search.uniform(0, 1)


def flat(values: Any, epoch: int) -> float:
    return float(values["x"])


class TestPatientGrid(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return stopping(search.grid(x=[1, 2, 3]), patience=2)


class TestPatientHyperband(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return stopping(search.hyperband(x=SPACE), patience=1, min_delta=0.5)


class TestPatientAsha(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return stopping(search.asha(n=9, eta=2, at_once=4, x=SPACE), patience=1)


class TestPatientPbt(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        rules = {"x": search.factor(0.5, 2)}
        return stopping(search.pbt(population=4, every=3, mutate=rules, x=SPACE), patience=1)


class TestEveryLimit(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        patient = stopping(search.hyperband(x=SPACE), patience=3)
        return stopping(patient, target=-1e5, epochs=40, hours=50 / 3600, device_hours=70 / 3600)


def test_patience_ends_configurations_that_do_not_improve() -> None:
    curves = {1: [5, 4, 4, 4, 3], 2: [5, 4, 4, 3, 3, 2], 3: [math.nan, math.nan, 9, 8, 7], 4: [1.0, "missing"]}
    procedure = stopping(search.grid(x=list(curves)), patience=2)

    def metric(values: Any, epoch: int) -> Any:
        curve = curves[values["x"]]
        return curve[min(epoch, len(curve)) - 1]

    run = run_to_end(procedure, GOAL, metric)
    ended = {run.values[config]["x"]: epoch for config, epoch in run.reached.items()}
    assert ended == {1: 4, 2: 8, 3: 7, 4: 3}


def test_an_improvement_must_exceed_min_delta() -> None:
    def slow(values: Any, epoch: int) -> float:
        return 10.0 - 0.5 * epoch

    def reached(min_delta: float) -> list[int]:
        procedure = stopping(search.grid(x=[1]), patience=2, min_delta=min_delta)
        return list(run_to_end(procedure, GOAL, slow).reached.values())

    assert reached(0.4) == [9]
    assert reached(0.9) == [9]  # half a point per epoch is more than 0.9 in two
    assert reached(1.0) == [3]


def test_patience_with_a_metric_to_maximise() -> None:
    up = run_to_end(stopping(search.grid(x=[1]), patience=1), Goal("accuracy", "max", 5, 0), lambda v, e: float(e))
    down = run_to_end(stopping(search.grid(x=[1]), patience=1), Goal("accuracy", "max", 5, 0), lambda v, e: -float(e))
    assert (len(up.story), len(down.story)) == (5, 2)


def test_a_configuration_that_patience_ended_does_not_block_a_rung() -> None:
    """Nothing ever improves: all end after two epochs, and every rung is still decided."""
    run = run_to_end(stopping(search.hyperband(x=SPACE), patience=1), GOAL, flat)
    assert Counter(run.reached.values()) == {1: 6, 2: 9}
    wanted = run_to_end(search.hyperband(x=SPACE), GOAL, flat).wanted
    # The same configurations would have been promoted: they are those that got a second epoch.
    promoted = {config for config, epochs in wanted.items() if epochs > 1}
    assert {config for config, epoch in run.reached.items() if epoch > 1} == promoted


def test_a_configuration_that_patience_ended_can_be_a_parent() -> None:
    rules = {"x": search.factor(0.5)}
    procedure = stopping(search.pbt(population=2, every=3, mutate=rules, x=SPACE), patience=1)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    first, second = run.open()
    for config, metric in ((first, 1.0), (second, 2.0), (first, 1.0)):
        run.act(procedure.hear(run.report(config, metric)))
    assert run.open() == [second]
    stop, *others = answer = procedure.hear(run.report(second, 2.5))
    assert stop == Stop(second)
    # `first`, which the population keeps, is not trained any more; the child is.
    assert [action.parent for action in others if isinstance(action, Train)] == [first]
    run.act(answer)


@played
@given(goal=goals, data=st.data())
def test_patience_that_never_ends_changes_nothing(goal: Goal, data: st.DataObject) -> None:
    procedure = search.hyperband(x=SPACE)
    run = play(procedure, goal, data)
    limited = stopping(procedure, patience=10**6)
    again = SimulatedRun(goal)
    again.act(limited.start(goal))
    for report in run.story:
        again.act(limited.hear(report))
    assert again.wanted == run.wanted


def test_a_target_ends_the_search() -> None:
    procedure = stopping(search.grid(x=[1, 2, 3]), target=0.5)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    first, second, third = run.open()
    for config, outcome in ((first, 0.6), (second, math.nan), (second, "missing"), (third, None)):
        assert procedure.hear(run.report(config, outcome)) == []  # type: ignore[arg-type]
    actions = procedure.hear(run.report(first, 0.5))
    assert actions == [Stop(first), Stop(second)]
    assert procedure.hear(run.report(second, 0.1)) == []


def test_a_target_for_a_metric_to_maximise() -> None:
    run = run_to_end(
        stopping(search.grid(x=[1, 2]), target=0.9), Goal("acc", "max", 9, 0), lambda v, epoch: epoch / 10 + 0.65
    )
    assert len(run.story) == 5  # both twice, and the first that got there


def test_a_budget_of_epochs_ends_the_search() -> None:
    run = run_to_end(stopping(search.hyperband(x=SPACE), epochs=20), GOAL, flat)
    assert len(run.story) == 20
    failing = run_to_end(stopping(search.grid(x=[1, 2]), epochs=3), GOAL, lambda v, e: None if v["x"] == 1 else 1.0)
    assert [report.failed for report in failing.story].count(False) == 3


@pytest.mark.parametrize(("limit", "last"), [({"hours": 10 / 3600}, 10), ({"device_hours": 10 / 3600}, 5)])
def test_a_budget_of_time_ends_the_search(limit: dict[str, float], last: float) -> None:
    """SimulatedRun's clock counts a second per report, and two of the devices."""
    run = run_to_end(stopping(search.grid(x=[1, 2, 3]), **limit), GOAL, flat)  # type: ignore[arg-type]
    assert run.story[-1].time == last
    assert run.open() == []


def test_an_unlimited_report_has_no_time() -> None:
    assert Report("0123456789", {}, 1, {}).time == Report("0123456789", {}, 1, {}).device_seconds == 0.0


def test_describes_itself_and_its_search() -> None:
    procedure = stopping(search.grid(x=[1]), patience=3, hours=2)
    assert procedure.describe() == {
        "kind": "stopping",
        "patience": 3,
        "min_delta": 0.0,
        "hours": 2,
        "search": {"kind": "grid", "axes": {"x": [1]}},
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: stopping([{"x": 1}], patience=1), "stopping needs a search"),  # type: ignore[arg-type]
        (lambda: stopping(search.grid(x=1)), "without a limit"),
        (lambda: stopping(search.grid(x=1), min_delta=0.5), "without a limit"),
        (lambda: stopping(search.grid(x=1), patience=0), "stopping(patience=0)"),
        (lambda: stopping(search.grid(x=1), epochs=1.5), "stopping(epochs=1.5)"),  # type: ignore[arg-type]
        (lambda: stopping(search.grid(x=1), target=math.nan), "target must be a finite number"),
        (lambda: stopping(search.grid(x=1), hours=-1), "hours must be a finite number from 0"),
        (lambda: stopping(search.grid(x=1), device_hours="3"), "device_hours='3'"),  # type: ignore[arg-type]
        (lambda: stopping(search.grid(x=1), patience=1, min_delta=-1), "min_delta=-1"),
    ],
)
def test_invalid_limits(make: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        make()  # type: ignore[operator]
    assert message in str(error.value)
