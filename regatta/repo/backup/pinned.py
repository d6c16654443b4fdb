"""What a repository holds at one moment, kept as it is until it is copied.

The catalog must not name weights that the copied index lacks. Commits store weights before they name them, and deletes
remove names before they release weights, so both databases of one moment agree. Both are held for writing just long
enough to begin a reading transaction on each. Then commits go on. Until the copy is done, gc waits, nothing removes
pack files, and archivers do not delete state files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from regatta.durable import FileLock, exclusive
from regatta.errors import DiskError
from regatta.journal.run_record import find_journals
from regatta.paths import ARCHIVER_LOCK, MAINTENANCE_LOCK, RUNS, STAGING
from regatta.repo.repo import Repo
from regatta.store.database import Database
from regatta.store.sqlite import sqlite3


@dataclass(frozen=True)
class PinnedRepository:
    """Connections that see the databases of one moment, and the content of small files at the same moment."""

    catalog: sqlite3.Connection
    index: sqlite3.Connection | None
    small_files: dict[str, bytes]
    runs: tuple[Path, ...]


@contextmanager
def pinned(repo: Repo) -> Iterator[PinnedRepository]:
    with ExitStack() as held:
        if repo.read_only:
            yield _pin(repo, held)
            return
        held.enter_context(repo.committing())
        if repo.has_store:
            held.enter_context(exclusive(repo.store.path / MAINTENANCE_LOCK, "backup"))
        with ExitStack() as moment:
            moment.enter_context(repo.catalog.transaction())
            if repo.has_store:
                moment.enter_context(repo.store.index.transaction())
            found = _pin(repo, held)
        yield found


def _pin(repo: Repo, held: ExitStack) -> PinnedRepository:
    runs = tuple(journal.parent for journal in find_journals(repo.folder / RUNS))
    if not repo.read_only:
        for run in runs:
            held.enter_context(FileLock(run / ARCHIVER_LOCK))
    catalog = _reading(repo.catalog, held)
    index = _reading(repo.store.index, held) if repo.has_store else None
    found = {name: repo.folder / name for name in (STAGING,)}
    small = {name: path.read_bytes() for name, path in found.items() if path.is_file()}
    return PinnedRepository(catalog, index, small, runs)


def _reading(database: Database, held: ExitStack) -> sqlite3.Connection:
    """A connection in a reading transaction, which sees the database as it is now."""
    if database.without_log:
        return database.connection()  # no other process can change it
    path = database.path
    try:
        db = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", isolation_level=None, uri=True)
        held.callback(db.close)
        db.execute("BEGIN")
        db.execute("SELECT COUNT(*) FROM sqlite_master").fetchall()
    except sqlite3.OperationalError as error:
        raise DiskError(f"The database cannot be read: {error}.", place=str(path)) from error
    return db
