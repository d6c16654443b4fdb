"""What a model keeps beside its state: whatever a unit changes there, the next one, with a new model, would not see.

Only a model that has changed in nothing but its state may stay from one unit to the next.
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

MOST = 20_000  # things that are looked at; what keeps more is taken for changed
IN_STATE = ("_parameters", "_modules", "_buffers", "training")
PLAIN = (bool, int, float, complex, str, bytes, type(None), type, types.ModuleType, types.BuiltinFunctionType)


def unsaved_state(model: torch.nn.Module) -> object:
    """Equal as long as nothing changes that no state_dict holds; of objects, what is in their attributes counts."""
    walk = _ObjectWalk(model)
    found = walk.of(model)
    return object() if walk.seen_too_much else found


class _ObjectWalk:
    def __init__(self, model: torch.nn.Module) -> None:
        import torch

        self._torch = torch
        self._held = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
        self._numbers: dict[int, int] = {}  # of what was met already, which may hold itself
        self._kept: list[object] = []  # so that no number is given twice

    @property
    def seen_too_much(self) -> bool:
        return len(self._kept) > MOST

    def of(self, value: Any) -> object:
        if isinstance(value, PLAIN):
            return repr(value)  # NaN equals itself, and 1 is not True
        if id(value) in self._numbers or self.seen_too_much:
            return "again", self._numbers.get(id(value))
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        return type(value).__name__, self._inside(value)

    def _inside(self, value: Any) -> object:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return (value.requires_grad, None if id(value) in self._held else _digest(value))
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
            return id(value)  # they have their own state
        if isinstance(value, torch.Generator):
            return bytes(value.get_state().numpy())
        if isinstance(value, np.ndarray):
            return value.shape, repr(value) if value.dtype.hasobject else value.tobytes()
        if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
            return _random_state(value)
        return self._parts(value)

    def _module(self, module: torch.nn.Module) -> object:
        own = type(module).get_extra_state is not self._torch.nn.Module.get_extra_state
        attributes = {} if own else {k: v for k, v in vars(module).items() if k not in IN_STATE and not _empty(v)}
        inside = (module._parameters, module._buffers, module._modules)
        return self._pairs(attributes), [self._pairs(part) for part in inside]

    def _parts(self, value: Any) -> object:
        if isinstance(value, Mapping):
            return self._pairs(value)
        if isinstance(value, functools.partial):
            return self._all((value.func, value.args, value.keywords))
        if isinstance(value, types.MethodType):
            return self._all((value.__self__, value.__func__))
        if isinstance(value, types.FunctionType):
            return self._all(_enclosed(value))
        items = self._all(value) if isinstance(value, Iterable) and hasattr(value, "__len__") else None
        attributes = getattr(value, "__dict__", None)
        return repr(value) if items is None and attributes is None else (items, self._pairs(attributes or {}))

    def _pairs(self, pairs: Mapping[Any, Any]) -> object:
        return [(name if isinstance(name, str) else self.of(name), self.of(part)) for name, part in list(pairs.items())]

    def _all(self, parts: Iterable[Any]) -> object:
        return [self.of(part) for part in list(parts)]


def _empty(value: object) -> bool:
    """Hooks, most of all, of which there are none."""
    return isinstance(value, dict) and not value


def _digest(tensor: torch.Tensor) -> object:
    if tensor.is_sparse or tensor.is_quantized or tensor.is_meta:
        return id(tensor), tensor._version
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return tuple(tensor.shape), str(tensor.dtype), blake3(flat.view(_bytes()).numpy().tobytes()).hexdigest()


def _bytes() -> torch.dtype:
    import torch

    return torch.uint8


def _random_state(generator: np.random.Generator | np.random.RandomState | random.Random) -> str:
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    return repr(generator.getstate() if isinstance(generator, random.Random) else generator.get_state(legacy=False))


def _enclosed(function: types.FunctionType) -> list[Any]:
    """What a function keeps from call to call, but for the globals of its module, which all models share."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    return [cells, function.__defaults__, function.__kwdefaults__, vars(function)]
