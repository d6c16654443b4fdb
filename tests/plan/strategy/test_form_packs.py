"""Packs have models that are alike, as many as the plan says, and leave no worker idle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.plan.strategy.form_packs import PackCandidate, PackRate, form_packs

SIZES = {"a": 64, "b": 4, "c": 1}  # of the plan


def candidates(*builds: str) -> list[PackCandidate]:
    return [PackCandidate(f"m{number}", build) for number, build in enumerate(builds)]


def sizes(groups: list[list[str]]) -> list[int]:
    return sorted(map(len, groups))


def test_the_time_of_other_sizes_is_linear() -> None:
    rate = PackRate(8, 4.0)  # a step of eight takes as long as two alone: 1 + 7 * each = 2
    assert rate.gain_of(8) == pytest.approx(4.0)
    assert rate.gain_of(15) == pytest.approx(5.0)
    assert rate.gain_of(1) == 1.0
    assert PackRate(8, 20.0).gain_of(8) == 8.0  # a pack cannot be faster than one model


@pytest.mark.parametrize(
    ("builds", "idle", "expected"),
    [
        ("aaaa", 1, [4]),
        ("aaaa", 2, [2, 2]),
        ("aaaa", 8, [1, 1, 1, 1]),  # every worker gets one
        ("aaaaab", 3, [1, 2, 3]),
        ("aaabbb", 1, [3, 3]),  # only models of one build form a pack
        ("b" * 6, 1, [3, 3]),  # at most the size of the plan, and even
        ("cccc", 1, [1, 1, 1, 1]),  # the plan says size 1
        ("xxxx", 1, [1, 1, 1, 1]),  # not in the plan
        (["", "", ""], 1, [1, 1, 1]),
        ("a" * 100, 1, [50, 50]),
    ],
)
def test_packs_by_builds_sizes_and_idle_workers(builds: Any, idle: int, expected: list[int]) -> None:
    assert sizes(form_packs(candidates(*builds), SIZES, idle)) == expected


def test_models_with_different_progress_form_no_pack() -> None:
    found = [PackCandidate("one", "a", (1, ())), PackCandidate("other", "a", (2, ()))]
    assert form_packs(found, SIZES, 1) == [["one"], ["other"]]


@given(st.lists(st.sampled_from(["a", "b", "c", "", "x"]), min_size=1, max_size=200), st.integers(1, 40))
def test_every_model_is_in_one_pack_that_is_not_too_large(builds: list[str], idle: int) -> None:
    given_candidates = candidates(*builds)
    groups = form_packs(given_candidates, SIZES, idle)
    build = {candidate.name: candidate.build for candidate in given_candidates}
    assert sorted(name for group in groups for name in group) == sorted(build)
    assert len(groups) >= min(idle, len(builds))
    for group in groups:
        assert len({build[name] for name in group}) == 1
        assert len(group) <= SIZES.get(build[group[0]], 1)
