"""A space of configurations: one axis per name, and which combinations are valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from random import Random
from typing import Any, TypeAlias

from regatta.configuration import Scalar, canonical
from regatta.errors import UsageError
from regatta.format import brief
from regatta.search.spaces import Choice, Integers, Space, make_space

Where: TypeAlias = Callable[[dict[str, Scalar]], bool]

MAX_LISTED = 2**16  # a space up to this size is enumerated where many configurations may be invalid
MAX_MISSES = 20_000  # after this many draws in a row without a new configuration, hardly any are left


@dataclass(frozen=True)
class Domain:
    axes: Mapping[str, Space]
    where: Where | None = None

    @property
    def size(self) -> int | None:
        """The number of combinations, valid or not; None where an axis is continuous."""
        sizes = [axis.size for axis in self.axes.values()]
        return None if None in sizes else prod(size for size in sizes if size is not None)

    def describe(self) -> dict[str, Any]:
        axes = {name: axis.describe() for name, axis in self.axes.items()}
        return {"axes": axes} if self.where is None else {"axes": axes, "where": function_name(self.where)}

    def allows(self, config: Mapping[str, Scalar]) -> bool:
        return self.where is None or bool(self.where(dict(config)))

    def all_valid(self) -> Iterator[dict[str, Scalar]]:
        """All valid configurations of a space without continuous axes, the last axis varying fastest."""
        for values in product(*(_values(axis) for axis in self.axes.values())):
            config = dict(zip(self.axes, values, strict=True))
            if self.allows(config):
                yield config

    def count(self) -> int | None:
        """The number of valid configurations; None where they cannot be enumerated."""
        return sum(1 for _ in self.all_valid()) if (self.size or MAX_LISTED + 1) <= MAX_LISTED else None

    def draw(self, n: int, random: Random, call: str) -> list[dict[str, Scalar]]:
        """Draw n different configurations; a UsageError that names the call if there are fewer."""
        self.check_size(n, call)
        few = 4 * n if self.where is None else max(4 * n, MAX_LISTED)
        if (self.size or few + 1) <= few:  # hardly larger than n: drawing until all are different could take forever
            keyed = sorted((random.random(), i, config) for i, config in enumerate(self.all_valid()))
            found = [config for _, _, config in keyed[:n]]
        else:
            found = self._draw_each(n, random)
        if len(found) < n:
            raise UsageError(
                f"{call} needs {n} different configurations; where={function_name(self.where)} allowed only "
                f"{len(found)} of those tried.",
                hint="Widen an axis, or exclude less.",
            )
        return found

    def check_size(self, n: int, call: str) -> None:
        if self.size is not None and self.size < n:
            raise UsageError(
                f"{call} needs {n} different configurations; the space has only {self.size} different configurations.",
                hint="Ask for fewer, or widen an axis.",
            )

    def _draw_each(self, n: int, random: Random) -> list[dict[str, Scalar]]:
        drawn: dict[str, dict[str, Scalar]] = {}
        misses = 0
        while len(drawn) < n and misses < MAX_MISSES:
            config = {name: axis.draw(random) for name, axis in self.axes.items()}
            key = canonical(config)
            if key in drawn or not self.allows(config):
                misses += 1
            else:
                drawn[key] = config
                misses = 0
        return list(drawn.values())


def make_domain(
    call: str, space: Mapping[str, object] | None, axes: Mapping[str, object], where: Where | None = None
) -> Domain:
    """The domain of a search's arguments: axes in a mapping, by keyword, or both."""
    if space is not None and not isinstance(space, Mapping):
        raise UsageError(
            f"The space of {call} is {brief(space)}; it must be a dict of axes.",
            hint="Write {'lr': [0.1, 0.01]}, or name the axes: lr=[0.1, 0.01]; one called 'space' goes into the dict.",
        )
    if where is not None and not callable(where):
        raise UsageError(
            f"{call}(where={brief(where)}): where is a function of a configuration that says whether it is valid.",
            hint="An axis that is called 'where' goes into a dict: {'where': [...]}.",
        )
    twice = sorted(set(space or ()) & set(axes))
    if twice:
        raise UsageError(f"The axis {twice[0]!r} of {call} is given twice, in the dict and by name.")
    named = {**(space or {}), **axes}
    if not named:
        raise UsageError(f"{call}: the space has no axes.", hint="Name them, for example: lr=[0.1, 0.01].")
    return Domain({name: make_space(name, axis) for name, axis in named.items()}, where)


def function_name(function: object) -> str:
    """The name of a function for a journal or a message."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _values(space: Space) -> tuple[Scalar, ...] | range:
    if isinstance(space, Choice):
        return space.values
    assert isinstance(space, Integers), "a continuous axis has no list of values"
    return range(space.low, space.high + 1)
