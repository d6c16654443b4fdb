"""Hops or groups: the crossover, the papers' rules, and our rule, which is never far from the best."""

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
)


def test_wider_groups_communicate_more_and_compute_less() -> None:
    """A step of 1 s at a ratio of 0.5: two workers communicate for 0.25 s; four send 1.5 times as much."""
    link = Communication(0.5)
    assert [link.ratio(width) for width in (1, 2, 4)] == pytest.approx([0.0, 0.5, 1.5])
    assert (1 + link.ratio(4)) / 4 == pytest.approx(0.25 + 1.5 * 0.25)


def test_across_nodes_the_slower_link_counts() -> None:
    link = Communication(0.1, 1.0, per_node=4)
    assert link.ratio(4) == pytest.approx(0.3)
    assert link.ratio(8) == pytest.approx(7.0)
    assert measured(1, 8, link) == 4


def test_the_crossover_of_the_cerebro_paper() -> None:
    """Criteo on 8 workers: 1 + rho(8) = 4.13, so both take equally long at 1.94 models; the paper saw 2."""
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
    """At a ratio of 1, two workers together take as long as one."""
    assert measured(1, 2, Communication(1.0)) == 1
    assert measured(8, 8, Communication(0.0)) == 1


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 32), st.integers(1, 32), st.floats(0.02, 4.0), st.floats(1.0, 8.0), st.integers(1, 8))
def test_our_rule_is_never_far_from_the_best(
    models: int, workers: int, ratio: float, slower: float, per_node: int
) -> None:
    link = Communication(ratio, ratio * slower, per_node)
    ours = round_time(models, workers, measured(models, workers, link), link)
    for rule in WIDTH_RULES.values():
        assert ours <= 1.01 * round_time(models, workers, rule(models, workers, link), link) + 1e-12


def test_ratios_are_checked() -> None:
    with pytest.raises(UsageError, match="below zero"):
        Communication(-0.1)


def test_units_of_groups_correct_the_measured_communication() -> None:
    """A group of three that computes for 2 s and communicates for 1 s: a ratio of 0.25 for two."""
    seen, link = ObservedCommunication(), Communication(1.0)
    for _ in range(3):
        seen.add_unit(3, 1, 3.0, 1.0)
    assert seen.correct(link) == link, "too few units"
    seen.add_unit(3, 1, 3.0, 1.0)
    assert seen.correct(link).inside == pytest.approx(0.25)
    nodes = Communication(1.0, 4.0, per_node=2)
    assert seen.correct(nodes) == Communication(0.25, 4.0, per_node=2)
    for _ in range(4):
        seen.add_unit(2, 2, 2.0, 1.0)
    assert seen.correct(nodes) == Communication(0.25, 1.0, per_node=2)
