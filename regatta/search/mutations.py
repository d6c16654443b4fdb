"""How a child's value differs from its parent's: by a step, by a factor, or by a new draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from regatta.checks import is_number
from regatta.configuration import Scalar
from regatta.errors import UsageError
from regatta.format import brief
from regatta.search.spaces import Choice, Space


@dataclass(frozen=True)
class Step:
    amounts: tuple[float, ...]
    low: float | None = None
    high: float | None = None

    def mutate(self, value: Scalar, axis: Space, random: Random) -> Scalar:
        return _clip(_as_number(value) + _pick(self.amounts, random), value, self, axis)

    def describe(self) -> dict[str, Any]:
        return {"kind": "step", "amounts": list(self.amounts), "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Factor:
    factors: tuple[float, ...]
    low: float | None = None
    high: float | None = None

    def mutate(self, value: Scalar, axis: Space, random: Random) -> Scalar:
        return _clip(_as_number(value) * _pick(self.factors, random), value, self, axis)

    def describe(self) -> dict[str, Any]:
        return {"kind": "factor", "factors": list(self.factors), "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Resample:
    def mutate(self, value: Scalar, axis: Space, random: Random) -> Scalar:
        return axis.draw(random)

    def describe(self) -> dict[str, Any]:
        return {"kind": "resample"}


Mutation: TypeAlias = Step | Factor | Resample


def step(*amounts: float, low: float | None = None, high: float | None = None) -> Step:
    """Add one of the amounts, all equally likely: `step(16, -16, low=16)` for a batch size.

    The result stays between low and high; by default, within the axis if that is a range.
    """
    _check_numbers("step", amounts, low, high)
    return Step(amounts, low, high)


def factor(*factors: float, low: float | None = None, high: float | None = None) -> Factor:
    """Multiply by one of the factors, all equally likely: `factor(0.8, 1.25)` for a learning rate.

    The result stays between low and high; by default, within the axis if that is a range. Whole numbers stay whole.
    """
    _check_numbers("factor", factors, low, high)
    return Factor(factors, low, high)


def resample() -> Resample:
    """Draw a new value from the axis, independent of the parent's."""
    return Resample()


def check_mutation(name: str, rule: object, axis: Space) -> None:
    """Raise a UsageError unless the rule can be applied to every value of the axis and its results are bounded."""
    if not isinstance(rule, Step | Factor | Resample):
        raise UsageError(
            f"The mutation of {name!r} is {brief(rule)}.",
            hint="Use search.step(...), search.factor(...) or resample().",
        )
    if isinstance(rule, Resample) or not isinstance(axis, Choice):
        return
    odd = [value for value in axis.values if not is_number(value)]
    if odd:
        raise UsageError(
            f"The axis {name!r} has the value {odd[0]!r}, which is not a number that {rule!r} can mutate.",
            hint=f"Write {name}=search.resample().",
        )
    if isinstance(rule, Step) and rule.low is None and min(rule.amounts) < 0:
        raise UsageError(
            f"The mutation of {name!r} steps down by {min(rule.amounts)!r} from listed values without a lower bound.",
            hint="Give step(..., low=...).",
        )


def _check_numbers(call: str, amounts: Sequence[object], low: object, high: object) -> None:
    if not amounts or not all(is_number(amount) for amount in amounts):
        raise UsageError(f"{call}{brief(amounts)}: give at least one number, and nothing else.")
    for name, bound in (("low", low), ("high", high)):
        if bound is not None and not is_number(bound):
            raise UsageError(f"{call}({name}={brief(bound)}): a bound is a number, or None.")
    if low is not None and high is not None and low > high:  # type: ignore[operator]
        raise UsageError(f"{call}(low={low}, high={high}): the lower bound is above the upper one.")


def _as_number(value: Scalar) -> float:
    assert isinstance(value, int | float), "check_mutation accepts numbers only"
    return value


def _pick(values: Sequence[float], random: Random) -> float:
    return values[int(random.random() * len(values))]


def _clip(number: float, before: Scalar, rule: Step | Factor, axis: Space) -> Scalar:
    """Clip the number to the bounds, and round it where the parent's value is a whole number."""
    if not math.isfinite(number):
        return before
    low, high = (None, None) if isinstance(axis, Choice) else (axis.low, axis.high)
    low = low if rule.low is None else rule.low
    high = high if rule.high is None else rule.high
    number = number if low is None else max(low, number)
    number = number if high is None else min(high, number)
    return round(number) if isinstance(before, int) else float(number)
