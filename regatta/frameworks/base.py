"""The contract of a framework: the functions that its module must have.

`regatta.testing.frameworks.FrameworkContract` tests it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regatta.configuration import Configuration
from regatta.errors import UsageError
from regatta.frameworks.settings import ProcessSetting

Indices = NDArray[np.int64]
LossFunction = Callable[[Any, Any, Configuration], Any]
OPTIONAL_LOSS_ARGUMENTS = ("training", "key", "rng")  # a loss_fn gets those that it has an argument for
OPTIONAL_TRAIN_ARGUMENTS = ("schedule",)  # the same for a train_fn
LOSS_OR_TRAIN_FN = (
    "loss_fn(model, batch, config) is called for each batch; train_fn(data, model, optimizer, config) "
    "trains a whole pass over a partition by itself."
)


class Framework(Protocol):
    """The functions of a framework."""

    NAME: str
    COMPILES: bool  # first steps are expensive: a worker keeps the trainee, and restores the next state into it

    def owns(self, model: object) -> bool:
        """Whether a model belongs to this framework; must not import it when it is not loaded."""

    def assemble(self, built: Any, device: str) -> Any:
        """Make a trainee on the device of what `model_fn` returned; UsageError if something is wrong with it."""

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """A scope in which all random numbers come from the seed; it changes nothing outside."""

    def settings(self) -> Sequence[ProcessSetting]:
        """The settings of the whole process, or of its thread, that a model may leave behind for the next unit."""

    def prepare(self, data: Any, device: str) -> Any:
        """Turn arrays into the framework's own, on the device; anything else stays as it is."""

    def check_unmodified(self, data: Any) -> AbstractContextManager[None]:
        """A scope whose end raises a UsageError if the data, which other units share, was changed in it."""

    def rows(self, data: Any) -> int:
        """The number of examples in prepared data."""

    def train(
        self, trainee: Any, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
    ) -> dict[str, float]:
        """Take an optimizer step for each batch, in order; returns the mean `loss` over rows and the model's metrics.

        Without a loss_fn the model must have its own loss.
        """

    def train_fn_arguments(self, trainee: Any) -> tuple[Any, Any, Any]:
        """The model, the optimizer and the schedule of steps for a `train_fn`, which changes them in place.

        The schedule is None if there is none, or if it belongs to the optimizer.
        """

    def schedule_position(self, trainee: Any) -> object:
        """A value that changes whenever the schedule of steps advances; None if there is none."""

    def end_epoch(self, trainee: Any) -> None:
        """Advance the schedules that count epochs."""

    def evaluate(
        self, trainee: Any, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
    ) -> dict[str, float]:
        """Compute the results of `train` in evaluation mode, without changing the trainee."""

    def evaluating(self, trainee: Any) -> AbstractContextManager[None]:
        """A scope in which the model is in evaluation mode and records no gradients."""

    def save(self, trainee: Any, path: Path) -> None:
        """Write the whole state of the trainee: weights, buffers, optimizer, schedules."""

    def unsaved_values(self, trainee: Any) -> dict[str, Any]:
        """Plain values and random generators that `save` leaves out, by name: their changes are lost at a hop."""

    def read(self, path: Path) -> Any:
        """Read a saved state into memory, without a trainee; a worker does this ahead of time."""

    def restore(self, trainee: Any, state: Any) -> None:
        """Put a state from `read` into a trainee of the same configuration, without loss."""


def describe(built: object) -> str:
    """An object that `model_fn` returned, in words."""
    if built is None:
        return "None (is a `return` missing?)"
    if isinstance(built, tuple):
        return "(" + ", ".join(map(describe, built)) + ")"
    return f"the class {built.__name__}, not one of its objects" if isinstance(built, type) else type(built).__name__


def bind_optional(loss_fn: LossFunction | None, model: object, **optional: Any) -> LossFunction:
    """Bind those of the optional arguments that the loss_fn has; there must be a loss_fn."""
    if loss_fn is None:
        raise UsageError(
            f"model_fn returned {describe(model)}, which does not have its own loss: give either loss_fn or train_fn.",
            hint=LOSS_OR_TRAIN_FN,
        )
    wanted = {name: value for name, value in optional.items() if name in arguments(loss_fn)}
    return functools.partial(loss_fn, **wanted) if wanted else loss_fn


def wrong_loss(loss: object, wanted: str = "it returns one number, as a tensor") -> UsageError:
    """The error for what loss_fn returned, with the remedy for that mistake."""
    shape = getattr(loss, "shape", None)
    if loss is None:
        hint = "Write `return loss` at the end of loss_fn."
    elif isinstance(loss, tuple | list):
        hint = "Return the loss alone; eval_fn returns further metrics."
    elif isinstance(loss, dict):
        name = "loss" if "loss" in loss else next(iter(loss), "loss")
        hint = f"Return its loss alone, such as losses[{name!r}]; eval_fn returns further metrics."
    elif shape is not None and len(shape):
        hint = "Take its mean."
    else:
        hint = "Return the tensor itself, without .item()."
    found = f"a dict of {', '.join(map(repr, loss))}" if isinstance(loss, dict) and loss else describe(loss)
    found = f"shape {tuple(shape)}" if shape is not None and len(shape) else found
    return UsageError(f"loss_fn returned {found}; {wanted}.", hint=hint)


def arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except ValueError:  # some builtins have no signature
        return ()
