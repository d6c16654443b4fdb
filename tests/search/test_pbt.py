from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta import search
from regatta.configuration import Scalar, canonical, config_id
from regatta.errors import UsageError
from regatta.search import Goal, Report, Search, Train
from regatta.search.spaces import Choice, Integers, Space, Uniform
from regatta.testing.search import SearchContract, SimulatedRun, goals, play, played, run_to_end

GOAL = Goal("loss", "min", 8, 0)


def pbt(**options: Any) -> Search:
    chosen: dict[str, Any] = {"population": 4, "every": 2, "mutate": {"x": search.factor(0.5, 2.0)}, **options}
    return search.pbt(x=search.loguniform(1e-3, 1.0), width=[8, 16], **chosen)


class TestPbt(SearchContract):
    @pytest.fixture
    def search(self) -> Search:
        return pbt()


class TestPbtOfEquals(SearchContract):
    """An odd population that begins with equal values, and mutations that are mostly turned down."""

    @pytest.fixture
    def search(self) -> Search:
        rules = {"lr": search.step(1, -1, low=1), "act": search.resample()}
        return search.pbt(population=5, every=1, mutate=rules, lr=1, act="relu", where=lambda c: c["lr"] != 2)


@played
@given(goal=goals, data=st.data())
def test_the_lineage_is_a_forest(goal: Goal, data: st.DataObject) -> None:
    run = play(pbt(), goal, data)
    for config in run.wanted:
        seen = [config]
        while (parent := run.parents[seen[-1]]) is not None:
            assert parent not in seen
            assert run.values[parent]["member"] < run.values[seen[-1]]["member"]  # type: ignore[operator]
            assert run.values[parent]["width"] == run.values[config]["width"]  # what is not mutated is inherited
            seen.append(parent)
    assert sorted(values["member"] for values in run.values.values()) == list(range(len(run.wanted)))  # type: ignore[type-var]


def test_the_worse_half_is_replaced_by_children_of_the_better() -> None:
    procedure = pbt()
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    members = run.open()
    for epoch in (1, 2):
        for value, config in enumerate(members):
            actions = procedure.hear(run.report(config, 1.0 - value if epoch == 2 else float(value)))
            assert actions == [] or config == members[-1]
    children, kept = actions[:2], actions[2:]
    assert kept == [Train(run.values[members[3]], 4), Train(run.values[members[2]], 4)]
    for number, child in enumerate(children, 4):
        assert isinstance(child, Train)
        assert child.epochs == 2  # its own epochs
        assert child.parent in members[2:]
        parent = run.values[child.parent]
        assert child.config["x"] in (parent["x"] * 0.5, min(1.0, parent["x"] * 2.0))  # type: ignore[operator]
        assert child.config == {**parent, "x": child.config["x"], "member": number}


def test_each_child_starts_from_the_present_state_of_its_parent() -> None:
    """When a child is asked for, its parent has trained all that it was asked for, and goes on only afterwards."""
    procedure = pbt(population=6, every=3)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    children = 0
    while run.open():
        config = run.open()[0]
        actions = procedure.hear(run.report(config, run.values[config]["x"]))  # type: ignore[arg-type]
        for action in actions:
            if isinstance(action, Train) and action.parent is not None:
                children += 1
                assert run.reached[action.parent] == run.wanted[action.parent]
                assert run.parents[action.parent] is None or run.reached[action.parent] >= 2
            run.act([action])
    assert children == 6  # two generations give birth to three each


def test_a_lineage_gets_the_epochs_of_the_sweep() -> None:
    """8 epochs by generations of 3, 3 and 2."""
    run = run_to_end(pbt(every=3), GOAL, lambda values, epoch: values["x"])  # type: ignore[arg-type,return-value]

    def age(config: str) -> int:
        parent = run.parents[config]
        if parent is None:
            return run.reached[config]
        birth = {4: 3, 5: 3, 6: 6, 7: 6}[run.values[config]["member"]]  # type: ignore[index]
        return birth + run.reached[config]

    assert max(age(config) for config in run.wanted) == 8
    assert sum(age(config) == 8 for config in run.wanted) == 4
    assert len(run.story) == 4 * 8


def test_the_experiment_of_the_cerebro_paper() -> None:
    """12 configurations, 5 epochs per iteration, 8 iterations, half replaced after each but the last."""
    tiny = [sign * 5.0**-power for power in (4, 5, 6) for sign in (1, -1)]
    procedure = search.pbt(
        model=["a", "b", "c"], lr=[1e-2, 1e-4], weight_decay=[1e-4, 1e-6], batch_size=32, population=12, every=5,
        mutate={
            "batch_size": search.step(16, -16, low=16),
            "lr": search.step(*tiny, low=1e-6),
            "weight_decay": search.step(*tiny, low=0.0),
        },
    )  # fmt: skip
    run = run_to_end(procedure, Goal("loss", "min", 40, 0), lambda values, epoch: values["lr"])  # type: ignore[arg-type,return-value]
    first = [values for values in run.values.values() if values["member"] < 12]  # type: ignore[operator]
    assert len({(v["model"], v["lr"], v["weight_decay"]) for v in first}) == 12  # the whole grid
    assert len(run.wanted) == 12 + 7 * 6
    assert len(run.story) == 12 * 40
    assert {type(v["batch_size"]) for v in run.values.values()} == {int}
    assert all(v["batch_size"] % 16 == 0 and v["batch_size"] > 0 for v in run.values.values())  # type: ignore[operator]


def whole_generation(outcomes: list[float | None], **options: Any) -> tuple[SimulatedRun, list[str], list[Train]]:
    procedure = pbt(every=1, population=len(outcomes), **options)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    members = run.open()
    for config, outcome in zip(members, outcomes, strict=True):
        actions = procedure.hear(run.report(config, outcome))
    run.act(actions)
    return run, members, [action for action in actions if isinstance(action, Train)]


def test_members_that_failed_or_have_no_metric_are_replaced() -> None:
    run, members, actions = whole_generation([None, 3.0, math.nan, None])
    assert [action.parent for action in actions] == [members[1]] * 3 + [None]
    assert len(run.open()) == 4


def test_members_continue_if_none_has_a_metric() -> None:
    _, members, actions = whole_generation([math.nan, math.nan, None, math.nan])
    assert [config_id(action.config) for action in actions if action.parent is None] == members[:2]


def test_a_failed_population_ends_the_search() -> None:
    run, _, actions = whole_generation([None, None])
    assert actions == []
    assert run.open() == []


def test_an_odd_population_keeps_the_larger_half() -> None:
    _, members, actions = whole_generation([1.0, 2.0, 3.0, 4.0, 5.0])
    assert [config_id(action.config) for action in actions if action.parent is None] == members[:3]


def test_equal_values_differ_by_the_member() -> None:
    procedure = search.pbt(population=3, every=1, mutate={"lr": search.factor(1.0)}, lr=0.1)
    run = run_to_end(procedure, GOAL, lambda values, epoch: 1.0)
    assert len({canonical({**values, "member": 0}) for values in run.values.values()}) == 1
    assert len(run.values) == 3 + 7


def test_invalid_children_are_not_trained() -> None:
    procedure = search.pbt(
        population=4, every=1, mutate={"a": search.step(1, -1, low=0), "b": search.resample()},
        a=[4, 5, 6, 7, 8], b=[1, 2, 3], where=lambda c: c["a"] % 2 == 0 and set(c) == {"a", "b"},
    )  # fmt: skip
    run = run_to_end(procedure, GOAL, lambda values, epoch: values["a"])  # type: ignore[arg-type,return-value]
    assert len(run.values) == 4 + 7 * 2
    assert all(values["a"] % 2 == 0 for values in run.values.values())  # type: ignore[operator]


def test_ignores_former_members() -> None:
    procedure = pbt(every=1)
    run = SimulatedRun(GOAL)
    run.act(procedure.start(GOAL))
    for value, config in enumerate(members := run.open()):
        run.act(procedure.hear(run.report(config, float(value))))
    assert procedure.hear(Report(members[3], run.values[members[3]], 2, {"loss": 0.0})) == []


numbers = st.floats(-1e9, 1e9)


@given(numbers, st.lists(numbers, min_size=1, max_size=3), st.integers(0, 99))
def test_a_step_adds_one_of_the_amounts(value: float, amounts: list[float], seed: int) -> None:
    rule = search.step(*amounts)
    assert rule.mutate(value, Choice((value,)), Random(seed)) in [value + amount for amount in amounts]


@given(st.integers(1, 1000), st.sampled_from([0.5, 0.8, 1.25, 3.0]), st.integers(0, 99))
def test_whole_numbers_stay_whole_and_ranges_are_kept(value: int, factor: float, seed: int) -> None:
    axis = Integers(1, 1000)
    for rule in (search.factor(factor), search.step(7, -3), search.resample()):
        new = rule.mutate(value, axis, Random(seed))
        assert isinstance(new, int)
        assert 1 <= new <= 1000
    assert search.factor(factor).mutate(value, axis, Random(seed)) == max(1, min(1000, round(value * factor)))


@pytest.mark.parametrize(
    ("rule", "value", "axis", "expected"),
    [
        (search.step(-16, low=16), 16, Choice((16, 32)), 16),
        (search.step(16, high=40), 32, Choice((16, 32)), 40),
        (search.factor(10.0), 0.5, Uniform(0.0, 1.0), 1.0),
        (search.factor(10.0, high=2.0), 0.5, Uniform(0.0, 1.0), 2.0),  # the rule's bound, where it has one
        (search.factor(0.5, low=0), 0.0, Uniform(0.0, 1.0), 0.0),
        (search.factor(1e300), 1e300, Choice((1.0,)), 1e300),  # never a value that is not a number
    ],
)
def test_bounds_of_mutations(rule: Any, value: Scalar, axis: Space, expected: Scalar) -> None:
    found = rule.mutate(value, axis, Random(0))
    assert found == expected
    assert type(found) is type(expected)


def test_resampling_draws_from_the_axis() -> None:
    found = {search.resample().mutate("a", Choice(("a", "b", "c")), Random(seed)) for seed in range(50)}
    assert found == {"a", "b", "c"}


def test_describes_what_it_does() -> None:
    rules = {"x": search.factor(0.5, low=0.1), "width": search.resample(), "depth": search.step(1)}
    described = search.pbt(population=4, every=2, mutate=rules, x=0.5, width=[1, 2], depth=1, seed=3).describe()
    assert described == {
        "kind": "pbt",
        "population": 4,
        "every": 2,
        "mutate": {
            "x": {"kind": "factor", "factors": [0.5], "low": 0.1, "high": None},
            "width": {"kind": "resample"},
            "depth": {"kind": "step", "amounts": [1], "low": None, "high": None},
        },
        "seed": 3,
        "axes": {"x": [0.5], "width": [1, 2], "depth": [1]},
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pbt(population=1), "population must be a whole number from 2"),
        (lambda: pbt(every=0), "pbt(every=0)"),
        (lambda: pbt(seed=1.5), "pbt(seed=1.5)"),
        (lambda: pbt(mutate={}), "say how at least one value changes"),
        (lambda: pbt(mutate=[search.step(1)]), "say how at least one value changes"),
        (lambda: pbt(mutate={"widht": search.resample()}), "Did you mean width?"),
        (lambda: pbt(mutate={"x": 0.5}), "The mutation of 'x' is 0.5"),
        (lambda: pbt(mutate={"width": search.step(8, -8)}), "step(..., low=...)"),
        (lambda: pbt(act=["relu", "tanh"], mutate={"act": search.factor(2)}), "act=search.resample()"),
        (lambda: pbt(flag=[True, False], mutate={"flag": search.step(1)}), "'flag' has the value True"),
        (lambda: pbt(member=[1, 2]), "call the axis of that name something else"),
        (lambda: pbt(where=lambda c: False).start(GOAL), "<lambda> allowed only 0"),
        (lambda: search.step(), "give at least one number"),
        (lambda: search.factor(0.5, "2"), "give at least one number"),  # type: ignore[arg-type]
        (lambda: search.factor(math.inf), "give at least one number"),
        (lambda: search.step(1, low="a"), "step(low='a')"),  # type: ignore[arg-type]
        (lambda: search.step(1, low=3, high=2), "the lower bound is above the upper one"),
    ],
)
def test_invalid_arguments(make: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        make()  # type: ignore[operator]
    assert message in str(error.value)
