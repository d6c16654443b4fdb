"""Algorithms 2 to 4 of the FLEET paper on cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.errors import UsageError
from regatta.plan.fleet.nodes import Nodes
from regatta.plan.papers.fleet_assignment import assign_gpus, get_gpu_assignment, score
from regatta.plan.papers.flotilla import create_flotilla, find_next, slowest

# Rows are models, columns widths from 1: 100; 50, 95, 140, 180; 30, 58, 85, 110 rows per second.
RATES = np.array([[100.0, 190.0, 270.0, 340.0], [50.0, 95.0, 140.0, 180.0], [30.0, 58.0, 85.0, 110.0]])


def test_the_flotilla_has_the_models_that_reach_the_pace_of_the_fastest() -> None:
    """Model 1 comes nearest to 100 with two devices (95); then model 2 with four (110); that makes seven."""
    assert create_flotilla(RATES, [0, 1, 2], 7) == {0: 1, 1: 2, 2: 4}


def test_a_model_takes_the_width_that_the_devices_left_allow() -> None:
    """With six there are three for model 2: 85 is within 20 of 100."""
    assert create_flotilla(RATES, [0, 1, 2], 6) == {0: 1, 1: 2, 2: 3}


def test_models_that_cannot_reach_the_pace_wait_and_the_slowest_gets_the_rest() -> None:
    """Five devices leave two for model 2, which makes 58; so they go to the slowest: model 1 (95), then model 0."""
    assert create_flotilla(RATES, [0, 1, 2], 5) == {0: 2, 1: 3}


def test_a_wide_delta_admits_distant_rates() -> None:
    """The reference is 50; model 2 comes nearest with two devices (58); the fourth goes to the slower, model 1."""
    assert create_flotilla(RATES, [1, 2], 4) == {1: 2, 2: 2}


def test_a_narrow_delta_leaves_the_fastest_alone() -> None:
    assert create_flotilla(RATES, [0, 1, 2], 4, delta=4.0) == {0: 4}


def test_find_next_takes_the_smallest_gap_and_nothing_beyond_the_devices_left() -> None:
    gaps = np.array([[50.0, 5.0, 40.0], [np.inf, 4.0, 1.0]])
    assert find_next(gaps, 3) == (1, 3)
    assert find_next(gaps, 2) == (1, 2)
    assert find_next(gaps, 1) == (0, 1)
    assert find_next(np.full((2, 3), np.inf), 3) == (-1, 0)


def test_the_slowest_is_found_by_its_present_width() -> None:
    assert slowest(RATES, {0: 1, 1: 3, 2: 4}) == 0
    assert slowest(RATES, {0: 2, 1: 2, 2: 4}) == 1


@pytest.mark.parametrize(("candidates", "devices"), [([], 4), ([0], 0)])
def test_an_empty_flotilla_is_refused(candidates: list[int], devices: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        create_flotilla(RATES, candidates, devices)


def test_whole_nodes_come_first_then_pairs_then_the_rest() -> None:
    """Widths 3, 4, 1, 2 on nodes of four: 4 fills node 0; 1 and 3 fill node 1, the later of the pair first; then 2."""
    groups = get_gpu_assignment({10: 3, 11: 4, 12: 1, 13: 2}, Nodes((4, 4, 4)))
    assert groups == {11: (0, 1, 2, 3), 12: (4,), 10: (5, 6, 7), 13: (8, 9)}


def test_two_halves_make_a_pair() -> None:
    groups = get_gpu_assignment({0: 2, 1: 6, 2: 5}, Nodes((4, 4, 4, 4)))
    assert groups[1] == (0, 1, 2, 3, 4, 5)
    assert groups[0] == (6, 7)
    assert groups[2] == (8, 9, 10, 11, 12)


def test_the_remaining_are_ordered_so_that_they_cross_the_fewest_nodes() -> None:
    """Of 3, 3, 1 the order 3, 1, 3 keeps all inside their nodes; a pair (3, 1) is found before that."""
    groups = get_gpu_assignment({0: 3, 1: 3, 2: 1}, Nodes((4, 4)))
    assert score(groups.values(), Nodes((4, 4))) == pytest.approx(1 / 3 + 1 / 3 + 1)
    assert groups == {2: (0,), 1: (1, 2, 3), 0: (4, 5, 6)}


def test_a_permutation_is_searched_where_no_pair_fits() -> None:
    """5, 1, 1, 1 on nodes of four: in their order the five would be 0-4; the singles first only move the crossing."""
    nodes = Nodes((4, 4))
    groups = get_gpu_assignment({0: 1, 1: 5, 2: 1, 3: 1}, nodes)
    assert sorted(d for group in groups.values() for d in group) == list(range(8))
    assert score(groups.values(), nodes) == pytest.approx(2 / 5 + 3)


def test_the_score_is_nodes_over_devices() -> None:
    assert score([(0, 1), (3, 4)], Nodes((4, 4))) == pytest.approx(1 / 2 + 2 / 2)


def test_assign_gpus_continues_with_the_next_device() -> None:
    groups: dict[int, tuple[int, ...]] = {}
    assert assign_gpus(groups, 7, 3, 2) == 5
    assert groups == {7: (3, 4)}


def test_more_devices_than_there_are_cannot_be_assigned() -> None:
    with pytest.raises(UsageError, match="9 devices together do not fit on 8"):
        get_gpu_assignment({0: 4, 1: 5}, Nodes((4, 4)))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(5, 200), min_size=1, max_size=8), st.integers(1, 24), st.integers(1, 8), st.floats(0, 60))
def test_every_flotilla_uses_all_devices_once(singles: list[float], devices: int, each: int, delta: float) -> None:
    nodes = Nodes.uniform(devices, each)
    rates = np.array([[single * width * 0.97**width for width in range(1, devices + 1)] for single in singles])
    widths = create_flotilla(rates, list(range(len(singles))), devices, delta)
    assert sum(widths.values()) == devices
    assert min(widths.values()) >= 1
    groups = get_gpu_assignment(widths, nodes)
    assert {model: len(group) for model, group in groups.items()} == widths
    assert sorted(d for group in groups.values() for d in group) == list(range(devices))
