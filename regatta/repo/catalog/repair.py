"""Makes a catalog again from its version log, and the log from the catalog.

A line of the log has a checksum, so an intact line is right and a row that differs from it is wrong. If lines are
damaged, what they said is taken from the catalog. If one of the two was restored from a copy, they do not belong
together. Then the one that fits the parameter store is right. What is replaced is kept in quarantine/.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from regatta import durable
from regatta.durable import exclusive, fsync_path
from regatta.errors import CorruptError, NewerVersionError, RegattaError
from regatta.paths import CATALOG, QUARANTINE, USERS_LOCK, VERSION_LOG
from regatta.repo.catalog import entries
from regatta.repo.catalog.catalog import Catalog
from regatta.repo.catalog.check import catalog_problems
from regatta.repo.catalog.version_log import Entries, LogContent, LogPosition, VersionLog


@dataclass(frozen=True)
class _Truth:
    """What the catalog should hold, whether the log says so, and what neither of the two says any more."""

    entries: Entries
    log_is_right: bool
    lost: tuple[str, ...] = ()


def repair_catalog(catalog: Catalog, stored: Collection[str]) -> tuple[Catalog, list[str], list[str]]:
    """The catalog, opened again; what was repaired; and what is lost. No other process may have the catalog open.

    `stored` are the names of the snapshots in the parameter store.
    """
    repaired = []
    content, known, position = catalog.log.read(), _entries_of(catalog), _position_of(catalog)
    truth = _find_truth(content, known, position, stored)
    # The catalog may have been made from a log that was damaged already. Then gc must keep what no version names.
    since = catalog.clock() if truth.lost or content.damaged else catalog.log_since()
    if not truth.log_is_right or position != content.position():
        if not truth.log_is_right:
            keep_copy(catalog.log.path)
        catalog.write_log(truth.entries, since=since)
        repaired.append(f"The version log was written again, with {_count(truth.entries)}.")
    if known != truth.entries or catalog_problems(catalog, whole=True):
        path, clock = catalog.path, catalog.clock
        catalog.close()
        aside = put_aside(path.parent, CATALOG)
        catalog = Catalog(path, clock=clock)
        if position is not None:  # else it is not certain that the log has everything
            catalog.write_log(since=since)
        repaired.append(
            f"The catalog was made again from the version log, with {_count(truth.entries)}; the old one is {aside}."
        )
    return catalog, repaired, list(truth.lost)


def make_again(folder: Path, stored: Collection[str]) -> tuple[list[str], list[str]]:
    """Make what keeps a catalog from being opened again; what was repaired, and what is lost."""
    log, repaired = VersionLog(folder / VERSION_LOG), []
    try:
        content = log.read()
    except NewerVersionError:
        raise
    except CorruptError as error:
        repaired.append(f"{error.message} What was there is {put_aside(folder, VERSION_LOG)}.")
        content = log.read()
    try:
        Catalog(folder / CATALOG).close()
        return repaired, []
    except NewerVersionError:
        raise
    except RegattaError:
        known, position = _read_only(folder / CATALOG)
    truth = _find_truth(content, known, position, stored)
    if not truth.log_is_right:
        keep_copy(log.path)
        log.replace(truth.entries, time.time())
        repaired.append(f"The version log was written again, with {_count(truth.entries)}.")
    aside = put_aside(folder, CATALOG)
    repaired.append(
        f"The catalog was made again from the version log, with {_count(truth.entries)}"
        + (f"; the old one is {aside}." if aside is not None else ".")
    )
    return repaired, list(truth.lost)


def put_aside(folder: Path, name: str) -> Path | None:
    """Move a file, or what is in its place, to quarantine/ with the files of SQLite beside it; its new path."""
    with exclusive(folder / USERS_LOCK, "rebuilding the catalog", wait=False):
        found = sorted(folder.glob(f"{name}*"), reverse=True)  # the file itself at last
        moved = durable.put_aside(found, folder / QUARANTINE)
    return moved[-1] if folder / name in found else None


def keep_copy(path: Path) -> None:
    """Keep what a file holds in quarantine/ before it is replaced."""
    if not path.exists():
        return
    (path.parent / QUARANTINE).mkdir(exist_ok=True)
    copy = path.parent / QUARANTINE / f"{path.name}.{time.time_ns()}"
    copy.write_bytes(path.read_bytes())
    fsync_path(copy)
    fsync_path(copy.parent)


def _find_truth(
    content: LogContent, known: Entries | None, position: LogPosition | None, stored: Collection[str]
) -> _Truth:
    intact = content.identity is not None and not content.damaged and content.bytes == content.size
    if known is None or (position is None and content.lines):
        lost = [f"Line {number} of the version log, which the catalog cannot replace." for number in content.damaged]
        if content.size and not content.lines:
            lost.append("All that the version log said: no line of it can be read.")
        return _Truth(content.entries(), intact, tuple(lost))
    if content.identity is not None and position is not None and not content.follows(position):
        from_log = content.entries()
        keep_log = _count_stored(from_log, stored) >= _count_stored(known, stored)
        return _Truth(from_log, intact) if keep_log else _Truth(known, log_is_right=False)
    is_cut = position is not None and position.bytes > content.bytes
    if intact and not is_cut:
        return _Truth(content.entries(), log_is_right=True)
    return _Truth(dict(known) if is_cut else _merged(content, known), log_is_right=False)


def _merged(content: LogContent, known: Entries) -> Entries:
    """What the log says, unless a line that is damaged or gone may have said otherwise: then what the catalog holds."""
    if content.identity is None:
        return dict(known)
    unsure = max(content.damaged, default=0)
    found = dict(known) if unsure else {}
    for key, line in content.last_lines().items():
        if line.number > unsure:
            found.pop(key, None)
            if line.content is not None:
                found[key] = line.content
    return found


def _count_stored(content: Entries, stored: Collection[str]) -> int:
    """How many snapshots of these versions the parameter store has."""
    versions = (each for (kind, _), each in content.items() if kind == entries.VERSION)
    return sum(reference in stored for each in versions for _, _, _, reference, *_ in each["snapshots"])


def _read_only(path: Path) -> tuple[Entries | None, LogPosition | None]:
    """What a catalog holds that cannot be opened for writing."""
    try:
        with closing(Catalog(path, read_only=True)) as catalog:
            return catalog.read_entries(), catalog.log_position()
    except RegattaError:
        return None, None


def _entries_of(catalog: Catalog) -> Entries | None:
    try:
        return catalog.read_entries()
    except RegattaError:
        return None


def _position_of(catalog: Catalog) -> LogPosition | None:
    try:
        return catalog.log_position()
    except RegattaError:
        return None


def _count(wanted: Entries) -> str:
    return f"{sum(kind == entries.VERSION for kind, _ in wanted)} versions"
