"""A space of configurations: an axis for every value, and which combinations are valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from random import Random
from typing import Any, TypeAlias

from regatta.configuration import Scalar, canonical
from regatta.errors import UsageError
from regatta.search.spaces import Choice, Integers, Space, space_of

Where: TypeAlias = Callable[[dict[str, Scalar]], bool]

LISTED = 2**16  # a space of no more configurations than that is listed, where many may be invalid
MISSES = 20_000  # so many draws in a row that bring nothing new: there is hardly anything left


@dataclass(frozen=True)
class Domain:
    axes: Mapping[str, Space]
    where: Where | None = None

    @property
    def size(self) -> int | None:
        """How many combinations there are, valid or not; None where an axis is a continuum."""
        sizes = [axis.size for axis in self.axes.values()]
        return None if None in sizes else prod(size for size in sizes if size is not None)

    def describe(self) -> dict[str, Any]:
        axes = {name: axis.describe() for name, axis in self.axes.items()}
        return {"axes": axes} if self.where is None else {"axes": axes, "where": name_of(self.where)}

    def allows(self, config: Mapping[str, Scalar]) -> bool:
        return self.where is None or bool(self.where(dict(config)))

    def every(self) -> Iterator[dict[str, Scalar]]:
        """All valid configurations of a space without a continuum, the last axis varying fastest."""
        for values in product(*(_values(axis) for axis in self.axes.values())):
            config = dict(zip(self.axes, values, strict=True))
            if self.allows(config):
                yield config

    def count(self) -> int | None:
        """How many valid configurations there are; None where they cannot be listed."""
        return sum(1 for _ in self.every()) if (self.size or LISTED + 1) <= LISTED else None

    def draw(self, n: int, random: Random, call: str) -> list[dict[str, Scalar]]:
        """n different configurations; an error that names the call if there are not so many."""
        self.check_size(n, call)
        few = 4 * n if self.where is None else max(4 * n, LISTED)
        found = self._draw_listed(n, random) if (self.size or few + 1) <= few else self._draw_each(n, random)
        if len(found) < n:
            raise UsageError(
                f"{call} needs {n} different configurations; of those tried, where={name_of(self.where)} allows "
                f"{len(found)}.",
                hint="Widen an axis, or exclude less.",
            )
        return found

    def check_size(self, n: int, call: str) -> None:
        if self.size is not None and self.size < n:
            raise UsageError(
                f"{call} needs {n} different configurations; the space has only {self.size} different configurations.",
                hint="Ask for fewer, or widen an axis.",
            )

    def _draw_listed(self, n: int, random: Random) -> list[dict[str, Scalar]]:
        """For a space that is little larger than n: drawing until all are different could take forever."""
        keyed = sorted((random.random(), i, config) for i, config in enumerate(self.every()))
        return [config for _, _, config in keyed[:n]]

    def _draw_each(self, n: int, random: Random) -> list[dict[str, Scalar]]:
        drawn: dict[str, dict[str, Scalar]] = {}
        misses = 0
        while len(drawn) < n and misses < MISSES:
            config = {name: axis.draw(random) for name, axis in self.axes.items()}
            key = canonical(config)
            if key in drawn or not self.allows(config):
                misses += 1
            else:
                drawn[key] = config
                misses = 0
        return list(drawn.values())


def domain_of(
    call: str, space: Mapping[str, object] | None, axes: Mapping[str, object], where: Where | None = None
) -> Domain:
    """The domain of a search's arguments: axes in a mapping, by keyword, or both."""
    if space is not None and not isinstance(space, Mapping):
        raise UsageError(
            f"The space of {call} is {space!r}, a {type(space).__name__}; it must be a dict of axes.",
            hint="Write {'lr': [0.1, 0.01]}, or name the axes: lr=[0.1, 0.01]; one called 'space' goes into the dict.",
        )
    if where is not None and not callable(where):
        raise UsageError(
            f"{call}(where={where!r}): where is a function of a configuration that says whether it is valid.",
            hint="An axis that is called 'where' goes into a dict: {'where': [...]}.",
        )
    twice = sorted(set(space or ()) & set(axes))
    if twice:
        raise UsageError(f"The axis {twice[0]!r} of {call} is given twice, in the dict and by name.")
    named = {**(space or {}), **axes}
    if not named:
        raise UsageError(f"{call}: the space has no axes.", hint="Name them, for example: lr=[0.1, 0.01].")
    return Domain({name: space_of(name, axis) for name, axis in named.items()}, where)


def name_of(function: object) -> str:
    """What to call a function in a journal or a message."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _values(space: Space) -> tuple[Scalar, ...] | range:
    if isinstance(space, Choice):
        return space.values
    assert isinstance(space, Integers), "a continuum has no list of values"
    return range(space.low, space.high + 1)
