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


def widths_profiled(build: str = "") -> Estimates:
    """Two narrow models and two wide ones were profiled; a wide one takes 40 times as long."""
    estimates = Estimates([100, 300], [50])
    for number, (width, per_row) in enumerate([(64, 0.001), (64, 0.0012), (4096, 0.04), (4096, 0.048)]):
        estimates.add_model(f"m{number}", {"width": width, "lr": 0.1 / (number + 1)})
        estimates.set_profile(f"m{number}", per_row, per_row / 4, 0.01, build=build or f"build of {width}")
    return estimates


@pytest.mark.parametrize("build", ["", "cuda"], ids=["build for each width", "one build"])
def test_a_model_without_a_profile_is_estimated_by_its_kind(build: str) -> None:
    """Its hyperparameters tell its kind, also where models of one build take different times."""
    estimates = widths_profiled(build)
    estimates.add_model("narrow", {"width": 64, "lr": 0.7})
    estimates.add_model("wide", {"width": 4096, "lr": 0.1})
    assert estimates.seconds(unit("narrow"), "w") == pytest.approx(100 * 0.0011 + 0.01)
    assert estimates.seconds(unit("wide"), "w") == pytest.approx(100 * 0.044 + 0.01)
    assert estimates.seconds(unit("wide", 0, "eval"), "w") == pytest.approx(50 * 0.011 + 0.01)
    assert estimates.models_like("wide") == ["m2", "m3"]
    assert estimates.profile("wide").train == pytest.approx(0.044)


def test_a_model_unlike_all_others_is_estimated_by_its_build_or_by_all() -> None:
    one_build = widths_profiled("cuda")
    one_build.set_profile("other build", 9.0, 0.0, build="other")
    one_build.add_model("other build", {"width": 5, "lr": 0.5, "kind": "conv"})
    one_build.add_model("medium", {"width": 512, "lr": 0.1})
    assert sorted(one_build.models_like("medium")) == ["m0", "m1", "m2", "m3"]
    unknown = widths_profiled()
    unknown.add_model("medium", {"width": 512, "lr": 0.1})
    assert sorted(unknown.models_like("medium")) == ["m0", "m1", "m2", "m3"]
    assert unknown.seconds(unit("medium"), "w") == unknown.seconds(unit("without values"), "w")


def test_the_estimate_of_a_kind_follows_the_units_of_the_kind_alone() -> None:
    estimates = widths_profiled()
    estimates.add_model("wide", {"width": 4096, "lr": 0.9})
    before = estimates.seconds(unit("wide"), "w")
    for _ in range(20):
        estimates.observe(unit("m0"), "w1", 10 * estimates.seconds(unit("m0"), "w1"))
    assert estimates.seconds(unit("wide"), "w") == before
    for worker in ("w2", "w3", "w4", "w5"):
        for model in ("m2", "m3"):
            estimates.observe(unit(model), worker, 3 * before)
    assert estimates.seconds(unit("wide"), "w") > 2 * before


def test_a_model_has_the_estimate_of_its_kind_as_soon_as_its_values_are_known() -> None:
    estimates = widths_profiled()
    of_all = estimates.seconds(unit("wide"), "w")
    estimates.add_model("wide", {"width": 4096, "lr": 0.9})
    assert estimates.seconds(unit("wide"), "w") == pytest.approx(100 * 0.044 + 0.01) != of_all


def test_values_may_follow_the_profile() -> None:
    estimates = Estimates([100])
    for name, per_row in (("a", 0.01), ("b", 0.5)):
        estimates.set_profile(name, per_row, 0.0, build="cuda")
    estimates.add_model("new", {"width": 512, "lr": 0.3})
    assert estimates.seconds(unit("new"), "w") == pytest.approx(25.5)
    estimates.add_model("a", {"width": 8, "lr": 0.1})
    estimates.add_model("b", {"width": 512, "lr": 0.2})
    assert estimates.seconds(unit("new"), "w") == pytest.approx(50.0)


def test_the_estimate_of_a_kind_follows_the_speedup_of_groups() -> None:
    """What was learned under another speedup counts no more, neither for a model nor for its kind."""
    estimates = widths_profiled()
    estimates.add_model("wide", {"width": 4096, "lr": 0.9})
    estimates.observe(unit("m2"), "w", 100.0)
    corrected = estimates.seconds(unit("wide"), "v")
    assert corrected > 100 * 0.044 + 0.02
    estimates.set_speedup(lambda model: 2.0)
    assert estimates.seconds(unit("wide"), "v") == pytest.approx(100 * 0.044 / 2 + 0.01)


def test_packs_do_not_count_as_models_of_a_kind() -> None:
    """A pack of eight takes several times as long as a model."""
    estimates = Estimates([100])
    for name in ("a", "b"):
        estimates.set_profile(name, 0.01, 0.0)
    before = estimates.seconds(unit("new"), "w")
    estimates.set_pack("pack", ["a", "b"] * 4, gain=2.0)
    assert estimates.seconds(unit("pack"), "w") == pytest.approx(4.0)
    assert estimates.seconds(unit("new"), "w") == before
    estimates.observe(unit("pack"), "w1", 40.0)
    assert estimates.seconds(unit("new"), "w") == before
    estimates.set_profile("c", 0.01, 0.0)  # kinds are learned again
    assert estimates.seconds(unit("new"), "w") == before
    assert sorted(estimates.models_like("new")) == ["a", "b", "c"]


def test_the_first_unit_of_a_model_without_a_profile_is_its_profile() -> None:
    estimates = Estimates([100, 300])
    estimates.observe(unit("a"), "w", 4.0)
    assert estimates.seconds(unit("a", 1), "w") == pytest.approx(12.0)


def test_the_first_unit_on_a_slow_worker_does_not_make_its_model_slow() -> None:
    estimates = Estimates([100])
    for number in range(20):
        estimates.set_profile(f"m{number}", 0.01, 0.0)
        estimates.observe(unit(f"m{number}"), "slow", 3.0)
        estimates.observe(unit(f"m{number}"), "usual", 1.0)
    estimates.observe(unit("new"), "slow", 3.0)
    ratio = estimates.seconds(unit("new"), "slow") / estimates.seconds(unit("new"), "usual")
    assert estimates.seconds(unit("new"), "slow") == pytest.approx(3.0)
    assert ratio == pytest.approx(3.0, rel=0.2)
    assert estimates.mean_seconds("train", "new") < 2.5


def test_the_first_unit_scales_the_estimate_of_the_kind() -> None:
    """The unit took twice as long as estimated: so do its fixed part and its evaluations, also in a group."""
    estimates = widths_profiled()
    estimates.speedup = lambda model: 2.0
    estimates.add_model("wide", {"width": 4096, "lr": 0.9})
    units = [unit("wide"), unit("wide", 1), unit("wide", 0, "eval")]
    before = [estimates.seconds(each, "w") for each in units]
    estimates.observe(units[0], "w", 2 * before[0])
    assert [estimates.seconds(each, "w") for each in units] == pytest.approx([2 * seconds for seconds in before])
    assert set(estimates.models_like("another wide one")) >= {"wide"}


def test_profiles_in_a_journal_are_read_as_they_were_measured() -> None:
    """An evaluation has a smaller fixed part; where rows are not known, each partition counts as one row."""
    fields = {"train_seconds_per_row": 0.01, "eval_seconds_per_row": 0.004, "fixed_seconds": 0.5, "train_rows": 100,
              "eval_rows": 50, "eval_fixed_seconds": 0.4, "prepare_seconds_per_row": 0.002, "build": "b"}  # fmt: skip
    for rows, eval_rows in ([100], [50]), ([None], [None]):
        estimates = Estimates.for_partitions(rows, eval_rows)
        estimates.set_measured_profile("a", fields)
        assert estimates.seconds(unit("a"), "w") == pytest.approx(100 * 0.012 + 0.5)
        assert estimates.seconds(unit("a", 0, "eval"), "w") == pytest.approx(50 * 0.004 + 0.4)


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
