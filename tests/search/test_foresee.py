"""What a search will come to want, foreseen by playing it through."""

from __future__ import annotations

import pytest

from regatta import search
from regatta.search.base import Goal
from regatta.search.foresee import foreseen

GOAL = Goal("loss", "min", 9, seed=3)


def epochs(of: search.Search, goal: Goal) -> dict[str, int]:
    return {name: action.epochs for name, action in foreseen(of, goal).items()}


def test_what_is_asked_for_at_once_is_what_it_is() -> None:
    found = epochs(search.grid(lr=[0.1, 0.2], batch_size=[8]), GOAL)
    assert list(found.values()) == [9, 9]


def test_hyperbands_epochs_are_those_of_its_rungs() -> None:
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
