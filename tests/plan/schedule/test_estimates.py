"""Estimates start from profiles and learn, without blaming a model for a slow worker."""

from __future__ import annotations

import math
import random

import pytest
from hopper_invariants import RecordedHopper, check_hopper

from regatta.errors import UsageError
from regatta.plan.schedule.estimates import Estimates, KnownTimes
from regatta.plan.schedule.simulate import simulate, spread_partitions
from regatta.plan.schedule.units import Unit


def unit(model: str, partition: int = 0, kind: str = "train") -> Unit:
    return Unit(kind, model, 1, partition)  # type: ignore[arg-type]


def test_a_profile_counts_rows_and_a_fixed_part() -> None:
    estimates = Estimates([100, 200], [50])
    estimates.set_profile("a", 0.01, 0.002, 0.5)
    assert estimates.seconds(unit("a"), "w") == pytest.approx(1.5)
    assert estimates.seconds(unit("a", 1), "w") == pytest.approx(2.5)
    assert estimates.seconds(unit("a", 0, "eval"), "w") == pytest.approx(0.6)


def test_a_model_without_a_profile_gets_the_mean_of_the_others() -> None:
    estimates = Estimates([100])
    estimates.set_profile("a", 0.01, 0.0)
    estimates.set_profile("b", 0.03, 0.0)
    assert estimates.seconds(unit("c"), "w") == pytest.approx(2.0)


def test_the_first_unit_of_a_model_without_a_profile_is_its_profile() -> None:
    estimates = Estimates([100, 300])
    estimates.observe(unit("a"), "w", 4.0)
    assert estimates.seconds(unit("a", 1), "w") == pytest.approx(12.0)


def test_a_wrong_profile_is_corrected() -> None:
    estimates = Estimates([100] * 4)
    estimates.set_profile("a", 0.01, 0.0)
    for partition in range(4):
        estimates.observe(unit("a", partition), f"w{partition}", 3.0)
    assert estimates.seconds(unit("a"), "new") == pytest.approx(3.0, rel=0.25)


def test_a_slow_worker_is_distinguished_from_slow_models() -> None:
    """w0 takes twice as long for every model; models' profiles are off by up to 30%."""
    draw = random.Random(1)
    estimates = Estimates([100] * 4)
    true = {f"m{i}": draw.lognormvariate(0.0, 0.2) for i in range(12)}
    for model in true:
        estimates.set_profile(model, 0.01, 0.0)
    for _ in range(3):
        for model, factor in true.items():
            for worker in range(4):
                seconds = factor * (2.0 if worker == 0 else 1.0) * draw.lognormvariate(0.0, 0.03)
                estimates.observe(unit(model, worker), f"w{worker}", seconds)
    for model, factor in true.items():
        assert estimates.seconds(unit(model), "w0") == pytest.approx(2 * factor, rel=0.15)
        assert estimates.seconds(unit(model), "w1") == pytest.approx(factor, rel=0.15)


def test_noise_is_learnt() -> None:
    draw = random.Random(2)
    calm, wild = Estimates([100]), Estimates([100])
    for estimates, deviation in ((calm, 0.01), (wild, 0.4)):
        estimates.set_profile("a", 0.01, 0.0)
        for _ in range(200):
            estimates.observe(unit("a"), "w", draw.lognormvariate(0.0, deviation))
    assert calm.noise < 0.03
    assert wild.noise == pytest.approx(0.4, rel=0.4)


def test_speeds_that_change_are_followed() -> None:
    estimates = Estimates([100])
    estimates.set_profile("a", 0.01, 0.0)
    for seconds in [1.0] * 200 + [2.0] * 60:
        estimates.observe(unit("a"), "w", seconds)
    assert estimates.seconds(unit("a"), "w") == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_nothing_is_learnt_from_a_clock_that_stood_still(seconds: float) -> None:
    estimates = Estimates([100, 0])
    estimates.observe(unit("b"), "w", seconds)
    estimates.set_profile("a", 0.01, 0.0)
    estimates.observe(unit("a"), "w", seconds)
    estimates.observe(unit("a", 1), "w", 1.0)  # an empty partition
    assert estimates.seconds(unit("a"), "w") == pytest.approx(1.0)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_an_impossible_profile_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="train_seconds_per_row of the profile of 'a'"):
        Estimates([1]).set_profile("a", value, 0.0)
    with pytest.raises(UsageError, match="eval_seconds_per_row of the profile of 'a'"):
        Estimates([1]).set_profile("a", 1.0, value)


def test_known_times_may_depend_on_the_worker() -> None:
    times = KnownTimes({("a", 0): 1.0, ("a", 0, "fast"): 0.5}, {("a", 0): 0.25})
    assert times.seconds(unit("a"), "slow") == 1.0
    assert times.seconds(unit("a"), "fast") == 0.5
    assert times.seconds(unit("a", 0, "eval"), "fast") == 0.25
    with pytest.raises(UsageError, match="train b epoch 1 partition 0 on 'fast'"):
        times.seconds(unit("b"), "fast")


def test_a_scheduler_uses_what_it_learns() -> None:
    """By their profiles all are equal; one model takes eight times as long. In its second epoch it goes first."""
    estimates = Estimates([100] * 4)
    real = KnownTimes({(f"m{i}", j): 8.0 if i == 5 else 1.0 for i in range(12) for j in range(4)})
    hopper = RecordedHopper(4, estimates=estimates, rule="longest")
    for worker, held in spread_partitions(4, 4).items():
        hopper.add_worker(worker, *held)
    for model in range(12):
        estimates.set_profile(f"m{model}", 0.01, 0.0)
        hopper.add_model(f"m{model}", 3)
    schedule = simulate(hopper, real, after=check_hopper)
    assert schedule.makespan <= 1.1 * 3 * 4 * 8.0
    learnt = estimates.seconds(unit("m5"), "w0") / estimates.seconds(unit("m4"), "w0")
    assert learnt == pytest.approx(8.0, rel=0.3)
