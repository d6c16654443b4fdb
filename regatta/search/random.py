"""Configurations drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from regatta.search.base import Action, Goal, Report, Train, check_count, check_seed
from regatta.search.domain import Domain, Where, make_domain
from regatta.seeds import derive_seed


class RandomSearch:
    """Draws when it starts, because the run's seed is known only then. Reports change nothing."""

    def __init__(self, n: int, seed: int | None, domain: Domain) -> None:
        self._n, self._seed, self._domain = n, seed, domain

    def __len__(self) -> int:
        return self._n

    def describe(self) -> dict[str, Any]:
        return {"kind": "random", "n": self._n, "seed": self._seed, **self._domain.describe()}

    def start(self, goal: Goal) -> list[Action]:
        seed = goal.seed if self._seed is None else self._seed
        random = Random(derive_seed(seed, "search", "random"))
        drawn = self._domain.draw(self._n, random, f"random(n={self._n})")
        return [Train(config, goal.epochs) for config in drawn]

    def hear(self, report: Report) -> list[Action]:
        return []


def random(
    space: Mapping[str, object] | None = None,
    *,
    n: int,
    seed: int | None = None,
    where: Where | None = None,
    **axes: object,
) -> RandomSearch:
    """n different configurations, each axis drawn from its space: a list, or choice, uniform, loguniform, integers.

    The default seed is the run's. `where(config)` says which combinations are valid. A space of fewer than n
    configurations is an error, not a smaller sweep.
    """
    check_count("random", "n", n)
    check_seed("random", seed)
    domain = make_domain("random", space, axes, where)
    domain.check_size(n, f"random(n={n})")
    return RandomSearch(n, seed, domain)
