from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta import search
from regatta.configuration import config_id
from regatta.errors import UsageError
from regatta.search import Action, Goal, Search, Stop, Train
from regatta.testing.search import SearchContract, SimulatedRun, run_to_end

SMALL = Goal("loss", "min", 9, 0)
LARGE = Goal("loss", "min", 81, 0)

# Table 1 of the paper: (n_i, r_i) for R=81, eta=3, brackets s=4 to s=0.
TABLE = [
    [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
    [(27, 3), (9, 9), (3, 27), (1, 81)],
    [(9, 9), (3, 27), (1, 81)],
    [(6, 27), (2, 81)],
    [(5, 81)],
]


def hyperband(**options: object) -> Search:
    return search.hyperband(x=search.uniform(0, 1), **options)  # type: ignore[arg-type]


class TestHyperband(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return hyperband(eta=2)


class TestHyperbandWithR(SearchContract):
    """R below the sweep's epochs, and a space in which there is something to exclude."""

    @pytest.fixture
    def search(self) -> Search:
        return search.hyperband(R=1, lr=[0.1, 0.2, 0.3], width=[1, 2], where=lambda c: c["width"] == 1)


def test_the_brackets_are_those_of_the_papers_table() -> None:
    assert search.hyperband_brackets(R=81, eta=3) == TABLE


def test_the_trained_epochs_are_those_of_the_table() -> None:
    run = run_to_end(hyperband(), LARGE, lambda values, epoch: values["x"])  # type: ignore[arg-type,return-value]
    expected: Counter[int] = Counter()
    for bracket in TABLE:
        for (size, epochs), (next_size, _) in zip(bracket, [*bracket[1:], (0, 0)], strict=True):
            expected[epochs] += size - next_size
    assert Counter(run.reached.values()) == expected
    assert len(run.story) == sum(run.reached.values()) == 1404  # survivors go on: no epoch is trained twice


@given(st.integers(1, 3000), st.integers(2, 10))
def test_brackets_of_any_size(R: int, eta: int) -> None:
    brackets = search.hyperband_brackets(R, eta)
    assert len(brackets[0]) == len(brackets) == 1 + max(s for s in range(12) if eta**s <= R)
    for bracket in brackets:
        assert bracket[-1].epochs == R
        assert bracket[-1].size >= 1
        for rung, following in pairwise(bracket):
            assert following.size == rung.size // eta
            assert rung.epochs == following.epochs // eta >= 1


def asked(actions: list[Action]) -> dict[str, int]:
    assert not any(isinstance(action, Stop) for action in actions)
    return {config_id(action.config): action.epochs for action in actions if isinstance(action, Train)}


def begin(procedure: Search, goal: Goal = SMALL) -> tuple[SimulatedRun, list[list[str]]]:
    """A run, and the members of each bracket in the order in which they were drawn."""
    run, actions = SimulatedRun(goal), procedure.start(goal)
    run.act(actions)
    names = list(asked(actions))
    sizes = [bracket[0].size for bracket in search.hyperband_brackets(goal.epochs)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return run, [names[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def hear(procedure: Search, run: SimulatedRun, config: str, metric: float | None) -> dict[str, int]:
    answer = procedure.hear(run.report(config, metric))
    run.act(answer)
    return asked(answer)


def test_all_brackets_start_at_once() -> None:
    run, brackets = begin(hyperband())
    assert [[run.wanted[config] for config in bracket] for bracket in brackets] == [[1] * 9, [3] * 3, [9] * 3]


def test_actions_give_the_epochs_that_may_follow() -> None:
    """Otherwise the planner could not know that a configuration of one epoch may get 81."""
    assert {action.most for action in hyperband(R=9).start(LARGE) if isinstance(action, Train)} == {9}


def test_a_rung_waits_for_its_own_members_alone() -> None:
    procedure = hyperband()
    run, (first, _, _) = begin(procedure)
    for config in first[:-1]:
        assert hear(procedure, run, config, 1.0) == {}
    assert hear(procedure, run, first[-1], 0.5) == {first[-1]: 3, first[0]: 3, first[1]: 3}
    for _ in range(2):
        for config in (first[0], first[1], first[-1]):
            answer = hear(procedure, run, config, 1.0 if config != first[1] else 0.1)
    assert answer == {first[1]: 9}


@pytest.mark.parametrize(("mode", "best"), [("min", [0, 1, 2]), ("max", [8, 7, 6])])
def test_the_best_continue(mode: str, best: list[int]) -> None:
    procedure = hyperband()
    run, (first, _, _) = begin(procedure, Goal("loss", mode, 9, 0))  # type: ignore[arg-type]
    for value, config in enumerate(first):
        answer = hear(procedure, run, config, float(value))
    assert answer == {first[i]: 3 for i in best}


def test_configurations_without_a_metric_rank_last() -> None:
    procedure = hyperband()
    run, (first, _, _) = begin(procedure)
    outcomes = [math.nan, "missing", math.inf, 7.0, 8.0, math.nan, math.nan, math.nan, math.nan]
    for config, outcome in zip(first, outcomes, strict=True):
        answer = hear(procedure, run, config, outcome)  # type: ignore[arg-type]
    assert list(answer) == [first[3], first[4], first[2]]


def test_failures_do_not_block_a_rung() -> None:
    procedure = hyperband()
    run, (first, _, _) = begin(procedure)
    for config in first[:7]:
        hear(procedure, run, config, None)
    assert hear(procedure, run, first[7], 2.0) == {}
    assert hear(procedure, run, first[8], None) == {first[7]: 3}
    assert hear(procedure, run, first[7], 2.0) == {}
    assert hear(procedure, run, first[7], None) == {}  # that bracket is over
    assert len(run.open()) == 6


def test_a_member_that_fails_after_its_report_is_not_promoted() -> None:
    procedure = hyperband()
    run, (first, _, _) = begin(procedure)
    for config in first[:-1]:
        hear(procedure, run, config, 1.0)
    hear(procedure, run, first[0], None)
    assert list(hear(procedure, run, first[-1], 1.0)) == [first[1], first[2], first[3]]


def test_configurations_are_all_different_and_valid() -> None:
    procedure = search.hyperband(
        {"space": search.integers(1, 1000)}, R=9, lr=[0.1, 0.2], where=lambda c: c["space"] % 2 == 0
    )
    run, brackets = begin(procedure)
    assert sum(map(len, brackets)) == len(run.values) == 15
    assert all(values["space"] % 2 == 0 for values in run.values.values())  # type: ignore[operator]


def test_draws_follow_the_seed() -> None:
    def draws(seed: int | None, run_seed: int) -> list[str]:
        return list(asked(hyperband(seed=seed).start(Goal("loss", "min", 9, run_seed))))

    assert draws(None, 1) == draws(1, 7) != draws(None, 2)


def test_describes_what_it_does() -> None:
    def narrow(config: object) -> bool:
        return True

    assert search.hyperband(R=9, lr=[0.1], where=narrow).describe() == {
        "kind": "hyperband",
        "R": 9,
        "eta": 3,
        "seed": None,
        "axes": {"lr": [0.1]},
        "where": "test_describes_what_it_does.<locals>.narrow",
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: search.hyperband(R=0, lr=[0.1]), "hyperband(R=0)"),
        (lambda: search.hyperband(R=81.0, lr=[0.1]), "hyperband(R=81.0)"),  # type: ignore[arg-type]
        (lambda: search.hyperband(eta=1, lr=[0.1]), "eta must be a whole number from 2"),
        (lambda: search.hyperband(seed=0.5, lr=[0.1]), "hyperband(seed=0.5)"),  # type: ignore[arg-type]
        (lambda: search.hyperband(R=9), "no axes"),
        (lambda: search.hyperband([0.1], R=9), "it must be a dict of axes"),  # type: ignore[arg-type]
        (lambda: search.hyperband({"lr": 1}, lr=[0.1]), "'lr' of hyperband is given twice"),
        (lambda: search.hyperband(R=9, lr=[0.1], where=3), "hyperband(where=3)"),  # type: ignore[arg-type]
        (lambda: hyperband(R=81).start(SMALL), "the sweep allows epochs=9"),
        (lambda: search.hyperband(lr=[0.1, 0.2]).start(SMALL), "the space has only 2 different"),
        (lambda: hyperband(where=lambda c: c["x"] > 2).start(SMALL), "<lambda> allowed only 0"),
        (lambda: search.hyperband(x=range(50), where=lambda c: c["x"] > 40).start(SMALL), "<lambda> allowed only 9"),
    ],
)
def test_invalid_arguments(make: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        make()  # type: ignore[operator]
    assert message in str(error.value)
