"""Finds what a PyTorch model keeps outside its state, such as counters, lists and random generators.

A new model would not have what a unit changes there. So a model may stay from one unit to the next only if a unit
changed nothing but its state.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

if TYPE_CHECKING:
    import torch

MAX_OBJECTS = 20_000  # a model with more objects counts as changed
IN_STATE = ("_parameters", "_modules", "_buffers", "training")
PLAIN = (bool, int, float, complex, str, bytes, type(None), type, types.ModuleType, types.BuiltinFunctionType)


def unsaved_state(model: torch.nn.Module) -> object:
    """A value that stays equal as long as nothing outside the state_dict changes; objects count by their attributes."""
    walk = _ObjectWalk(model)
    found = walk.describe(model)
    return object() if walk.too_many_objects else found


class _ObjectWalk:
    def __init__(self, model: torch.nn.Module) -> None:
        import torch

        self._torch = torch
        self._saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
        self._numbers: dict[int, int] = {}  # of objects seen before, because an object may contain itself
        self._seen: list[object] = []  # keeps the objects alive, so that no id is used twice

    @property
    def too_many_objects(self) -> bool:
        return len(self._seen) > MAX_OBJECTS

    def describe(self, value: Any) -> object:
        if isinstance(value, PLAIN):
            return repr(value)  # NaN equals itself, and 1 is not True
        if id(value) in self._numbers or self.too_many_objects:
            return "again", self._numbers.get(id(value))
        self._numbers[id(value)] = len(self._seen)
        self._seen.append(value)
        return type(value).__name__, self._content(value)

    def _content(self, value: Any) -> object:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return (value.requires_grad, None if id(value) in self._saved else _digest(value))
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
            return id(value)  # its state is saved
        if isinstance(value, torch.Generator):
            return bytes(value.get_state().numpy())
        if isinstance(value, np.ndarray):
            return value.shape, repr(value) if value.dtype.hasobject else value.tobytes()
        if isinstance(value, np.random.Generator):
            return repr(value.bit_generator.state)
        if isinstance(value, np.random.RandomState):
            return repr(value.get_state(legacy=False))
        if isinstance(value, random.Random):
            return repr(value.getstate())
        return self._items(value)

    def _module(self, module: torch.nn.Module) -> object:
        attributes: dict[str, Any] = {}
        if type(module).get_extra_state is self._torch.nn.Module.get_extra_state:  # otherwise it saves them itself
            empty = {name for name, value in vars(module).items() if isinstance(value, dict) and not value}  # hooks
            attributes = {k: v for k, v in vars(module).items() if k not in IN_STATE and k not in empty}
        inside = (module._parameters, module._buffers, module._modules)
        return self._pairs(attributes), [self._pairs(part) for part in inside]

    def _items(self, value: Any) -> object:
        if isinstance(value, Mapping):
            return self._pairs(value)
        if isinstance(value, functools.partial):
            return self._all((value.func, value.args, value.keywords))
        if isinstance(value, types.MethodType):
            return self._all((value.__self__, value.__func__))
        if isinstance(value, types.FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
            # All that it keeps from call to call, except the globals of its module, which all models share.
            return self._all((cells, value.__defaults__, value.__kwdefaults__, vars(value)))
        items = self._all(value) if isinstance(value, Iterable) and hasattr(value, "__len__") else None
        attributes = getattr(value, "__dict__", None)
        return repr(value) if items is None and attributes is None else (items, self._pairs(attributes or {}))

    def _pairs(self, pairs: Mapping[Any, Any]) -> object:
        return [
            (name if isinstance(name, str) else self.describe(name), self.describe(part))
            for name, part in list(pairs.items())
        ]

    def _all(self, parts: Iterable[Any]) -> object:
        return [self.describe(part) for part in list(parts)]


def _digest(tensor: torch.Tensor) -> object:
    import torch

    if tensor.is_sparse or tensor.is_quantized or tensor.is_meta:
        return id(tensor), tensor._version
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return tuple(tensor.shape), str(tensor.dtype), blake3(flat.view(torch.uint8).numpy().tobytes()).hexdigest()
