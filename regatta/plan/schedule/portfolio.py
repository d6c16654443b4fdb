"""Choosing a rule by simulation: `auto`.

Each candidate is rolled out to the end on the estimates, and the one that ends first is taken. Units never take exactly
as long as estimated, so a candidate is also rolled out with noise as large as in this run. A schedule that holds only
when workers finish at the same instant is useless. The effort is counted in simulated decisions, not in seconds, so the
same inputs give the same answer everywhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from regatta.plan.schedule.board import Board, Floats
from regatta.plan.schedule.offline.follow import FollowPlan, PlannedStarts
from regatta.plan.schedule.offline.replica_placement import FollowPlacement, place_units
from regatta.plan.schedule.offline.rotation import rotation
from regatta.plan.schedule.rollout import RollOutResult, earliest_end, noise_factors, roll_out
from regatta.plan.schedule.rules import Backlog, ChosenRule, Longest, Lrm, Match, PlanningRequest, Rule

EQUAL_TOLERANCE = 0.05  # unit times within this ratio count as equal
CLOSE_TO_BOUND = 1e-4  # a makespan this close to the bound ends the search
CLOSE_WITH_NOISE = 0.004  # the same for the score where times are noisy
MAX_NOISE_FOR_PLANS = 0.15  # with more noise, no plan holds
MIN_NOISE = 1e-3  # no unit takes exactly as long as estimated
NOISY_ROLLOUTS = 2  # roll-outs with noise per candidate
MIN_ROLLOUTS = 4  # the effort must allow at least this many roll-outs of a board
ROLLOUT_SETUP_DECISIONS = 10  # setting up a roll-out costs about as much as this many decisions
RESTART_DEVIATIONS = (0.02, 0.05, 0.1, 0.2, 0.4)  # deviations of the weights that restarts draw


def dispatch(board: Board) -> ChosenRule:
    """The rule to use without roll-outs."""
    if board.cost and _uneven(board):
        return ChosenRule(Backlog(), "backlog", "partitions have replicas on workers of unlike speed")
    if _equal(board):
        return ChosenRule(Match(), "match", f"unit times are equal within {EQUAL_TOLERANCE:.0%}")
    return ChosenRule(Longest(), "longest", "unit times differ")


def _equal(board: Board) -> bool:
    """Whether all units left take about equally long. Usually the first partition shows that they do not."""
    shortest, longest = math.inf, 0.0
    for wanted, times in zip(board.wanted, board.time, strict=True):
        left = times[wanted > 0]
        shortest, longest = left.min(initial=shortest), left.max(initial=longest)
        if longest > (1 + EQUAL_TOLERANCE) * shortest:
            return False
    return longest > 0.0


def _uneven(board: Board) -> bool:
    """Whether the holders of a partition differ in speed."""
    for partition, holders in enumerate(board.holders):
        wanted = board.wanted[partition] > 0
        rows = [row[wanted] for worker in holders if (row := board.cost.get((worker, partition))) is not None]
        if rows and any(
            (row > (1 + EQUAL_TOLERANCE) * rows[0]).any() or (rows[0] > (1 + EQUAL_TOLERANCE) * row).any()
            for row in rows
        ):
            return True
    return False


def auto(board: Board, request: PlanningRequest) -> ChosenRule:
    """The dispatch rule, or a rule that beats it in roll-outs within the effort."""
    default = dispatch(board)
    if board.ahead.any():  # roll-outs would end with the present epochs, before the run does
        return ChosenRule(default.rule, default.name, f"{default.why}; a search may want more")
    start = _first_epochs(board, request.effort)
    if start is None:
        if isinstance(request.present, FollowPlan) and request.noise <= MAX_NOISE_FOR_PLANS:
            return ChosenRule(request.present, "planned", "the plan made before: no effort is left for another")
        return default
    return _Contest(board, start, request, default).choose_rule()


def too_large(board: Board, effort: int) -> bool:
    """Whether the effort cannot cover `MIN_ROLLOUTS` of the board, as each model with work left has a unit."""
    return MIN_ROLLOUTS * int(np.count_nonzero(board.left)) > effort


def _first_epochs(board: Board, effort: int) -> Board | None:
    """A board with as many epochs of each model as an eighth of the effort can roll out, at least one.

    None where nothing is left, or where even one epoch is too much.
    """
    if too_large(board, effort):
        return None
    going = [model for model in board.models if not model.stopped and model.epoch <= model.epochs]
    most = max((model.epochs - model.epoch for model in going), default=0)
    left, units = int(board.wanted.sum()), effort // 8
    keep = most + 1 if left <= units else max(1, units * (most + 1) // left)
    kept = sum(len(model.rest) + min(keep - 1, model.epochs - model.epoch) * board.partitions for model in going)
    if not 0 < MIN_ROLLOUTS * kept <= effort:
        return None
    if keep > most:
        return board
    board = board.copy()
    for index, model in enumerate(board.models):
        if not model.stopped and model.epochs >= model.epoch + keep:
            board.extend(index, model.epoch + keep - 1)
    return board


class _Contest:
    """Tries candidates one after another until one is nearly optimal or the effort is spent.

    Each candidate is rolled out on the estimates and with noise. A rule is also tried as a plan to follow, because its
    schedule may suffer from noise. The best candidate has the lowest `score`, the mean of makespan over bound.
    """

    def __init__(self, whole: Board, board: Board, request: PlanningRequest, default: ChosenRule) -> None:
        self.whole, self.board, self.request = whole, board, request  # `board` has the first epochs of `whole`
        self.bound = earliest_end(board)
        self.noise = max(MIN_NOISE, request.noise)
        self.noises = [noise_factors(board, self.noise, request.seed + number) for number in range(NOISY_ROLLOUTS)]
        self.noisy_bounds = [earliest_end(board, time_factors) for time_factors in self.noises]
        self.good = 1 + CLOSE_TO_BOUND + min(self.noise / 2, CLOSE_WITH_NOISE)
        self.weighted_rule: Longest | FollowPlacement = Longest()
        self.spent = 0
        self.best, self.score, self.shortest = default, math.inf, math.inf

    def choose_rule(self) -> ChosenRule:
        self._try(self.best)
        for candidate in self._candidates():
            if self._enough():
                break
            self._try(candidate)
        if not self._enough() and self.noise <= MAX_NOISE_FOR_PLANS:
            self._restarts()
        return dataclasses.replace(self.best, decisions=self.spent)

    def _candidates(self) -> Iterator[ChosenRule]:
        why = "ends first in roll-outs"
        present = self.request.present
        outlived = isinstance(present, FollowPlan) and self.noise > MAX_NOISE_FOR_PLANS
        if present is not None and type(present) is not type(self.best.rule) and not outlived:
            yield ChosenRule(present, "planned", "the rule in use still ends first in roll-outs")
        replicated = any(len(holders) > 1 for holders in self.board.holders)
        if not replicated and self.noise <= MAX_NOISE_FOR_PLANS:
            yield ChosenRule(FollowPlan(PlannedStarts(rotation(self.whole))), "rotation", why)
        if replicated and (placed := self._placed()):
            self.weighted_rule = placed
            yield ChosenRule(placed, "placed", why)
        for rule, name in ((Longest(), "longest"), (Lrm(), "lrm"), (Match(), "match")):
            if name != self.best.name:
                yield ChosenRule(rule, name, why)

    def _placed(self) -> FollowPlacement | None:
        """Place units by a linear program. It makes no decisions, so its size counts as effort."""
        holders = np.array([len(found) for found in self.board.holders])
        size = int(((self.board.wanted > 0).sum(axis=1) * holders).sum())
        if self.spent + size > self.request.effort:
            return None
        self.spent += size
        return place_units(self.board)

    def _enough(self) -> bool:
        hopeless = math.isinf(self.score) and self.spent > 0  # no present worker holds some of the work
        return hopeless or self.spent >= self.request.effort or self.score <= self.good

    def _try(self, candidate: ChosenRule) -> None:
        outcome = self._play(candidate.rule, give_up=1.02 * self.shortest)
        self._consider(candidate, outcome)
        if not self._enough() and not isinstance(candidate.rule, FollowPlan):
            self._consider_plan(candidate, outcome)

    def _consider_plan(self, candidate: ChosenRule, outcome: RollOutResult) -> None:
        """Try the schedule of a rule as a plan, unless only the first epochs were rolled out."""
        if self.board is self.whole and self.noise <= MAX_NOISE_FOR_PLANS:
            plan = FollowPlan(PlannedStarts(outcome.starts))
            why = f"{candidate.why}; kept to as a plan"
            self._consider(dataclasses.replace(candidate, rule=plan, why=why), outcome)

    def _consider(self, candidate: ChosenRule, outcome: RollOutResult) -> None:
        self.shortest = min(self.shortest, outcome.end)
        excess = self._ratio(outcome.end, self.bound) - 1
        for time_factors, bound in zip(self.noises, self.noisy_bounds, strict=True):
            if excess >= (NOISY_ROLLOUTS + 1) * (self.score - 1):
                return  # it can no longer win
            excess += self._ratio(self._play(candidate.rule, time_factors=time_factors).end, bound) - 1
        score = 1 + excess / (NOISY_ROLLOUTS + 1)
        if score < self.score - CLOSE_TO_BOUND / 10:
            self.best, self.score = candidate, score

    def _play(self, rule: Rule, give_up: float = math.inf, time_factors: Floats | None = None) -> RollOutResult:
        outcome = roll_out(self.board, rule, give_up, time_factors)
        self.spent += len(outcome.starts) + ROLLOUT_SETUP_DECISIONS
        return outcome

    def _ratio(self, end: float, bound: float) -> float:
        now = self.board.now
        return (end - now) / (bound - now) if bound > now else 1.0

    def _restarts(self) -> None:
        """Try the rule with random weights. Weights that helped are varied further; every third try starts afresh."""
        random = np.random.default_rng(self.request.seed)
        shape = len(self.board.held), len(self.board.models)
        bent = even = np.ones(shape)
        number = 0
        while not self._enough() and self._ratio(self.shortest, self.bound) > 1 + CLOSE_TO_BOUND:
            start = bent if number % 3 else even
            deviation = RESTART_DEVIATIONS[number % len(RESTART_DEVIATIONS)]
            weights = start * np.exp(deviation * random.standard_normal(shape))
            number += 1
            rule = self.weighted_rule.with_weights(weights)
            outcome = self._play(rule, give_up=self.shortest)
            if outcome.end < self.shortest:
                bent = weights
                why = f"with bent preferences (try {number}) it ends first in roll-outs"
                self._consider_plan(ChosenRule(rule, "restart", why), outcome)
                self.shortest = outcome.end
