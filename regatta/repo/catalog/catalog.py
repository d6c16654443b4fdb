"""The catalog: versions and their metadata, in SQLite (migrations.py has the tables).

It holds names, numbers and hashes, but neither weights nor files. Every change happens inside a `transaction`, after
the files and weights that it refers to are durable. The version log gets the change first (version_log.py). A catalog
that is behind its log, because a process was killed or the file was lost, catches up when it is opened.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regatta.errors import ConflictError, CorruptError, DiskError, NotFoundError, RegattaError, UsageError, nearest
from regatta.paths import VERSION_LOG
from regatta.repo.catalog import entries
from regatta.repo.catalog.migrations import OLDEST_READABLE, STEPS, add_layer_names, migrate, steps_done
from regatta.repo.catalog.names import REFERENCE_FORMS, possible_meanings
from regatta.repo.catalog.networks import NetworkRows, canonical_json
from regatta.repo.catalog.queries import VERSION, Filters
from regatta.repo.catalog.records import Link, MetricPoint, Records, RunEntry, SnapshotRecord, Tag, Version, Versions
from regatta.repo.catalog.version_log import REMEDY, Key, LogPosition, VersionLog
from regatta.repo.file_store import FileEntry
from regatta.store.database import Database, reads_rows
from regatta.store.sqlite import sqlite3

MIN_SPARSE_BYTES, SPARSE_SHARE = 2**16, 0.5  # a larger log is written again if fewer of its lines are up to date
Metrics = Mapping[str, Mapping[int, float]]  # {name: {step: value}}


@dataclass(frozen=True)
class NewVersion:
    """A version to add; its snapshots and files are durable already. `parents` are ids."""

    id: str
    name: str
    created: float
    message: str = ""
    network: NetworkRows | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None
    run: str | None = None
    config: str | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    snapshots: Sequence[SnapshotRecord] = ()
    files: Sequence[FileEntry] = ()
    parents: Sequence[Link] = ()
    parameters: int | None = None
    bytes: int | None = None


class Catalog(Database):
    """Reads at any time; changes need a `transaction`."""

    what = "catalog"
    remedy = "`regatta fsck --repair` makes a new one from the version log."

    def __init__(self, path: Path, read_only: bool = False, clock: Callable[[], float] = time.time) -> None:
        self.log, self.clock = VersionLog(path.with_name(VERSION_LOG)), clock
        self._touched: dict[Key, None] = {}  # what the open transaction has changed
        super().__init__(path, read_only)
        try:
            self._run("PRAGMA foreign_keys = ON")
            if not read_only and self._is_behind():
                with suppress(DiskError), self.transaction():  # without room, what the catalog has can still be read
                    pass
        except BaseException:
            self.close()
            raise

    def _set_up(self, db: sqlite3.Connection) -> None:
        self._configure(db)
        if steps_done(db, str(self.path)) < len(STEPS):
            db.execute("BEGIN IMMEDIATE")
            migrate(db, str(self.path))
            db.execute("COMMIT")

    def _check(self, db: sqlite3.Connection) -> None:
        if steps_done(db, str(self.path)) < OLDEST_READABLE:
            raise UsageError(
                "The catalog was written by an earlier version of Regatta and must be upgraded first.",
                place=str(self.path),
                hint="Open it once in a writable folder.",
            )

    # The version log

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Change the catalog, completely or not at all; one writer among all processes at a time."""
        self.check_writable()
        with self._between("BEGIN IMMEDIATE", self._commit):
            self._touched.clear()
            with self.translating():
                self._catch_up()
            yield

    def log_position(self) -> LogPosition | None:
        """How much of the log the catalog has; None if it was made by a version that had no log."""
        if not self._all("SELECT 1 FROM sqlite_master WHERE name = 'version_log'"):
            return None
        rows = self._all("SELECT log, lines, bytes FROM version_log")
        return LogPosition(*rows[0]) if rows else None

    def touch(self, kind: str, ident: str) -> None:
        """Note that the transaction changes what the catalog holds under that kind and id (entries.py)."""
        self._touched[kind, ident] = None

    def read_entries(self) -> dict[Key, Any]:
        """Everything that the tables hold, as the log has it."""
        with self._lock, self.translating():
            return entries.read_entries(self._db)

    def write_log(self, content: dict[Key, Any] | None = None, since: float | None = None) -> None:
        """Write a new log without lines that are out of date, as the tables are or with this content.

        It has all versions `since` then, or since the time of the present log.
        """
        self.check_writable()
        with self._between("BEGIN IMMEDIATE"):
            started = self.log_since() if since is None else since
            self._set_position(self.log.replace(self.read_entries() if content is None else content, started))

    def log_since(self) -> float:
        """The log has all versions whose weights were stored since then."""
        identity = self.log.read().identity
        return float(identity.content["since"]) if identity is not None else 0.0

    def log_is_sparse(self) -> bool:
        """Whether most of the log is out of date."""
        content = self.log.read()
        return content.size > MIN_SPARSE_BYTES and len(content.entries()) < SPARSE_SHARE * len(content.lines)

    def _is_behind(self) -> bool:
        position, size = self.log_position(), self.log.size()
        if position is None:  # an existing catalog gets its log with the first change
            return bool(size) or not self.has_numbered()
        with self.translating():
            return size > position.bytes

    def _catch_up(self) -> None:
        """Make the catalog what the log says, and the log whole, before a change."""
        position, size = self.log_position(), self.log.size()
        if position is None and not size:
            since = 0.0 if self.has_numbered() else self.clock()
            self._set_position(self.log.replace(entries.read_entries(self._db), since))
            return
        if position is not None and size == position.bytes and self.log.identity() == position.log:
            return
        content = self.log.read()
        found = content.position()
        if content.identity is None or (position and position.log == found.log and found.bytes < position.bytes):
            raise self._wrong_log("is damaged: it lacks lines that the catalog has")
        if position is not None and not content.follows(position):
            raise self._wrong_log("is not that of the catalog")
        known = position.lines if position is not None and position.log == found.log else 0
        later = [line for line in content.lines if line.number > known]
        if known and later and later[0].last == later[-1].last:
            entries.write_entries(self._db, {(line.kind, line.id): line.content for line in later})
        else:  # in the last lines of several transactions, a name may pass from one version to another
            entries.clear(self._db)
            entries.write_entries(self._db, content.entries())
        if content.size > content.bytes:
            self.log.cut(content.bytes)
        # If the catalog was lost, what was at the end of the log may be as well. Damaged lines stay for fsck to name.
        if position is None and not content.damaged:
            found = self.log.replace(entries.read_entries(self._db), self.clock())
        self._set_position(found)

    def _wrong_log(self, reason: str) -> CorruptError:
        return CorruptError(f"The version log {reason}.", place=str(self.log.path), hint=REMEDY)

    def _commit(self) -> None:
        """Append what the transaction changed to the log, and commit: after that, the change is there for good."""
        position = self.log_position()
        if not self._touched or position is None:
            self._run("COMMIT")
            return
        with self.translating():
            versions = entries.read_versions(self._db, [ident for kind, ident in self._touched if kind == "version"])
            changes = {
                key: versions.get(key) if key[0] == entries.VERSION else entries.read_entry(self._db, key)
                for key in self._touched
            }
        try:
            self._set_position(self.log.append(position, changes))
            self._run("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self.log.cut(position.bytes)
            elif isinstance(error, RegattaError):
                self._take_back(position)
            raise

    def _take_back(self, position: LogPosition) -> None:
        """Remove the lines of a transaction that SQLite has rolled back by itself, as it does on a full disk.

        With it, SQLite let go of the lock. So another process may have continued the log, and made them count.
        """
        with suppress(RegattaError), self.rolled_back():
            if self.log_position() == position:
                self.log.cut(position.bytes)

    def _set_position(self, position: LogPosition) -> None:
        self._run("DELETE FROM version_log")
        self._run("INSERT INTO version_log VALUES (?, ?, ?)", *position)

    # Finding

    def find(self, reference: str) -> Version:
        """The version of a tag, a name (its newest version), a name@number or the beginning of an id."""
        for meaning in possible_meanings(reference) if isinstance(reference, str) else ():
            condition, values = _CONDITIONS[meaning.kind], [meaning.text]
            if meaning.kind == "number":
                values.append(meaning.number)  # type: ignore[arg-type]
            elif meaning.kind == "id":
                values.append(meaning.text + "g")
            found = self._versions(f"SELECT {VERSION} FROM model_version v {condition}", *values)
            if len(found) > 1:
                raise UsageError(f"Several versions have an id that begins with {reference}.", hint="Give more of it.")
            if found:
                return found[0]
        raise self._unknown(reference)

    def of_id(self, version: str) -> Version:
        """The version with exactly this id."""
        found = self._versions(f"SELECT {VERSION} FROM model_version v WHERE v.id = ?", version)
        if not found:
            raise self._unknown(version)
        return found[0]

    def has(self, version: str) -> bool:
        return bool(self._all("SELECT 1 FROM model_version WHERE id = ?", version))

    def versions(self, filters: Filters) -> Versions:
        query, values = filters.sql()
        return Versions(self._versions(query, *values))

    def count(self) -> int:
        return int(self._all("SELECT COUNT(*) FROM model_version")[0][0])

    def is_empty(self) -> bool:
        """Whether there is no version."""
        return not self._all("SELECT 1 FROM model_version LIMIT 1")

    def has_numbered(self) -> bool:
        """Whether there ever was a version, even if it was deleted."""
        return bool(self._all("SELECT EXISTS (SELECT 1 FROM numbering)")[0][0])

    def names(self) -> list[str]:
        return [row[0] for row in self._all("SELECT DISTINCT name FROM model_version ORDER BY name")]

    def ids(self) -> set[str]:
        return {row[0] for row in self._all("SELECT id FROM model_version")}

    def lineage(self, version: Version) -> Versions:
        """The version and its ancestors, newest first, with the links between them."""
        query = (
            "WITH RECURSIVE line (key) AS (VALUES (?) UNION SELECT base FROM parent JOIN line ON derived = line.key) "
            f"SELECT {VERSION} FROM line JOIN model_version v USING (key) ORDER BY created DESC, key DESC"
        )
        found = self._versions(query, version.key)
        return Versions(found, self.links([each.key for each in found]))

    def parents(self, version: Version) -> Versions:
        return self._neighbours(version, "derived", "base")

    def children(self, version: Version) -> Versions:
        return self._neighbours(version, "base", "derived")

    def _neighbours(self, version: Version, mine: str, theirs: str) -> Versions:
        query = (
            f"SELECT {VERSION} FROM parent JOIN model_version v ON v.key = parent.{theirs} "
            f"WHERE parent.{mine} = ? ORDER BY v.created, v.key"
        )
        return Versions(self._versions(query, version.key), self.links([version.key], mine))

    def links(self, keys: Sequence[int] | None = None, side: str = "derived") -> tuple[Link, ...]:
        """The links to parents: all, or those that have these versions on one side."""
        chosen = "" if keys is None else f"WHERE p.{side} IN (SELECT value FROM json_each(?)) "
        query = (
            'SELECT b.id, d.id, p.kind, p.epoch, p."commit" FROM parent p JOIN model_version b ON b.key = p.base '
            f"JOIN model_version d ON d.key = p.derived {chosen}ORDER BY d.key, b.key"
        )
        return tuple(Link(*row) for row in self._all(query, *(() if keys is None else (json.dumps(list(keys)),))))

    def of_keys(self, keys: Iterable[int]) -> list[Version]:
        """The versions with these keys, oldest first."""
        query = f"SELECT {VERSION} FROM model_version v WHERE v.key IN (SELECT value FROM json_each(?)) ORDER BY v.key"
        return self._versions(query, json.dumps(list(keys)))

    def select(
        self, statement: str, values: Sequence[Any], functions: Iterable[tuple[str, int, Callable[..., Any]]] = ()
    ) -> list[tuple[Any, ...]]:
        """The rows of a query's statement, which may call these functions: (name, number of arguments, function)."""
        with self._lock, self._executing():
            for name, count, function in functions:
                self._db.create_function(name, count, function, deterministic=True)
            self._derive_layer_names()
            self._db.set_progress_handler(lambda: 0, 100_000)  # in Python, so that Ctrl-C ends a long statement
            try:
                return self._db.execute(statement, values).fetchall()
            except UnicodeEncodeError as error:
                raise UsageError("A value of the query is not valid Unicode.") from error
            except sqlite3.OperationalError as error:
                if "locked" in str(error) or "disk" in str(error):
                    raise
                raise UsageError(f"SQLite cannot run the query: {error}.", hint="Simplify it.") from error
            finally:
                self._db.set_progress_handler(None, 0)

    def _derive_layer_names(self) -> None:
        """A catalog of an earlier version that is open for reading gets the table of its names beside the file."""
        tables = "SELECT name FROM sqlite_master UNION SELECT name FROM sqlite_temp_master"
        if self.read_only and not self._all(f"SELECT 1 FROM ({tables}) WHERE name = 'layer_name'"):
            add_layer_names(self._db, temporary=True)

    # What belongs to a version

    def snapshots(self, version: Version) -> Records[SnapshotRecord]:
        query = "SELECT position, epoch, kind, reference, snapshot, digest FROM snapshot WHERE version = ?"
        return Records(SnapshotRecord(*row) for row in self._all(f"{query} ORDER BY position", version.key))

    def all_snapshots(self) -> list[tuple[str, SnapshotRecord]]:
        """The snapshots of all versions, each with the id of its version."""
        query = (
            "SELECT id, position, epoch, kind, reference, s.snapshot, digest FROM snapshot s "
            "JOIN model_version v ON v.key = s.version ORDER BY v.key, position"
        )
        return [(row[0], SnapshotRecord(*row[1:])) for row in self._all(query)]

    def metric_names(self) -> list[str]:
        """The metrics that any version has."""
        return [name for (name,) in self._all("SELECT DISTINCT name FROM metric_range ORDER BY name")]

    def hyperparameter_names(self) -> list[str]:
        """The hyperparameters that any version has."""
        return [name for (name,) in self._all("SELECT DISTINCT name FROM hyperparameter ORDER BY name")]

    def has_metric(self, name: str) -> bool:
        """Whether any version has this metric."""
        return bool(self._all("SELECT 1 FROM metric_range WHERE name = ? LIMIT 1", name))

    def has_hyperparameter(self, name: str) -> bool:
        """Whether any version has this hyperparameter."""
        return bool(self._all("SELECT 1 FROM hyperparameter WHERE name = ? LIMIT 1", name))

    def hyperparameter_types(self, name: str) -> frozenset[str]:
        """The types of values that a hyperparameter has in any version: number, text, boolean, list."""
        tests = {
            "number": "number IS NOT NULL",
            "text": "json >= '\"' AND json < '#'",
            "boolean": "json IN ('true', 'false')",
            "list": "json >= '[' AND json < '\\'",
        }  # fmt: skip
        query = "SELECT 1 FROM hyperparameter WHERE name = ? AND {} LIMIT 1"
        return frozenset(type_ for type_, test in tests.items() if self._all(query.format(test), name))

    def run_names(self) -> list[str]:
        """The runs that any version comes from."""
        return [name for (name,) in self._all("SELECT DISTINCT name FROM run ORDER BY name")]

    def series_named(self, run: str) -> str | None:
        """The series of the newest run with this name."""
        rows = self._all("SELECT series FROM run WHERE name = ? ORDER BY started DESC LIMIT 1", run)
        return str(rows[0][0]) if rows else None

    @reads_rows
    def metrics(self, version: Version) -> Records[MetricPoint]:
        query = "SELECT name, step, value FROM metric WHERE version = ? ORDER BY name, step"
        rows = self._all(query, version.key)
        return Records(MetricPoint(name, step, math.nan if v is None else v) for name, step, v in rows)

    def files(self, version: Version) -> tuple[FileEntry, ...]:
        query = "SELECT path, hash, bytes, executable FROM file WHERE version = ? ORDER BY path"
        return tuple(FileEntry(path, digest, size, bool(x)) for path, digest, size, x in self._all(query, version.key))

    def all_files(self) -> dict[str, int]:
        """{hash: bytes} of all files that versions name."""
        return dict(self._all("SELECT hash, MAX(bytes) FROM file GROUP BY hash"))

    def users_of_file(self, digest: str) -> list[tuple[str, str]]:
        """The versions that have a file, as name@number, and its path in each."""
        query = (
            "SELECT v.name || '@' || v.number, path FROM file JOIN model_version v ON v.key = version "
            "WHERE hash = ? ORDER BY v.key"
        )
        return [(version, path) for version, path in self._all(query, digest)]

    def file_users(self) -> dict[str, int]:
        """{hash: the number of versions that have the file}"""
        return dict(self._all("SELECT hash, COUNT(DISTINCT version) FROM file GROUP BY hash"))

    def has_versions(self, series: str) -> bool:
        """Whether a run has versions."""
        return bool(self._all("SELECT 1 FROM model_version WHERE run = ? LIMIT 1", series))

    @reads_rows
    def network(self, digest: str | None) -> dict[str, Any] | None:
        rows = self._all("SELECT json FROM network WHERE hash = ?", digest) if digest is not None else []
        return dict(json.loads(rows[0][0])) if rows else None

    def tags(self, version: Version | None = None) -> Records[Tag]:
        query = "SELECT t.name, v.id, t.created FROM tag t JOIN model_version v ON v.key = t.version"
        if version is not None:
            return Records(Tag(*row) for row in self._all(f"{query} WHERE t.version = ? ORDER BY t.name", version.key))
        return Records(Tag(*row) for row in self._all(f"{query} ORDER BY t.name"))

    @reads_rows
    def run(self, series: str | None) -> RunEntry | None:
        query = "SELECT series, name, folder, status, started, metric, mode, header FROM run WHERE series = ?"
        rows = self._all(query, series) if series is not None else []
        if not rows:
            return None
        fields: list[Any] = [*rows[0][:-1], json.loads(rows[0][-1])]
        return RunEntry(*fields)

    def check(self, whole: bool = False) -> list[str]:
        """Problems of the file, of references between tables, and of the index of words; if `whole`, of all indexes."""
        test = "integrity_check" if whole else "quick_check"
        found = [f"Catalog: {row[0]}." for row in self._all(f"PRAGMA {test}") if row[0] != "ok"]
        found += [
            f"Catalog: a row of {row[0]} refers to a missing {row[2]}." for row in self._all("PRAGMA foreign_key_check")
        ]
        missing = self._all("SELECT COUNT(*) FROM model_version WHERE key NOT IN (SELECT rowid FROM words)")[0][0]
        return [*found, *([f"Catalog: {missing} versions are missing from the search index."] if missing else [])]

    # Changing it, inside a transaction

    def add(self, new: NewVersion, number: int | None = None) -> Version:
        """Add a version with the next number of its name, or with the number that it had, if that is still free."""
        if self._all("SELECT 1 FROM tag WHERE name = ?", new.name):
            raise ConflictError(f"There is a tag {new.name!r}; a version cannot have the same name.")
        # No number is used twice, even if its version is deleted.
        query = (
            "INSERT INTO numbering VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET last = MAX(last + ?, excluded.last)"
        )
        if number is None or self._all("SELECT 1 FROM model_version WHERE name = ? AND number = ?", new.name, number):
            self._run(query, new.name, 1, 1)
            number = int(self._all("SELECT last FROM numbering WHERE name = ?", new.name)[0][0])
        else:
            self._run(query, new.name, number, 0)
        self._run(
            "INSERT INTO model_version (id, name, number, created, message, metadata, git, run, config, "
            "hyperparameters, metrics) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '{}')",
            new.id, new.name, number, new.created, new.message,
            canonical_json(dict(new.metadata), "metadata"),
            canonical_json(dict(new.git), "git state") if new.git else None, new.run, new.config,
            canonical_json(dict(new.hyperparameters), "hyperparameters"),
        )  # fmt: skip
        self.touch(entries.NUMBERING, new.name)
        key = int(self._all("SELECT key FROM model_version WHERE id = ?", new.id)[0][0])
        self._many(
            "INSERT INTO hyperparameter VALUES (?, ?, ?, ?)", entries.hyperparameter_rows(key, new.hyperparameters)
        )
        self._many(
            "INSERT INTO file VALUES (?, ?, ?, ?, ?)", [(key, f.path, f.hash, f.bytes, f.executable) for f in new.files]
        )
        self.extend(key, new)
        paths = [file.path for file in new.files]
        with self.translating():
            entries.write_words(self._db, key, new.name, new.message, new.hyperparameters, paths)
        return self.of_id(new.id)

    def extend(self, key: int, new: NewVersion) -> None:
        """Add a network, snapshots, metrics and parents to a version; snapshots may be replaced."""
        self._touch_version(key)
        if new.network is not None:
            self._add_network(new.network)
        self.replace_snapshots(key, new.snapshots)
        self._run(
            "UPDATE model_version SET snapshots = (SELECT COUNT(*) FROM snapshot WHERE version = key), "
            "parameters = COALESCE(?, parameters), bytes = COALESCE(?, bytes), network = COALESCE(network, ?) "
            "WHERE key = ?",
            new.parameters, new.bytes, new.network.hash if new.network else None, key,
        )  # fmt: skip
        self._add_metrics(key, new.metrics)
        for link in new.parents:
            self._run(
                "INSERT OR REPLACE INTO parent SELECT ?, key, ?, ?, ? FROM model_version WHERE id = ?",
                key, link.kind, link.epoch, link.commit, link.base,
            )  # fmt: skip

    def replace_snapshots(self, key: int, snapshots: Iterable[SnapshotRecord]) -> None:
        """Write snapshots of a version; those at the same positions are replaced."""
        self._touch_version(key)
        rows = [(key, s.position, s.epoch, s.kind, s.reference, s.id, s.digest) for s in snapshots]
        self._many("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def set_snapshots(self, version: Version, snapshots: Sequence[SnapshotRecord]) -> None:
        """Replace all snapshots of a version by these."""
        self._run("DELETE FROM snapshot WHERE version = ?", version.key)
        self.replace_snapshots(version.key, snapshots)
        self._run("UPDATE model_version SET snapshots = ? WHERE key = ?", len(snapshots), version.key)

    def set_metadata(self, version: Version, metadata: Mapping[str, Any]) -> None:
        self.touch(entries.VERSION, version.id)
        text = canonical_json(dict(metadata), "metadata")
        self._run("UPDATE model_version SET metadata = ? WHERE key = ?", text, version.key)

    def set_message(self, version: Version, message: str) -> None:
        self.touch(entries.VERSION, version.id)
        self._run("UPDATE model_version SET message = ? WHERE key = ?", message, version.key)
        self._run("UPDATE words SET message = ? WHERE rowid = ?", message, version.key)

    def set_run(self, run: RunEntry) -> None:
        known = self.run(run.series)
        if known is not None and (known.name, known.folder, known.status) == (run.name, run.folder, run.status):
            return
        self.touch(entries.RUN, run.series)
        self._run(
            "INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (series) DO UPDATE SET name = excluded.name, "
            "folder = excluded.folder, status = excluded.status",
            run.series, run.name, run.folder, run.status, run.started, run.metric, run.mode,
            canonical_json(dict(run.header), "header of the run"),
        )  # fmt: skip

    def set_tag(self, name: str, version: Version, now: float, move: bool) -> None:
        if self._all("SELECT 1 FROM model_version WHERE name = ? LIMIT 1", name):
            raise ConflictError(f"There are versions with the name {name!r}; a tag cannot have the same name.")
        rows = self._all(
            "SELECT v.name, v.number, v.key FROM tag t JOIN model_version v ON v.key = version WHERE t.name = ?", name
        )
        if rows and rows[0][2] != version.key and not move:
            raise ConflictError(f"The tag {name!r} is at {rows[0][0]}@{rows[0][1]}.", hint="Move it with move=True.")
        self.touch(entries.TAG, name)
        self._run("INSERT OR REPLACE INTO tag VALUES (?, ?, ?)", name, version.key, now)

    def drop_tag(self, name: str) -> None:
        self.touch(entries.TAG, name)
        if not self._run("DELETE FROM tag WHERE name = ?", name):
            raise NotFoundError(f"There is no tag {name!r}.", candidates=nearest(name, (t.name for t in self.tags())))

    def rename(self, old: str, new: str) -> int:
        """Give all versions of a name another one, with their numbers; the number of versions."""
        if self._all("SELECT 1 FROM tag WHERE name = ?", new):
            raise ConflictError(f"There is a tag {new!r}; a version cannot have the same name.")
        if self._all("SELECT 1 FROM numbering WHERE name = ?", new):
            raise ConflictError(f"There are, or were, versions with the name {new!r}.", hint="Choose another name.")
        versions = self._all("SELECT key, id FROM model_version WHERE name = ?", old)
        self._run("UPDATE numbering SET name = ? WHERE name = ?", new, old)
        self._run("UPDATE model_version SET name = ? WHERE name = ?", new, old)
        for key, _ in versions:
            self._run("UPDATE words SET name = ? WHERE rowid = ?", new, key)
        for name in (old, new):
            self.touch(entries.NUMBERING, name)
        for _, ident in versions:
            self.touch(entries.VERSION, ident)
        return len(versions)

    def drop_run(self, series: str) -> None:
        """Delete a run that has no versions."""
        self.touch(entries.RUN, series)
        self._run("DELETE FROM run WHERE series = ?", series)

    def drop(self, version: Version) -> None:
        """Delete a version with its own rows, its tags and its links."""
        self.touch(entries.VERSION, version.id)
        for tag in self.tags(version):
            self.touch(entries.TAG, tag.name)
        for child in self.children(version):
            self.touch(entries.VERSION, child.id)
        if version.network is not None:
            self.touch(entries.NETWORK, version.network)
        self._run("DELETE FROM model_version WHERE key = ?", version.key)
        self._run(
            "DELETE FROM network WHERE hash = ? AND NOT EXISTS (SELECT 1 FROM model_version WHERE network = ?)",
            version.network,
            version.network,
        )

    def _add_network(self, network: NetworkRows) -> None:
        if self._all("SELECT 1 FROM network WHERE hash = ?", network.hash):
            return
        self.touch(entries.NETWORK, network.hash)
        self._run("INSERT INTO network VALUES (?, ?, ?)", network.hash, len(network.nodes), network.json)
        self._many("INSERT INTO node VALUES (?, ?, ?, ?, ?, ?)", [(network.hash, *node) for node in network.nodes])
        self._many("INSERT INTO edge VALUES (?, ?, ?, ?)", [(network.hash, *edge) for edge in network.edges])
        self._many("INSERT INTO layer_name VALUES (?, ?, ?)", [(network.hash, *each) for each in network.other_names])

    def _add_metrics(self, key: int, metrics: Metrics) -> None:
        """Enter values, and derive the ranges of the metrics that got some."""
        if not metrics:
            return
        rows = [
            (key, name, step, entries.nullable(value))
            for name, points in metrics.items()
            for step, value in points.items()
        ]
        self._many("INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?)", rows)
        with self.translating():
            entries.write_metric_ranges(self._db, key)

    def _touch_version(self, key: int) -> None:
        self.touch(entries.VERSION, str(self._all("SELECT id FROM model_version WHERE key = ?", key)[0][0]))

    def _versions(self, query: str, *values: Any) -> list[Version]:
        return Version.from_rows(self._all(query, *values))

    def _many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with self._lock, self._executing():
            self._db.executemany(statement, rows)

    def _unknown(self, reference: object) -> NotFoundError:
        runs = self._all("SELECT series, metric, mode FROM run WHERE name = ? ORDER BY started DESC LIMIT 1", reference)
        if runs:
            series, metric, mode = runs[0]
            best = self.versions(Filters(run=series, metric=metric, mode=mode, order="best", limit=1))
            hint = f"Its best version is {best[0].reference}" if best else "None of its models has finished an epoch"
            return NotFoundError(
                f"{reference!r:.200} is a run, not a version.", hint=f"{hint}; list all: regatta list --run {reference}"
            )
        known = [*self.names(), *(tag.name for tag in self.tags())]
        return NotFoundError(
            f"There is no version {reference!r:.200}.",
            place=str(self.path.parent),
            candidates=nearest(str(reference), [*known, *self.run_names()]),
            hint=REFERENCE_FORMS if known else "The repository has no versions yet.",
        )


_CONDITIONS = {
    "tag": "JOIN tag t ON t.version = v.key WHERE t.name = ?",
    "name": "WHERE v.name = ? ORDER BY v.number DESC LIMIT 1",
    "number": "WHERE v.name = ? AND v.number = ?",
    "id": "WHERE v.id >= ? AND v.id < ? LIMIT 2",
}
