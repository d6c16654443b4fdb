"""The SQLite file behind the index: tables, connection and transactions.

It uses WAL mode and syncs every commit. The threads of a process share one connection. The catalog of a repository is
such a file, too, with tables of its own.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from regatta.durable import FileLock, exclusive, fsync_path, is_nearly_full, reserve
from regatta.errors import ConflictError, CorruptError, DiskError, RegattaError, UsageError
from regatta.paths import USERS_LOCK, has_packs
from regatta.store.sqlite import sqlite3

VERSION = 1
BUSY_TIMEOUT_S = 120.0
RESERVED_BYTES = 2**12  # after the file
FULL_DISK_TIMEOUT_S = 2.0  # to wait until no other process uses the file
_LOG_OFFSET, _WITH_LOG, _WITHOUT_LOG = 18, b"\x02\x02", b"\x01\x01"  # in the header of the file
PAGE_BYTES = 1024  # every table and index takes a page: SQLite's 4096 would make a small model a sixth larger
_DAMAGE = ("no such", "already exists", "decode", "syntax error", "unrecognized token", "malformed", "has no column")

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


_MADE = set(re.findall(r"(?:TABLE|INDEX) IF NOT EXISTS (\w+)", _SCHEMA))
_OPEN: Counter[tuple[int, int]] = Counter()  # the connections of this process that can write, by file
_OPEN_LOCK = threading.Lock()

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound="Database")


def reads_rows(method: Callable[Concatenate[D, P], T]) -> Callable[Concatenate[D, P], T]:
    """A method that raises CorruptError if a row is not as it was written: SQLite holds any type in any column."""

    @wraps(method)
    def read(self: D, /, *args: P.args, **options: P.kwargs) -> T:
        with self.translating():
            return method(self, *args, **options)

    return read


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


class Database:
    """Statements go through `_all` and `_run`; changes happen inside `transaction`."""

    what = "index"
    remedy = "`regatta fsck --rebuild-index`, or ParameterStore.rebuild, makes a new one from the pack files."

    def __init__(self, path: Path, read_only: bool = False, rebuilding: bool = False) -> None:
        self.path, self.read_only, self.rebuilding = path, read_only, rebuilding
        self._lock = threading.RLock()
        self._counted = 1  # until it is closed
        self.without_log = False  # whether changes are written without SQLite's log, because the disk is full
        self._open_lock = FileLock(path.with_name(USERS_LOCK), shared=True)  # while any process holds it: no rebuild
        uri = f"file:{quote(os.path.abspath(path))}"
        if os.path.lexists(path) and not path.is_file():
            raise self._corrupt(f"There is no {self.what}: a file should be there, and is not.")
        if read_only and not path.exists():
            raise self.missing_index()
        if read_only:  # creates no other file, not even a lock; SQLite could not create a log in a read-only folder
            log = path.with_name(f"{path.name}-wal")
            mode = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
            self._db = self._connect(f"{uri}?{mode}", self._check)
            return
        self._open_lock.acquire()
        try:
            with exclusive(path.with_suffix(".lock"), f"opening the {self.what}"), _OPEN_LOCK:
                self._db = self._connect_writable(uri)
                self._file = _identity(path)
                _OPEN[self._file] += 1
        except BaseException:
            self._open_lock.release()
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()
            if not self.read_only:
                with _OPEN_LOCK:
                    _OPEN[self._file] -= self._counted
                    self._counted = 0
                    if not self.without_log and _OPEN[self._file] <= 0:
                        self._reserve()
            self._open_lock.release()

    def _reserve(self) -> None:
        """Keep a little room after the file, so that it can change on a full disk.

        Only where this process has no other connection: closing a file gives up every lock that the process has on it,
        SQLite's as well. Another process would then empty the log that a connection still reads.
        """
        with suppress(OSError):
            handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                reserve(handle, RESERVED_BYTES)
            finally:
                os.close(handle)

    def connection(self) -> sqlite3.Connection:
        """The connection itself, for a copy of the whole file."""
        return self._db

    def transaction(self) -> AbstractContextManager[None]:
        """Change the database, completely or not at all; one writer among all processes at a time."""
        self.check_writable()
        return self._between("BEGIN IMMEDIATE")

    def check_writable(self) -> None:
        if self.read_only:
            raise UsageError(
                f"The {self.what} is open for reading only.", place=str(self.path), hint="Make its folder writable."
            )

    def rolled_back(self) -> AbstractContextManager[None]:
        """A transaction that changes nothing in the end."""
        return self._between("BEGIN IMMEDIATE", lambda: self._run("ROLLBACK"))

    def reading(self) -> AbstractContextManager[None]:
        """Read the state of a single moment."""
        return self._between("BEGIN")

    def checkpoint(self) -> None:
        """Write the log back into the file and empty it, unless another process reads from it at this moment."""
        self._all("PRAGMA wal_checkpoint(TRUNCATE)")

    def _connect_writable(self, uri: str) -> sqlite3.Connection:
        """A connection that needs no room on the disk if there is little: then no other process may use the file.

        SQLite's log takes room for each change, and for opening the file. Without it, a change is written over what was
        there before. If the power fails meanwhile, the file has to be repaired.
        """
        self.without_log = is_nearly_full(self.path.parent)
        try:
            return self._connect(uri, self._set_up)
        except DiskError:
            if self.without_log and not self._write_log_back(uri):
                raise
            self.without_log = True  # if it was not: a quota, which the size of the disk does not show
            return self._connect(uri, self._set_up)
        except ConflictError:
            if not self.without_log:
                raise
            self.without_log = False  # another process uses the file, so there is a log; emptying it makes room
            db = self._connect(uri, self._set_up)
            with suppress(sqlite3.OperationalError):
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return db

    def _write_log_back(self, uri: str) -> bool:
        """Write the log that a killed process left into the file, in the room that the log takes; False without a log.

        SQLite would need room for both. No other process uses the file: it would have kept this one from opening it.
        """
        log = self.path.with_name(f"{self.path.name}-wal")
        if not log.exists() or not log.stat().st_size:
            return False
        connecting = sqlite3.connect(uri, timeout=FULL_DISK_TIMEOUT_S, isolation_level=None, uri=True)
        with closing(connecting) as db, self._executing():
            self._lock_whole_file(db)
            content = bytearray(db.serialize())
        content[_LOG_OFFSET : _LOG_OFFSET + len(_WITHOUT_LOG)] = _WITHOUT_LOG
        try:
            os.truncate(log, 0)
            self.path.write_bytes(content)
            fsync_path(self.path)
            log.unlink()
        except OSError as error:
            raise DiskError(
                f"The {self.what} cannot be written: {error.strerror}.", place=str(self.path), hint=self.remedy
            ) from error
        return True

    def _lock_whole_file(self, db: sqlite3.Connection) -> None:
        """Keep all other processes out of the file; what one of them shared with others before it died takes room."""
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("SELECT 1 FROM sqlite_master").fetchall()
        self.path.with_name(f"{self.path.name}-shm").unlink(missing_ok=True)

    def _leave_log(self) -> None:
        """Mark a file that has no log as one that needs none: SQLite would make an empty log to find that out."""
        if self.path.with_name(f"{self.path.name}-wal").exists() or not self.path.exists():
            return
        handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.pread(handle, len(_WITH_LOG), _LOG_OFFSET) == _WITH_LOG:
                os.pwrite(handle, _WITHOUT_LOG, _LOG_OFFSET)
        finally:
            os.close(handle)

    def _connect(self, uri: str, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
        timeout = FULL_DISK_TIMEOUT_S if self.without_log else BUSY_TIMEOUT_S
        if self.without_log:
            self._leave_log()
        try:
            db = sqlite3.connect(uri, timeout=timeout, isolation_level=None, check_same_thread=False, uri=True)
            try:
                with self.translating():
                    prepare(db)
            except BaseException:
                db.close()
                raise
        except sqlite3.DatabaseError as error:
            raise self._translate(error) from error
        return db

    def _set_up(self, db: sqlite3.Connection) -> None:
        self._configure(db)
        db.execute("BEGIN IMMEDIATE")
        is_new = not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'store'").fetchall()
        if is_new and not self.rebuilding and has_packs(self.path.parent):
            raise self.missing_index()
        db.execute("CREATE TABLE IF NOT EXISTS store (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        db.execute("INSERT OR IGNORE INTO store VALUES ('format', ?)", (str(VERSION),))
        if self.rebuilding:
            db.execute("INSERT OR IGNORE INTO store VALUES ('rebuilding', '1')")  # until the new index is filled
        for statement in _SCHEMA.split(";") if is_new else ():  # a table that is gone is damage
            db.execute(statement)
        self._check(db)
        db.execute("COMMIT")

    def _configure(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a new file
        if self.without_log:
            self._lock_whole_file(db)
        db.execute(f"PRAGMA journal_mode = {'MEMORY' if self.without_log else 'WAL'}")
        db.execute("PRAGMA synchronous = FULL")

    def _check(self, db: sqlite3.Connection) -> None:
        found = db.execute("SELECT value FROM store WHERE key = 'format'").fetchone()[0]
        if found != str(VERSION):
            raise CorruptError(f"The index has format {found}; this version reads {VERSION}.", place=str(self.path))
        if not self.rebuilding and db.execute("SELECT 1 FROM store WHERE key = 'rebuilding'").fetchall():
            raise self.missing_index()
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if lost := sorted(_MADE - there):
            raise self._corrupt(f"The {self.what} has lost {', '.join(lost)}.")

    def missing_index(self) -> CorruptError:
        """The error for pack files without an index: an empty one would make garbage of them."""
        return self._corrupt(f"The {self.what} is missing or empty, but there are pack files.")

    def _corrupt(self, message: str) -> CorruptError:
        return CorruptError(message, place=str(self.path), hint=self.remedy)

    @contextmanager
    def _between(self, begin: str, commit: Callable[[], object] | None = None) -> Iterator[None]:
        with self._lock:
            self._run(begin)
            try:
                yield
                if commit is None:
                    self._run("COMMIT")
                else:
                    commit()
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock, self._executing():
            return self._db.execute(query, values).fetchall()

    def _run(self, statement: str, *values: Any) -> int:
        with self._lock, self._executing():
            return self._db.execute(statement, values).rowcount

    @contextmanager
    def _executing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._translate(error) from error
        except UnicodeDecodeError as error:  # SQLite names a damaged table in its message
            raise self._unreadable(error) from error

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Turn what SQLite raises, and what rows raise that are not of the declared types, into errors of Regatta."""
        with self._executing():
            try:
                yield
            except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
                raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> CorruptError:
        return self._corrupt(f"The {self.what} has content that cannot be read: {error!r:.200}.")

    def _run_each(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with self._lock, self._executing():
            self._db.executemany(statement, rows)

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
            if not any(text in str(error) for text in _DAMAGE):  # such as a full disk: the file itself is not damaged
                return DiskError(f"The {self.what} cannot be used: {error}.", place=place, hint=self._disk_hint())
        return self._corrupt(f"The {self.what} cannot be read: {error}.")

    def _disk_hint(self) -> str:
        if is_nearly_full(self.path.parent):
            return "Make room on the disk. `regatta gc --grace 0` needs none, and frees what no version uses."
        return "Check the disk, and the permissions of the file and its folder."
