"""Hyperband: successive halving with several trade-offs between many configurations and many epochs.

After Li et al., Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization (JMLR 18, 2018). In the paper,
one bracket follows another. Here all brackets start at once, and a rung waits only for its own members. Survivors
continue from their states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from regatta.configuration import Scalar, config_id
from regatta.search.base import Action, Goal, Rank, Report, Train, check_count, check_seed, max_epochs
from regatta.search.domain import Domain, Where, make_domain
from regatta.seeds import derive_seed


class Rung(NamedTuple):
    """`size` configurations of a bracket are trained until they have `epochs`."""

    size: int
    epochs: int


def hyperband_brackets(R: int, eta: int = 3) -> list[list[Rung]]:
    """The rungs of every bracket, the one with the most configurations first.

    Bracket s begins with floor((s_max + 1) / (s + 1)) * eta**s configurations, as in the paper's table for R=81, eta=3.
    The paper's formula, rounded as printed, would start the middle brackets with up to two thirds more.
    """
    deepest = depth(R, eta)
    brackets = []
    for s in range(deepest, -1, -1):
        n = (deepest + 1) // (s + 1) * eta**s
        brackets.append([Rung(n // eta**i, R // eta ** (s - i)) for i in range(s + 1)])
    return brackets


def depth(count: int, eta: int) -> int:
    """How often a count can be divided by eta before it is less than 1: an exact integer logarithm."""
    found = 0
    while eta ** (found + 1) <= count:
        found += 1
    return found


class Bracket:
    """One successive halving: the best of each rung continue to the next, once all its members have reported."""

    def __init__(self, rungs: list[Rung], configs: Iterable[dict[str, Scalar]]) -> None:
        self._rungs = rungs
        self._level = 0
        self._members = {config_id(config): config for config in configs}
        self._ranks: dict[str, Rank] = {}

    def ask(self) -> list[Action]:
        epochs, most = self._rungs[self._level].epochs, self._rungs[-1].epochs
        return [Train(dict(config), epochs, most=most) for config in self._members.values()]

    def hear(self, report: Report, rank: Rank) -> list[Action]:
        if report.config not in self._members:
            return []
        if report.failed:
            del self._members[report.config]
            self._ranks.pop(report.config, None)
        elif report.epoch >= self._rungs[self._level].epochs:
            self._ranks[report.config] = rank
        is_last = self._level + 1 == len(self._rungs)
        if is_last or len(self._ranks) < len(self._members):
            return []
        self._level += 1
        ranked = sorted(self._members, key=self._ranks.__getitem__)  # stable: equal ones keep their drawing order
        self._members = {config: self._members[config] for config in ranked[: self._rungs[self._level].size]}
        self._ranks = {}
        return self.ask()


class Hyperband:
    def __init__(self, R: int | None, eta: int, seed: int | None, domain: Domain) -> None:
        self._R, self._eta, self._seed, self._domain = R, eta, seed, domain

    def describe(self) -> dict[str, Any]:
        return {"kind": "hyperband", "R": self._R, "eta": self._eta, "seed": self._seed, **self._domain.describe()}

    def start(self, goal: Goal) -> list[Action]:
        self._goal = goal
        R = max_epochs("hyperband", self._R, goal)
        plan = hyperband_brackets(R, self._eta)
        seed = goal.seed if self._seed is None else self._seed
        total = sum(rungs[0].size for rungs in plan)
        random = Random(derive_seed(seed, "search", "hyperband"))
        configs = iter(self._domain.draw(total, random, f"hyperband(R={R}, eta={self._eta})"))
        brackets = [Bracket(rungs, islice(configs, rungs[0].size)) for rungs in plan]
        asked = [(bracket, bracket.ask()) for bracket in brackets]
        self._bracket = {config_id(a.config): b for b, actions in asked for a in actions if isinstance(a, Train)}
        return [action for _, actions in asked for action in actions]

    def hear(self, report: Report) -> list[Action]:
        bracket = self._bracket.get(report.config)
        return [] if bracket is None else bracket.hear(report, self._goal.rank(report.metrics))


def hyperband(
    space: Mapping[str, object] | None = None,
    *,
    R: int | None = None,
    eta: int = 3,
    seed: int | None = None,
    where: Where | None = None,
    **axes: object,
) -> Hyperband:
    """Many configurations for a few epochs, few for up to R epochs, and brackets in between, all at once.

    The best 1/eta of each rung continue from their states. R is the sweep's `epochs` unless given. `hyperband_brackets`
    lists the rungs. `where(config)` says which combinations are valid.
    """
    if R is not None:
        check_count("hyperband", "R", R)
    check_count("hyperband", "eta", eta, least=2)
    check_seed("hyperband", seed)
    return Hyperband(R, eta, seed, make_domain("hyperband", space, axes, where))
