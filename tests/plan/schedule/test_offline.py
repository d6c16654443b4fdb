"""Schedules made ahead: rotation, vector rearrangement, solvers, placement, and how they are followed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hopper_invariants import RecordedHopper, check_hopper
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_instances import bound_of, hopper_for, known, schedule_of, units_by_worker

from regatta.errors import MissingExtraError
from regatta.plan.schedule.estimates import KnownTimes
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.offline.replica_placement import UnitOption, split_units
from regatta.plan.schedule.offline.rotation import cut_in_groups
from regatta.plan.schedule.offline.vector_rearrangement import rearrange, steinitz
from regatta.plan.schedule.simulate import Outage, simulate, spread_partitions
from regatta.plan.schedule.units import Unit

CNNS = [0.4, 0.7, 0.8, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 16.0, 20.0, 21.0]


def drawn(seed: int, models: int, workers: int, *, speeds: bool = False) -> list[list[float]]:
    random = np.random.default_rng(seed)
    speed = random.choice([0.5, 1.0, 1.1, 1.6], workers) if speeds else np.ones(workers)
    return np.outer(random.choice(CNNS, models), speed).tolist()


# -- following ---------------------------------------------------------------------------------------


def test_a_schedule_is_followed() -> None:
    times = [[2.0, 1.0], [1.0, 3.0]]
    hopper = hopper_for(times, "planned")
    rows = [(0.0, "w1", "m1", 1), (0.0, "w0", "m0", 0), (3.0, "w0", "m1", 0), (3.0, "w1", "m0", 1)]
    hopper.follow((start, worker, Unit("train", model, 1, j)) for start, worker, model, j in rows)
    assert units_by_worker(simulate(hopper, known(times))) == ["w0: m0 0-2, m1 3-4", "w1: m1 0-3, m0 3-4"]


def test_a_worker_waits_for_a_model_that_is_about_to_come() -> None:
    """On w0 the plan has b, then c. b comes late by a little from w1; c could start at once, and is longer."""
    planned = {("a", 0): 4.0, ("b", 0): 4.0, ("c", 0): 8.0, ("b", 1): 4.0}
    real = planned | {("b", 1): 4.5}

    def run(patience: float) -> list[str]:
        hopper = RecordedHopper(2, estimates=KnownTimes(planned | {("a", 1): 1.0, ("c", 1): 1.0}), rule="planned")
        hopper.add_worker("w0", [0])
        hopper.add_worker("w1", [1])
        hopper.add_model("a", 1, visited=[1])
        hopper.add_model("b", 1)
        hopper.add_model("c", 1, visited=[1])
        rows = [(0.0, "w0", "a", 0), (0.0, "w1", "b", 1), (4.0, "w0", "b", 0), (8.0, "w0", "c", 0)]
        hopper.follow(((t, w, Unit("train", m, 1, j)) for t, w, m, j in rows), patience)
        return units_by_worker(simulate(hopper, KnownTimes(real)))

    assert run(2.0)[0] == "w0: a 0-4, b 4.5-8.5, c 8.5-16.5"
    assert run(0.0)[0] == "w0: a 0-4, c 4-12, b 12-16"


def test_a_plan_survives_an_outage() -> None:
    times = drawn(3, 12, 4)
    hopper = hopper_for(times, "rotation", epochs=2)
    schedule = simulate(hopper, known(times), outages=[Outage("w2", 10.0, 60.0)], after=check_hopper)
    assert len(schedule.rows) == 12 * 4 * 2
    assert schedule.lost > 0


def test_models_that_are_not_in_the_plan_come_last() -> None:
    times = [[1.0, 1.0]] * 3
    hopper = hopper_for(times, "planned")
    rows = [(0.0, "w0", "m1", 0), (0.0, "w1", "m2", 1), (1.0, "w0", "m2", 0), (1.0, "w1", "m1", 1)]
    hopper.follow((start, worker, Unit("train", model, 1, j)) for start, worker, model, j in rows)
    assert [line.split(", ")[-1] for line in units_by_worker(simulate(hopper, known(times)))] == ["m0 2-3", "m0 3-4"]


# -- rotation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_rotation_is_as_good_as_optimal_where_workers_are_alike(seed: int) -> None:
    times = drawn(seed, 20 + 3 * seed, 5 + seed)
    assert schedule_of(times, "rotation").makespan <= 1.01 * bound_of(times)


def test_rotation_covers_epochs_and_several_partitions_per_worker() -> None:
    times = [[c] * 8 for c in (1.0, 2.0, 4.0, 3.0, 2.0, 1.0, 5.0, 2.0)]
    schedule = schedule_of(times, "rotation", workers=4, epochs=3)
    assert schedule.makespan == pytest.approx(3 * 2 * 20.0)  # three epochs of two partitions: no idle time


def test_groups_are_all_as_long_as_the_longest_item() -> None:
    groups = cut_in_groups([5.0, 1.0, 1.0, 3.0, 2.0, 4.0, 4.0, 1.0], 4)
    totals = [sum([5.0, 1.0, 1.0, 3.0, 2.0, 4.0, 4.0, 1.0][i] for i in group) for group in groups]
    assert sorted(i for group in groups for i in group) == list(range(8))
    assert min(totals) >= 5.0


# -- vector rearrangement ------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(2, 40))
def test_partial_sums_stay_within_the_steinitz_bound(seed: int, workers: int, models: int) -> None:
    times = np.random.default_rng(seed).uniform(0.0, 1.0, (models, workers))
    times = times / times.sum(axis=0)  # all workers have the same load
    vectors = times[:, :-1] - times[:, -1:]
    order = steinitz(vectors)
    assert sorted(order) == list(range(models))
    sums = np.cumsum(times[order], axis=0)
    apart = (sums.max(axis=1) - sums.min(axis=1)).max()
    assert apart <= (workers - 1) * times.max() + 1e-9


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10_000), st.integers(2, 3))
def test_vector_rearrangement_is_optimal_under_its_condition(seed: int, workers: int) -> None:
    times = np.random.default_rng(seed).uniform(0.2, 1.0, (36, workers))
    assert times.sum(axis=0).max() >= (workers**2 + workers - 1) * times.max()  # the condition
    assert rearrange(times).exact
    assert schedule_of(times.tolist(), "vector").makespan == pytest.approx(times.sum(axis=0).max(), rel=1e-5)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 12))
def test_vector_rearrangement_keeps_its_guarantee(seed: int, workers: int, models: int) -> None:
    """C <= C* + (p - 1) Tmax, whether or not the condition holds; the bound is at most C*."""
    times = np.random.default_rng(seed).uniform(0.1, 1.0, (models, workers)).tolist()
    longest = max(max(row) for row in times)
    makespan = schedule_of(times, "vector").makespan
    assert makespan <= bound_of(times) + (workers - 1) * longest + 1e-6


# -- solvers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["milp", "cpsat"])
def test_solvers_find_the_optimum_of_small_shops(rule: str) -> None:
    # dispatch rules need 13: the bound is 12
    times = [[4.0, 1.0, 3.0], [2.0, 5.0, 3.0], [3.0, 4.0, 5.0], [3.0, 2.0, 1.0]]
    assert bound_of(times) == 12.0
    assert schedule_of(times, rule).makespan == pytest.approx(12.0, rel=1e-4)


@pytest.mark.parametrize("rule", ["milp", "cpsat", "vector"])
def test_a_schedule_of_one_epoch_is_repeated(rule: str) -> None:
    times = [[2.0, 1.0], [1.0, 2.0], [2.0, 2.0]]
    once = schedule_of(times, rule).makespan
    assert schedule_of(times, rule, epochs=3).makespan <= 3 * once + 1e-3


def test_a_solver_that_finds_nothing_gives_way_to_the_dispatch_rule() -> None:
    times = drawn(1, 30, 10)
    hopper = RecordedHopper(10, estimates=known(times), rule="milp", solver_seconds=0.01)
    for worker, held in spread_partitions(10, 10).items():
        hopper.add_worker(worker, *held)
    for model in range(30):
        hopper.add_model(f"m{model}", 1)
    assert hopper.chosen_rule.name == "longest"
    assert "milp found no schedule of 300 units" in hopper.chosen_rule.why


def test_cpsat_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(MissingExtraError, match=r"\.\[cpsat\]"):
        Hopper(1, estimates=known([[1.0]]), rule="cpsat")


# -- placement -----------------------------------------------------------------------------------------


def test_units_are_split_so_that_workers_and_models_end_together() -> None:
    # one unit of 6 s that w0 or w1 may run, one of 2 s on w0 alone: (2 + 6x) = 6(1 - x)
    parts = [UnitOption(0, 0, 0, 6.0), UnitOption(0, 1, 0, 6.0), UnitOption(1, 0, 1, 2.0)]
    least, shares = split_units(parts, {})
    assert least == pytest.approx(6.0)  # the model itself needs 6 on any worker
    parts = [UnitOption(0, 0, 0, 6.0), UnitOption(0, 1, 0, 6.0), UnitOption(1, 0, 1, 8.0), UnitOption(2, 1, 2, 4.0)]
    least, shares = split_units(parts, {})
    assert least == pytest.approx(9.0)
    assert shares[0] == pytest.approx(1 / 6)
    assert split_units(parts, {1: 2.0})[0] == pytest.approx(10.0)


def test_placement_gives_the_slow_holder_its_share() -> None:
    """Two workers hold all, one takes four times as long: it gets about a fifth of the work."""
    times = KnownTimes(
        {(f"m{i}", j, w): s for i in range(10) for j in range(4) for w, s in (("fast", 1.0), ("slow", 4.0))}
    )
    hopper = RecordedHopper(4, estimates=times, rule="placed")
    for worker in ("fast", "slow"):
        hopper.add_worker(worker, range(4))
    for model in range(10):
        hopper.add_model(f"m{model}", 1)
    schedule = simulate(hopper, times, after=check_hopper)
    assert schedule.makespan <= 1.1 * 40 / 1.25
    assert sum(row.worker == "slow" for row in schedule.rows) == 8
