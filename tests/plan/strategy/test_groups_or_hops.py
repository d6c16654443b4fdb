"""Hops or groups: the crossover, the papers' rules beside ours, and our rule never far from the better one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.errors import UsageError
from regatta.plan.strategy.groups_or_hops import (
    WIDTH_RULES,
    Communication,
    ObservedCommunication,
    half,
    hoho,
    measured,
    round_time,
    width_rule,
)


def test_two_have_the_measured_ratio_and_wider_groups_compute_less_for_each_exchange() -> None:
    """A step of 1 s: with a ratio of 0.5, two exchange for 0.25 s; four send 1.5 times as much, and compute 0.25 s."""
    link = Communication(0.5)
    assert [link.ratio(width) for width in (1, 2, 4)] == pytest.approx([0.0, 0.5, 1.5])
    assert (1 + link.ratio(4)) / 4 == pytest.approx(0.25 + 1.5 * 0.25)


def test_across_nodes_the_slower_link_counts() -> None:
    link = Communication(0.1, 1.0, each=4)
    assert link.ratio(4) == pytest.approx(0.3)
    assert link.ratio(8) == pytest.approx(7.0)
    assert measured(1, 8, link) == 4


def test_the_crossover_of_the_cerebro_paper() -> None:
    """Criteo on 8 workers: 1 + rho(8) = 4.13, so both ways take equally long at 1.94 models; the paper saw 2."""
    link = Communication(0.447)
    assert 1 + link.ratio(8) == pytest.approx(4.13, abs=0.01)
    assert round_time(1, 8, 8, link) < round_time(1, 8, 1, link)
    assert round_time(2, 8, 8, link) == pytest.approx(round_time(2, 8, 1, link), rel=0.04)
    assert round_time(3, 8, 8, link) > 1.5 * round_time(3, 8, 1, link)


def test_the_rules_of_the_paper() -> None:
    link = Communication(1.0)
    assert [hoho(models, 9, link) for models in (1, 3, 4, 9)] == [9, 3, 2, 1]
    assert [half(models, 8, link) for models in (1, 4, 5)] == [8, 8, 1]


def test_hopping_wins_ties() -> None:
    """At a ratio of 1 two workers take as long together as one alone."""
    assert measured(1, 2, Communication(1.0)) == 1
    assert measured(8, 8, Communication(0.0)) == 1


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 32), st.integers(1, 32), st.floats(0.02, 4.0), st.floats(1.0, 8.0), st.integers(1, 8))
def test_ours_is_never_far_from_the_better_of_hopping_and_groups(
    models: int, workers: int, ratio: float, slower: float, each: int
) -> None:
    link = Communication(ratio, ratio * slower, each)
    ours = round_time(models, workers, measured(models, workers, link), link)
    for rule in WIDTH_RULES.values():
        assert ours <= 1.01 * round_time(models, workers, rule(models, workers, link), link) + 1e-12


def test_names_and_ratios_are_checked() -> None:
    with pytest.raises(UsageError) as caught:
        width_rule("mesured")
    assert caught.value.candidates == ("measured",)
    with pytest.raises(UsageError, match="below zero"):
        Communication(-0.1)


def test_units_of_groups_tell_what_exchanges_cost() -> None:
    """A group of three that computes for 2 s and exchanges for 1 s: a ratio of 0.25 for two."""
    seen, link = ObservedCommunication(), Communication(1.0)
    for _ in range(3):
        seen.hear(3, 1, 3.0, 1.0)
    assert seen.corrected(link) == link, "too few"
    seen.hear(3, 1, 3.0, 1.0)
    assert seen.corrected(link).inside == pytest.approx(0.25)
    nodes = Communication(1.0, 4.0, each=2)
    assert seen.corrected(nodes) == Communication(0.25, 4.0, each=2)
    for _ in range(4):
        seen.hear(2, 2, 2.0, 1.0)
    assert seen.corrected(nodes) == Communication(0.25, 1.0, each=2)
