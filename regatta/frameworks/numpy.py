"""The slow, obvious reference: a model is a dict of arrays, and its gradients are the user's business.

def model_fn(config):
    weights = {"w": np.random.normal(size=(64, 10)), "b": np.zeros(10)}
    return weights, regatta.frameworks.numpy.SGD(lr=config["lr"], momentum=0.9)

def loss_fn(weights, batch, config):
    ...
    return loss, {"w": dw, "b": db}
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.configuration import Scalar
from regatta.errors import UsageError
from regatta.frameworks.base import Indices, LossFunction, described
from regatta.frameworks.tree import flatten, unflatten
from regatta.store.states import read_state, state_metadata

NAME = "numpy"
Arrays = dict[str, NDArray[Any]]


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
            f"model_fn returned {described(built)}, where a dict of arrays belongs, or that and an optimizer.",
            hint="The optimizer is a regatta.frameworks.numpy.SGD.",
        )
    return NumpyTrainee(model, optimizer)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def contained() -> nullcontext[None]:
    return nullcontext()


def prepare(data: Any, device: str) -> Any:
    return tuple(data) if isinstance(data, list) else data


def untouched(data: Any) -> nullcontext[None]:
    return nullcontext()  # what our readers give cannot be written to


def rows(data: Any) -> int:
    while isinstance(data, tuple | dict):
        data = data[0] if isinstance(data, tuple) else next(iter(data.values()))
    return len(data)


def _take(data: Any, indices: Indices) -> Any:
    if isinstance(data, tuple):
        return tuple(_take(part, indices) for part in data)
    if isinstance(data, dict):
        return {name: _take(part, indices) for name, part in data.items()}
    return data[indices]


def train(
    trainee: NumpyTrainee,
    data: Any,
    batches: Iterable[Indices],
    loss_fn: LossFunction,
    config: Mapping[str, Scalar],
) -> float:
    if trainee.optimizer is None:
        raise UsageError("loss_fn needs an optimizer, and model_fn returned none.", hint="Return (weights, SGD(...)).")
    total, seen = 0.0, 0
    for indices in batches:
        loss, gradients = loss_fn(trainee.model, _take(data, indices), config)
        trainee.optimizer.step(trainee.model, gradients)
        total += float(loss) * len(indices)
        seen += len(indices)
    return total / max(1, seen)


def end_epoch(trainee: NumpyTrainee) -> None:
    """The reference has no schedules."""


def evaluating(trainee: NumpyTrainee) -> nullcontext[None]:
    return nullcontext()


def evaluate(
    trainee: NumpyTrainee,
    data: Any,
    batches: Iterable[Indices],
    loss_fn: LossFunction,
    config: Mapping[str, Scalar],
) -> float:
    total, seen = 0.0, 0
    for indices in batches:
        loss, _ = loss_fn(trainee.model, _take(data, indices), config)
        total += float(loss) * len(indices)
        seen += len(indices)
    return total / max(1, seen)


def save(trainee: NumpyTrainee, path: Path) -> None:
    from safetensors.numpy import save_file

    tree: dict[str, Any] = {"model": trainee.model}
    if trainee.optimizer is not None:
        tree["optimizer"] = vars(trainee.optimizer)
    skeleton, tensors = {}, {}
    for part, value in tree.items():
        skeleton[part], found = flatten(value, part, lambda leaf: isinstance(leaf, np.ndarray))
        tensors.update(found)
    own = {name: _storable(name, array) for name, array in tensors.items()}
    save_file(own, path, state_metadata(NAME, skeleton))


def _storable(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise UsageError(f"{name} is an array of dtype {array.dtype}, which cannot travel with the model.")
    return np.array(array, order="C")


def loose(trainee: NumpyTrainee) -> dict[str, Any]:
    return {}  # dicts of arrays have nothing else


def read(path: Path) -> dict[str, Any]:
    tensors, meta = read_state(path, "np")
    tree: dict[str, Any] = unflatten(meta["tree"], tensors.__getitem__)
    return tree


def restore(trainee: NumpyTrainee, state: dict[str, Any]) -> None:
    for name, array in state["model"].items():
        trainee.model[name] = array.copy()
    if trainee.optimizer is not None:
        for name, value in state["optimizer"].items():
            setattr(trainee.optimizer, name, copy.deepcopy(value))  # the state may be restored again
