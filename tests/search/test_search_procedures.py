from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta import search
from regatta.configuration import Scalar, canonical
from regatta.errors import UsageError
from regatta.search import Goal, Report, Search, Train

GOAL = Goal("loss", "min", 3, seed=5)


def asked(procedure: Search, goal: Goal = GOAL) -> list[dict[str, Scalar]]:
    actions = procedure.start(goal)
    assert all(isinstance(action, Train) and action.epochs == goal.epochs for action in actions)
    return [action.config for action in actions if isinstance(action, Train)]


def test_grid_is_the_product_in_the_order_given() -> None:
    found = asked(search.grid(hidden=[32, 128], lr=[1e-2, 1e-3], batch_size=[32, 64]))
    expected = [{"hidden": h, "lr": lr, "batch_size": b} for h, lr, b in product([32, 128], [1e-2, 1e-3], [32, 64])]
    assert found == expected
    assert [list(config) for config in found] == [["hidden", "lr", "batch_size"]] * 8


axis_names = st.text(min_size=1, max_size=5)
axis_values = st.lists(st.integers(-3, 3), min_size=1, max_size=4)


@given(st.dictionaries(axis_names, axis_values, min_size=1, max_size=4))
def test_grid_has_every_combination_once(axes: dict[str, list[int]]) -> None:
    procedure = search.grid(**axes)
    found = {canonical(config) for config in asked(procedure)}
    expected = {canonical(dict(zip(axes, values, strict=True))) for values in product(*axes.values())}
    assert found == expected
    assert len(procedure) == len(found) == len(asked(procedure))


def test_grid_takes_single_values_arrays_and_choices() -> None:
    found = asked(search.grid(lr=np.array([0.5, 0.25]), opt="adam", width=search.choice(8, 16), depth=range(1, 2)))
    assert found[0] == {"lr": 0.5, "opt": "adam", "width": 8, "depth": 1}
    assert len(found) == 4
    assert all(type(config["lr"]) is float for config in found)


def test_equal_configurations_are_trained_once() -> None:
    assert asked(search.grid(lr=[0.1, 1e-1, 0.2])) == [{"lr": 0.1}, {"lr": 0.2}]
    listed = search.configs([{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2.0}])
    assert [canonical(config) for config in asked(listed)] == ['{"a":1,"b":2}', '{"a":1,"b":2.0}']


def test_random_draws_different_configurations_from_its_spaces() -> None:
    procedure = search.random(
        n=50, lr=search.loguniform(1e-4, 1e-1), width=search.integers(8, 64), act=["relu", "tanh"]
    )
    found = asked(procedure)
    assert len({canonical(config) for config in found}) == len(procedure) == 50
    for config in found:
        assert 1e-4 <= config["lr"] <= 1e-1  # type: ignore[operator]
        assert 8 <= config["width"] <= 64  # type: ignore[operator]
        assert config["act"] in ("relu", "tanh")


def test_random_uses_its_own_seed_or_that_of_the_run() -> None:
    def draw(seed: int | None, run_seed: int) -> list[dict[str, Scalar]]:
        return asked(search.random(n=5, seed=seed, lr=search.uniform(0, 1)), Goal("loss", "min", 1, run_seed))

    assert draw(None, 1) == draw(None, 1) != draw(None, 2)
    assert draw(3, 1) == draw(3, 2) != draw(4, 1)
    assert draw(3, 1) == draw(None, 3)


def test_random_keeps_the_same_draws_in_every_release() -> None:
    found = asked(search.random(n=2, seed=0, lr=search.uniform(0, 1), width=search.integers(1, 100), act=["a", "b"]))
    assert found == [
        {"lr": 0.06594735958221332, "width": 99, "act": "b"},
        {"lr": 0.11884797262687008, "width": 61, "act": "a"},
    ]


@given(st.integers(1, 12), st.integers(0, 1000))
def test_random_can_draw_a_small_space_to_its_last_configuration(n: int, seed: int) -> None:
    found = asked(search.random(n=n, seed=seed, a=[1, 2, 3], b=search.integers(1, 4, log=True)))
    assert len({canonical(config) for config in found}) == n
    assert all(config["a"] in (1, 2, 3) and config["b"] in (1, 2, 3, 4) for config in found)


def test_a_small_space_is_not_always_drawn_in_the_same_order() -> None:
    firsts = {canonical(asked(search.random(n=3, seed=seed, a=[1, 2, 3, 4]))[0]) for seed in range(40)}
    assert len(firsts) == 4


def test_lists_ignore_reports() -> None:
    procedure = search.grid(lr=[0.1])
    procedure.start(GOAL)
    assert procedure.hear(Report("0123456789", {"lr": 0.1}, 1, {"loss": 0.3})) == []


def test_descriptions() -> None:
    assert search.grid(lr=[0.1], act="relu").describe() == {"kind": "grid", "axes": {"lr": [0.1], "act": ["relu"]}}
    assert search.configs([{"lr": 0.1}]).describe() == {"kind": "configs", "configs": [{"lr": 0.1}]}
    drawn = search.random(n=2, lr=search.loguniform(0.1, 1), width=search.integers(1, 8), act=["relu", "tanh"])
    assert drawn.describe() == {
        "kind": "random",
        "n": 2,
        "seed": None,
        "axes": {
            "lr": {"kind": "uniform", "low": 0.1, "high": 1.0, "log": True},
            "width": {"kind": "integers", "low": 1, "high": 8, "log": False},
            "act": ["relu", "tanh"],
        },
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: search.grid(), "no axes"),
        (lambda: search.grid(lr=[0.1], width=[]), "The axis 'width' is empty"),
        (lambda: search.grid(lr=search.uniform(0, 1)), "search.random(n=..., lr=...)"),
        (lambda: search.grid(width=search.integers(1, 4)), "a grid needs the values themselves"),
        (lambda: search.random(n=3), "no axes"),
        (lambda: search.random(n=0, lr=[0.1]), "random(n=0)"),
        (lambda: search.random(n=2.0, lr=[0.1]), "random(n=2.0)"),  # type: ignore[arg-type]
        (lambda: search.random(n=True, lr=[0.1]), "random(n=True)"),
        (lambda: search.random(n=1, seed="x", lr=[0.1]), "random(seed='x')"),  # type: ignore[arg-type]
        (lambda: search.random(n=7, a=[1, 2, 2], b=search.integers(1, 3)), "only 6 different configurations"),
        (lambda: search.random(n=1, lr=[]), "'lr' is empty"),
        (lambda: search.configs([]), "empty"),
        (lambda: search.configs({"lr": 0.1}), "configs([{...}, {...}])"),  # type: ignore[arg-type]
        (lambda: search.configs("lr"), "not 'lr'"),  # type: ignore[arg-type]
        (lambda: search.configs(3), "not 3"),  # type: ignore[arg-type]
        (lambda: search.configs([3]), "not 3"),  # type: ignore[list-item]
        (lambda: search.configs([{"net": object()}]), "'net'"),  # type: ignore[dict-item]
        (lambda: search.configs([{"": 1}]), "non-empty strings"),
    ],
)
def test_invalid_arguments(make: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        make()  # type: ignore[operator]
    assert message in str(error.value)
    assert error.value.exit_code == 2
