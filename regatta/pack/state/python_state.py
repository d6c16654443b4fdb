"""The Python values that a user's code reads and changes while a model trains: attributes, closures, counters.

A captured step holds such values as constants, and a stack runs the code of one member for all. So a member whose step
changes one is trained alone, and what a comparison has changed is put back.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import random
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch

MAX_DEPTH = 5  # objects in objects; what lies deeper is not followed
MAX_WATCHED = 4096
MAX_ARRAY_BYTES = 1 << 16  # larger arrays are data

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_NOT_FOLLOWED = (*_SCALARS, type, types.ModuleType, types.BuiltinFunctionType, torch.dtype, torch.device)
_CONTAINERS = (dict, list, set, deque)
_HOOKS = frozenset(vars(torch.nn.Module()).keys() - {"training"})  # in every module, and its tensors and parts
_OPTIMIZER_PARTS = frozenset(("state", "param_groups", "step"))  # a schedule wraps `step`


class PythonState:
    """The values that can be reached from a model, an optimizer and some code, as they are now.

    Tensors that training changes, such as parameters and momenta, are left out. Other tensors must stay the same.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        code: Iterable[tuple[str, object]] = (),
        ignored: Iterable[object] = (),
    ) -> None:
        """`code` are functions and objects with their names; `ignored` objects are not followed."""
        self._watched: list[_Watched] = []
        self._seen = {id(thing) for thing in ignored}
        self._trained: set[int] = set()
        if model is not None:
            self._trained |= {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
            self._follow(model, "of the module", 0)
        if optimizer is not None:
            self._follow_optimizer(optimizer)
        for name, thing in code:
            self._follow(thing, f"of {name}", 0)

    def first_change(self) -> str | None:
        """What has changed since, as in "calls of the module", or None."""
        return next(filter(None, (watched.change() for watched in self._watched)), None)

    def put_back(self) -> None:
        """Write everything back where it was, except large arrays and tensors with more than one number."""
        for watched in self._watched:
            watched.put_back()

    def _follow(self, thing: Any, place: str, depth: int) -> None:
        if isinstance(thing, _NOT_FOLLOWED) or id(thing) in self._seen:
            return
        if depth > MAX_DEPTH or len(self._watched) >= MAX_WATCHED:
            return
        self._seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            self._follow_tensor(thing, place)
        elif isinstance(thing, torch.nn.Module):
            self._follow_module(thing, place, depth)
        elif isinstance(thing, dict):
            self._follow_dict(thing, place, depth)
        elif isinstance(thing, _CONTAINERS):
            self._watched.append(_Items(place, thing, type(thing)(thing)))
            self._follow_all(thing, place, depth + 1)
        elif isinstance(thing, tuple | frozenset):
            self._follow_all(thing, place, depth)
        elif isinstance(thing, types.FunctionType):
            self._follow_function(thing, place, depth)
        elif isinstance(thing, types.MethodType):
            self._follow_all((thing.__self__, thing.__func__), place, depth)
        elif isinstance(thing, functools.partial):
            self._follow_all((thing.func, thing.args, thing.keywords), place, depth)
        elif isinstance(thing, tuple(_STATES)):
            self._watched.append(_Opaque(place, thing))
        elif isinstance(thing, np.ndarray):
            if thing.nbytes <= MAX_ARRAY_BYTES:
                self._watched.append(_Array(place, thing, thing.copy()))
        elif isinstance(thing, Iterator):
            self._watched.append(_Unknown(place))
        elif isinstance(thing, types.MappingProxyType):
            self._follow_all(thing.values(), place, depth)
        elif is_frozen(thing):
            if not never_changes(thing):
                self._follow_all(fields_of(thing).values(), place, depth + 1)
        elif hasattr(thing, "__dict__"):
            self._follow_dict(vars(thing), place, depth)

    def _follow_all(self, things: Iterable[Any], place: str, depth: int) -> None:
        for thing in things:
            self._follow(thing, place, depth)

    def _follow_dict(self, held: dict[Any, Any], place: str, depth: int, but: frozenset[str] = frozenset()) -> None:
        copied = {name: value for name, value in held.items() if name not in but} if but else dict(held)
        self._watched.append(_Names(place, held, copied, but))
        for name, value in copied.items():
            if not isinstance(value, _NOT_FOLLOWED):
                self._follow(value, f"in {name} {place}" if isinstance(name, str) else place, depth + 1)

    def _follow_module(self, module: torch.nn.Module, place: str, depth: int) -> None:
        self._follow_dict(vars(module), place, depth, _HOOKS)
        for tensors in (module._parameters, module._buffers):
            if tensors:
                self._watched.append(_Names(place, tensors, dict(tensors)))
            for name, tensor in tensors.items():
                if tensor is not None and type(tensor) in (torch.nn.Parameter, torch.Tensor):
                    self._watched.append(_RequiresGrad(f"of {name} {place}", tensor, tensor.requires_grad))
                    self._follow_tensor(tensor, f"in {name} {place}", restore=False)
        if module._modules:
            self._watched.append(_Names(place, module._modules, dict(module._modules)))
        for name, part in module._modules.items():
            if part is not None and id(part) not in self._seen:
                self._seen.add(id(part))
                self._follow_module(part, f"of {name} {place}", depth)

    def _follow_tensor(self, tensor: torch.Tensor, place: str, restore: bool = True) -> None:
        if id(tensor) in self._trained or tensor.is_inference():
            return
        value = tensor.detach().clone() if restore and tensor.numel() == 1 else None
        self._watched.append(_TensorValue(place, tensor, tensor._version, value))

    def _follow_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._seen.add(id(optimizer))
        self._follow_dict(vars(optimizer), "of the optimizer", 0, _OPTIMIZER_PARTS)
        for group in optimizer.param_groups:
            self._trained |= {id(parameter) for parameter in group["params"]}
            self._follow_dict(group, "of the optimizer", 0)
        for state in optimizer.state.values():
            if isinstance(state, dict):
                self._trained |= {id(value) for value in state.values() if isinstance(value, torch.Tensor)}
                self._follow_dict(state, "of the optimizer", 0)

    def _follow_function(self, function: types.FunctionType, place: str, depth: int) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._watched.append(_Cell(f"{name} {place}", cell, content(cell)))
            self._follow(content(cell), f"in {name} {place}", depth + 1)
        self._follow_all((function.__defaults__, function.__kwdefaults__, vars(function)), place, depth + 1)
        used = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        scalars = {name: value for name, value in used.items() if isinstance(value, _SCALARS)}
        if scalars:
            self._watched.append(_Globals(place, function.__globals__, scalars))
        self._follow_all((value for value in used.values() if isinstance(value, _CONTAINERS)), place, depth + 1)


@functools.lru_cache(1024)
def _names(code: types.CodeType) -> frozenset[str]:
    """The global names that a function and the functions inside it use."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


class _Watched(Protocol):
    def change(self) -> str | None: ...

    def put_back(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Names:
    """A dict, or the attributes of an object; names in `but` are not its own."""

    place: str
    held: dict[Any, Any]
    before: dict[Any, Any]
    but: frozenset[str] = frozenset()

    def change(self) -> str | None:
        held, before = self.held, self.before
        for name, value in before.items():
            if name not in held or (held[name] is not value and not _alike(held[name], value)):
                return f"{name} {self.place}"
        if len(held) > len(before):
            new = next((name for name in held if name not in before and name not in self.but), None)
            return None if new is None else f"{new} {self.place}"
        return None

    def put_back(self) -> None:
        if self.change() is not None:
            for name in [name for name in self.held if name not in self.before and name not in self.but]:
                del self.held[name]
            self.held.update(self.before)


@dataclasses.dataclass(frozen=True, slots=True)
class _Items:
    """A list, set or deque."""

    place: str
    held: Any
    before: Any

    def change(self) -> str | None:
        if isinstance(self.held, set):
            same = self.held == self.before
        else:
            same = len(self.held) == len(self.before) and all(map(_alike, self.held, self.before))
        return None if same else f"a {type(self.held).__name__} {self.place}"

    def put_back(self) -> None:
        if self.change() is not None:
            self.held.clear()
            (self.held.update if isinstance(self.held, set) else self.held.extend)(self.before)


@dataclasses.dataclass(frozen=True, slots=True)
class _Cell:
    """A variable of a closure."""

    place: str
    cell: types.CellType
    before: Any

    def change(self) -> str | None:
        return None if _alike(content(self.cell), self.before) else self.place

    def put_back(self) -> None:
        if self.change() is not None:
            self.cell.cell_contents = self.before


@dataclasses.dataclass(frozen=True, slots=True)
class _Globals:
    """The global numbers and strings that a function uses."""

    place: str
    names: dict[str, Any]
    before: dict[str, Any]

    def change(self) -> str | None:
        changed = (name for name, value in self.before.items() if not _alike(self.names.get(name), value))
        return next((f"{name} {self.place}" for name in changed), None)

    def put_back(self) -> None:
        if self.change() is not None:
            self.names.update(self.before)


@dataclasses.dataclass(frozen=True, slots=True)
class _RequiresGrad:
    place: str
    tensor: torch.Tensor
    before: bool

    def change(self) -> str | None:
        return None if self.tensor.requires_grad == self.before else f"requires_grad {self.place}"

    def put_back(self) -> None:
        self.tensor.requires_grad_(self.before)


@dataclasses.dataclass(frozen=True, slots=True)
class _TensorValue:
    """A tensor that is no parameter of the model; a single number can be put back."""

    place: str
    tensor: torch.Tensor
    version: int
    before: torch.Tensor | None

    def change(self) -> str | None:
        same = self.tensor._version == self.version
        if not same and self.before is not None:  # it may have been written, with the value that it had
            same = torch.equal(self.tensor.detach(), self.before)
        return None if same else f"a tensor {self.place}"

    def put_back(self) -> None:
        if self.before is not None and self.change() is not None:
            with torch.no_grad():
                self.tensor.copy_(self.before)


@dataclasses.dataclass(frozen=True, slots=True)
class _Array:
    place: str
    array: Any
    before: Any

    def change(self) -> str | None:
        return None if self.array.tobytes() == self.before.tobytes() else f"an array {self.place}"

    def put_back(self) -> None:
        if self.change() is not None:
            self.array[...] = self.before


_STATES: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: (
        lambda generator: generator.bit_generator.state,
        lambda generator, state: setattr(generator.bit_generator, "state", state),
    ),
}


class _Opaque:
    """A random generator."""

    def __init__(self, place: str, thing: Any) -> None:
        self._place, self._thing = place, thing
        self._get, self._set = next(functions for kind, functions in _STATES.items() if isinstance(thing, kind))
        self._before = self._get(thing)

    def change(self) -> str | None:
        now = self._get(self._thing)
        same = torch.equal(now, self._before) if isinstance(now, torch.Tensor) else repr(now) == repr(self._before)
        return None if same else f"a generator {self._place}"

    def put_back(self) -> None:
        self._set(self._thing, self._before)


@dataclasses.dataclass(frozen=True, slots=True)
class _Unknown:
    """An iterator: its position cannot be seen, so it counts as changed."""

    place: str

    def change(self) -> str | None:
        return f"an iterator {self.place}"

    def put_back(self) -> None: ...


_UNSET = object()


def content(cell: types.CellType) -> Any:
    """What a variable of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:  # its variable is not set yet
        return _UNSET


def is_frozen(thing: Any) -> bool:
    """Whether an object is an instance of a frozen dataclass."""
    parameters = vars(type(thing)).get("__dataclass_params__")  # a subclass without it can have other attributes
    return parameters is not None and bool(parameters.frozen)


def fields_of(thing: Any) -> dict[str, Any]:
    """What the fields of a dataclass hold, without what it has computed from them and kept."""
    return {field.name: getattr(thing, field.name, _UNSET) for field in dataclasses.fields(thing)}


_CONSTANT: dict[int, tuple[weakref.ref[Any], bool]] = {}  # large values, such as a network, are looked through once


def never_changes(value: Any) -> bool:
    """Whether a value and all that it holds stays as it is."""
    if isinstance(value, (*_SCALARS, enum.Enum)):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(never_changes, value))
    if isinstance(value, types.MappingProxyType):  # the dict underneath belongs to it alone
        return all(map(never_changes, value.values()))
    if not is_frozen(value):
        return False
    known = _CONSTANT.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    found = all(map(never_changes, fields_of(value).values()))
    if hasattr(value, "__weakref__"):
        number = id(value)
        _CONSTANT[number] = weakref.ref(value, lambda _: _CONSTANT.pop(number, None)), found
    return found


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same object, or equal numbers, strings or tuples."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return isinstance(one, _SCALARS) and bool(one == other or (one != one and other != other))
