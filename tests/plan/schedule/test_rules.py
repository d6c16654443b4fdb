"""Each rule on cases small enough to be worked by hand, and what all dispatch rules share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_instances import bound_of, hopper_for, known, schedule_of, units_by_worker

from regatta.errors import UsageError
from regatta.plan.schedule.board import Board, ModelProgress
from regatta.plan.schedule.estimates import KnownTimes
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.rules import Longest
from regatta.plan.schedule.simulate import simulate, spread_partitions

DISPATCH = ["randomized", "lpt", "lrm", "longest", "match", "backlog"]


def test_lpt_takes_the_longest_unit() -> None:
    times = [[1, 5], [4, 1], [2, 3]]
    assert units_by_worker(schedule_of(times, "lpt")) == ["w0: m1 0-4, m2 4-6, m0 6-7", "w1: m0 0-5, m1 5-6, m2 6-9"]


def test_lrm_takes_the_model_with_the_most_work_left() -> None:
    # loads are 7 and 9: w1 chooses first. Totals are 6, 5, 5.
    times = [[1, 5], [4, 1], [2, 3]]
    assert units_by_worker(schedule_of(times, "lrm")) == ["w0: m1 0-4, m2 4-6, m0 6-7", "w1: m0 0-5, m1 5-6, m2 6-9"]
    # totals are 3, 4, 5 and both workers have 6: w0 takes m2, w1 takes m1 though m0's unit there is longer
    times = [[1, 2], [3, 1], [2, 3]]
    assert units_by_worker(schedule_of(times, "lrm")) == ["w0: m2 0-2, m1 2-5, m0 5-6", "w1: m1 0-1, m0 1-3, m2 3-6"]


def test_longest_takes_the_model_with_the_most_work_elsewhere() -> None:
    # both have 6 to do. w0 takes m2 (3 left on w1); w1 then m1 (3 left on w0), not the longer m0 (1 left on w0)
    times = [[1, 2], [3, 1], [2, 3]]
    assert units_by_worker(schedule_of(times, "longest")) == [
        "w0: m2 0-2, m1 2-5, m0 5-6",
        "w1: m1 0-1, m0 1-3, m2 3-6",
    ]


def test_augmenting_paths_leave_no_worker_idle_without_need() -> None:
    """w0 chooses first and prefers a, the only model that w1 could train: it is given b instead."""
    times = KnownTimes({(m, j): t for m, row in {"a": (9, 9, 9), "b": (1, 1, 1)}.items() for j, t in enumerate(row)})
    hopper = Hopper(3, estimates=times, rule="longest")
    for j in range(3):
        hopper.add_worker(f"w{j}", [j])
    hopper.add_model("a", 1, visited=[2])  # a: 0, 1
    hopper.add_model("b", 1, visited=[1, 2])  # b: 0 alone
    started = {a.worker: a.unit.model for a in hopper.assign()}
    assert started == {"w1": "a", "w0": "b"}


@pytest.mark.parametrize(
    ("models", "workers", "each"), [(1, 4, 1), (5, 5, 1), (7, 4, 1), (4, 7, 1), (9, 6, 2), (13, 5, 2)]
)
def test_match_is_optimal_when_all_units_are_equal(models: int, workers: int, each: int) -> None:
    times = [[1.7] * (workers * each) for _ in range(models)]
    schedule = schedule_of(times, "match", workers=workers, epochs=2)
    assert schedule.makespan == pytest.approx(2 * 1.7 * each * max(models, workers), rel=1e-9)


def test_randomized_depends_on_its_seed() -> None:
    times = [[1.0 + (i + j) % 3 for j in range(4)] for i in range(8)]

    def drawn(seed: int) -> list[str]:
        hopper = Hopper(4, estimates=known(times), rule="randomized", seed=seed)
        for worker, held in spread_partitions(4, 4).items():
            hopper.add_worker(worker, *held)
        for model in range(8):
            hopper.add_model(f"m{model}", 1)
        return units_by_worker(simulate(hopper, known(times)))

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(10)}) == 10


def test_randomized_takes_any_open_unit_equally_often() -> None:
    """Four models, one of two workers holds both partitions: its first unit is any of eight."""
    counts: dict[tuple[str, int], int] = {}
    for seed in range(800):
        hopper = Hopper(2, estimates=known([[1.0, 1.0]] * 4), rule="randomized", seed=seed)
        hopper.add_worker("both", [0, 1])
        for model in range(4):
            hopper.add_model(f"m{model}", 1)
        (first,) = hopper.assign()
        counts[first.unit.model, first.unit.partition] = counts.get((first.unit.model, first.unit.partition), 0) + 1
    assert len(counts) == 8
    assert all(60 < count < 145 for count in counts.values())


def test_backlog_serves_the_fullest_partition_first() -> None:
    times = KnownTimes({(f"m{i}", j): 1.0 + 2 * j for i in range(3) for j in range(3)})
    hopper = Hopper(3, estimates=times, rule="backlog")
    hopper.add_worker("both", [0, 2])
    hopper.add_worker("one", [1, 2])
    for model in range(3):
        hopper.add_model(f"m{model}", 1)
    assert [(a.worker, a.unit.partition) for a in hopper.assign()] == [("both", 2), ("one", 2)]


def test_backlog_leaves_the_last_unit_to_the_faster_holder() -> None:
    times = KnownTimes(
        {("m0", 0, "slow"): 10.0, ("m0", 0, "fast"): 1.0, ("m1", 0, "slow"): 10.0, ("m1", 0, "fast"): 1.0}
    )
    hopper = Hopper(1, estimates=times, rule="backlog")
    hopper.add_worker("fast", [0])
    hopper.add_worker("slow", [0])
    hopper.add_model("m0", 1)
    hopper.add_model("m1", 1)
    assert [a.worker for a in hopper.assign()] == ["fast"]  # it is done with both before the other with one
    hopper.finish("fast", 1.0)
    assert [(a.worker, a.unit.model) for a in hopper.assign(1.0)] == [("fast", "m1")]


def test_the_error_for_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="no hop rule 'longst'") as caught:
        Hopper(2, estimates=known([[1.0, 1.0]]), rule="longst")
    assert caught.value.candidates[0] == "longest"
    assert "randomized" in str(caught.value)


matrices = st.integers(1, 6).flatmap(
    lambda workers: st.lists(st.lists(st.floats(0.1, 20.0), min_size=workers, max_size=workers), min_size=1, max_size=9)
)


@pytest.mark.parametrize("rule", DISPATCH)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(times=matrices)
def test_no_dispatch_rule_needs_twice_the_bound(rule: str, times: list[list[float]]) -> None:
    assert schedule_of(times, rule).makespan <= 2 * bound_of(times) * (1 + 1e-9)


@pytest.mark.parametrize("rule", ["randomized", "lpt", "lrm", "longest", "match"])
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(times=matrices)
def test_schedules_are_dense(rule: str, times: list[list[float]]) -> None:
    """No worker idles while it holds an open unit of an idle model: checked at every moment something begins."""
    schedule = schedule_of(times, rule)
    moments = sorted({row.start for row in schedule.rows})
    workers = {f"w{j}" for j in range(len(times[0]))}
    for now in moments:
        running = [row for row in schedule.rows if row.start <= now < row.end]
        busy_models = {row.unit.model for row in running}
        to_come = [row for row in schedule.rows if row.start > now]
        for worker in workers - {row.worker for row in running}:
            assert not [r for r in to_come if r.worker == worker and r.unit.model not in busy_models]


def test_ties_do_not_depend_on_how_sums_were_made() -> None:
    """Times that are not round numbers, summed in any order: equal models stay equal."""
    third = float(np.float32(1 / 3))
    hopper = hopper_for([[third * 0.1] * 5] * 20, "longest")
    board = hopper._board
    hopper.assign()
    assert len(set(board.left[board.ready].tolist())) == 1


def test_long_augmenting_paths_do_not_exceed_the_recursion_limit() -> None:
    """Worker k prefers model k - 1 to model k; the first, which chooses last, has no other: all must move on by one."""
    count = 1200
    board = Board(count)
    for worker in range(count):
        board.hold(board.add_worker(), [worker], ())
    for index in range(count):
        board.add_model(ModelProgress(1, 1, [j for j in (index, index + 1) if j < count], {}))
    places = board.begin_partition_moves(True)
    for index in range(count):
        board.set_times(index, places, np.where(places.partitions == index, 10.0, 1.0))
    board.end_partition_moves()
    chosen = Longest().choose(board, range(count))
    assert sorted(chosen) == [(worker, worker, worker) for worker in range(count)]
