"""The simple reference framework: a model is a dict of arrays, and the user's loss_fn computes its gradients.

def model_fn(config):
    weights = {"w": np.random.normal(size=(64, 10)), "b": np.zeros(10)}
    return weights, regatta.frameworks.numpy.SGD(lr=config["lr"], momentum=0.9)

def loss_fn(weights, batch, config):
    ...
    return loss, {"w": dw, "b": db}
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regatta.configuration import Configuration
from regatta.errors import UsageError
from regatta.frameworks.arrays import Arrays, mean_loss, read_arrays, read_only, take, write_arrays
from regatta.frameworks.arrays import rows as rows
from regatta.frameworks.arrays import seeded as seeded
from regatta.frameworks.base import Indices, LossFunction, bind_optional, describe
from regatta.frameworks.settings import ProcessSetting
from regatta.frameworks.state_tree import flatten, unflatten

NAME = "numpy"
COMPILES = False


@dataclass
class SGD:
    """Stochastic gradient descent with momentum, for the reference."""

    lr: float
    momentum: float = 0.0
    velocity: Arrays = field(default_factory=dict)

    def step(self, weights: Arrays, gradients: Arrays) -> None:
        for name, gradient in gradients.items():
            if self.momentum:
                before = self.velocity.get(name, np.zeros_like(gradient))
                gradient = self.velocity[name] = np.asarray(self.momentum * before + gradient)
            weights[name] -= self.lr * gradient


@dataclass
class NumpyTrainee:
    model: Arrays
    optimizer: SGD | None = None


def owns(model: object) -> bool:
    return isinstance(model, dict) and bool(model) and all(isinstance(a, np.ndarray) for a in model.values())


def assemble(built: Any, device: str) -> NumpyTrainee:
    model, optimizer = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not owns(model) or not (optimizer is None or isinstance(optimizer, SGD)):
        raise UsageError(
            f"model_fn returned {describe(built)}, where a dict of arrays belongs, or that and an optimizer.",
            hint="The optimizer is a regatta.frameworks.numpy.SGD.",
        )
    return NumpyTrainee(model, optimizer)


def settings() -> tuple[ProcessSetting, ...]:
    return ()  # those of NumPy belong to every process


def prepare(data: Any, device: str) -> Any:
    return read_only(data)


def check_unmodified(data: Any) -> nullcontext[None]:
    return nullcontext()  # prepared data is read-only


def train(
    trainee: NumpyTrainee, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
) -> dict[str, float]:
    if trainee.optimizer is None:
        raise UsageError("loss_fn needs an optimizer, and model_fn returned none.", hint="Return (weights, SGD(...)).")
    loss_fn = bind_optional(loss_fn, trainee.model, training=True)
    losses = []
    for indices in batches:
        loss, gradients = _check_loss(loss_fn(trainee.model, take(data, indices), config))
        trainee.optimizer.step(trainee.model, gradients)
        losses.append((float(loss), len(indices)))
    return mean_loss(losses)


def _check_loss(returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2 or np.size(returned[0]) != 1:
        raise UsageError(
            f"loss_fn returned {describe(returned)}; for NumPy it returns the loss, a number, and the gradients.",
            hint="Write `return loss, {name: gradient}`.",
        )
    return returned


def train_fn_arguments(trainee: NumpyTrainee) -> tuple[Arrays, SGD | None, None]:
    return trainee.model, trainee.optimizer, None


def schedule_position(trainee: NumpyTrainee) -> None:
    return None


def end_epoch(trainee: NumpyTrainee) -> None:
    """The reference has no schedules."""


def evaluating(trainee: NumpyTrainee) -> nullcontext[None]:
    return nullcontext()


def evaluate(
    trainee: NumpyTrainee, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
) -> dict[str, float]:
    loss_fn = bind_optional(loss_fn, trainee.model, training=False)
    losses = []
    for indices in batches:
        loss, _ = _check_loss(loss_fn(trainee.model, take(data, indices), config))
        losses.append((float(loss), len(indices)))
    return mean_loss(losses)


def save(trainee: NumpyTrainee, path: Path) -> None:
    tree: dict[str, Any] = {"model": trainee.model}
    if trainee.optimizer is not None:
        tree["optimizer"] = vars(trainee.optimizer)
    skeleton, tensors = flatten(tree, lambda leaf: isinstance(leaf, np.ndarray))
    write_arrays(path, NAME, tensors, skeleton)


def unsaved_values(trainee: NumpyTrainee) -> dict[str, Any]:
    return {}  # a dict of arrays has nothing else


def read(path: Path) -> dict[str, Any]:
    tensors, meta = read_arrays(path)
    tree: dict[str, Any] = unflatten(meta["tree"], tensors.__getitem__)
    return tree


def restore(trainee: NumpyTrainee, state: dict[str, Any]) -> None:
    for name, array in state["model"].items():
        trainee.model[name] = array.copy()
    if trainee.optimizer is not None:
        for name, value in state["optimizer"].items():
            setattr(trainee.optimizer, name, copy.deepcopy(value))  # the state may be restored again
