"""The SQLite file behind the index: tables, connection and transactions.

It uses WAL mode and syncs every commit. The threads of a process share one connection. The catalog of a repository is
such a file, too, with tables of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from regatta.durable import FileLock, exclusive
from regatta.errors import ConflictError, CorruptError, RegattaError, UsageError
from regatta.paths import USERS_LOCK
from regatta.store.sqlite import sqlite3

VERSION = 1
BUSY_TIMEOUT_S = 120.0

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
    """Statements go through `_all` and `_run`; changes happen inside `transaction`."""

    what = "index"
    remedy = "ParameterStore.rebuild makes a new one out of the packs."

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._lock = threading.RLock()
        self._open_lock = FileLock(path.with_name(USERS_LOCK), shared=True)  # while any process holds it: no rebuild
        uri = f"file:{quote(os.path.abspath(path))}"
        if read_only:  # creates no other file, not even a lock; SQLite could not create a log in a read-only folder
            log = path.with_name(f"{path.name}-wal")
            mode = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
            self._db = self._connect(f"{uri}?{mode}", self._check)
            return
        self._open_lock.acquire()
        try:
            with exclusive(path.with_suffix(".lock"), f"opening the {self.what}"):
                self._db = self._connect(uri, self._set_up)
        except BaseException:
            self._open_lock.release()
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()
            self._open_lock.release()

    def transaction(self) -> AbstractContextManager[None]:
        """Change the database, completely or not at all; one writer among all processes at a time."""
        if self.read_only:
            raise UsageError(
                f"The {self.what} is open for reading only.", place=str(self.path), hint="Make its folder writable."
            )
        return self._between("BEGIN IMMEDIATE")

    def reading(self) -> AbstractContextManager[None]:
        """Read the state of a single moment."""
        return self._between("BEGIN")

    def _connect(self, uri: str, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(uri, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=True)
            try:
                prepare(db)
            except BaseException:
                db.close()
                raise
        except sqlite3.DatabaseError as error:
            raise self._translate(error) from error
        return db

    def _set_up(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        db.execute("CREATE TABLE IF NOT EXISTS store (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        db.execute("INSERT OR IGNORE INTO store VALUES ('format', ?)", (str(VERSION),))
        self._check(db)
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute("COMMIT")

    def _check(self, db: sqlite3.Connection) -> None:
        found = db.execute("SELECT value FROM store WHERE key = 'format'").fetchone()[0]
        if found != str(VERSION):
            raise CorruptError(f"The index has format {found}; this version reads {VERSION}.", place=str(self.path))

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
                raise self._translate(error) from error

    def _run(self, statement: str, *values: Any) -> int:
        with self._lock:
            try:
                return self._db.execute(statement, values).rowcount
            except sqlite3.DatabaseError as error:
                raise self._translate(error) from error

    def _translate(self, error: sqlite3.DatabaseError) -> RegattaError:
        place = str(self.path)
        if isinstance(error, sqlite3.OperationalError):
            if "locked" in str(error):
                message = f"Another process has held the {self.what} for {BUSY_TIMEOUT_S:g} seconds."
                return ConflictError(message, place=place)
            if "no such module" in str(error):
                return RegattaError(
                    f"The SQLite of this process lacks what the {self.what} needs: {error}.",
                    place=place,
                    hint="TensorFlow brings one along: import sqlite3 before tensorflow or keras.",
                )
            if "no such" not in str(error):  # such as a full disk: the file itself is not damaged
                return RegattaError(f"The {self.what} cannot be used: {error}.", place=place)
        return CorruptError(f"The {self.what} cannot be read: {error}.", place=place, hint=self.remedy)
