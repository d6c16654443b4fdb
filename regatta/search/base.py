"""The protocol of a search: what it receives from a run, and what it answers.

A run calls `start` once and then `hear` with every report, in the order of its journal. The answers are actions. All
decisions of a search follow from its parameters, the goal and the reports, so a resumed run rebuilds the search by the
same calls. A search never waits: while a rung or a generation is incomplete, it answers reports with no action. The run
ends when all actions are done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from regatta.checks import is_whole
from regatta.configuration import Scalar, canonical, check_configuration
from regatta.errors import UsageError
from regatta.format import brief

Rank: TypeAlias = tuple[bool, float]


@dataclass(frozen=True)
class Goal:
    """What the run optimizes: the metric, the most epochs of a configuration, and the seed."""

    metric: str
    mode: Literal["min", "max"]
    epochs: int
    seed: int

    def rank(self, metrics: Mapping[str, float]) -> Rank:
        """A key that sorts the best metrics first. Reports without the metric, or with NaN, are equal and come last."""
        value = metrics.get(self.metric, math.nan)
        if math.isnan(value):
            return True, 0.0
        return False, value if self.mode == "min" else -value


@dataclass(frozen=True)
class Train:
    """Train a configuration until it has `epochs` in total. A later action with more epochs continues the training.

    A new configuration with a `parent` starts from that configuration's state at the time of the action. `most` is the
    number of epochs that the search may ask for later, if more: the scheduler starts long trainings first.
    """

    config: dict[str, Scalar]
    epochs: int
    parent: str | None = None
    most: int = 0


@dataclass(frozen=True)
class Stop:
    """Give a configuration (its id) no further units; a later `Train` resumes it."""

    config: str


@dataclass(frozen=True)
class Report:
    """A configuration was trained and evaluated up to an epoch, or raised an error: then `failed`, without metrics.

    `config` is its id, `values` the configuration itself; `epoch` counts from 1. `time` is the age of the run in
    seconds, `device_seconds` the sum of the seconds that its workers trained and evaluated: a search has no clock. A
    configuration that was stopped may still report the epoch that was running. `iterations` are the batches of
    `batch_size` rows that the configuration was trained on so far, 0 without a batch size.
    """

    config: str
    values: Mapping[str, Scalar]
    epoch: int
    metrics: Mapping[str, float]
    failed: bool = False
    time: float = 0.0
    device_seconds: float = 0.0
    iterations: int = 0


Action: TypeAlias = Train | Stop


class Search(Protocol):
    """Which configurations to train, how long, and which to stop; `regatta.testing.search` is its contract."""

    def describe(self) -> dict[str, Any]:
        """Kind and parameters, as plain values for the journal."""

    def start(self, goal: Goal) -> list[Action]:
        """Begin, or begin again: all earlier reports are forgotten."""

    def hear(self, report: Report) -> list[Action]:
        """Receive one report. Reports of one configuration are in order; those of several are interleaved."""


class Listed:
    """A search that knows all its configurations at the start and trains each to the end."""

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
    """The configurations as plain dicts; equal ones only once, at their first position."""
    checked = map(check_configuration, configurations)
    return list({canonical(config): config for config in checked}.values())


def check_count(call: str, name: str, value: object, least: int = 1) -> None:
    """Raise a UsageError unless the argument of that name is a whole number from `least`."""
    if not is_whole(value, least):
        raise UsageError(f"{call}({name}={brief(value)}): {name} must be a whole number from {least}.")


def check_seed(call: str, seed: object) -> None:
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise UsageError(f"{call}(seed={brief(seed)}): the seed must be a whole number, or None for the run's.")


def max_epochs(call: str, R: int | None, goal: Goal) -> int:
    """The most epochs of a configuration: R, or the limit of the run."""
    if R is not None and goal.epochs < R:
        raise UsageError(
            f"{call}(R={R}) trains up to {R} epochs, but the sweep allows epochs={goal.epochs}.",
            hint=f"Give the sweep epochs={R}, or leave R out.",
        )
    return goal.epochs if R is None else R
