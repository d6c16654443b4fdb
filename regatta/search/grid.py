"""Every combination of the values of each axis."""

from __future__ import annotations

from itertools import product

from regatta.errors import UsageError
from regatta.search.base import Listed
from regatta.search.spaces import Choice, space_of


def grid(**axes: object) -> Listed:
    """All combinations, the last axis varying fastest. An axis is a list of values, or one value."""
    if not axes:
        raise UsageError("The grid has no axes.", hint="Name them, for example: grid(lr=[0.1, 0.01], batch_size=32)")
    lists = {name: _values(name, axis) for name, axis in axes.items()}
    description = {"kind": "grid", "axes": {name: choice.describe() for name, choice in lists.items()}}
    combinations = product(*(choice.values for choice in lists.values()))
    return Listed(description, (dict(zip(lists, values, strict=True)) for values in combinations))


def _values(name: str, axis: object) -> Choice:
    space = space_of(name, axis)
    if not isinstance(space, Choice):
        raise UsageError(
            f"The axis {name!r} is {axis!r}; a grid needs the values themselves.",
            hint=f"Give a list, or draw with search.random(n=..., {name}=...).",
        )
    return space
