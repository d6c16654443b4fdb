"""The folder of a run that begins, or of one of the same sweep that was cut short."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from regatta.engine.journal import read_journal
from regatta.engine.lock import is_live
from regatta.engine.record import find_journals
from regatta.errors import ConflictError, CorruptError
from regatta.location import writable_folder
from regatta.run import Run, read_run


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
    journal = folder / "journal.jsonl"
    return folder.is_dir() and not is_live(folder) and not (journal.exists() and journal.stat().st_size)


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


def code_of(function: Any) -> object:
    """What tells whether a function was changed: its code, and the plain values that it holds on to."""
    if isinstance(function, partial):
        return code_of(function.func), repr(function.args), repr(function.keywords)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if not isinstance(code, CodeType):
        return getattr(function, "__qualname__", type(function).__qualname__)
    held = [_plain(cell.cell_contents) for cell in getattr(function, "__closure__", None) or () if _is_set(cell)]
    return _code(code), held, _plain(getattr(function, "__defaults__", None))


def _code(code: CodeType) -> object:
    constants = [_code(value) if isinstance(value, CodeType) else _plain(value) for value in code.co_consts]
    return code.co_code, code.co_names, constants


def _plain(value: object) -> str:
    """The text of a plain value; of anything else only its kind, for its text may hold an address."""
    return repr(value) if isinstance(value, str | bytes | int | float | bool | None | tuple) else type(value).__name__


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
