"""What a user's schedule may do where packs advance it: change hyperparameters, and nothing else.

A plain loop advances a schedule after each step, with the member's weights and random streams in place. A captured step
needs the hyperparameters of the next steps in advance, and a stack holds the weights of all members elsewhere. So a
schedule that looks at what training changes, or that draws random numbers, is followed by no pack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from regatta.pack.state.randomness import ProcessStreams
from regatta.pack.state.watched import WatchedDict

_HARMLESS = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "ndim", "dtype", "device", "layout", "is_cuda", "is_leaf", "itemsize", "nbytes")
) | {torch.Tensor.numel, torch.Tensor.size, torch.Tensor.dim, torch.Tensor.__len__, torch.Tensor.__hash__}


class TouchesTraining(Exception):
    """A schedule does more than to change hyperparameters; the message says what."""


class TensorGuard(TorchFunctionMode):
    """A scope in which no function may read or write some tensors; it raises TouchesTraining before it happens."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._storages = {place for place in map(_storage, tensors) if place is not None}

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if function not in _HARMLESS and any(map(self._holds, (*args, *given.values()))):
            raise TouchesTraining("looks at tensors that training changes")
        return function(*args, **given)

    def _holds(self, value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(map(self._holds, value))
        return isinstance(value, torch.Tensor) and _storage(value) in self._storages


def _storage(tensor: torch.Tensor) -> int | None:
    if tensor.layout is not torch.strided or tensor.is_meta:
        return id(tensor)
    return tensor.untyped_storage().data_ptr() or None


class OptimizerStates:
    """Which tensors and values the state of an optimizer holds, whatever the tensors hold."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        held: list[dict[Any, Any]] = [optimizer.state, *optimizer.state.values()]
        self._watched = [WatchedDict("", part, dict(part)) for part in held if isinstance(part, dict)]

    def changed(self) -> bool:
        return any(watched.change() is not None for watched in self._watched)

    def put_back(self) -> None:
        for watched in self._watched:
            watched.put_back()


class ScheduleGuard:
    """Around steps of a user's schedule in advance: what it has touched, and everything put back."""

    def __init__(self, tensors: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.scope = TensorGuard(tensors)
        self._streams, self._states = ProcessStreams(), OptimizerStates(optimizer)

    def first_change(self) -> str | None:
        """What the steps have done that they may not, or None; it is undone."""
        if self._streams.moved():
            self._streams.put_back()
            return "draws random numbers"
        if self._states.changed():
            self._states.put_back()
            return "changes the state of the optimizer"
        return None
