"""The values of one axis: a list, or a range to draw from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, TypeAlias

from regatta.checks import is_number
from regatta.configuration import Scalar, canonical, check_configuration
from regatta.errors import UsageError
from regatta.format import brief

# Draws use only `Random.random`, the one method whose results Python promises to keep in later versions.


@dataclass(frozen=True)
class Choice:
    values: tuple[Scalar, ...]

    @property
    def size(self) -> int | None:
        return len(self.values)

    def draw(self, random: Random) -> Scalar:
        return self.values[int(random.random() * len(self.values))]

    def describe(self) -> Any:
        return list(self.values)


@dataclass(frozen=True)
class Uniform:
    low: float
    high: float
    log: bool = False

    @property
    def size(self) -> int | None:
        """The number of different values; None for a continuous range."""
        return None

    def draw(self, random: Random) -> Scalar:
        return _between(self.low, self.high, self.log, random)

    def describe(self) -> Any:
        return {"kind": "uniform", **asdict(self)}


@dataclass(frozen=True)
class Integers:
    low: int
    high: int
    log: bool = False

    @property
    def size(self) -> int | None:
        return self.high - self.low + 1

    def draw(self, random: Random) -> Scalar:
        return min(self.high, math.floor(_between(self.low, self.high + 1, self.log, random)))

    def describe(self) -> Any:
        return {"kind": "integers", **asdict(self)}


Space: TypeAlias = Choice | Uniform | Integers


def choice(*values: object) -> Choice:
    """One of these values, all equally likely: `choice(16, 32)` or `choice([16, 32])`."""
    only = values[0] if len(values) == 1 else values
    listed = _as_list(only)
    return Choice(_check_values("choice", (only,) if listed is None else listed))


def uniform(low: float, high: float) -> Uniform:
    """A number from low to high, uniformly distributed."""
    _check_range("uniform", low, high, log=False)
    return Uniform(float(low), float(high))


def loguniform(low: float, high: float) -> Uniform:
    """A number from low to high whose logarithm is uniformly distributed: for learning rates."""
    _check_range("loguniform", low, high, log=True)
    return Uniform(float(low), float(high), log=True)


def integers(low: int, high: int, log: bool = False) -> Integers:
    """A whole number from low to high, both included; with `log`, uniform in its logarithm."""
    if not all(isinstance(bound, int) and not isinstance(bound, bool) for bound in (low, high)):
        raise UsageError(f"integers({brief(low)}, {brief(high)}): both bounds must be whole numbers.")
    _check_range("integers", low, high, log)
    if high - low >= 2**53:
        raise UsageError(f"integers({low}, {high}): the range is wider than 2**53, more than can be drawn evenly.")
    return Integers(low, high, log)


def make_space(name: str, axis: object) -> Space:
    """The space of an axis: itself, the values of a list, or a single value."""
    if isinstance(axis, Choice | Uniform | Integers):
        return axis
    listed = _as_list(axis)
    if listed is None and isinstance(axis, Mapping | set | frozenset):
        raise UsageError(f"The axis {name!r} is {brief(axis)}.", hint="Give a list of values.")
    return Choice(_check_values(name, (axis,) if listed is None else listed))


def _as_list(axis: object) -> Sequence[object] | None:
    """The values of a list, tuple, range or one-dimensional array; None for anything else."""
    if isinstance(axis, list | tuple | range):
        return axis
    to_list = getattr(axis, "tolist", None)
    if callable(to_list) and getattr(axis, "ndim", None) == 1:
        values: list[object] = to_list()
        return values
    return None


def _check_values(name: str, values: Sequence[object]) -> tuple[Scalar, ...]:
    if not values:
        raise UsageError(f"The axis {name!r} is empty: there is nothing to try.", hint="Give at least one value.")
    pairs = [check_configuration({name: value}) for value in values]
    return tuple({canonical(pair): pair[name] for pair in pairs}.values())


def _check_range(kind: str, low: float, high: float, log: bool) -> None:
    received = f"{kind}({brief(low)}, {brief(high)})"
    if not is_number(low) or not is_number(high) or not is_number(high - low):
        raise UsageError(f"{received}: both bounds, and the distance between them, must be finite numbers.")
    if low >= high:
        raise UsageError(f"{received}: the lower bound must be less than the upper one.")
    if log and low <= 0:
        raise UsageError(f"{received}: on a logarithmic scale the lower bound must be greater than 0.")


def _between(low: float, high: float, log: bool, random: Random) -> float:
    if log:
        drawn = math.exp(_between(math.log(low), math.log(high), False, random))
    else:
        drawn = low + (high - low) * random.random()
    return min(max(drawn, low), high)
