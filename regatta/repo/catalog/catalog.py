"""The catalog: versions and their metadata, in SQLite (migrations.py has the tables).

It holds names, numbers and hashes, but neither weights nor files. Every change happens inside a `transaction`, after
the files and weights that it refers to are durable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regatta.errors import ConflictError, NotFoundError, UsageError, nearest
from regatta.repo.catalog.migrations import STEPS, migrate, steps_done
from regatta.repo.catalog.names import possible_meanings
from regatta.repo.catalog.networks import NetworkRows, canonical_json
from regatta.repo.catalog.queries import VERSION, Filters
from regatta.repo.catalog.records import (
    Link,
    MetricPoint,
    MetricRange,
    Records,
    RunEntry,
    SnapshotRecord,
    Tag,
    Version,
    Versions,
    range_of,
)
from regatta.repo.file_store import FileEntry
from regatta.store.database import Database
from regatta.store.sqlite import sqlite3

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
    remedy = "Restore the file from a copy; weights and files of the repository are not affected."

    def __init__(self, path: Path, read_only: bool = False) -> None:
        super().__init__(path, read_only)
        self._run("PRAGMA foreign_keys = ON")

    def _set_up(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        if steps_done(db, str(self.path)) < len(STEPS):
            db.execute("BEGIN IMMEDIATE")
            migrate(db, str(self.path))
            db.execute("COMMIT")

    def _check(self, db: sqlite3.Connection) -> None:
        if steps_done(db, str(self.path)) < len(STEPS):
            raise UsageError(
                "The catalog was written by an earlier version of Regatta and must be upgraded first.",
                place=str(self.path),
                hint="Open it once in a writable folder.",
            )

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

    def network(self, digest: str | None) -> dict[str, Any] | None:
        rows = self._all("SELECT json FROM network WHERE hash = ?", digest) if digest is not None else []
        return dict(json.loads(rows[0][0])) if rows else None

    def tags(self, version: Version | None = None) -> Records[Tag]:
        query = "SELECT t.name, v.id, t.created FROM tag t JOIN model_version v ON v.key = t.version"
        if version is not None:
            return Records(Tag(*row) for row in self._all(f"{query} WHERE t.version = ? ORDER BY t.name", version.key))
        return Records(Tag(*row) for row in self._all(f"{query} ORDER BY t.name"))

    def run(self, series: str | None) -> RunEntry | None:
        query = "SELECT series, name, folder, status, started, metric, mode, header FROM run WHERE series = ?"
        rows = self._all(query, series) if series is not None else []
        if not rows:
            return None
        fields: list[Any] = [*rows[0][:-1], json.loads(rows[0][-1])]
        return RunEntry(*fields)

    def check(self) -> list[str]:
        """Problems of the file, of references between tables, and of the index of words."""
        found = [f"Catalog: {row[0]}." for row in self._all("PRAGMA quick_check") if row[0] != "ok"]
        found += [
            f"Catalog: a row of {row[0]} refers to a missing {row[2]}." for row in self._all("PRAGMA foreign_key_check")
        ]
        missing = self._all("SELECT COUNT(*) FROM model_version WHERE key NOT IN (SELECT rowid FROM words)")[0][0]
        return [*found, *([f"Catalog: {missing} versions are missing from the search index."] if missing else [])]

    # Changing it, inside a transaction

    def add(self, new: NewVersion) -> Version:
        """Add a version, with the next number of its name."""
        if self._all("SELECT 1 FROM tag WHERE name = ?", new.name):
            raise ConflictError(f"There is a tag {new.name!r}; a version cannot have the same name.")
        self._run(
            "INSERT INTO numbering VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET last = last + 1", new.name
        )  # no number is used twice, even if its version is deleted
        self._run(
            "INSERT INTO model_version (id, name, number, created, message, metadata, git, run, config, "
            "hyperparameters, metrics) SELECT ?, name, last, ?, ?, ?, ?, ?, ?, ?, '{}' FROM numbering WHERE name = ?",
            new.id, new.created, new.message,
            canonical_json(dict(new.metadata), "metadata"),
            canonical_json(dict(new.git), "git state") if new.git else None, new.run, new.config,
            canonical_json(dict(new.hyperparameters), "hyperparameters"), new.name,
        )  # fmt: skip
        key = int(self._all("SELECT key FROM model_version WHERE id = ?", new.id)[0][0])
        values = [
            (key, name, canonical_json(value, f"value of {name!r}"), _as_number(value))
            for name, value in new.hyperparameters.items()
        ]
        self._many("INSERT INTO hyperparameter VALUES (?, ?, ?, ?)", values)
        self._many(
            "INSERT INTO file VALUES (?, ?, ?, ?, ?)", [(key, f.path, f.hash, f.bytes, f.executable) for f in new.files]
        )
        self.extend(key, new)
        self._run(
            "INSERT INTO words (rowid, name, message, hyperparameters, files) VALUES (?, ?, ?, ?, ?)",
            key, new.name, new.message, " ".join(f"{name} {value}" for name, value in new.hyperparameters.items()),
            " ".join(file.path for file in new.files),
        )  # fmt: skip
        return self.of_id(new.id)

    def extend(self, key: int, new: NewVersion) -> None:
        """Add a network, snapshots, metrics and parents to a version; snapshots may be replaced."""
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
        rows = [(key, s.position, s.epoch, s.kind, s.reference, s.id, s.digest) for s in snapshots]
        self._many("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def set_metadata(self, version: Version, metadata: Mapping[str, Any]) -> None:
        text = canonical_json(dict(metadata), "metadata")
        self._run("UPDATE model_version SET metadata = ? WHERE key = ?", text, version.key)

    def set_run(self, run: RunEntry) -> None:
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
        self._run("INSERT OR REPLACE INTO tag VALUES (?, ?, ?)", name, version.key, now)

    def drop_tag(self, name: str) -> None:
        if not self._run("DELETE FROM tag WHERE name = ?", name):
            raise NotFoundError(f"There is no tag {name!r}.", candidates=nearest(name, (t.name for t in self.tags())))

    def drop(self, version: Version) -> None:
        """Delete a version with its own rows, its tags and its links."""
        self._run("DELETE FROM model_version WHERE key = ?", version.key)
        self._run(
            "DELETE FROM network WHERE hash = ? AND NOT EXISTS (SELECT 1 FROM model_version WHERE network = ?)",
            version.network,
            version.network,
        )

    def _add_network(self, network: NetworkRows) -> None:
        if self._all("SELECT 1 FROM network WHERE hash = ?", network.hash):
            return
        self._run("INSERT INTO network VALUES (?, ?, ?)", network.hash, len(network.nodes), network.json)
        self._many("INSERT INTO node VALUES (?, ?, ?, ?, ?, ?)", [(network.hash, *node) for node in network.nodes])
        self._many("INSERT INTO edge VALUES (?, ?, ?, ?)", [(network.hash, *edge) for edge in network.edges])

    def _add_metrics(self, key: int, metrics: Metrics) -> None:
        """Enter values, and derive the ranges of the metrics that got some."""
        if not metrics:
            return
        rows = [
            (key, name, step, _nullable(value)) for name, points in metrics.items() for step, value in points.items()
        ]
        self._many("INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?)", rows)
        known: dict[str, dict[int, float]] = {}
        for name, step, value in self._all("SELECT name, step, value FROM metric WHERE version = ?", key):
            known.setdefault(name, {})[step] = math.nan if value is None else value
        ranges = {name: range_of(points) for name, points in known.items()}
        values = [(key, name, *map(_nullable, (r.lowest, r.highest, r.last))) for name, r in ranges.items()]
        self._many("INSERT OR REPLACE INTO metric_range VALUES (?, ?, ?, ?, ?)", values)
        text = canonical_json({name: _listed(found) for name, found in ranges.items()}, "metrics")
        self._run("UPDATE model_version SET metrics = ? WHERE key = ?", text, key)

    def _versions(self, query: str, *values: Any) -> list[Version]:
        return Version.from_rows(self._all(query, *values))

    def _many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with self._lock:
            try:
                self._db.executemany(statement, rows)
            except sqlite3.DatabaseError as error:
                raise self._translate(error) from error

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
            candidates=nearest(str(reference), known),
            hint=None if known else "The repository has no versions yet.",
        )


_CONDITIONS = {
    "tag": "JOIN tag t ON t.version = v.key WHERE t.name = ?",
    "name": "WHERE v.name = ? ORDER BY v.number DESC LIMIT 1",
    "number": "WHERE v.name = ? AND v.number = ?",
    "id": "WHERE v.id >= ? AND v.id < ? LIMIT 2",
}


def _as_number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # where it stands among others; the number itself is in the JSON


def _nullable(value: float) -> float | None:
    """SQLite has no NaN."""
    return None if math.isnan(value) else float(value)


def _listed(found: MetricRange) -> list[Any]:
    """As JSON can hold it, which knows neither NaN nor the infinities."""
    numbers = (found.lowest, found.highest, found.last)
    return [
        *(None if math.isnan(n) else str(n) if math.isinf(n) else n for n in numbers),
        found.lowest_step, found.highest_step, found.last_step,
    ]  # fmt: skip
