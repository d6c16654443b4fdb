"""Choosing a rule by looking ahead: `auto`.

Candidates are played to the end on the estimates, and the one that ends first is taken. Units never take exactly as
long as estimated, so a candidate is also played with times that stray as much as they do in this run: a schedule
that only holds when workers finish at the very same instant is no good. The work is counted in simulated decisions,
not in seconds: the same inputs give the same answer everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from regatta.plan.board import Board, Floats
from regatta.plan.planned import Plan, Planned
from regatta.plan.rollout import earliest_end, roll_out, spread_times
from regatta.plan.rotation import rotation
from regatta.plan.rules import Backlog, Longest, Lrm, Match, Request, Rule, Verdict

EQUAL = 0.05  # unit times within this of each other count as equal
CLOSE = 1e-4  # nearer to the bound than this is not worth looking further
COPY = 10  # setting up a roll-out costs about as much as so many decisions
STEPS = (0.02, 0.05, 0.1, 0.2, 0.4)  # how far restarts bend the preferences


def dispatch(board: Board) -> Verdict:
    """The rule to go by without looking ahead."""
    times = board.time[board.wanted > 0]
    if _replicated(board) and _uneven(board):
        return Verdict(Backlog(), "backlog", "partitions have replicas on workers of unlike speed")
    if times.size and times.max() <= (1 + EQUAL) * times.min():
        return Verdict(Match(), "match", f"unit times are equal within {EQUAL:.0%}")
    return Verdict(Longest(), "longest", "unit times differ")


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
    board = _first_epochs(board, request.effort // 8)
    if not 0 < 3 * int(board.wanted.sum()) <= request.effort:
        if isinstance(request.present, Planned):
            return Verdict(request.present, "planned", "the plan made before: no effort is left for another")
        return default
    return _Contest(board, request, default).verdict()


def _first_epochs(board: Board, units: int) -> Board:
    """A board with so many epochs of each model less that about so many units are left, but one epoch at least."""
    most = max((model.epochs - model.epoch for model in board.models if not model.stopped), default=0)
    left = int(board.wanted.sum())
    if left <= units or most < 1:
        return board
    keep = max(1, units * (most + 1) // left)
    board = board.copy()
    for index, model in enumerate(board.models):
        if not model.stopped and model.epochs >= model.epoch + keep:
            board.extend(index, model.epoch + keep - 1)
    return board


class _Contest:
    """Candidates one after the other, until one is as good as optimal or the effort is spent."""

    def __init__(self, board: Board, request: Request, default: Verdict) -> None:
        self.board, self.request = board, request
        self.bound = earliest_end(board)
        self.spent = 0
        self.stretch = spread_times(board, request.noise, request.seed) if request.noise else None
        self.noisy_bound = earliest_end(board, self.stretch)
        self.best = default
        self.exact = self._play(default.rule)
        self.score = self._score(default.rule, self.exact, math.inf)

    def verdict(self) -> Verdict:
        if self.request.present is not None:
            self._try(self.request.present, "present", "the rule in use ends first")
        for rule, name, why in self._candidates():
            if self._enough():
                break
            self._try(rule, name, why)
        if not self._enough():
            self._restarts()
        return Verdict(self.best.rule, self.best.name, self.best.why, self.spent)

    def _candidates(self) -> Iterator[tuple[Rule, str, str]]:
        why = "ends first in roll-outs"
        if not _replicated(self.board):
            yield Planned(Plan(rotation(self.board))), "rotation", why
        for rule, name in ((Longest(), "longest"), (Lrm(), "lrm"), (Match(), "match")):
            if name != self.best.name:
                yield rule, name, why

    def _enough(self) -> bool:
        hopeless = math.isinf(self.exact)  # work that nobody can do now
        return hopeless or self.spent >= self.request.effort or self.score <= 1 + max(CLOSE, self.request.noise / 10)

    def _try(self, rule: Rule, name: str, why: str) -> None:
        exact = self._play(rule, self.exact * 1.02)
        score = self._score(rule, exact, self.score)
        if score < self.score - CLOSE / 10:
            self.best, self.exact, self.score = Verdict(rule, name, why), exact, score

    def _play(self, rule: Rule, give_up: float = math.inf, stretch: Floats | None = None) -> float:
        outcome = roll_out(self.board, rule, give_up, stretch)
        self.spent += outcome.decisions + COPY
        return outcome.end

    def _score(self, rule: Rule, exact: float, to_beat: float) -> float:
        """Makespan over bound: the mean of what is expected and of what noise makes of it."""
        ratio = self._ratio(exact, self.bound)
        if self.stretch is None or (ratio + 1) / 2 >= to_beat:
            return ratio
        return (ratio + self._ratio(self._play(rule, stretch=self.stretch), self.noisy_bound)) / 2

    def _ratio(self, end: float, bound: float) -> float:
        now = self.board.now
        return (end - now) / (bound - now) if bound > now else 1.0

    def _restarts(self) -> None:
        """The longest rule with bent preferences; what helped is bent further, every third time afresh."""
        random = np.random.default_rng(self.request.seed)
        shape = len(self.board.held), len(self.board.models)
        bent = even = np.ones(shape)
        shortest, number = self.exact, 0
        while not self._enough() and self._ratio(shortest, self.bound) > 1 + CLOSE:
            start = bent if number % 3 else even
            weights = start * np.exp(STEPS[number % len(STEPS)] * random.standard_normal(shape))
            number += 1
            exact = self._play(Longest(weights), shortest)
            if exact < shortest:
                shortest, bent = exact, weights
                score = self._score(Longest(weights), exact, self.score)
                if score < self.score - CLOSE / 10:
                    why = f"restart {number} of the longest rule ends first in roll-outs"
                    self.best, self.exact, self.score = Verdict(Longest(weights), "restart", why), exact, score
