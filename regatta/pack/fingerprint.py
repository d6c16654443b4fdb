"""Which members have the same structure: everything that decides what a step computes, except tensor values.

Objects that cannot be compared count as different, so two members never share a fingerprint by mistake.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as global_modules
from torch.optim import optimizer as global_optimizers

from regatta.pack.state.watched import content, fields_of, is_frozen, never_changes

if TYPE_CHECKING:
    from regatta.pack.member import Member

_IN_STRUCTURE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_MODULE_INTERNALS = vars(torch.nn.Module()).keys() - {"training"}  # such as hooks, which are mostly empty
_SCALARS = (bool, int, float, complex, str, bytes, type(None), types.EllipsisType, torch.dtype, torch.device)


def fingerprint(member: Member) -> tuple[Any, ...]:
    """Architecture, loss function, batch size and optimizer class; equal for members that one stack could hold."""
    return (
        *step_signature(member),
        tuple(sorted((k, _key(v)) for k, v in member.optimizer.param_groups[0].items() if isinstance(v, bool | None))),
        member.clip_norm is not None,
        member.scaler is not None,
        member.schedule is not None,
        first_hook(member),
    )


_MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_GLOBAL_HOOKS = (
    *(getattr(global_modules, f"_global{name}") for name in _MODULE_HOOKS),
    global_optimizers._global_optimizer_pre_hooks,
    global_optimizers._global_optimizer_post_hooks,
)


def first_hook(member: Member) -> str | None:
    """Where a member has a hook, or None. A hook is code of the host that runs at each step of a plain loop."""
    if any(getattr(member.optimizer, name, None) for name in _OPTIMIZER_HOOKS):
        return "the optimizer"
    for name, value in vars(member.optimizer).items():
        # PyTorch's schedules wrap `step`, to warn of a wrong order of calls
        if callable(value) and hasattr(type(member.optimizer), name) and not hasattr(value, "_wrapped_by_lr_sched"):
            return f"the optimizer, in place of its {name}"
    if any(_GLOBAL_HOOKS):
        return "the process"
    for place, module in member.model.named_modules():
        if any(getattr(module, name, None) for name in _MODULE_HOOKS):
            return f"the module {place or type(module).__name__}"
    for name, parameter in member.model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return f"the parameter {name}"
    return None


def step_signature(member: Member) -> tuple[Any, ...]:
    """A key for the cost of a step, equal for members that differ only in hyperparameters."""
    optimizer = type(member.optimizer).__qualname__
    return structure(member.model), _key(member.loss_fn), member.batch_size, optimizer


def structure(module: torch.nn.Module) -> tuple[Any, ...]:
    """The structure of a module: classes, attributes, shapes, and which of its parameters are one and the same."""
    numbers: dict[int, int] = {}
    tied = [
        numbers.setdefault(id(tensor), len(numbers)) for _, tensor in module.named_parameters(remove_duplicate=False)
    ]
    return _structure(module), tuple(tied) if len(numbers) < len(tied) else ()


def _structure(module: torch.nn.Module) -> tuple[Any, ...]:
    kind = type(module)
    own = {
        name: value
        for name, value in vars(module).items()
        if name not in _IN_STRUCTURE and (name not in _MODULE_INTERNALS or value)
    }
    return (
        f"{kind.__module__}.{kind.__qualname__}",
        id(kind),
        tuple(sorted((name, _key(value)) for name, value in own.items())),
        tuple((name, _tensor(value)) for name, value in module._parameters.items()),
        tuple((name, _tensor(value)) for name, value in module._buffers.items()),
        tuple((name, None if part is None else _structure(part)) for name, part in module._modules.items()),
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
    if isinstance(value, dict | types.MappingProxyType):
        return type(value).__name__, tuple(sorted((repr(name), _key(part)) for name, part in value.items()))
    if isinstance(value, set | frozenset) and all(isinstance(part, _SCALARS) for part in value):
        return type(value).__name__, tuple(sorted(map(repr, value)))
    if isinstance(value, enum.Enum):
        return "enum", id(type(value)), value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value)
    if isinstance(value, functools.partial):
        return "partial", _key(value.func), _key(value.args), _key(value.keywords)
    if isinstance(value, types.FunctionType):
        return _function(value)
    if isinstance(value, slice):
        return "slice", _key(value.start), _key(value.stop), _key(value.step)
    if isinstance(value, types.MethodType):
        return "method", _key(value.__func__), _key(value.__self__)
    return "object", id(value)


def _function(function: types.FunctionType) -> Any:
    """Two closures of one function are equal if the values that they hold are equal."""
    held = [_key(content(cell)) for cell in function.__closure__ or ()]
    parts = _key(function.__defaults__), _key(function.__kwdefaults__), _key(vars(function)), tuple(held)
    return "function", id(function.__code__), id(function.__globals__), *parts


_FROZEN: dict[int, tuple[weakref.ref[Any], Any]] = {}  # keys of values that cannot change, such as a network


def _dataclass(value: Any) -> Any:
    """Two instances of a dataclass are equal if all that they hold is. The key of one that never changes is kept."""
    known = _FROZEN.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    held = fields_of(value) if is_frozen(value) else {**fields_of(value), **getattr(value, "__dict__", {})}
    key = "dataclass", id(type(value)), tuple((name, _key(part)) for name, part in sorted(held.items()))
    if never_changes(value) and hasattr(value, "__weakref__"):
        number = id(value)
        _FROZEN[number] = weakref.ref(value, lambda _: _FROZEN.pop(number, None)), key
    return key
