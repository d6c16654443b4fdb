"""Choosing a rule by looking ahead: `auto`.

Candidates are played to the end on the estimates, and the one that ends first is taken. Units never take exactly as
long as estimated, so a candidate is also played with times that stray as much as they do in this run: a schedule
that only holds when workers finish at the very same instant is no good. The work is counted in simulated decisions,
not in seconds: the same inputs give the same answer everywhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from regatta.plan.schedule.board import Board, Floats
from regatta.plan.schedule.offline.follow import Plan, Planned
from regatta.plan.schedule.offline.replica_placement import Placed, place
from regatta.plan.schedule.offline.rotation import rotation
from regatta.plan.schedule.rollout import (
    Outcome,
    earliest_end,
    roll_out,
    spread_times,
)
from regatta.plan.schedule.rules import (
    Backlog,
    Longest,
    Lrm,
    Match,
    Request,
    Rule,
    Verdict,
)

EQUAL = 0.05  # unit times within this of each other count as equal
CLOSE = 1e-4  # nearer to the bound than this is not worth looking further
NEAR = 0.004  # a score to be content with where times are noisy
TOO_NOISY = 0.15  # no plan holds where times stray so far
LEAST_NOISE = 1e-3  # nothing takes exactly as long as estimated
NOISES = 2  # so many times a candidate is played with noise
PLAYS = 4  # so often the effort must play a board, or it is not worth while
COPY = 10  # setting up a roll-out costs about as much as so many decisions
STEPS = (0.02, 0.05, 0.1, 0.2, 0.4)  # how far restarts bend the preferences


def dispatch(board: Board) -> Verdict:
    """The rule to go by without looking ahead."""
    if _replicated(board) and _uneven(board):
        return Verdict(Backlog(), "backlog", "partitions have replicas on workers of unlike speed")
    if _equal(board):
        return Verdict(Match(), "match", f"unit times are equal within {EQUAL:.0%}")
    return Verdict(Longest(), "longest", "unit times differ")


def _equal(board: Board) -> bool:
    """Do all units that are left take about as long? Mostly the first partition tells that they do not."""
    shortest, longest = math.inf, 0.0
    for wanted, times in zip(board.wanted, board.time, strict=True):
        left = times[wanted > 0]
        shortest, longest = left.min(initial=shortest), left.max(initial=longest)
        if longest > (1 + EQUAL) * shortest:
            return False
    return longest > 0.0


def _replicated(board: Board) -> bool:
    return any(len(holders) > 1 for holders in board.holders)


def _uneven(board: Board) -> bool:
    """Do the holders of a partition differ in speed?"""
    for partition, holders in enumerate(board.holders):
        wanted = board.wanted[partition] > 0
        rows = [row[wanted] for worker in holders if (row := board.cost.get((worker, partition))) is not None]
        if rows and any((row > (1 + EQUAL) * rows[0]).any() or (rows[0] > (1 + EQUAL) * row).any() for row in rows):
            return True
    return False


def auto(board: Board, request: Request) -> Verdict:
    """The dispatch rule, or what beats it in roll-outs as far as the effort goes."""
    default = dispatch(board)
    if board.ahead.any():  # roll-outs end with what is wanted now, which is not what the run will end with
        return Verdict(default.rule, default.name, f"{default.why}; a search may want more")
    start = _first_epochs(board, request.effort)
    if start is None:
        if isinstance(request.present, Planned) and request.noise <= TOO_NOISY:
            return Verdict(request.present, "planned", "the plan made before: no effort is left for another")
        return default
    return _Contest(board, start, request, default).verdict()


def too_large(board: Board, effort: int) -> bool:
    """Is there certainly more to do than the effort plays several times? Each model that has work left has a unit."""
    return PLAYS * int(np.count_nonzero(board.left)) > effort


def _first_epochs(board: Board, effort: int) -> Board | None:
    """A board with so many epochs of each model less that an eighth of the effort plays it, but one epoch at least.

    None where nothing is left to play, or even then too much.
    """
    if too_large(board, effort):
        return None
    going = [model for model in board.models if not model.stopped and model.epoch <= model.epochs]
    most = max((model.epochs - model.epoch for model in going), default=0)
    left, units = int(board.wanted.sum()), effort // 8
    keep = most + 1 if left <= units else max(1, units * (most + 1) // left)
    kept = sum(len(model.rest) + min(keep - 1, model.epochs - model.epoch) * board.partitions for model in going)
    if not 0 < PLAYS * kept <= effort:
        return None
    if keep > most:
        return board
    board = board.copy()
    for index, model in enumerate(board.models):
        if not model.stopped and model.epochs >= model.epoch + keep:
            board.extend(index, model.epoch + keep - 1)
    return board


class _Contest:
    """Candidates one after the other, until one is as good as optimal or the effort is spent.

    Each is played on the estimates, and with noise. A rule whose schedule suffers from noise is tried again as a plan
    that is kept to. The best is the one with the lowest `score`, the mean of makespan over bound.
    """

    def __init__(self, whole: Board, board: Board, request: Request, default: Verdict) -> None:
        self.whole, self.board, self.request = whole, board, request  # the board is the start of the whole
        self.bound = earliest_end(board)
        self.noise = max(LEAST_NOISE, request.noise)
        self.noises = [spread_times(board, self.noise, request.seed + number) for number in range(NOISES)]
        self.noisy_bounds = [earliest_end(board, stretch) for stretch in self.noises]
        self.good = 1 + CLOSE + min(self.noise / 2, NEAR)
        self.bendable: Longest | Placed = Longest()
        self.spent = 0
        self.best, self.score, self.shortest = default, math.inf, math.inf

    def verdict(self) -> Verdict:
        self._try(self.best)
        for candidate in self._candidates():
            if self._enough():
                break
            self._try(candidate)
        if not self._enough() and self.noise <= TOO_NOISY:
            self._restarts()
        return dataclasses.replace(self.best, decisions=self.spent)

    def _candidates(self) -> Iterator[Verdict]:
        why = "ends first in roll-outs"
        present = self.request.present
        outlived = isinstance(present, Planned) and self.noise > TOO_NOISY
        if present is not None and type(present) is not type(self.best.rule) and not outlived:
            yield Verdict(present, "planned", "the rule in use still ends first in roll-outs")
        if not _replicated(self.board) and self.noise <= TOO_NOISY:
            yield Verdict(Planned(Plan(rotation(self.whole))), "rotation", why)
        if _replicated(self.board) and (placed := self._placed()):
            self.bendable = placed
            yield Verdict(placed, "placed", why)
        for rule, name in ((Longest(), "longest"), (Lrm(), "lrm"), (Match(), "match")):
            if name != self.best.name:
                yield Verdict(rule, name, why)

    def _placed(self) -> Placed | None:
        """A linear program has no decisions to count: its size stands for them."""
        holders = np.array([len(found) for found in self.board.holders])
        size = int(((self.board.wanted > 0).sum(axis=1) * holders).sum())
        if self.spent + size > self.request.effort:
            return None
        self.spent += size
        return place(self.board)

    def _enough(self) -> bool:
        hopeless = math.isinf(self.score) and self.spent > 0  # work that nobody can do now
        return hopeless or self.spent >= self.request.effort or self.score <= self.good

    def _try(self, candidate: Verdict) -> None:
        outcome = self._play(candidate.rule, give_up=1.02 * self.shortest)
        self._consider(candidate, outcome)
        if not self._enough() and not isinstance(candidate.rule, Planned):
            self._consider_plan(candidate, outcome)

    def _consider_plan(self, candidate: Verdict, outcome: Outcome) -> None:
        """The schedule of a rule as a plan, unless only the start of the whole was played."""
        if self.board is self.whole and self.noise <= TOO_NOISY:
            plan = Planned(Plan(outcome.starts))
            self._consider(
                dataclasses.replace(candidate, rule=plan, why=f"{candidate.why}; kept to as a plan"), outcome
            )

    def _consider(self, candidate: Verdict, outcome: Outcome) -> None:
        self.shortest = min(self.shortest, outcome.end)
        excess = self._ratio(outcome.end, self.bound) - 1
        for stretch, bound in zip(self.noises, self.noisy_bounds, strict=True):
            if excess >= (NOISES + 1) * (self.score - 1):
                return  # it cannot win any more
            excess += self._ratio(self._play(candidate.rule, stretch=stretch).end, bound) - 1
        score = 1 + excess / (NOISES + 1)
        if score < self.score - CLOSE / 10:
            self.best, self.score = candidate, score

    def _play(self, rule: Rule, give_up: float = math.inf, stretch: Floats | None = None) -> Outcome:
        outcome = roll_out(self.board, rule, give_up, stretch)
        self.spent += len(outcome.starts) + COPY
        return outcome

    def _ratio(self, end: float, bound: float) -> float:
        now = self.board.now
        return (end - now) / (bound - now) if bound > now else 1.0

    def _restarts(self) -> None:
        """The same rule with bent preferences; what helped is bent further, every third time afresh."""
        random = np.random.default_rng(self.request.seed)
        shape = len(self.board.held), len(self.board.models)
        bent = even = np.ones(shape)
        number = 0
        while not self._enough() and self._ratio(self.shortest, self.bound) > 1 + CLOSE:
            start = bent if number % 3 else even
            weights = start * np.exp(STEPS[number % len(STEPS)] * random.standard_normal(shape))
            number += 1
            rule = self.bendable.bent(weights)
            outcome = self._play(rule, give_up=self.shortest)
            if outcome.end < self.shortest:
                bent = weights
                candidate = Verdict(rule, "restart", f"with bent preferences (try {number}) it ends first in roll-outs")
                self._consider_plan(candidate, outcome)
                self.shortest = outcome.end
