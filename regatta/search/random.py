"""Configurations drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from random import Random
from typing import Any

from regatta.configuration import Scalar, canonical, derive_seed
from regatta.errors import UsageError
from regatta.search.base import Action, Goal, Report, Train
from regatta.search.spaces import Choice, Integers, Space, space_of


class RandomSearch:
    """Draws when it starts, because the run's seed is known only then; what it hears changes nothing."""

    def __init__(self, n: int, seed: int | None, spaces: Mapping[str, Space]) -> None:
        self._n = n
        self._seed = seed
        self._spaces = spaces

    def __len__(self) -> int:
        return self._n

    def describe(self) -> dict[str, Any]:
        axes = {name: space.describe() for name, space in self._spaces.items()}
        return {"kind": "random", "n": self._n, "seed": self._seed, "axes": axes}

    def start(self, goal: Goal) -> list[Action]:
        seed = goal.seed if self._seed is None else self._seed
        drawn = draw_distinct(self._spaces, self._n, Random(derive_seed(seed, "search", "random")))
        return [Train(config, goal.epochs) for config in drawn]

    def hear(self, report: Report) -> list[Action]:
        return []


def random(*, n: int, seed: int | None = None, **axes: object) -> RandomSearch:
    """n different configurations, each axis drawn from its space: a list, or choice, uniform, loguniform, integers.

    Without a seed the run's own is used. A space of fewer than n configurations is an error, not a smaller sweep.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise UsageError(f"random(n={n!r}): n is the number of configurations, at least 1.")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise UsageError(f"random(seed={seed!r}): the seed must be a whole number, or None for the run's.")
    if not axes:
        raise UsageError(
            "The space has no axes.", hint="Name them, for example: random(n=8, lr=loguniform(1e-4, 1e-1))"
        )
    spaces = {name: space_of(name, axis) for name, axis in axes.items()}
    size = space_size(spaces)
    if size is not None and size < n:
        raise UsageError(
            f"random(n={n}): the space has only {size} different configurations.",
            hint=f"Ask for n={size}, or widen an axis.",
        )
    return RandomSearch(n, seed, spaces)


def space_size(spaces: Mapping[str, Space]) -> int | None:
    """How many different configurations there are; None where an axis is a continuum."""
    sizes = [space.size for space in spaces.values()]
    return None if None in sizes else prod(size for size in sizes if size is not None)


def draw_distinct(spaces: Mapping[str, Space], n: int, random: Random) -> list[dict[str, Scalar]]:
    size = space_size(spaces)
    if size is not None and size <= 4 * n:
        return _draw_from_all(spaces, n, random)
    drawn: dict[str, dict[str, Scalar]] = {}
    while len(drawn) < n:
        config = {name: space.draw(random) for name, space in spaces.items()}
        drawn.setdefault(canonical(config), config)
    return list(drawn.values())


def _draw_from_all(spaces: Mapping[str, Space], n: int, random: Random) -> list[dict[str, Scalar]]:
    """For a space that is little larger than n: drawing until all are different could take forever."""
    combinations = product(*(_values(space) for space in spaces.values()))
    keyed = sorted((random.random(), i, values) for i, values in enumerate(combinations))
    return [dict(zip(spaces, values, strict=True)) for _, _, values in keyed[:n]]


def _values(space: Space) -> tuple[Scalar, ...]:
    if isinstance(space, Choice):
        return space.values
    assert isinstance(space, Integers), "a continuum has no list of values"
    return tuple(range(space.low, space.high + 1))
