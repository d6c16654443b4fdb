"""The rules by name. Each name has a planner, which reads the board and returns the rule to use.

Dispatch rules return themselves. `rotation`, `vector`, `milp` and `cpsat` plan a schedule, which is then followed.
`auto` simulates several rules and takes the one that ends first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from regatta.errors import UsageError, nearest
from regatta.plan.schedule.board import Board
from regatta.plan.schedule.offline.follow import DEFAULT_PATIENCE, FollowPlan, PlannedStarts
from regatta.plan.schedule.offline.open_shop import Shop, build_shop, repeat_each_epoch
from regatta.plan.schedule.offline.replica_placement import place_units
from regatta.plan.schedule.offline.rotation import rotation
from regatta.plan.schedule.offline.solvers import require_cpsat, solve_cpsat, solve_milp
from regatta.plan.schedule.offline.vector_rearrangement import rearrange
from regatta.plan.schedule.portfolio import auto, dispatch
from regatta.plan.schedule.rules import (
    Backlog,
    ChosenRule,
    Longest,
    Lpt,
    Lrm,
    Match,
    Planner,
    PlanningRequest,
    Randomized,
    Rule,
)


def planner_for(rule: str) -> Planner:
    if rule not in RULES:
        known = ", ".join(RULES)
        raise UsageError(f"There is no hop rule {rule!r}.", candidates=nearest(rule, RULES), hint=f"Rules: {known}.")
    if rule == "cpsat":
        require_cpsat()
    return RULES[rule]


def _always(name: str, make: Callable[[int], Rule]) -> Planner:
    def plan(board: Board, request: PlanningRequest) -> ChosenRule:
        return ChosenRule(request.present or make(request.seed), name, "asked for by name")

    return plan


def _rotation(board: Board, request: PlanningRequest) -> ChosenRule:
    return ChosenRule(FollowPlan(PlannedStarts(rotation(board))), "rotation", "asked for by name")


def _placed(board: Board, request: PlanningRequest) -> ChosenRule:
    placed = place_units(board)
    return ChosenRule(placed, "placed", "asked for by name") if placed else dispatch(board)


def _vector(board: Board, request: PlanningRequest) -> ChosenRule:
    shop = build_shop(board)
    workers = sorted(shop.worker_free)
    models = sorted(shop.model_free)
    if not models:
        return dispatch(board)
    times = np.zeros((len(models), len(workers)))
    for op in shop.operations:
        times[models.index(op.model), workers.index(op.worker)] += op.seconds
    circle = rearrange(times)
    begins = dict(np.ndenumerate(circle.starts))
    starts = []
    for op in shop.operations:  # a worker runs a model's partitions one after the other
        key = (models.index(op.model), workers.index(op.worker))
        starts.append(float(begins[key]))
        begins[key] += op.seconds
    why = "a circle of the largest load" if circle.exact else "the circle is too short: its order without idle time"
    plan = PlannedStarts(repeat_each_epoch(board, shop, starts), DEFAULT_PATIENCE if circle.exact else 0.0)
    return ChosenRule(FollowPlan(plan), "vector", why)


def _solver(name: str, solve: Callable[[Shop, PlanningRequest], list[float] | None]) -> Planner:
    def plan(board: Board, request: PlanningRequest) -> ChosenRule:
        shop = build_shop(board)
        starts = solve(shop, request)
        if starts is None:
            instead = dispatch(board)
            why = f"{name} found no schedule of {len(shop)} units within its limit; {instead.why}"
            return ChosenRule(instead.rule, instead.name, why)
        return ChosenRule(FollowPlan(PlannedStarts(repeat_each_epoch(board, shop, starts))), name, "asked for by name")

    return plan


def _planned(board: Board, request: PlanningRequest) -> ChosenRule:
    if isinstance(request.present, FollowPlan):
        return ChosenRule(request.present, "planned", "a schedule was given")
    raise UsageError("The hop rule 'planned' has no schedule to follow.", hint="Give it one with Hopper.follow(rows).")


RULES: dict[str, Planner] = {
    "auto": auto,
    "longest": _always("longest", lambda seed: Longest()),
    "match": _always("match", lambda seed: Match()),
    "backlog": _always("backlog", lambda seed: Backlog()),
    "lrm": _always("lrm", lambda seed: Lrm()),
    "lpt": _always("lpt", lambda seed: Lpt()),
    "randomized": _always("randomized", Randomized),
    "rotation": _rotation,
    "placed": _placed,
    "vector": _vector,
    "milp": _solver("milp", lambda shop, request: solve_milp(shop, request.seconds)),
    "cpsat": _solver("cpsat", lambda shop, request: solve_cpsat(shop, request.seconds, request.seed)),
    "planned": _planned,
}
