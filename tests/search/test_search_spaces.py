from __future__ import annotations

import json
import math
import subprocess
import sys
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from regatta.errors import UsageError
from regatta.search import choice, integers, loguniform, uniform
from regatta.search.spaces import Choice, Space, make_space


def draws(space: Space, count: int = 4000) -> list[float]:
    random = Random(7)
    return [space.draw(random) for _ in range(count)]  # type: ignore[misc]


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300), st.integers(0, 2**32))
def test_uniform_stays_within_its_bounds(a: float, b: float, seed: int) -> None:
    assume(a != b)
    space = uniform(min(a, b), max(a, b))
    assert space.low <= space.draw(Random(seed)) <= space.high


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300), st.integers(0, 2**32))
def test_loguniform_stays_within_its_bounds(a: float, b: float, seed: int) -> None:
    assume(a != b)
    space = loguniform(min(a, b), max(a, b))
    assert space.low <= space.draw(Random(seed)) <= space.high


@given(st.integers(-(2**40), 2**40), st.integers(1, 2**40), st.booleans(), st.integers(0, 2**32))
def test_integers_are_whole_and_within_their_bounds(low: int, width: int, log: bool, seed: int) -> None:
    assume(low > 0 or not log)
    value = integers(low, low + width, log=log).draw(Random(seed))
    assert isinstance(value, int)
    assert low <= value <= low + width


def test_uniform_is_even_and_loguniform_by_orders_of_magnitude() -> None:
    assert np.mean(np.array(draws(uniform(0, 10))) < 5) == pytest.approx(0.5, abs=0.03)
    assert np.mean(np.array(draws(loguniform(1e-4, 1e0))) < 1e-2) == pytest.approx(0.5, abs=0.03)


def test_integers_reach_both_ends_evenly() -> None:
    counts = np.bincount(draws(integers(1, 4)))  # type: ignore[arg-type]
    assert counts[0] == 0
    assert np.all(np.abs(counts[1:] / 4000 - 0.25) < 0.03)


def test_log_integers_favour_small_ones() -> None:
    share_of_one = np.mean(np.array(draws(integers(1, 1023, log=True))) == 1)
    assert share_of_one == pytest.approx(math.log(2) / math.log(1024), abs=0.02)


def test_choice_takes_values_or_a_list_of_them() -> None:
    assert choice(1, 2) == choice([1, 2]) == choice((1, 2)) == choice(np.array([1, 2])) == Choice((1, 2))
    assert choice("adam") == Choice(("adam",))
    assert set(draws(choice("a", "b", "c"), 100)) == {"a", "b", "c"}


def test_equal_values_count_once_but_types_are_kept_apart() -> None:
    assert choice(1, 1, 1.0, True, "1", None).values == (1, 1.0, True, "1", None)
    assert [type(v) for v in choice(1, 1.0, True).values] == [int, float, bool]


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ([1, 2], (1, 2)),
        (range(3), (0, 1, 2)),
        (np.array([0.5, 0.25]), (0.5, 0.25)),
        (np.float32(0.5), (0.5,)),
        (np.array(3), (3,)),
        ("adam", ("adam",)),
        (None, (None,)),
        (True, (True,)),
    ],
)
def test_valid_axes(axis: object, values: tuple[object, ...]) -> None:
    space = make_space("a", axis)
    assert isinstance(space, Choice)
    assert space.values == values
    assert all(type(value).__module__ == "builtins" for value in space.values)
    json.dumps(space.describe())


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ([], "'a' is empty"),
        (range(0), "'a' is empty"),
        (np.array([]), "'a' is empty"),
        ({"x": 1}, "'a' is {'x': 1}"),
        ({1, 2}, "'a' is {1, 2}"),
        ([[1, 2]], "'a' is [1, 2];"),
        (np.zeros((2, 2)), "a ndarray"),
        ([math.nan], "not a finite number"),
        (object(), "<object"),
        (len, "<built-in function len>"),
    ],
)
def test_invalid_axes_are_refused(axis: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        make_space("a", axis)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: uniform(1, 1), "uniform(1, 1): the lower bound must be less"),
        (lambda: uniform(2, 1), "less than the upper"),
        (lambda: uniform(0, math.inf), "finite"),
        (lambda: uniform(math.nan, 1), "finite"),
        (lambda: uniform(-1e308, 1e308), "distance"),
        (lambda: uniform(0, 10**400), "finite"),
        (lambda: uniform("0", 1), "finite numbers"),  # type: ignore[arg-type]
        (lambda: loguniform(0, 1), "greater than 0"),
        (lambda: integers(0, 4, log=True), "greater than 0"),
        (lambda: integers(1, 2.5), "whole numbers"),  # type: ignore[arg-type]
        (lambda: integers(False, True), "whole numbers"),
        (lambda: integers(0, 2**53), "2**53"),
        (lambda: choice(), "'choice' is empty"),
        (lambda: choice([]), "'choice' is empty"),
    ],
)
def test_invalid_spaces_are_refused(make: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        make()  # type: ignore[operator]
    assert message in str(error.value)


def test_searching_loads_neither_numpy_nor_torch() -> None:
    code = "import sys, regatta.search; print([m for m in ('numpy', 'torch', 'regatta.engine') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
