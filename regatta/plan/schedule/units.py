"""The words of hop scheduling: units, who runs them, and what their end means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One model on one partition, in one epoch (counted from 1): runs without preemption."""

    kind: Kind
    model: str
    epoch: int
    partition: int

    def __str__(self) -> str:
        return f"{self.kind} {self.model} epoch {self.epoch} partition {self.partition}"


@dataclass(frozen=True, slots=True)
class Assignment:
    worker: str
    unit: Unit


@dataclass(frozen=True, slots=True)
class Finished:
    """What the end of a unit brought about; each flag is true for exactly one unit of an epoch.

    `trained`: with it the model has been trained on all partitions of that epoch.
    `evaluated`: with it the epoch is evaluated on all evaluation partitions (with `trained` if there are none).
    """

    unit: Unit
    trained: bool
    evaluated: bool


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a scheduler's story."""

    time: float
    what: str
    worker: str | None = None
    model: str | None = None
    unit: Unit | None = None
