"""Times are copied to the board all at once or in part, singly or batched, with the same result."""

from __future__ import annotations

import math

import numpy as np
import pytest
from drive_hopper import Play
from hopper_invariants import RecordedHopper, check_hopper
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.plan.schedule import timetable
from regatta.plan.schedule.estimates import Estimates, KnownTimes
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.timetable import MAX_TIMES_RESET, ManyUnitTimes
from regatta.plan.schedule.units import Unit, UnitKind

PROGRAM = bytes(range(3, 250, 3))  # workers leave, come and hand over in it


class Counted:
    """Equal times that record which were asked for."""

    noise = 0.0

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str]] = []

    def seconds(self, unit: Unit, worker: str) -> float:
        self.asked.append((unit.model, unit.partition, worker))
        return 1.0 + unit.partition

    def observe(self, unit: Unit, worker: str, seconds: float) -> None:
        pass


def hopper(times: Counted, models: int = 20, workers: int = 10) -> Hopper:
    made = RecordedHopper(workers, estimates=times)
    for worker in range(workers):
        made.add_worker(f"w{worker}", [worker])
    for model in range(models):
        made.add_model(f"m{model}", 1)
    made.assign()
    times.asked.clear()
    return made


@pytest.mark.parametrize("rule", ["auto", "longest", "backlog", "match"])
def test_updating_only_moved_partitions_gives_the_same_assignments(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def played(whole: int) -> list[tuple[str, Unit]]:
        monkeypatch.setattr(timetable, "MAX_TIMES_RESET", whole)
        play = Play(rule, 5, 2, 4, 2)
        play.assign()
        for byte in PROGRAM:
            play.event(byte)
        play.to_the_end()
        return play.assigned

    assert played(0) == played(MAX_TIMES_RESET)


def test_adding_or_removing_a_worker_sets_only_its_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Counted()
    monkeypatch.setattr(timetable, "MAX_TIMES_RESET", 0)
    made = hopper(times)
    made.remove_worker("w3")
    made.assign()
    assert not times.asked
    made.add_worker("late", [3, 4])
    made.assign()
    assert {(j, worker) for _, j, worker in times.asked} == {(3, "late"), (4, "late"), (4, "w4")}
    assert len(times.asked) == 3 * 20
    check_hopper(made)


def test_a_small_board_updates_all_times() -> None:
    times = Counted()
    made = hopper(times)
    made.remove_worker("w3")
    made.assign()
    assert len(times.asked) == 9 * 20


def test_the_estimate_of_a_sole_holder_is_updated() -> None:
    """Two holders of unlike speed, then one: its estimate moves on from what it was when there were two."""
    estimates = Estimates([100])
    estimates.set_profile("m0", 0.01, 0.0)
    made = RecordedHopper(1, estimates=estimates)
    for worker in ("w0", "w1"):
        made.add_worker(worker, [0])
    made.add_model("m0", 50)
    for _ in range(3):
        (assignment,) = made.assign()
        made.finish(assignment.worker, seconds=1.0)
    made.remove_worker("w1")
    for _ in range(12):
        made.assign()
        made.finish("w0", seconds=4.0)
    made.assign()
    assert made._board.until[0] - made._board.now == pytest.approx(4.0, rel=0.1)
    check_hopper(made)


corrections = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.floats(0.1, 10.0)), max_size=12)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(1, 4), min_size=5, max_size=5), corrections)
def test_batched_times_equal_single_ones(rows: list[int], heard: list[tuple[int, int, float]]) -> None:
    estimates = Estimates(rows, rows)
    estimates.set_profile("m0", 0.3, 0.1, 0.02)
    for partition, worker, seconds in heard:
        estimates.observe(Unit("train", "m0", 1, partition), f"w{worker}", seconds)
    assert isinstance(estimates, ManyUnitTimes)
    assert not isinstance(KnownTimes({}), ManyUnitTimes)
    partitions, workers = [0, 1, 2, 3, 4, 0, 4], ["w0", "w1", "w2", "w3", "new", "w3", "w1"]
    kinds: tuple[UnitKind, ...] = ("train", "eval")
    for kind in kinds:
        for model in ("m0", "unknown"):
            places = zip(partitions, workers, strict=True)
            single = [estimates.seconds(Unit(kind, model, 1, j), worker) for j, worker in places]
            assert estimates.seconds_of_many(kind, model, partitions, workers) == single


def test_a_plan_is_outdated_by_changes_since_it_was_made() -> None:
    """Small changes add up: times are compared with those that the plan was made for."""
    estimates = Estimates([100] * 4)
    for model in range(40):
        estimates.set_profile(f"m{model}", 0.01, 0.0)
    made = RecordedHopper(4, estimates=estimates)
    for worker in range(4):
        made.add_worker(f"w{worker}", [worker])
    for model in range(40):
        made.add_model(f"m{model}", 1)
    made.assign()
    moves = []
    for factor in (1.15, 1.3, 1.45, 1.7):
        estimates.set_profile("m7", 0.01 * factor, 0.0)
        made.refresh("m7")
        moves.append(made._outdated)
        made.assign()
    assert moves == [False, True, False, True]
    planned, time = made._timetable._planned, made._board.time
    assert np.allclose(planned[:, 7], time[:, 7]) and math.isclose(time[0, 7], 1.7, rel_tol=1e-5)
