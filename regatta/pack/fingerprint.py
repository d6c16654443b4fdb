"""Which members have the same structure: everything that decides what a step computes, except tensor values.

Objects that cannot be compared count as different, so two members never share a fingerprint by mistake.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as global_modules
from torch.optim import optimizer as global_optimizers

if TYPE_CHECKING:
    from regatta.pack.member import Member

_IN_STRUCTURE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_MODULE_INTERNALS = vars(torch.nn.Module()).keys() - {"training"}  # such as hooks, which are mostly empty
_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


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
    replaced = vars(member.optimizer).get("step")  # PyTorch's schedules wrap it, to warn of a wrong order of calls
    if replaced is not None and not hasattr(replaced, "_wrapped_by_lr_sched"):
        return "the optimizer, in place of its step"
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
    """The structure of a module: classes, attributes, shapes."""
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
