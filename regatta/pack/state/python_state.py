"""The Python values that a user's code reads and changes while a model trains: attributes, closures, counters, globals.

A captured step holds such values as constants, and a stack runs the code of one member for all. So a member whose step
changes one is trained alone, and what a comparison has changed is put back.

Values are followed from the model and its functions to all that they reach, the nearest first: what they hold, the
globals that the user's functions use, and the classes of the user's objects. What PyTorch and other libraries hold in
their own modules is not followed.
"""

from __future__ import annotations

import argparse
import collections
import functools
import sys
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from regatta.code_identity import is_users_class, is_users_function, is_users_module
from regatta.pack.state.watched import (
    GENERATORS,
    SCALARS,
    UNSET,
    Watched,
    WatchedArray,
    WatchedAttributes,
    WatchedCell,
    WatchedContext,
    WatchedDict,
    WatchedFlag,
    WatchedGenerator,
    WatchedGlobals,
    WatchedItems,
    WatchedIterator,
    WatchedTensor,
    content,
    fields_of,
    is_frozen,
    never_changes,
)

MAX_WATCHED = 1 << 14  # what lies further away is not followed
MAX_ITEMS = 1 << 16  # longer lists are data
MAX_ARRAY_BYTES = 1 << 16  # larger arrays are data, and larger tensors are not put back

_NOT_FOLLOWED = (*SCALARS, types.BuiltinFunctionType, torch.dtype, torch.device)
_CONTAINERS = (dict, list, set, deque)
_HOOKS = frozenset(vars(torch.nn.Module()).keys() - {"training"})  # in every module, and its tensors and parts
_OPTIMIZER_PARTS = frozenset(("state", "param_groups", "step"))  # a schedule wraps `step`
# objects of Python's library that hold what others put into them; others, such as loggers, have no part in a step
_HOLDERS = (types.SimpleNamespace, argparse.Namespace, threading.local, collections.UserDict, collections.UserList)
_OF_EVERY_CLASS = frozenset((*vars(type("Empty", (), {})), "__annotations__", "__abstractmethods__", "_abc_impl"))


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
        self._watched: list[Watched] = []
        self._seen = {id(thing) for thing in ignored}
        self._trained: set[int] = set()
        self._waiting: deque[tuple[Any, str]] = deque()
        if model is not None:
            self._trained |= {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
            self._follow(model, "of the module")
        if optimizer is not None:
            self._follow_optimizer(optimizer)
        for name, thing in code:
            self._follow(thing, f"of {name}")
        while self._waiting and len(self._watched) < MAX_WATCHED:
            self._watch(*self._waiting.popleft())

    def first_change(self) -> str | None:
        """What has changed since, as in "calls of the module", or None."""
        return next(filter(None, (watched.change() for watched in self._watched)), None)

    def put_back(self) -> None:
        """Write everything back where it was, except large arrays and tensors."""
        for watched in self._watched:
            watched.put_back()

    def _follow(self, thing: Any, place: str) -> None:
        if not isinstance(thing, _NOT_FOLLOWED) and id(thing) not in self._seen:
            self._seen.add(id(thing))
            self._waiting.append((thing, place))

    def _follow_all(self, things: Iterable[Any], place: str) -> None:
        for thing in things:
            self._follow(thing, place)

    def _watch(self, thing: Any, place: str) -> None:
        if isinstance(thing, torch.Tensor):
            self._watch_tensor(thing, place)
        elif isinstance(thing, torch.nn.Module):
            self._watch_module(thing, place)
        elif isinstance(thing, dict):
            self._watch_dict(thing, place)
        elif isinstance(thing, _CONTAINERS):
            if len(thing) <= MAX_ITEMS:
                self._watched.append(WatchedItems(place, thing, type(thing)(thing)))
                self._follow_all(thing, place)
        elif isinstance(thing, tuple | frozenset):
            self._follow_all(thing, place)
        elif isinstance(thing, types.FunctionType):
            self._watch_function(thing, place)
        elif isinstance(thing, types.MethodType):
            self._follow_all((thing.__self__, thing.__func__), place)
        elif isinstance(thing, functools.partial):
            self._follow_all((thing.func, thing.args, thing.keywords), place)
        elif isinstance(thing, GENERATORS):
            self._watched.append(WatchedGenerator(place, thing))
        elif isinstance(thing, np.ndarray):
            if thing.nbytes <= MAX_ARRAY_BYTES:
                self._watched.append(WatchedArray(place, thing, thing.copy()))
        elif isinstance(thing, Iterator):
            self._watched.append(WatchedIterator(place))
        elif isinstance(thing, ContextVar):
            self._watched.append(WatchedContext(place, thing, thing.get(UNSET)))
            self._follow(thing.get(UNSET), f"in {thing.name} {place}")
        elif isinstance(thing, types.MappingProxyType):
            self._follow_all(thing.values(), place)
        elif isinstance(thing, type):
            self._watch_class(thing, place)
        elif is_frozen(thing):
            if not never_changes(thing):
                self._follow_all(fields_of(thing).values(), place)
        else:
            self._watch_object(thing, place)

    def _watch_object(self, thing: Any, place: str) -> None:
        kind: type = type(thing)
        if isinstance(thing, functools._lru_cache_wrapper):
            self._follow(thing.__wrapped__, place)
        if kind.__module__.partition(".")[0] in sys.stdlib_module_names and not isinstance(thing, _HOLDERS):
            return
        if hasattr(thing, "__dict__"):
            self._watch_dict(vars(thing), place)
        slots = _slots(kind)
        if slots:
            read = functools.partial(_read_slots, thing, slots)
            self._watched.append(WatchedAttributes(place, thing, read(), read))
            self._follow_values(read(), place)
        self._follow(kind, f"of the class of {place.removeprefix('of ').removeprefix('in ')}")

    def _watch_class(self, kind: type, place: str) -> None:
        """The attributes of a user's class and its bases, and what its methods use."""
        if not is_users_class(kind):
            return
        read = functools.partial(_read_class, kind)
        values = read()
        self._watched.append(WatchedAttributes(place, kind, values, read))
        self._follow_values({name: _function_in(value) for name, value in values.items()}, place)
        self._follow_all(kind.__bases__, place)

    def _watch_dict(self, held: dict[Any, Any], place: str, but: frozenset[str] = frozenset()) -> None:
        if len(held) > MAX_ITEMS:
            return
        copied = {name: value for name, value in held.items() if name not in but} if but else dict(held)
        self._watched.append(WatchedDict(place, held, copied, but))
        self._follow_values(copied, place)

    def _follow_values(self, held: Mapping[Any, Any], place: str) -> None:
        for name, value in held.items():
            if not isinstance(value, _NOT_FOLLOWED):
                self._follow(value, f"in {name} {place}" if isinstance(name, str) else place)

    def _watch_module(self, module: torch.nn.Module, place: str) -> None:
        self._watch_dict(vars(module), place, _HOOKS)
        for tensors in (module._parameters, module._buffers):
            if tensors:
                self._watched.append(WatchedDict(place, tensors, dict(tensors)))
            for name, tensor in tensors.items():
                if tensor is not None and type(tensor) in (torch.nn.Parameter, torch.Tensor):
                    self._watched.append(WatchedFlag(f"of {name} {place}", tensor, tensor.requires_grad))
                    self._follow(tensor, f"in {name} {place}")
        if module._modules:
            self._watched.append(WatchedDict(place, module._modules, dict(module._modules)))
        for name, part in module._modules.items():
            self._follow(part, f"of {name} {place}")
        self._follow(type(module), f"of the class of {place.removeprefix('of ')}")

    def _watch_tensor(self, tensor: torch.Tensor, place: str) -> None:
        if id(tensor) in self._trained or tensor.is_inference():
            return
        small = tensor.layout is torch.strided and tensor.numel() * tensor.element_size() <= MAX_ARRAY_BYTES
        value = tensor.detach().clone() if small else None
        self._watched.append(WatchedTensor(place, tensor, tensor._version, value))

    def _follow_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._seen.add(id(optimizer))
        for state in optimizer.state.values():
            if isinstance(state, dict):
                self._trained |= {id(value) for value in state.values() if isinstance(value, torch.Tensor)}
        for group in optimizer.param_groups:
            self._trained |= {id(parameter) for parameter in group["params"]}
        self._watch_dict(vars(optimizer), "of the optimizer", _OPTIMIZER_PARTS)
        for held in (*optimizer.param_groups, *optimizer.state.values()):
            if isinstance(held, dict):
                self._watch_dict(held, "of the optimizer")
        self._follow(type(optimizer), "of the class of the optimizer")

    def _watch_function(self, function: types.FunctionType, place: str) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._watched.append(WatchedCell(f"{name} {place}", cell, content(cell)))
            self._follow(content(cell), f"in {name} {place}")
        self._follow_all((function.__defaults__, function.__kwdefaults__, vars(function)), place)
        names = _names(function.__code__)
        used = {name: function.__globals__[name] for name in names if name in function.__globals__}
        if is_users_function(function):
            self._watched.append(WatchedGlobals(place, function.__globals__, used))
            self._follow_globals(used, names, place)
            return
        scalars = {name: value for name, value in used.items() if isinstance(value, SCALARS)}
        if scalars:
            self._watched.append(WatchedGlobals(place, function.__globals__, scalars))
        self._follow_all((value for value in used.values() if isinstance(value, _CONTAINERS)), place)

    def _follow_globals(self, used: Mapping[str, Any], names: Iterable[str], place: str) -> None:
        """Follow globals; of a module, such as `helpers` in `helpers.count()`, what the function names."""
        for name, value in used.items():
            if not isinstance(value, types.ModuleType):
                self._follow(value, f"in {name} {place}")
            elif id(value) not in self._seen and is_users_module(value):
                parts = {part: vars(value)[part] for part in names if part in vars(value)}
                self._watched.append(WatchedGlobals(f"in {name} {place}", vars(value), parts))
                self._seen.add(id(value))
                self._follow_globals(parts, names, place)
                self._seen.discard(id(value))  # another function may name other parts


@functools.lru_cache(1024)
def _names(code: types.CodeType) -> frozenset[str]:
    """The global names that a function and the functions inside it use."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


@functools.lru_cache(1024)
def _slots(kind: type) -> tuple[str, ...]:
    """The names of a class's slots, and of those of its bases."""
    found: list[str] = []
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in sys.stdlib_module_names:
            found += [name for name, value in vars(base).items() if isinstance(value, types.MemberDescriptorType)]
    return tuple(found)


def _read_slots(thing: Any, slots: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(thing, name, UNSET) for name in slots}


def _read_class(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if name not in _OF_EVERY_CLASS}


def _function_in(value: Any) -> Any:
    """The function in a method of a class."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value
