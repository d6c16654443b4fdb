"""The contract between a unit and the framework that trains it.

A framework is a module with these functions; `regatta.testing.frameworks.FrameworkContract` tests one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regatta.configuration import Scalar

Indices = NDArray[np.int64]
LossFunction = Callable[[Any, Any, Mapping[str, Scalar]], Any]


class Trainee(Protocol):
    """A model with all that trains it; frameworks add what they need."""

    model: Any
    optimizer: Any


class Framework(Protocol):
    """The verbs of a framework."""

    NAME: str

    def owns(self, model: object) -> bool:
        """Whether a model belongs to this framework; must not import it when it is not loaded."""

    def assemble(self, built: Any, device: str) -> Any:
        """What `model_fn` returned as a trainee on the device; a UsageError says what is wrong with it."""

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """All random numbers inside come from the seed; outside, nothing has changed."""

    def contained(self) -> AbstractContextManager[None]:
        """Settings of the whole process that change inside are as they were afterwards, for the next unit."""

    def prepare(self, data: Any, device: str) -> Any:
        """Arrays become the framework's, on the device; anything else stays as it is."""

    def untouched(self, data: Any) -> AbstractContextManager[None]:
        """A scope whose end raises a UsageError if prepared data, which other units share, was changed in it."""

    def rows(self, data: Any) -> int:
        """The number of examples in prepared data."""

    def train(
        self,
        trainee: Any,
        data: Any,
        batches: Iterable[Indices],
        loss_fn: LossFunction,
        config: Mapping[str, Scalar],
    ) -> float:
        """One optimizer step per batch, in order; the mean loss over all rows."""

    def end_epoch(self, trainee: Any) -> None:
        """Advance the schedules that count epochs."""

    def evaluate(
        self,
        trainee: Any,
        data: Any,
        batches: Iterable[Indices],
        loss_fn: LossFunction,
        config: Mapping[str, Scalar],
    ) -> float:
        """The mean loss over all rows, in evaluation mode; the trainee is unchanged."""

    def evaluating(self, trainee: Any) -> AbstractContextManager[None]:
        """A scope in which the model is in evaluation mode and keeps no gradients."""

    def save(self, trainee: Any, path: Path) -> None:
        """Write the whole state of the trainee: weights, buffers, optimizer, schedules."""

    def loose(self, trainee: Any) -> dict[str, Any]:
        """Plain values and random generators, by name, that `save` leaves out: changes of them are lost at a hop."""

    def read(self, path: Path) -> Any:
        """Bring a saved state into memory, without a trainee: what a worker does ahead of time."""

    def restore(self, trainee: Any, state: Any) -> None:
        """Put what `read` gave into a freshly assembled trainee of the same configuration, without loss."""


def described(built: object) -> str:
    """What `model_fn` returned, in words."""
    if built is None:
        return "None (is a `return` missing?)"
    if isinstance(built, tuple):
        return "(" + ", ".join(map(described, built)) + ")"
    return f"the class {built.__name__}, not one of its objects" if isinstance(built, type) else type(built).__name__
