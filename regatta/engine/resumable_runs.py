"""The folder of a new run, or of an unfinished run of the same sweep."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from regatta.errors import ConflictError, CorruptError
from regatta.journal.journal_file import read_journal
from regatta.journal.lock import is_live
from regatta.journal.run_record import find_journals
from regatta.paths import JOURNAL, writable_folder
from regatta.run import Run, read_run


def new_folder(runs: Path, name: str | None, stem: str) -> Path:
    """A folder for a new run. Two runs that start at once get two names."""
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
                hint=f"Choose another name, or none. If it was interrupted, resume it: regatta resume {name}\n"
                f"To train it again under this name, delete it: regatta delete {name}",
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
    """Whether a run's controller was killed before its first record, so that its folder can be used again."""
    journal = folder / JOURNAL
    return folder.is_dir() and not is_live(folder) and not (journal.exists() and b"\n" in journal.read_bytes()[:65536])


def sweep_identity(folder: Path) -> str | None:
    """The hash of the sweep that a run trains."""
    identity: str | None = next(read_journal(folder / JOURNAL), {}).get("sweep")
    return identity


def find_unfinished(runs: Path, name: str | None, is_wanted: Callable[[Path], bool]) -> Run | None:
    """The newest run that was interrupted or killed and whose folder is wanted; only one of that name, if given."""
    for journal in reversed(list(find_journals(runs))):
        with contextlib.suppress(CorruptError):  # a newer version may have written it
            if name in (None, journal.parent.name) and is_wanted(journal.parent):
                run = read_run(journal.parent)
                if run.record.status == "interrupted":
                    return run
    return None
