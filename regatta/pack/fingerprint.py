"""Which members have the same structure: everything that decides what a step computes, except tensor values.

Objects that cannot be compared count as different, so two members never share a fingerprint by mistake.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from regatta.pack.member import Member

_MODULE_INTERNALS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def fingerprint(member: Member) -> tuple[Any, ...]:
    """Architecture, loss function, batch size and optimizer class; equal for members that one stack could hold."""
    return (
        *step_signature(member),
        tuple(sorted((k, _key(v)) for k, v in member.optimizer.param_groups[0].items() if isinstance(v, bool | None))),
        member.clip_norm is not None,
        member.scaler is not None,
        member.schedule is not None,
    )


def step_signature(member: Member) -> tuple[Any, ...]:
    """A key for the cost of a step, equal for members that differ only in hyperparameters."""
    optimizer = type(member.optimizer).__qualname__
    return structure(member.model), _key(member.loss_fn), member.batch_size, optimizer


def structure(module: torch.nn.Module) -> tuple[Any, ...]:
    """The structure of a module: classes, attributes, shapes."""
    kind = type(module)
    own = {name: value for name, value in vars(module).items() if name not in _MODULE_INTERNALS}
    return (
        f"{kind.__module__}.{kind.__qualname__}",
        id(kind),
        tuple(sorted((name, _key(value)) for name, value in own.items())),
        tuple((name, _tensor(value)) for name, value in module._parameters.items()),
        tuple((name, _tensor(value)) for name, value in module._buffers.items()),
        tuple((name, None if part is None else structure(part)) for name, part in module._modules.items()),
    )


def _tensor(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    return tuple(tensor.shape), str(tensor.dtype), str(tensor.device), tensor.requires_grad


def _key(value: Any) -> Any:
    """A comparable key for an attribute; an object without one is equal only to itself."""
    if isinstance(value, _SCALARS):
        return type(value).__name__, repr(value)
    if isinstance(value, tuple | list):
        return type(value).__name__, tuple(map(_key, value))
    if isinstance(value, dict):
        return "dict", tuple(sorted((repr(name), _key(part)) for name, part in value.items()))
    if isinstance(value, functools.partial):
        return "partial", _key(value.func), _key(value.args), _key(value.keywords)
    if isinstance(value, types.FunctionType):
        return _function(value)
    return "object", id(value)


def _function(function: types.FunctionType) -> Any:
    """Two closures of one function are equal if the values that they hold are equal."""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    return "function", id(function.__code__), _key(function.__defaults__), _key(function.__kwdefaults__), _key(held)
