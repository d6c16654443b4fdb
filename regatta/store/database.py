"""The SQLite file under the index: its tables, its connection and its transactions.

WAL mode, every commit synced; one connection, shared by the threads of this process.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regatta.errors import ConflictError, CorruptError, RegattaError
from regatta.store.locks import exclusive, shared

VERSION = 1
BUSY_SECONDS = 120.0
USERS = "users.lock"  # shared by all that have the index open

_SCHEMA = """
CREATE TABLE IF NOT EXISTS packs (
    pack BLOB PRIMARY KEY, bytes INTEGER NOT NULL, place INTEGER NOT NULL, created REAL NOT NULL,
    retired REAL                                         -- since when nothing in it is needed
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tensors (
    tensor BLOB PRIMARY KEY, encoding INTEGER NOT NULL, base BLOB,
    lost TEXT                                            -- why it cannot be read, when fsck found that
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segments (
    tensor BLOB NOT NULL, first INTEGER NOT NULL, pack BLOB NOT NULL, bytes INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (tensor, first)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS snapshots (
    snapshot BLOB PRIMARY KEY, pack BLOB NOT NULL, bytes INTEGER NOT NULL, record BLOB NOT NULL, created REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (
    snapshot BLOB NOT NULL, tensor BLOB NOT NULL, PRIMARY KEY (snapshot, tensor)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS names (
    name TEXT PRIMARY KEY, snapshot BLOB NOT NULL, created REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
    lease TEXT NOT NULL, snapshot BLOB NOT NULL, expires REAL NOT NULL, PRIMARY KEY (lease, snapshot)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS segments_by_pack ON segments (pack);
CREATE INDEX IF NOT EXISTS tensors_by_base ON tensors (base);
CREATE INDEX IF NOT EXISTS snapshots_by_pack ON snapshots (pack);
"""


class Database:
    """Statements go through `_all` and `_run`; what changes anything, inside `transaction`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._user = shared(path.with_name(USERS))
        try:
            with exclusive(path.with_name("index.lock"), "opening the index"):
                self._db = self._connect()
        except BaseException:
            os.close(self._user)
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()
            if self._user >= 0:
                os.close(self._user)
            self._user = -1

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Change the index: all of it or nothing. One writer of all processes at a time."""
        with self._between("BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See the index as it is at one moment."""
        with self._between("BEGIN"):
            yield

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                self._set_up(db)
            except BaseException:
                db.close()
                raise
        except sqlite3.DatabaseError as error:
            raise _meaning(error, self.path) from error
        return db

    def _set_up(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        db.execute("CREATE TABLE IF NOT EXISTS store (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        db.execute("INSERT OR IGNORE INTO store VALUES ('format', ?)", (str(VERSION),))
        found = db.execute("SELECT value FROM store WHERE key = 'format'").fetchone()[0]
        if found != str(VERSION):
            raise CorruptError(f"The index has format {found}; this version reads {VERSION}.", place=str(self.path))
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute("COMMIT")

    @contextmanager
    def _between(self, begin: str) -> Iterator[None]:
        with self._lock:
            self._run(begin)
            try:
                yield
                self._run("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                raise _meaning(error, self.path) from error

    def _run(self, statement: str, *values: Any) -> int:
        with self._lock:
            try:
                return self._db.execute(statement, values).rowcount
            except sqlite3.DatabaseError as error:
                raise _meaning(error, self.path) from error


def _meaning(error: sqlite3.DatabaseError, path: Path) -> RegattaError:
    if isinstance(error, sqlite3.OperationalError):
        if "locked" in str(error):
            return ConflictError(f"Another process has held the index for {BUSY_SECONDS:g} seconds.", place=str(path))
        if "no such" not in str(error):  # a full disk, a folder that cannot be written: nothing is wrong with the file
            return RegattaError(f"The index cannot be used: {error}.", place=str(path))
    return CorruptError(
        f"The index cannot be read: {error}.",
        place=str(path),
        hint="ParameterStore.rebuild makes a new one out of the packs.",
    )
