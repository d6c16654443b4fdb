"""What `auto` chooses, what it spends, and that it is worth it."""

from __future__ import annotations

import numpy as np
import pytest
from hopper_invariants import RecordedHopper, check_hopper
from schedule_instances import bound_of, hopper_for, known, schedule_of

from regatta.plan.schedule.estimates import Estimates, KnownTimes
from regatta.plan.schedule.hopper import MAX_EFFORT_DECISIONS, Hopper
from regatta.plan.schedule.offline.follow import FollowPlan, PlannedStarts
from regatta.plan.schedule.portfolio import auto, dispatch
from regatta.plan.schedule.rules import PlanningRequest
from regatta.plan.schedule.simulate import simulate, spread_partitions

EQUAL = [[2.0] * 4 for _ in range(8)]
UNLIKE = [[c] * 5 for c in (1.0, 9.0, 4.0, 4.0, 2.0, 7.0, 1.0, 5.0, 6.0)]


def test_without_effort_equal_units_are_matched_and_others_go_longest_first() -> None:
    assert hopper_for(EQUAL, "auto").chosen_rule.name == "match"
    assert hopper_for([[2.0, 2.09]] * 5, "auto").chosen_rule.name == "match"
    assert hopper_for([[2.0, 2.2]] * 5, "auto").chosen_rule.name == "longest"


def replicated(fast: float) -> Hopper:
    times = {
        (f"m{i}", j, w): fast if w == "w0" else 1.0 for i in range(6) for j in range(3) for w in spread_partitions(3, 3)
    }
    hopper = RecordedHopper(3, estimates=KnownTimes(times), effort=0)
    for worker, held in spread_partitions(3, 3, replicas=2).items():
        hopper.add_worker(worker, *held)
    for model in range(6):
        hopper.add_model(f"m{model}", 1)
    return hopper


def test_without_effort_replicas_on_unlike_workers_go_by_backlog() -> None:
    assert replicated(fast=0.3).chosen_rule.name == "backlog"
    assert replicated(fast=1.0).chosen_rule.name == "match"


@pytest.mark.parametrize("seed", range(6))
def test_planning_ahead_is_never_worse_and_often_better(seed: int) -> None:
    random = np.random.default_rng(seed)
    times = np.outer(random.choice([1.0, 2.0, 4.0, 8.0, 11.0, 20.0], 28), np.ones(7)).tolist()
    alone, planned = schedule_of(times, "auto").makespan, schedule_of(times, "auto", effort=8000).makespan
    assert planned <= alone * (1 + 1e-9)
    assert planned <= 1.003 * bound_of(times)


def test_the_effort_is_kept() -> None:
    hopper = hopper_for(UNLIKE, "auto", effort=900)
    assert 0 < hopper.chosen_rule.decisions <= 900 + 2 * 45 + 20  # at most the roll-out at which it ran out
    assert hopper_for(UNLIKE, "auto", effort=100).chosen_rule.decisions == 0


def test_the_same_inputs_give_the_same_plan() -> None:
    def starts() -> list[tuple[str, str, float]]:
        rows = simulate(hopper_for(UNLIKE, "auto", effort=5000), known(UNLIKE)).rows
        return [(row.worker, str(row.unit), row.start) for row in rows]

    assert starts() == starts()


def test_a_short_run_is_not_planned_for_long() -> None:
    """By default planning may take 0.3% of the run: a run of a second gets nothing, one of hours all there is."""
    short = [[c / 100 for c in row] for row in UNLIKE]
    hours = [[c * 100 for c in row] for row in UNLIKE]
    efforts = []
    for times in (short, UNLIKE, hours):
        hopper = hopper_for(times, "auto", effort=None)
        _ = hopper.chosen_rule
        efforts.append(hopper._request.effort)
    assert efforts[0] < 100 < efforts[1] < efforts[2] <= MAX_EFFORT_DECISIONS


def test_repeated_planning_stays_within_its_share_of_the_run() -> None:
    """A search that adds models one by one: all plans together stay within the share of the run."""
    times = known([[c] * 5 for c in range(1, 60)])
    hopper = RecordedHopper(5, estimates=times)
    for worker, held in spread_partitions(5, 5).items():
        hopper.add_worker(worker, *held)
    hopper.add_model("m0", 1)
    for model in range(1, 59):
        hopper.assign()
        hopper.add_model(f"m{model}", 1)
    total = sum(range(1, 60))  # seconds of every worker
    assert hopper._spent <= 100 * total  # a second has room for a hundred decisions


def test_an_old_plan_is_kept_where_there_is_no_effort_for_another() -> None:
    hopper = hopper_for(UNLIKE, "auto", effort=5000)
    board = hopper._board
    _ = hopper.chosen_rule
    plan = FollowPlan(PlannedStarts([]))
    assert auto(board, PlanningRequest(effort=0, present=plan)).rule is plan
    assert auto(board, PlanningRequest(effort=0)).name == dispatch(board).name


def test_workers_that_finish_almost_together_do_not_spoil_the_schedule() -> None:
    """As many models as workers, alike up to one percent: matching needs equal times, a plan does not."""
    random = np.random.default_rng(0)
    times = [[10.0] * 12 for _ in range(12)]
    real = (np.array(times) * np.exp(0.01 * random.standard_normal((12, 12)))).tolist()

    def run(effort: int) -> float:
        return simulate(hopper_for(times, "auto", effort=effort, noise=0.01), known(real)).makespan / bound_of(real)

    assert run(0) > 1.05
    assert run(8000) < 1.02


def test_noise_ends_a_plan() -> None:
    """Times vary more than expected: a dispatch rule replaces the plan."""
    estimates = Estimates([100] * 12)
    hopper = RecordedHopper(12, estimates=estimates, effort=3000)
    for worker, held in spread_partitions(12, 12).items():
        hopper.add_worker(worker, *held)
    for model in range(12):
        estimates.set_profile(f"m{model}", 0.1, 0.0)
        hopper.add_model(f"m{model}", 4)
    estimates._square = 1e-4
    before = hopper.chosen_rule
    assert isinstance(before.rule, FollowPlan)
    simulate(hopper, known([[10.0] * 12] * 12), noise=0.6, seed=1)
    assert estimates.noise > 0.15
    assert not isinstance(hopper.chosen_rule.rule, FollowPlan)


def test_a_model_added_later_is_planned() -> None:
    times = [*UNLIKE, [30.0] * 5]
    hopper = hopper_for(times, "auto", effort=3000, later=1)
    _ = hopper.chosen_rule
    hopper.add_model("m9", 1)
    schedule = simulate(hopper, known(times), after=check_hopper)
    assert schedule.makespan <= 1.02 * 150.0  # it takes longest by far, and is begun at once
    assert hopper.plans == 2
