from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta import search
from regatta.configuration import config_id
from regatta.errors import UsageError
from regatta.search import Goal, Search, Train, asha_rungs
from regatta.testing.search import SearchContract, SimulatedRun, outcomes, played, run_to_end

GOAL = Goal("loss", "min", 9, 0)


def asha(**options: object) -> Search:
    return search.asha(x=search.uniform(0, 1), **options)  # type: ignore[arg-type]


class TestAsha(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return asha(n=9, eta=2)


class TestAshaOneByOne(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return asha(n=4, at_once=1, R=1)


@pytest.mark.parametrize(
    ("n", "R", "expected"),
    [
        (81, 81, [1, 3, 9, 27, 81]),
        (1000, 81, [1, 3, 9, 27, 81]),
        (9, 81, [9, 27, 81]),  # fewer could not get from 1 epoch to 81
        (8, 81, [27, 81]),
        (2, 81, [81]),
        (100, 10, [1, 3, 10]),
        (100, 1, [1]),
    ],
)
def test_rungs_of_asha(n: int, R: int, expected: list[int]) -> None:
    assert asha_rungs(n, R) == expected


@given(st.integers(1, 500), st.integers(1, 500), st.integers(2, 7))
def test_a_configuration_reaches_the_last_rung(n: int, R: int, eta: int) -> None:
    rungs = asha_rungs(n, R, eta)
    assert rungs[-1] == R
    assert n // eta ** (len(rungs) - 1) >= 1
    assert rungs == sorted(set(rungs))


@played
@given(eta=st.integers(2, 4), n=st.integers(1, 30), at_once=st.integers(1, 30), data=st.data())
def test_never_promotes_more_than_its_share(eta: int, n: int, at_once: int, data: st.DataObject) -> None:
    """At any moment and in any order, at most 1/eta of those that reached a rung, or failed before it, continue."""
    procedure = asha(n=n, eta=eta, at_once=at_once)
    rungs = asha_rungs(n, GOAL.epochs, eta)
    run, arrived, promoted = SimulatedRun(GOAL), Counter[int](), Counter[int]()
    run.act(procedure.start(GOAL))
    while run.open():
        config = data.draw(st.sampled_from(run.open()))
        report = run.report(config, data.draw(outcomes))
        if report.failed or report.epoch in rungs:
            arrived[run.wanted[config]] += 1
        for action in procedure.hear(report):
            assert isinstance(action, Train)
            if action.epochs > rungs[0]:
                below = rungs[rungs.index(action.epochs) - 1]
                assert run.reached[config_id(action.config)] == below
                promoted[below] += 1
            run.act([action])
        assert all(promoted[epochs] <= arrived[epochs] // eta for epochs in rungs)
        assert len(run.open()) <= at_once
    assert len(run.wanted) == n
    failures = {report.config for report in run.story if report.failed}
    if not failures:
        assert all(promoted[epochs] == arrived[epochs] // eta for epochs in rungs[:-1])


def test_promotes_without_waiting_for_the_rung() -> None:
    procedure = asha(n=27, at_once=27)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    first, second, third, fourth, fifth, sixth, *_ = run.open()
    assert procedure.hear(run.report(first, 0.3)) == procedure.hear(run.report(second, 0.2)) == []
    assert procedure.hear(run.report(third, 0.4)) == [Train(run.values[second], 3, most=9)]
    # Both newcomers beat the one that was promoted, but only one more may go on.
    for config, metric in ((fourth, 0.1), (fifth, 0.15)):
        assert procedure.hear(run.report(config, metric)) == []
    assert procedure.hear(run.report(sixth, 0.9)) == [Train(run.values[fourth], 3, most=9)]


def test_grows_where_no_configuration_can_be_promoted() -> None:
    procedure = asha(n=9, at_once=2)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    assert len(run.open()) == 2
    for _ in range(2):
        (fresh,) = answer = procedure.hear(run.report(run.open()[0], 0.5))
        assert isinstance(fresh, Train)
        assert fresh.epochs == 1
        run.act(answer)
    promotion = procedure.hear(run.report(run.open()[0], 0.5))
    assert [action.epochs for action in promotion if isinstance(action, Train)] == [3]


def test_reports_in_turns_give_successive_halving() -> None:
    run = run_to_end(asha(n=27, at_once=27), GOAL, lambda values, epoch: values["x"])  # type: ignore[arg-type,return-value]
    assert Counter(run.reached.values()) == {1: 18, 3: 6, 9: 3}


def test_configurations_without_a_metric_are_promoted_last() -> None:
    procedure = asha(n=9, at_once=9)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    first, second, third, *_ = run.open()
    for config, outcome in ((first, math.nan), (second, "missing")):
        assert procedure.hear(run.report(config, outcome)) == []  # type: ignore[arg-type]
    assert procedure.hear(run.report(third, math.inf)) == [Train(run.values[third], 3, most=9)]


def test_only_valid_configurations_are_drawn() -> None:
    procedure = search.asha({"a": range(1, 40)}, n=13, at_once=13, where=lambda c: c["a"] % 3 == 0)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    assert sorted(values["a"] for values in run.values.values()) == list(range(3, 40, 3))  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: asha(n=0), "asha(n=0)"),
        (lambda: asha(n=9, R=0), "asha(R=0)"),
        (lambda: asha(n=9, eta=1), "asha(eta=1)"),
        (lambda: asha(n=9, at_once=0), "asha(at_once=0)"),
        (lambda: asha(n=9, seed="a"), "asha(seed='a')"),
        (lambda: search.asha(n=3, lr=[0.1, 0.2]), "only 2 different"),
        (lambda: search.asha(n=3), "no axes"),
        (lambda: asha(n=9, R=27).start(GOAL), "the sweep allows epochs=9"),
    ],
)
def test_invalid_arguments(make: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        make()  # type: ignore[operator]
    assert message in str(error.value)
