"""ASHA: successive halving without waiting for a rung to be complete.

After Li et al., A System for Massively Parallel Hyperparameter Tuning (MLSys 2020). A configuration is promoted as soon
as it is among the best 1/eta of those that have reached its rung. New configurations start when none can be promoted.
Early promotions count against the rung's share, so that never more than 1/eta of a rung are promoted.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from random import Random
from typing import Any

from regatta.configuration import Scalar, config_id
from regatta.search.base import Action, Goal, Rank, Report, Train, check_count, check_seed, max_epochs
from regatta.search.domain import Domain, Where, make_domain
from regatta.search.hyperband import depth
from regatta.seeds import derive_seed


class _AshaRung:
    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.arrived = 0  # configurations that reached the rung, or failed on the way from the rung below
        self.promoted = 0
        self.waiting: list[tuple[Rank, int, str]] = []  # best first; equal ones in the order in which they were drawn

    def promote(self, eta: int) -> list[str]:
        """The configurations to promote now. The first in the queue is in the best 1/eta, as fewer were promoted."""
        chosen = []
        while self.waiting and self.promoted < self.arrived // eta:
            self.promoted += 1
            chosen.append(self.waiting.pop(0)[2])
        return chosen


class Asha:
    def __init__(self, n: int, R: int | None, eta: int, at_once: int, seed: int | None, domain: Domain) -> None:
        self._n, self._R, self._eta, self._at_once = n, R, eta, at_once
        self._seed, self._domain = seed, domain

    def __len__(self) -> int:
        return self._n

    def describe(self) -> dict[str, Any]:
        parameters = {"n": self._n, "R": self._R, "eta": self._eta, "at_once": self._at_once, "seed": self._seed}
        return {"kind": "asha", **parameters, **self._domain.describe()}

    def start(self, goal: Goal) -> list[Action]:
        self._goal = goal
        R = max_epochs("asha", self._R, goal)
        self._rungs = [_AshaRung(epochs) for epochs in asha_rungs(self._n, R, self._eta)]
        seed = goal.seed if self._seed is None else self._seed
        random = Random(derive_seed(seed, "search", "asha"))
        drawn = self._domain.draw(self._n, random, f"asha(n={self._n})")
        self._fresh = [(config_id(config), config) for config in reversed(drawn)]
        self._begun: dict[str, tuple[int, dict[str, Scalar]]] = {}
        self._level: dict[str, int] = {}  # the next rung of each configuration in training
        return self._fill()

    def hear(self, report: Report) -> list[Action]:
        level = self._level.get(report.config)
        if level is None:
            return []
        rung = self._rungs[level]
        if not report.failed and report.epoch < rung.epochs:
            return []
        del self._level[report.config]
        rung.arrived += 1
        if not report.failed:
            number = self._begun[report.config][0]
            insort(rung.waiting, (self._goal.rank(report.metrics), number, report.config))
        is_last = level + 1 == len(self._rungs)
        promoted = [] if is_last else [self._ask(config, level + 1) for config in rung.promote(self._eta)]
        return [*promoted, *self._fill()]

    def _fill(self) -> list[Action]:
        actions = []
        while self._fresh and len(self._level) < self._at_once:
            config, values = self._fresh.pop()
            self._begun[config] = (len(self._begun), values)
            actions.append(self._ask(config, 0))
        return actions

    def _ask(self, config: str, level: int) -> Action:
        self._level[config] = level
        return Train(dict(self._begun[config][1]), self._rungs[level].epochs, most=self._rungs[-1].epochs)


def asha_rungs(n: int, R: int, eta: int = 3) -> list[int]:
    """The epochs of the rungs: R, and as many below it as n configurations can fill so that at least one reaches R."""
    below = min(depth(n, eta), depth(R, eta))
    return [R // eta**i for i in range(below, -1, -1)]


def asha(
    space: Mapping[str, object] | None = None,
    *,
    n: int,
    R: int | None = None,
    eta: int = 3,
    at_once: int = 16,
    seed: int | None = None,
    where: Where | None = None,
    **axes: object,
) -> Asha:
    """n configurations. The best 1/eta of each rung continue to the next, up to R epochs, as soon as they are known.

    R is the sweep's `epochs` unless given. At most `at_once` are in training: twice the number of workers keeps all
    workers busy, and more only delays promotions. `where(config)` says which combinations are valid.
    """
    check_count("asha", "n", n)
    if R is not None:
        check_count("asha", "R", R)
    check_count("asha", "eta", eta, least=2)
    check_count("asha", "at_once", at_once)
    check_seed("asha", seed)
    domain = make_domain("asha", space, axes, where)
    domain.check_size(n, f"asha(n={n})")
    return Asha(n, R, eta, at_once, seed, domain)
