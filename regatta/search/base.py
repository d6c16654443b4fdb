"""What a search says and hears.

A run calls `start` once and then `hear` with every report, in the order of its journal; the answers are actions.
Everything that a search decides follows from its parameters, the goal and what it heard, so that a resumed run
rebuilds it by the same calls. It never waits: a rung of a bracket or a generation is a matter of which reports it
answers with nothing yet. The run is over when no action is left to be done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from regatta.configuration import Scalar, canonical, check_configuration
from regatta.errors import UsageError

Rank: TypeAlias = tuple[bool, float]


@dataclass(frozen=True)
class Goal:
    """What the run is after: the metric to judge by, the most epochs that a configuration may get, the seed."""

    metric: str
    mode: Literal["min", "max"]
    epochs: int
    seed: int

    def rank(self, metrics: Mapping[str, float]) -> Rank:
        """A key that sorts the best metrics first; where the metric is missing or NaN they are equal, and last."""
        value = metrics.get(self.metric, math.nan)
        if math.isnan(value):
            return True, 0.0
        return False, value if self.mode == "min" else -value


@dataclass(frozen=True)
class Train:
    """Train a configuration until it has so many epochs in all; said again with more, it goes on to that many.

    A new configuration with a `parent` starts from that configuration's state as it is when this is acted on. `most`
    says how many epochs the search may come to want of it, if that is more: what has a long way to go is begun first.
    """

    config: dict[str, Scalar]
    epochs: int
    parent: str | None = None
    most: int = 0


@dataclass(frozen=True)
class Stop:
    """Give a configuration (its id) no further units; a later `Train` of it takes it up again."""

    config: str


@dataclass(frozen=True)
class Report:
    """A configuration was trained and evaluated up to an epoch, or raised: then `failed`, without metrics.

    `config` is its id, `values` the configuration itself; `epoch` counts from 1. `time` is how many seconds the run had
    been going on, `device_seconds` how many seconds its workers had trained and evaluated, all together: a search has
    no clock of its own. A configuration that was stopped may still report an epoch that was on its way.
    """

    config: str
    values: Mapping[str, Scalar]
    epoch: int
    metrics: Mapping[str, float]
    failed: bool = False
    time: float = 0.0
    device_seconds: float = 0.0


Action: TypeAlias = Train | Stop


class Search(Protocol):
    """Which configurations to train, how far, and which to stop; `regatta.testing.search` is its contract."""

    def describe(self) -> dict[str, Any]:
        """Kind and parameters, as plain values for the journal."""

    def start(self, goal: Goal) -> list[Action]:
        """Begin, or begin again: forgets all that was heard."""

    def hear(self, report: Report) -> list[Action]:
        """Take in one report. Of one configuration they come in order, of different ones as they happen."""


class Listed:
    """A search that knows all its configurations beforehand and trains each to the end."""

    def __init__(self, description: dict[str, Any], configurations: Iterable[Mapping[str, Scalar]]) -> None:
        self._description = description
        self._configurations = distinct(configurations)

    def __len__(self) -> int:
        return len(self._configurations)

    def describe(self) -> dict[str, Any]:
        return self._description

    def start(self, goal: Goal) -> list[Action]:
        return [Train(dict(config), goal.epochs) for config in self._configurations]

    def hear(self, report: Report) -> list[Action]:
        return []


def distinct(configurations: Iterable[Mapping[str, Scalar]]) -> list[dict[str, Scalar]]:
    """The configurations as plain dicts, equal ones once, where they came first."""
    checked = map(check_configuration, configurations)
    return list({canonical(config): config for config in checked}.values())


def check_count(call: str, name: str, value: object, least: int = 1) -> None:
    """A UsageError unless the argument of that name is a whole number from `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{call}({name}={value!r}): {name} must be a whole number from {least}.")


def check_seed(call: str, seed: object) -> None:
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise UsageError(f"{call}(seed={seed!r}): the seed must be a whole number, or None for the run's.")


def epochs_of(call: str, R: int | None, goal: Goal) -> int:
    """The most epochs of a configuration: R, or as many as the run allows."""
    if R is not None and goal.epochs < R:
        raise UsageError(
            f"{call}(R={R}) trains up to {R} epochs, but the sweep allows epochs={goal.epochs}.",
            hint=f"Give the sweep epochs={R}, or leave R out.",
        )
    return goal.epochs if R is None else R
