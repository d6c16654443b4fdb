"""Rates by width: Equation 5, the fitted model and its corrections, envelopes and the fluid bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.errors import UsageError
from regatta.plan.fleet.convergence import EpochBounds, Plateau, as_long_again, even
from regatta.plan.fleet.fluid_bound import Envelopes, fluid
from regatta.plan.fleet.nodes import Nodes
from regatta.plan.fleet.rates import (
    GeometricRates,
    Observation,
    ProfiledRates,
    RingRates,
    correct,
    envelope,
    fit,
    rate,
    rate_table,
)


def test_equation_5_continues_the_last_loss_of_efficiency() -> None:
    """One device has a rate of 100, two have 90 each: the loss is 0.9, and four have 4 * 90 * 0.9 ** 2."""
    profile = ProfiledRates((100.0, 180.0), base=2)
    assert rate(profile, 2, 1) == 180.0
    assert rate(profile, 4, 1) == pytest.approx(4 * 90 * 0.81)


def test_a_profile_must_include_the_base_of_equation_5() -> None:
    with pytest.raises(UsageError, match="Equation 5 starts at width 4; widths 1 to 2"):
        ProfiledRates((100.0, 180.0), base=4)


def test_fitting_recovers_the_model() -> None:
    truth = RingRates(0.02, 0.001, 0.004)
    seen = [Observation(w, n, rate(truth, w, n)) for w, n in ((1, 1), (2, 1), (4, 1), (8, 2))]
    found = fit(seen)
    assert found.terms == pytest.approx(truth.terms, rel=0.02)
    assert rate(found, 16, 4) == pytest.approx(rate(truth, 16, 4), rel=0.02)


def test_without_observed_links_their_cost_is_guessed() -> None:
    found = fit([Observation(1, 1, 50.0)])
    assert found.compute == pytest.approx(0.02, rel=1e-3)
    assert found.inside > 0 and found.across > 0
    assert rate(found, 2, 1) < 100.0


def test_observations_correct_the_model_and_the_right_term() -> None:
    truth, guess = RingRates(0.02, 0.001, 0.012), RingRates(0.02, 0.001, 0.001)
    seen = [Observation(8, 2, rate(truth, 8, 2))] * 40
    found = correct(guess, seen)
    assert rate(found, 8, 2) == pytest.approx(rate(truth, 8, 2), rel=0.05)
    assert rate(found, 4, 1) == pytest.approx(rate(truth, 4, 1), rel=0.25)
    assert abs(found.across / truth.across - 1) < abs(guess.across / truth.across - 1)
    assert correct(guess, []) == guess


def test_inside_a_node_the_model_is_concave_and_across_it_costs_more() -> None:
    model = RingRates(0.02, 0.001, 0.002)
    rates = [rate(model, width, 1) for width in range(1, 9)]
    gains = np.diff([0.0, *rates])
    assert (np.diff(gains) < 0).all()
    assert rate(model, 8, 2) < rate(model, 8, 1)


def test_no_group_is_slower_than_a_narrower_one() -> None:
    rates = rate_table([GeometricRates(50.0, 0.97, 0.9, 0.95, 4)], Nodes.uniform(64, 4))[0]
    assert (np.diff(rates) >= -1e-9).all()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=12))
def test_an_envelope_is_concave_and_above_all_rates(rates: list[float]) -> None:
    corners = envelope(np.array(rates))
    widths, heights = zip(*corners, strict=True)
    slopes = np.diff(heights) / np.diff(widths)
    assert (np.diff(slopes) <= 1e-9).all()
    top = np.interp(np.arange(1, len(rates) + 1), widths, heights)
    assert (top >= np.array(rates) - 1e-9).all()


def test_the_fluid_bound_by_hand() -> None:
    """Two models of 100 and 300 rows, 1 row per second and device without loss: four devices need 100 seconds."""
    found = fluid(np.array([100.0, 300.0]), Envelopes(np.array([[1.0, 2, 3, 4]] * 2)), 4)
    assert found.seconds == pytest.approx(100.0)
    assert found.widths == pytest.approx([1.0, 3.0])


def test_a_model_that_gains_nothing_by_devices_can_be_the_bound() -> None:
    found = fluid(np.array([100.0, 10.0]), Envelopes(np.array([[1.0, 1.0], [1.0, 2.0]])), 2)
    assert found.seconds == pytest.approx(100.0)


def test_the_bound_falls_with_devices_and_rises_with_work() -> None:
    rates = rate_table(
        [GeometricRates(30.0, 0.97, 0.93, 0.95, 4), GeometricRates(90.0, 0.98, 0.95, 0.95, 4)], Nodes.uniform(16, 4)
    )
    ends = [fluid(np.array([1e4, 2e4]), Envelopes(rates[:, :count]), count).seconds for count in (1, 2, 4, 8, 16)]
    assert ends == sorted(ends, reverse=True)
    assert fluid(np.array([2e4, 2e4]), Envelopes(rates), 16).seconds > ends[-1]


def test_a_group_is_placed_on_the_fullest_node_with_enough_room() -> None:
    nodes = Nodes((4, 4, 4))
    assert nodes.place(2, {0, 1, 2, 4, 5, 8}) == (4, 5)
    assert nodes.place(4, {0, 1, 2, 4, 5, 8}) == (0, 1, 2, 8)
    assert nodes.place(1, {3, 7, 11}, near={8}) == (11,)
    with pytest.raises(UsageError, match="3 devices cannot be taken out of 2"):
        nodes.place(3, {0, 1})


def test_nodes_may_differ_in_size() -> None:
    nodes = Nodes.uniform(10, 4)
    assert nodes.sizes == (4, 4, 2)
    assert nodes.min_nodes == (0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3)
    assert nodes.count_nodes([0, 3, 9]) == 2


def test_a_plateau_is_convergence() -> None:
    plateau = Plateau(patience=2, most=10, delta=0.1)
    assert not plateau.reached([1.0, 0.5, 0.45])
    assert plateau.reached([1.0, 0.5, 0.45, 0.44])
    assert plateau.reached([1.0 / n for n in range(1, 11)])
    assert Plateau(2, 10, mode="max").reached([0.5, 0.4, 0.5])
    assert plateau.bounds == EpochBounds(3, 10)


def test_epochs_that_may_be_left() -> None:
    bounds = EpochBounds(12, 24)
    assert even(bounds, 0) == 18
    assert even(bounds, 20) == pytest.approx((21 + 24) / 2 - 20)
    assert as_long_again(bounds, 7) == 7
    with pytest.raises(UsageError, match="Between 5 and 4 epochs"):
        EpochBounds(5, 4)
