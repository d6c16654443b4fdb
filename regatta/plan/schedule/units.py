"""The data types of hop scheduling: units, assignments, and what the end of a unit means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

UnitKind = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One model on one partition, in one epoch (counted from 1): runs without preemption."""

    kind: UnitKind
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
    """The effect of the end of a unit. Each flag is true for exactly one unit of an epoch.

    `trained`: the model has now been trained on all partitions of that epoch.
    `evaluated`: the epoch is now evaluated on all evaluation partitions (true with `trained` if there are none).
    """

    unit: Unit
    trained: bool
    evaluated: bool
