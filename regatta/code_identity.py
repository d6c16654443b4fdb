"""Whether a function was changed: a description of its code that is the same in every process.

Sweeps and profiles are found again by a hash of this description, so its form must not change.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_IGNORED_ATTRIBUTES = {
    "__module__",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
}


def describe_code(function: object) -> object:
    """A function's code, the code that it uses from the user's own modules, and the plain values that it uses."""
    own = getattr(type(function), "code_identity", None)  # of objects of Regatta that stand for a user's function
    if own is not None:
        return own(function)
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    return _describe(function, getattr(inner, "__module__", None), set())


def _describe(thing: object, module: str | None, seen: set[int]) -> object:
    """Nested lists of text. An object that is neither code nor a plain value is described by its class."""
    if isinstance(thing, str | bytes | int | float | bool | None):
        return repr(thing)
    if isinstance(thing, tuple | list):
        return [_describe(item, module, seen) for item in thing]
    if isinstance(thing, set | frozenset):
        return sorted(str(_describe(item, module, seen)) for item in thing)
    if isinstance(thing, dict):
        return [(str(_describe(key, module, seen)), _describe(value, module, seen)) for key, value in thing.items()]
    if isinstance(thing, partial):
        return [_describe(part, module, seen) for part in (thing.func, thing.args, thing.keywords)]
    if isinstance(thing, MethodType):
        return [_describe(part, module, seen) for part in (thing.__func__, thing.__self__)]
    if hasattr(thing, "__wrapped__"):
        return _describe(thing.__wrapped__, module, seen)
    if isinstance(thing, FunctionType | type):
        if id(thing) in seen:
            return thing.__qualname__
        seen.add(id(thing))
        if isinstance(thing, FunctionType):
            return _describe_function(thing, module, seen)
        return _describe_class(thing, module, seen)
    attributes: object = ()
    if hasattr(thing, "__dict__"):
        plain = {name: value for name, value in vars(thing).items() if _is_plain(value)}
        attributes = [(name, _describe(value, module, seen)) for name, value in plain.items()]
    return [_describe_class(type(thing), module, seen), attributes]


def _describe_function(function: FunctionType, module: str | None, seen: set[int]) -> object:
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    defaults = [function.__defaults__, function.__kwdefaults__]
    names = _names(function.__code__)
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    own = [_describe(value, module, seen) for value in used.values() if _is_plain(value) or _is_users(value, module)]
    for value in used.values():  # the function may call helpers.build(...), where `helpers` is a module of the user
        if isinstance(value, ModuleType) and _is_users_module(value.__name__):
            parts = [vars(value)[name] for name in names if name in vars(value)]
            own += [_describe(part, module, seen) for part in parts if _is_plain(part) or _is_users(part, module)]
    used_values = _describe(cells, module, seen), _describe(defaults, module, seen)
    return [_describe_bytecode(function.__code__), *used_values, own]


def _describe_class(cls: type, module: str | None, seen: set[int]) -> object:
    """The functions and plain values of a user's class and its bases. Other classes are described by their name."""
    if not _is_users(cls, module):
        return [cls.__qualname__]
    members = {name: _unwrap(value) for name, value in vars(cls).items() if name not in _IGNORED_ATTRIBUTES}
    described = [
        (name, _describe(value, module, seen))
        for name, value in members.items()
        if isinstance(value, FunctionType) or _is_plain(value)
    ]
    return [cls.__qualname__, described, [_describe(base, module, seen) for base in cls.__bases__]]


def _unwrap(value: object) -> object:
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _describe_bytecode(code: CodeType) -> object:
    constants = [
        _describe_bytecode(value) if isinstance(value, CodeType) else _describe(value, None, set())
        for value in code.co_consts
    ]
    return code.co_code, code.co_names, constants


def _names(code: CodeType) -> list[str]:
    """The names that a function and its inner functions use."""
    inner = [name for value in code.co_consts if isinstance(value, CodeType) for name in _names(value)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return isinstance(value, str | bytes | int | float | bool | None)


def _is_users(value: object, module: str | None) -> bool:
    """Whether a function or class is from the given module or from another module of the user."""
    return isinstance(value, FunctionType | type) and (value.__module__ == module or _is_users_module(value.__module__))


@cache
def _is_users_module(module: str | None) -> bool:
    """Whether a module is the user's: it is not installed and belongs neither to Python nor to Regatta."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return file is not None and not _is_ours(module) and is_users_file(file)


def is_users_function(function: FunctionType) -> bool:
    """Whether a function was read from a file of the user; it may have been pickled by value."""
    return not _is_ours(function.__module__) and is_users_file(function.__code__.co_filename)


def is_users_class(cls: type) -> bool:
    """Whether a class is the user's; one that was pickled by value has no module here."""
    module = cls.__module__
    if module.partition(".")[0] in sys.stdlib_module_names or _is_ours(module):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or is_users_file(file)


def is_users_module(module: ModuleType) -> bool:
    """Whether a module is the user's, also one that was made without a file."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if name.partition(".")[0] in sys.stdlib_module_names or _is_ours(name):
        return False
    return file is None or is_users_file(file)


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "regatta"


@cache
def is_users_file(file: str) -> bool:
    """Whether a file is neither installed nor a part of Python."""
    path = Path(os.path.abspath(file))
    libraries = (sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
    return not {"site-packages", "dist-packages"} & set(path.parts) and not any(
        path.is_relative_to(library) for library in libraries
    )


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
