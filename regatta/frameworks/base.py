"""The contract between a unit and the framework that trains it.

A framework is a module with these functions; `regatta.testing.frameworks.FrameworkContract` tests one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regatta.configuration import Scalar
from regatta.errors import UsageError

Indices = NDArray[np.int64]
LossFunction = Callable[[Any, Any, Mapping[str, Scalar]], Any]
OPTIONAL_LOSS_ARGUMENTS = ("training", "key", "rng")  # what a loss_fn gets by name, if it has an argument of that name
LOSS_OR_TRAIN_FN = (
    "loss_fn(model, batch, config) is called for each batch; train_fn(data, model, optimizer, config) "
    "trains a whole pass over a partition by itself."
)


class Trainee(Protocol):
    """A model with all that trains it; frameworks add what they need."""

    model: Any
    optimizer: Any


class Framework(Protocol):
    """The verbs of a framework."""

    NAME: str
    COMPILES: (
        bool  # the first steps of a trainee cost so much that a worker keeps it, and restores the next state into it
    )

    def owns(self, model: object) -> bool:
        """Whether a model belongs to this framework; must not import it when it is not loaded."""

    def assemble(self, built: Any, device: str) -> Any:
        """What `model_fn` returned as a trainee on the device; a UsageError says what is wrong with it."""

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """All random numbers inside come from the seed; outside, nothing has changed."""

    def keep_settings(self) -> AbstractContextManager[None]:
        """Settings of the whole process that change inside are as they were afterwards, for the next unit."""

    def prepare(self, data: Any, device: str) -> Any:
        """Arrays become the framework's, on the device; anything else stays as it is."""

    def check_unmodified(self, data: Any) -> AbstractContextManager[None]:
        """A scope whose end raises a UsageError if prepared data, which other units share, was changed in it."""

    def rows(self, data: Any) -> int:
        """The number of examples in prepared data."""

    def train(
        self,
        trainee: Any,
        data: Any,
        batches: Iterable[Indices],
        loss_fn: LossFunction | None,
        config: Mapping[str, Scalar],
    ) -> dict[str, float]:
        """One optimizer step per batch, in order; the mean `loss` over all rows, and what the model measures itself.

        Without a loss_fn the model must have a loss of its own.
        """

    def train_fn_arguments(self, trainee: Any) -> tuple[Any, Any]:
        """The model and the optimizer as a `train_fn` gets them, to change them in place."""

    def end_epoch(self, trainee: Any) -> None:
        """Advance the schedules that count epochs."""

    def evaluate(
        self,
        trainee: Any,
        data: Any,
        batches: Iterable[Indices],
        loss_fn: LossFunction | None,
        config: Mapping[str, Scalar],
    ) -> dict[str, float]:
        """The mean `loss` over all rows, in evaluation mode, with what else `train` gives; the trainee is unchanged."""

    def evaluating(self, trainee: Any) -> AbstractContextManager[None]:
        """A scope in which the model is in evaluation mode and keeps no gradients."""

    def save(self, trainee: Any, path: Path) -> None:
        """Write the whole state of the trainee: weights, buffers, optimizer, schedules."""

    def unsaved_values(self, trainee: Any) -> dict[str, Any]:
        """Plain values and random generators, by name, that `save` leaves out: changes of them are lost at a hop."""

    def read(self, path: Path) -> Any:
        """Bring a saved state into memory, without a trainee: what a worker does ahead of time."""

    def restore(self, trainee: Any, state: Any) -> None:
        """Put what `read` gave into a freshly assembled trainee of the same configuration, without loss."""


def describe(built: object) -> str:
    """What `model_fn` returned, in words."""
    if built is None:
        return "None (is a `return` missing?)"
    if isinstance(built, tuple):
        return "(" + ", ".join(map(describe, built)) + ")"
    return f"the class {built.__name__}, not one of its objects" if isinstance(built, type) else type(built).__name__


def bind_optional(loss_fn: LossFunction | None, model: object, **offered: Any) -> LossFunction:
    """The loss_fn with those of the offered values that it has an argument for; there must be one."""
    if loss_fn is None:
        raise UsageError(
            f"model_fn returned {describe(model)}, which has no loss of its own: give either loss_fn or train_fn.",
            hint=LOSS_OR_TRAIN_FN,
        )
    wanted = {name: value for name, value in offered.items() if name in arguments(loss_fn)}
    return functools.partial(loss_fn, **wanted) if wanted else loss_fn


def arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except ValueError:  # builtins need not have one
        return ()
