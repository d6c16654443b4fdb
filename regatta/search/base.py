"""What a search says and hears.

A run calls `start` once and then `hear` with every report, in the order of its journal; the answers are actions.
Everything that a search decides follows from its parameters, the goal and what it heard, so that a resumed run
rebuilds it by the same calls. It never waits: a rung of a bracket or a generation is a matter of which reports it
answers with nothing yet. The run is over when no action is left to be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from regatta.configuration import Scalar, canonical, check_configuration


@dataclass(frozen=True)
class Goal:
    """What the run is after: the metric to judge by, the most epochs that a configuration may get, the seed."""

    metric: str
    mode: Literal["min", "max"]
    epochs: int
    seed: int


@dataclass(frozen=True)
class Train:
    """Train a configuration until it has so many epochs in all; said again with more, it goes on to that many.

    A new configuration with a `parent` starts from that configuration's weights as they are when this is acted on.
    """

    config: dict[str, Scalar]
    epochs: int
    parent: str | None = None


@dataclass(frozen=True)
class Stop:
    """Give a configuration (its id) no further units; a later `Train` of it takes it up again."""

    config: str


@dataclass(frozen=True)
class Report:
    """A configuration was trained and evaluated up to an epoch, or raised: then `failed`, without metrics.

    `config` is its id, `values` the configuration itself; `epoch` counts from 1.
    """

    config: str
    values: Mapping[str, Scalar]
    epoch: int
    metrics: Mapping[str, float]
    failed: bool = False


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
