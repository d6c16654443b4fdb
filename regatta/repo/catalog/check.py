"""Compares a catalog with its version log, and makes either again from the other.

A line of the log has a checksum, so an intact line is right and a row that differs from it is wrong. If lines are
damaged, what they said is taken from the catalog.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from regatta.durable import exclusive, fsync_path
from regatta.errors import CorruptError, RegattaError
from regatta.paths import CATALOG, QUARANTINE, USERS_LOCK
from regatta.repo.catalog import entries
from regatta.repo.catalog.catalog import Catalog
from regatta.repo.catalog.migrations import migrate
from regatta.repo.catalog.version_log import Entries, Key, LogContent, LogPosition
from regatta.store.sqlite import sqlite3

MAX_NAMED = 20  # differences that are named one by one
_TABLES = ("network", "node", "edge", "run", "numbering", "model_version", "snapshot", "metric", "metric_range",
           "hyperparameter", "file", "parent", "tag", "layer_name")  # fmt: skip


def catalog_problems(catalog: Catalog, whole: bool) -> list[str]:
    """A sentence for each problem of the catalog and its log; with `whole`, the derived tables are compared as well."""
    try:
        found = catalog.check(whole)
        if whole and not catalog.read_only:
            found += _search_problems(catalog)
        return found + log_problems(catalog, whole)
    except CorruptError as error:
        return [f"Catalog: {error.message}"]


def log_problems(catalog: Catalog, whole: bool = False) -> list[str]:
    """How the catalog differs from its log; nothing if it was made before there was a log."""
    with catalog.reading():
        found = _compare_with_log(catalog, whole)
    if not found or catalog.read_only:
        return found
    # The log gets a change before the catalog. So another process may be between the two, or was killed there.
    with suppress(CorruptError), catalog.transaction():
        found = _compare_with_log(catalog, whole)
    return found


def _compare_with_log(catalog: Catalog, whole: bool) -> list[str]:
    position, content = catalog.log_position(), catalog.log.read()
    if position is None and not content.size:
        return []
    found = _damage(content)
    if position != content.position() or content.size > content.bytes:
        found.append("Version log: it does not end where the catalog says.")
    wanted, known = content.entries(), catalog.read_entries()
    if not content.damaged:
        found += _shortened(list(_differences(wanted, known)))
    if whole and wanted == known:
        with catalog.translating():
            found += _derived_problems(catalog._db, wanted)
    return found


def repair_catalog(catalog: Catalog) -> tuple[Catalog, list[str], list[str]]:
    """The catalog, opened again; what was repaired; and what is lost. No other process may have the catalog open."""
    repaired, lost = [], []
    content, known = catalog.log.read(), _readable_entries(catalog)
    position = _readable_position(catalog)
    intact = content.identity is not None and not content.damaged and content.bytes == content.size
    if not intact or position != content.position():
        wanted = content.entries() if known is None else _merged(content, known, position)
        if known is None:
            lost = [
                f"Line {number} of the version log, which the catalog cannot replace." for number in content.damaged
            ]
        catalog.write_log(wanted, complete=not lost)
        repaired.append(f"The version log was written again, with {_count(wanted)}.")
    else:
        wanted = content.entries()
    path, clock = catalog.path, catalog.clock
    if known != wanted or catalog_problems(catalog, whole=True):
        catalog.close()
        aside = put_aside(path)
        catalog = Catalog(path, clock=clock)
        repaired.append(
            f"The catalog was made again from the version log, with {_count(wanted)}; the old one is {aside}."
        )
    return catalog, repaired, lost


def put_aside(path: Path) -> Path:
    """Move a catalog to quarantine/, so that the next one to open it makes a new one from the log."""
    folder = path.parent
    with exclusive(folder / USERS_LOCK, "rebuilding the catalog", wait=False):
        (folder / QUARANTINE).mkdir(exist_ok=True)
        stamp = time.time_ns()
        for file in sorted(folder.glob(f"{CATALOG}*"), reverse=True):  # the log of SQLite before the file itself
            os.replace(file, folder / QUARANTINE / f"{file.name}.{stamp}")
        fsync_path(folder / QUARANTINE)
        fsync_path(folder)
    return folder / QUARANTINE / f"{CATALOG}.{stamp}"


def _damage(content: LogContent) -> list[str]:
    found = [f"Version log: line {number} is damaged." for number in content.damaged]
    return [*found, *(["Version log: its first line is damaged."] if content.identity is None else [])]


def _merged(content: LogContent, known: Entries, position: LogPosition | None) -> Entries:
    """What the log says, unless a line that is damaged or gone may have said otherwise: then what the catalog holds."""
    there = content.position()
    is_cut = position is not None and position.log == there.log and position.bytes > there.bytes
    if content.identity is None or is_cut:
        return dict(known)
    unsure = max(content.damaged, default=0)
    found = dict(known) if unsure else {}
    for key, line in content.last_lines().items():
        if line.number > unsure:
            found.pop(key, None)
            if line.content is not None:
                found[key] = line.content
    return found


def _differences(wanted: Entries, known: Entries) -> Iterator[str]:
    for key in sorted(wanted.keys() | known.keys()):
        one, other = wanted.get(key), known.get(key)
        if one == other and type(one) is type(other):
            continue
        if other is None:
            yield f"Catalog: {_named(key, one)} is missing, but the version log has it."
        elif one is None:
            yield f"Catalog: {_named(key, other)} is not in the version log."
        else:
            parts = [part for part in one if one[part] != other.get(part)] if isinstance(one, dict) else []
            what = f"{', '.join(parts)} of " if parts else ""
            yield f"Catalog: {what}{_named(key, one)} is not as in the version log."


def _derived_problems(db: sqlite3.Connection, wanted: Entries) -> list[str]:
    """The tables that differ from those made out of the entries."""
    found = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as other:
        migrate(other, "")
        entries.write_entries(other, wanted)
        known = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        for table in known.intersection(_TABLES):  # one of an earlier version, read only, may lack some
            right, rows = (set(each.execute(f"SELECT * FROM {table}")) for each in (other, db))
            if right != rows:
                found.append(f"Catalog: {len(right ^ rows)} rows of {table} are not as the version log has them.")
        indexed = [sorted(map(_words, each.execute("SELECT rowid, * FROM words"))) for each in (other, db)]
        if indexed[0] != indexed[1]:
            found.append("Catalog: the search index has other words than the versions.")
    return found


def _words(row: tuple[Any, ...]) -> tuple[int, list[list[str]]]:
    """In any order: earlier versions entered hyperparameters in the order in which they were given."""
    return row[0], [sorted(re.findall(r"\w+", str(text))) for text in row[1:]]


def _search_problems(catalog: Catalog) -> list[str]:
    """Whether the search index finds the words that it holds; SQLite checks this and changes nothing."""
    try:
        with catalog.rolled_back():
            catalog._run("INSERT INTO words (words) VALUES ('integrity-check')")
    except CorruptError as error:
        return [f"Catalog: the search index is damaged: {error.message}"]
    return []


def _readable_entries(catalog: Catalog) -> Entries | None:
    try:
        return catalog.read_entries()
    except RegattaError:
        return None


def _readable_position(catalog: Catalog) -> LogPosition | None:
    try:
        return catalog.log_position()
    except RegattaError:
        return None


def _named(key: Key, content: Any) -> str:
    kind, ident = key
    if kind == entries.VERSION and isinstance(content, dict):
        return f"version {content.get('name')}@{content.get('number')} ({ident})"
    return f"{kind} {ident!r:.200}"


def _shortened(sentences: list[str]) -> list[str]:
    more = len(sentences) - MAX_NAMED
    return [*sentences[:MAX_NAMED], *([f"Catalog: {more} more differences from the version log."] if more > 0 else [])]


def _count(wanted: Entries) -> str:
    return f"{sum(kind == entries.VERSION for kind, _ in wanted)} versions"
