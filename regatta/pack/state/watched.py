"""Python values as they were: each sees a change, and puts the value back."""

from __future__ import annotations

import dataclasses
import enum
import random
import types
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
import torch

SCALARS = (bool, int, float, complex, str, bytes, type(None))
UNSET = object()


class Watched(Protocol):
    def change(self) -> str | None:
        """What has changed, for people, or None."""

    def put_back(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class WatchedDict:
    """A dict, or the attributes of an object; names in `but` are not its own."""

    place: str
    held: dict[Any, Any]
    before: dict[Any, Any]
    but: frozenset[str] = frozenset()

    def change(self) -> str | None:
        held, before = self.held, self.before
        for name, value in before.items():
            if name not in held or (held[name] is not value and not alike(held[name], value)):
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
class WatchedAttributes:
    """Attributes that are not in a dict of their own: of a class, or in slots; an unset one is UNSET."""

    place: str
    thing: Any
    before: Mapping[str, Any]
    read: Callable[[], Mapping[str, Any]]

    def change(self) -> str | None:
        now = self.read()
        for name, value in self.before.items():
            if not alike(now.get(name, UNSET), value):
                return f"{name} {self.place}"
        return next((f"{name} {self.place}" for name in now if name not in self.before), None)

    def put_back(self) -> None:
        now = self.read()
        for name in now.keys() | self.before.keys():
            value = self.before.get(name, UNSET)
            if alike(now.get(name, UNSET), value):
                continue
            if value is UNSET:
                delattr(self.thing, name)
            else:
                setattr(self.thing, name, value)


@dataclasses.dataclass(frozen=True, slots=True)
class WatchedItems:
    """A list, set or deque."""

    place: str
    held: Any
    before: Any

    def change(self) -> str | None:
        if isinstance(self.held, set):
            same = self.held == self.before
        else:
            same = len(self.held) == len(self.before) and all(map(alike, self.held, self.before))
        return None if same else f"a {type(self.held).__name__} {self.place}"

    def put_back(self) -> None:
        if self.change() is not None:
            self.held.clear()
            (self.held.update if isinstance(self.held, set) else self.held.extend)(self.before)


@dataclasses.dataclass(frozen=True, slots=True)
class WatchedCell:
    """A variable of a closure."""

    place: str
    cell: types.CellType
    before: Any

    def change(self) -> str | None:
        return None if alike(content(self.cell), self.before) else self.place

    def put_back(self) -> None:
        if self.change() is not None:
            self.cell.cell_contents = self.before


@dataclasses.dataclass(frozen=True, slots=True)
class WatchedGlobals:
    """The global names that a function uses."""

    place: str
    names: dict[str, Any]
    before: dict[str, Any]

    def change(self) -> str | None:
        changed = (name for name, value in self.before.items() if not alike(self.names.get(name, UNSET), value))
        return next((f"{name} {self.place}" for name in changed), None)

    def put_back(self) -> None:
        if self.change() is not None:
            self.names.update(self.before)


@dataclasses.dataclass(frozen=True, slots=True)
class WatchedContext:
    """A context variable."""

    place: str
    variable: ContextVar[Any]
    before: Any

    def change(self) -> str | None:
        return None if alike(self.variable.get(UNSET), self.before) else f"{self.variable.name} {self.place}"

    def put_back(self) -> None:
        if self.before is not UNSET and self.change() is not None:
            self.variable.set(self.before)


@dataclasses.dataclass(frozen=True, slots=True)
class WatchedFlag:
    """Whether a tensor requires a gradient."""

    place: str
    tensor: torch.Tensor
    before: bool

    def change(self) -> str | None:
        return None if self.tensor.requires_grad == self.before else f"requires_grad {self.place}"

    def put_back(self) -> None:
        self.tensor.requires_grad_(self.before)


@dataclasses.dataclass(frozen=True, slots=True)
class WatchedTensor:
    """A tensor that is no parameter of the model; a small one can be put back."""

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
class WatchedArray:
    """A small array."""

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
GENERATORS = tuple(_STATES)


class WatchedGenerator:
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
class WatchedIterator:
    """An iterator: its position cannot be seen, so it counts as changed."""

    place: str

    def change(self) -> str | None:
        return f"an iterator {self.place}"

    def put_back(self) -> None: ...


def content(cell: types.CellType) -> Any:
    """What a variable of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:  # its variable is not set yet
        return UNSET


def is_frozen(thing: Any) -> bool:
    """Whether an object is an instance of a frozen dataclass."""
    parameters = vars(type(thing)).get("__dataclass_params__")  # a subclass without it can have other attributes
    return parameters is not None and bool(parameters.frozen)


def fields_of(thing: Any) -> dict[str, Any]:
    """What the fields of a dataclass hold, without what it has computed from them and kept."""
    return {field.name: getattr(thing, field.name, UNSET) for field in dataclasses.fields(thing)}


_CONSTANT: dict[int, tuple[weakref.ref[Any], bool]] = {}  # large values, such as a network, are looked through once


def never_changes(value: Any) -> bool:
    """Whether a value and all that it holds stays as it is."""
    if isinstance(value, (*SCALARS, enum.Enum)):
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


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same object, or equal numbers, strings or tuples."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return isinstance(one, SCALARS) and bool(one == other or (one != one and other != other))
