"""Lower bounds: worked by hand, and never above a schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_instances import known

from regatta.plan.schedule.estimates import KnownTimes
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.lower_bounds import lower_bound
from regatta.plan.schedule.rollout import earliest_end
from regatta.plan.schedule.simulate import simulate, spread_partitions


def test_a_worker_may_bound_the_run() -> None:
    times = known([[1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
    bound = lower_bound(times, spread_partitions(2, 2), {"m0": 1, "m1": 1, "m2": 1}, 2)
    assert (bound.seconds, bound.by) == (9.0, "worker w1")


def test_a_model_may_bound_the_run() -> None:
    times = known([[5.0, 5.0], [1.0, 1.0]])
    bound = lower_bound(times, spread_partitions(2, 2), {"m0": 3, "m1": 1}, 2)
    assert (bound.seconds, bound.by) == (30.0, "model m0")


def test_several_partitions_and_evaluations_add_up() -> None:
    times = KnownTimes({(m, j): 1.0 for m in "ab" for j in range(4)}, {(m, j): 0.25 for m in "ab" for j in range(2)})
    bound = lower_bound(times, spread_partitions(4, 2, 2), {"a": 2, "b": 2}, 4, 2)
    assert bound.seconds == pytest.approx(2 * 2 * (2 * 1.0 + 0.25))


def test_replicas_share_the_work() -> None:
    """Three models on one partition that two workers hold: 4.5 s each, and no model needs more."""
    times = known([[3.0], [3.0], [3.0]])
    bound = lower_bound(times, spread_partitions(1, 2), {"m0": 1, "m1": 1, "m2": 1}, 1)
    assert bound.seconds == pytest.approx(4.5)
    assert bound.by == "all workers together"


def test_models_share_the_fast_worker() -> None:
    """Alone a model needs 2 s, on the fast worker; four of them share 8 s of it with what the slow one can take."""
    names = "abcd"
    times = KnownTimes({(m, j, w): s for m in names for j in range(2) for w, s in (("fast", 1.0), ("slow", 3.0))})
    holdings = {"fast": ([0, 1], []), "slow": ([0, 1], [])}
    assert lower_bound(times, holdings, {"a": 1}, 2).seconds == pytest.approx(2.0)
    assert lower_bound(times, holdings, dict.fromkeys(names, 1), 2).seconds == pytest.approx(6.0)


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(1, 2),
    st.integers(0, 2),
)
def test_no_schedule_ends_before_the_bound(
    seed: int, partitions: int, workers: int, models: int, replicas: int, evals: int
) -> None:
    random = np.random.default_rng(seed)
    holdings = spread_partitions(partitions, workers, evals, replicas)
    train = {
        (f"m{i}", j, w): float(random.uniform(0.1, 3))
        for i in range(models)
        for j in range(partitions)
        for w in holdings
    }
    evaluate = {(f"m{i}", j): float(random.uniform(0.1, 0.5)) for i in range(models) for j in range(evals)}
    times = KnownTimes(train, evaluate)
    epochs = {f"m{i}": int(random.integers(1, 3)) for i in range(models)}
    hopper = Hopper(partitions, evals, estimates=times, effort=500)
    for worker, held in holdings.items():
        hopper.add_worker(worker, *held)
    for model, count in epochs.items():
        hopper.add_model(model, count)
    bound = lower_bound(times, holdings, epochs, partitions, evals).seconds
    _ = hopper.chosen_rule
    quick = earliest_end(hopper._board)
    makespan = simulate(hopper, times).makespan
    assert bound <= makespan * (1 + 1e-9)
    assert quick <= makespan * (1 + 1e-5)
