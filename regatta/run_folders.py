"""The folder of a run that begins, or of one of the same sweep that was cut short."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from regatta.errors import ConflictError, CorruptError
from regatta.journal.journal import read_journal
from regatta.journal.lock import is_live
from regatta.journal.record import find_journals
from regatta.paths import run_journal, writable_folder
from regatta.run import Run, read_run

_UNTOLD = {
    "__module__",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
}


def new_folder(runs: Path, name: str | None, stem: str) -> Path:
    """A folder for a new run; two that start at once get two names."""
    writable_folder(runs, "folder of runs")
    if name is not None:
        try:
            (runs / name).mkdir()
        except FileExistsError:
            if _is_empty(runs / name):
                return runs / name
            raise ConflictError(
                f"There is a run named {name!r} already.",
                place=str(runs),
                hint=f"Choose another name, or none. Where it was interrupted, `regatta resume {name}` goes on.",
            ) from None
        return runs / name
    numbers = [int(entry.name.rpartition("-")[2]) for entry in os.scandir(runs) if re.search(r"-\d+$", entry.name)]
    number = max(numbers, default=0) + 1
    stem = re.sub(r"[^\w.-]+", "-", stem).strip(".-") or "run"  # a data set may be named after a folder
    while True:
        try:
            (runs / f"{stem}-{number}").mkdir()
        except FileExistsError:
            number += 1
        else:
            return runs / f"{stem}-{number}"


def _is_empty(folder: Path) -> bool:
    """A run whose controller was killed before its first record has nothing to lose."""
    journal = run_journal(folder)
    return folder.is_dir() and not is_live(folder) and not (journal.exists() and b"\n" in journal.read_bytes()[:65536])


def find_unfinished(runs: Path, name: str | None, identity: str) -> Run | None:
    """The newest run of this sweep that was interrupted or killed; of that name, if one is given."""
    for journal in reversed(list(find_journals(runs))):
        if name in (None, journal.parent.name) and _identity(journal) == identity:
            run = read_run(journal.parent)
            if run.record.status == "interrupted":
                return run
    return None


def _identity(journal: Path) -> str | None:
    try:
        return next(read_journal(journal), {}).get("sweep")
    except CorruptError:
        return None


def code_of(function: object) -> object:
    """What tells whether a function was changed: its code, that of what it uses of its own module, and plain values."""
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    return _told(function, getattr(inner, "__module__", None), set())


def _told(thing: object, module: str | None, seen: set[int]) -> object:
    """Text and lists of it, the same in every process: of what is neither code nor plain only its kind is told."""
    if isinstance(thing, str | bytes | int | float | bool | None):
        return repr(thing)
    if isinstance(thing, tuple | list):
        return [_told(item, module, seen) for item in thing]
    if isinstance(thing, set | frozenset):
        return sorted(str(_told(item, module, seen)) for item in thing)
    if isinstance(thing, dict):
        return [(str(_told(key, module, seen)), _told(value, module, seen)) for key, value in thing.items()]
    if isinstance(thing, partial):
        return [_told(part, module, seen) for part in (thing.func, thing.args, thing.keywords)]
    if isinstance(thing, MethodType):
        return [_told(part, module, seen) for part in (thing.__func__, thing.__self__)]
    if hasattr(thing, "__wrapped__"):
        return _told(thing.__wrapped__, module, seen)
    if isinstance(thing, FunctionType | type):
        if id(thing) in seen:
            return thing.__qualname__
        seen.add(id(thing))
        return _function(thing, module, seen) if isinstance(thing, FunctionType) else _class(thing, module, seen)
    return [_class(type(thing), module, seen), _values(vars(thing), module, seen) if hasattr(thing, "__dict__") else ()]


def _function(function: FunctionType, module: str | None, seen: set[int]) -> object:
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    defaults = [function.__defaults__, function.__kwdefaults__]
    used = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    own = [_told(value, module, seen) for value in used.values() if _is_plain(value) or _is_of(value, module)]
    for value in used.values():  # helpers.build(...): what is called for of a module
        if isinstance(value, ModuleType) and _is_own(value.__name__):
            parts = {name: vars(value)[name] for name in _names(function.__code__) if name in vars(value)}
            own += [_told(part, module, seen) for part in parts.values() if _is_plain(part) or _is_of(part, module)]
    return [_code(function.__code__), _told(cells, module, seen), _told(defaults, module, seen), own]


def _class(kind: type, module: str | None, seen: set[int]) -> object:
    """The functions and plain values of a class of the user's and of its bases; another's is known by its name."""
    if not _is_of(kind, module):
        return [kind.__qualname__]
    held = {name: _unwrapped(value) for name, value in vars(kind).items() if name not in _UNTOLD}
    told = [
        (name, _told(value, module, seen))
        for name, value in held.items()
        if isinstance(value, FunctionType) or _is_plain(value)
    ]
    return [kind.__qualname__, told, [_told(base, module, seen) for base in kind.__bases__]]


def _unwrapped(value: object) -> object:
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _values(attributes: dict[str, object], module: str | None, seen: set[int]) -> object:
    return [(name, _told(value, module, seen)) for name, value in attributes.items() if _is_plain(value)]


def _code(code: CodeType) -> object:
    constants = [_code(value) if isinstance(value, CodeType) else _told(value, None, set()) for value in code.co_consts]
    return code.co_code, code.co_names, constants


def _names(code: CodeType) -> list[str]:
    """What a function and those inside it call for by name."""
    inner = [name for value in code.co_consts if isinstance(value, CodeType) for name in _names(value)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return isinstance(value, str | bytes | int | float | bool | None)


def _is_of(value: object, module: str | None) -> bool:
    return isinstance(value, FunctionType | type) and (value.__module__ == module or _is_own(value.__module__))


@cache
def _is_own(module: str | None) -> bool:
    """Whether a module is the user's: neither installed, nor Python's, nor ours, which have versions."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None or (module or "").partition(".")[0] == "regatta":
        return False
    parts = Path(os.path.abspath(file)).parts
    libraries = (sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
    return not {"site-packages", "dist-packages"} & set(parts) and not any(
        Path(os.path.abspath(file)).is_relative_to(library) for library in libraries
    )


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
