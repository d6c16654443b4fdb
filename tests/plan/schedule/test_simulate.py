"""Runs on a simulated clock: noise, outages, and which worker holds which partition."""

from __future__ import annotations

import pytest
from hopper_invariants import RecordedHopper, check_hopper
from schedule_instances import hopper_for, known, schedule_of

from regatta.errors import UsageError
from regatta.plan.schedule.simulate import Outage, simulate, spread_partitions


def test_partitions_are_spread_over_fewer_workers() -> None:
    assert spread_partitions(5, 2, 3) == {"w0": ([0, 2, 4], [0, 2]), "w1": ([1, 3], [1])}


def test_workers_share_partitions_where_there_are_fewer_partitions() -> None:
    assert spread_partitions(2, 5) == {
        "w0": ([0], []),
        "w1": ([1], []),
        "w2": ([0], []),
        "w3": ([1], []),
        "w4": ([0], []),
    }


def test_replicas_are_on_neighbours() -> None:
    assert spread_partitions(4, 4, 0, replicas=2) == {
        "w0": ([0, 3], []),
        "w1": ([0, 1], []),
        "w2": ([1, 2], []),
        "w3": ([2, 3], []),
    }
    with pytest.raises(UsageError, match="0 workers"):
        spread_partitions(3, 0)


def test_a_schedule_counts_its_idle_time() -> None:
    schedule = schedule_of([[3.0, 1.0]], "longest")
    assert schedule.makespan == 4.0
    assert schedule.busy == 4.0
    assert schedule.utilisation == 0.5
    assert sorted(schedule.visits("m0", 1)) == [0, 1]


def test_an_outage_loses_the_unit_in_flight_and_nothing_else() -> None:
    times = [[2.0, 2.0]] * 3
    hopper = hopper_for(times, "longest")
    schedule = simulate(hopper, known(times), outages=[Outage("w1", 3.0, 10.0)], after=check_hopper)
    assert schedule.lost == pytest.approx(1.0)
    assert len(schedule.rows) == 6
    assert all(not (3.0 < row.start < 10.0 or 3.0 < row.end < 10.0) for row in schedule.rows if row.worker == "w1")
    assert schedule.makespan == pytest.approx(14.0)


def test_a_partition_that_no_worker_holds_is_an_error() -> None:
    hopper = hopper_for([[1.0, 1.0]] * 3, "longest")
    with pytest.raises(UsageError, match=r"units can never run: no worker holds the partitions \[0\]"):
        simulate(hopper, known([[1.0, 1.0]] * 3), outages=[Outage("w0", 1.5)])


def test_a_replica_takes_over() -> None:
    times = known([[1.0] * 4] * 6)
    hopper = RecordedHopper(4, estimates=times, rule="backlog")
    for worker, held in spread_partitions(4, 4, replicas=2).items():
        hopper.add_worker(worker, *held)
    for model in range(6):
        hopper.add_model(f"m{model}", 1)
    schedule = simulate(hopper, times, outages=[Outage("w0", 1.5)], after=check_hopper)
    assert len(schedule.rows) == 24
    assert schedule.makespan <= 9.5


def test_noise_is_the_same_for_the_same_seed() -> None:
    times = [[1.0, 2.0, 3.0]] * 5

    def run(seed: int) -> float:
        return simulate(hopper_for(times, "longest"), known(times), noise=0.3, seed=seed).makespan

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_events_that_differ_only_by_rounding_are_delivered_together() -> None:
    """0.1 + 0.2 is not 0.3: but both workers are idle at that moment, and one model fits only one of them."""
    times = [[0.1, 0.3], [0.2, 0.1], [0.5, 0.5]]
    decisions: list[float] = []
    hopper = hopper_for(times, "longest")
    assign = hopper.assign

    def counted(now: float = 0.0) -> list:
        decisions.append(round(now, 9))
        return assign(now)

    hopper.assign = counted  # type: ignore[method-assign]
    simulate(hopper, known(times))
    assert len(decisions) == len(set(decisions))
