"""Copies a repository to another folder, and checks the copy.

The copy is written under a temporary name and gets its own when fsck finds nothing wrong with it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regatta.durable import fsync_path, move
from regatta.errors import ConflictError, CorruptError, DiskError
from regatta.journal.run_record import RunRecord
from regatta.paths import (
    ARCHIVER_LOCK,
    CATALOG,
    CONTROL_ADDRESS,
    DATA,
    FILES,
    FOLDER,
    INDEX,
    JOURNAL,
    MLFLOW_DATABASE,
    PACK_SUFFIX,
    PACKS,
    PROFILES,
    QUERIES,
    RUN_LOCK,
    RUNS,
    STAGING,
    STATES,
    STORE,
    TMP,
    VERSION_LOG,
    writable_folder,
)
from regatta.repo.backup.pinned import PinnedRepository, pinned
from regatta.repo.repo import Repo
from regatta.store.index import LOCAL
from regatta.store.sqlite import sqlite3
from regatta.store.states.state_archive import reference_of, series_of

MAX_ATTEMPTS = 20  # to copy a run in training, whose newest states come and go
_NOT_COPIED = {RUN_LOCK, ARCHIVER_LOCK, CONTROL_ADDRESS}  # of a run: they belong to its processes


@dataclass(frozen=True)
class BackupResult:
    """A copy of a repository: its folder, and what is in it."""

    path: Path
    versions: int
    runs: int
    files: int
    bytes: int


def back_up(repo: Repo, target: Path) -> BackupResult:
    """Copy a repository to the folder `.regatta` of a new or empty folder."""
    final = Path(os.path.abspath(target)) / FOLDER
    if final.exists():
        raise ConflictError(
            "There is a repository already.", place=str(final), hint="Choose another folder, or remove that one."
        )
    if final.resolve().is_relative_to(repo.folder.resolve()):
        raise ConflictError("A repository is not copied into itself.", place=str(final), hint="Choose another folder.")
    writable_folder(final.parent, "folder of the copy")
    written = final.with_name(f"{FOLDER}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        written.mkdir()
        with pinned(repo) as found:
            _copy(repo, found, written)
        result = _checked(written, len(found.runs))
        move(written, final)
    except OSError as error:
        raise DiskError(
            f"The copy cannot be written: {error.strerror or error}.", place=str(error.filename or final)
        ) from error
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return BackupResult(final, *result)


def _copy(repo: Repo, found: PinnedRepository, target: Path) -> None:
    for name, content in found.small_files.items():
        (target / name).write_bytes(content)
        fsync_path(target / name)
    _copy_database(found.catalog, target / CATALOG)
    _copy_version_log(repo, found, target)
    wanted = {row[0] for row in found.catalog.execute("SELECT DISTINCT hash FROM file")} | _staged_files(found)
    for digest in sorted(wanted):
        _copy_file(repo.files.path(digest), target / FILES / digest[:2] / digest)
    names: set[str] = set()
    if found.index is not None:
        _copy_database(found.index, target / STORE / INDEX)
        names = {row[0] for row in found.index.execute("SELECT name FROM names")}
        rows = found.index.execute("SELECT pack FROM packs WHERE place & ? AND retired IS NULL", (LOCAL,))
        for pack in [row[0].hex() for row in rows]:
            _copy_file(repo.store.folder.path(pack), target / STORE / PACKS / f"{pack}{PACK_SUFFIX}")
    for run in found.runs:
        _copy_run(run, target / RUNS / run.name, names)
    for name in (DATA, PROFILES, QUERIES):
        _copy_folder(repo.folder / name, target / name)


def _copy_database(source: sqlite3.Connection, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    copy = sqlite3.connect(target)
    try:
        source.backup(copy)
    except sqlite3.OperationalError as error:
        raise DiskError(f"The database cannot be copied: {error}.", place=str(target)) from error
    finally:
        copy.close()
    fsync_path(target)


def _copy_version_log(repo: Repo, found: PinnedRepository, target: Path) -> None:
    """Copy as much of the log as the copied catalog has; lines are only ever added to it."""
    if repo.catalog.log_position() is None:
        return
    for (size,) in found.catalog.execute("SELECT bytes FROM version_log"):
        with repo.catalog.log.path.open("rb") as log:
            (target / VERSION_LOG).write_bytes(log.read(size))
        fsync_path(target / VERSION_LOG)


def _staged_files(found: PinnedRepository) -> set[str]:
    items = json.loads(found.small_files.get(STAGING, b'{"items": []}'))["items"]
    return {item["file"]["hash"] for item in items if item["file"] is not None}


def _copy_run(run: Path, target: Path, names: set[str]) -> None:
    """Copy a run. One in training replaces its newest states: copy again until the copy has what its journal names."""
    for _ in range(MAX_ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        before = (run / JOURNAL).stat().st_size
        _copy_journal(run / JOURNAL, target / JOURNAL)
        _copy_folder(run / STATES, target / STATES)
        unchanged = (run / JOURNAL).stat().st_size == before
        if unchanged or _has_newest_states(target, names):
            break
    else:
        raise ConflictError(
            f"The run {run.name} changes faster than it can be copied.", place=str(run), hint="Try again later."
        )
    for entry in sorted(run.iterdir()):
        if entry.name in (JOURNAL, STATES) or entry.name in _NOT_COPIED or entry.name.startswith("."):
            continue
        if entry.is_dir():
            _copy_folder(entry, target / entry.name)
        elif entry.name == MLFLOW_DATABASE:
            source = sqlite3.connect(f"file:{entry}?mode=ro", uri=True)
            _copy_database(source, target / entry.name)
            source.close()
        elif not entry.name.startswith(MLFLOW_DATABASE):
            _copy_file(entry, target / entry.name, may_vanish=True)


def _copy_journal(source: Path, target: Path) -> None:
    """Only whole lines: the controller may be writing the last one."""
    content = source.read_bytes()
    target.write_bytes(content[: content.rfind(b"\n") + 1])
    fsync_path(target)


def _has_newest_states(run: Path, names: set[str]) -> bool:
    """Whether the run can go on from each configuration's newest state: as a file, or in the store."""
    series = series_of(run)
    if series is None:
        return True
    for config in RunRecord.read(run / JOURNAL).configs.values():
        states = [unit.state for unit in config.units if unit.state is not None]
        is_file = not states or (run / states[-1]).is_file()
        if not is_file and reference_of(series, config.id, run / states[-1]) not in names:
            return False
    return True


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder as it is now. Files that are being written, or vanish meanwhile, are left out."""
    for path in _files_below(source):
        _copy_file(path, target / path.relative_to(source), may_vanish=True)


def _files_below(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each != TMP]
        yield from (Path(here, each) for each in files if not each.startswith(".") and Path(here, each).is_file())


def _copy_file(source: Path, target: Path, may_vanish: bool = False) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        if may_vanish:
            return
        raise CorruptError(
            "The file is missing.", place=str(source), hint="regatta fsck --repair shows more."
        ) from None
    fsync_path(target)


def _checked(folder: Path, runs: int) -> tuple[int, int, int, int]:
    """Check the copy, and count its versions, runs, files and bytes."""
    with Repo.at(folder) as copy:
        result = copy.fsck("checksums")
        if not result.clean:
            raise CorruptError(
                f"The copy is not sound: {result.problems[0]}",
                place=str(folder),
                hint="Check the repository itself: regatta fsck --depth checksums",
            )
        versions = copy.catalog.count()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return versions, runs, result.files, size
