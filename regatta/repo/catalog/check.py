"""Compares a catalog with its version log: a line of the log has a checksum, so a row that differs from it is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from regatta.errors import CorruptError
from regatta.repo.catalog import entries
from regatta.repo.catalog.catalog import Catalog
from regatta.repo.catalog.migrations import migrate
from regatta.repo.catalog.version_log import Entries, Key, LogContent
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


def _damage(content: LogContent) -> list[str]:
    found = [f"Version log: line {number} is damaged." for number in content.damaged]
    return [*found, *(["Version log: its first line is damaged."] if content.identity is None else [])]


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


def _named(key: Key, content: Any) -> str:
    kind, ident = key
    if kind == entries.VERSION and isinstance(content, dict):
        return f"version {content.get('name')}@{content.get('number')} ({ident})"
    return f"{kind} {ident!r:.200}"


def _shortened(sentences: list[str]) -> list[str]:
    more = len(sentences) - MAX_NAMED
    return [*sentences[:MAX_NAMED], *([f"Catalog: {more} more differences from the version log."] if more > 0 else [])]
