"""What a catalog holds as plain JSON values, one entry per version, network, run, tag and numbering of a name.

The version log holds these entries. `read_entries` makes them from the tables, and `write_entries` the tables from
them, those that are derived included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from regatta.errors import UsageError
from regatta.repo.catalog.networks import canonical_json, network_rows
from regatta.repo.catalog.records import MetricRange, range_of
from regatta.repo.catalog.version_log import Entries, Key
from regatta.store.sqlite import sqlite3

VERSION, NETWORK, RUN, TAG, NUMBERING = "version", "network", "run", "tag", "numbering"
_PLAIN = ("key", "name", "number", "created", "message", "network", "run", "config", "parameters", "bytes")
_JSON = ("metadata", "git", "hyperparameters")
_RUN = ("name", "folder", "status", "started", "metric", "mode")
_PARTS = {  # the rows that belong to a version
    "snapshots": "SELECT version, position, epoch, kind, reference, snapshot, digest FROM snapshot {} ORDER BY 1, 2",
    "metrics": "SELECT version, name, step, value FROM metric {} ORDER BY 1, 2, 3",
    "files": "SELECT version, path, hash, bytes, executable FROM file {} ORDER BY 1, 2",
    "parents": 'SELECT derived AS version, b.id, kind, epoch, "commit" FROM parent '
    "JOIN model_version b ON b.key = base {} ORDER BY 1, b.key",
}


def read_entries(db: sqlite3.Connection) -> Entries:
    """Everything that the catalog holds."""
    found: Entries = {(NETWORK, row[0]): json.loads(row[1]) for row in db.execute("SELECT hash, json FROM network")}
    for series, *values, header in db.execute(f"SELECT series, {', '.join(_RUN)}, header FROM run"):
        found[RUN, series] = {**dict(zip(_RUN, values, strict=True)), "header": json.loads(header)}
    found |= read_versions(db)
    query = "SELECT t.name, v.id, t.created FROM tag t JOIN model_version v ON v.key = t.version"
    found |= {(TAG, name): {"version": version, "created": created} for name, version, created in db.execute(query)}
    found |= {(NUMBERING, row[0]): row[1] for row in db.execute("SELECT name, last FROM numbering")}
    return found


def read_entry(db: sqlite3.Connection, key: Key) -> Any:
    """One entry that is not a version; None if the catalog does not hold it."""
    kind, ident = key
    if kind == NETWORK:
        rows = db.execute("SELECT json FROM network WHERE hash = ?", (ident,)).fetchall()
        return json.loads(rows[0][0]) if rows else None
    if kind == RUN:
        rows = db.execute(f"SELECT {', '.join(_RUN)}, header FROM run WHERE series = ?", (ident,)).fetchall()
        return {**dict(zip(_RUN, rows[0], strict=False)), "header": json.loads(rows[0][-1])} if rows else None
    if kind == TAG:
        query = "SELECT v.id, t.created FROM tag t JOIN model_version v ON v.key = t.version WHERE t.name = ?"
        rows = db.execute(query, (ident,)).fetchall()
        return {"version": rows[0][0], "created": rows[0][1]} if rows else None
    rows = db.execute("SELECT last FROM numbering WHERE name = ?", (ident,)).fetchall()
    return rows[0][0] if rows else None


def read_versions(db: sqlite3.Connection, ids: Iterable[str] | None = None) -> Entries:
    """All versions, or those with these ids that there are."""
    columns = ", ".join((*_PLAIN, *_JSON))
    if ids is None:
        rows = db.execute(f"SELECT id, {columns} FROM model_version ORDER BY key").fetchall()
    else:
        query = f"SELECT id, {columns} FROM model_version WHERE id IN (SELECT value FROM json_each(?)) ORDER BY key"
        rows = db.execute(query, (json.dumps(list(ids)),)).fetchall()
    found = {}
    for ident, *values in rows:
        entry = dict(zip((*_PLAIN, *_JSON), values, strict=True))
        entry |= {name: None if entry[name] is None else json.loads(entry[name]) for name in _JSON}
        entry |= {"snapshots": [], "metrics": {}, "files": [], "parents": []}
        found[entry["key"]] = VERSION, ident, entry
    chosen = "" if ids is None else "WHERE version IN (SELECT value FROM json_each(?))"
    values = () if ids is None else (json.dumps(list(found)),)
    for part, query in _PARTS.items():
        where = chosen.replace("version", "derived") if part == "parents" else chosen
        for key, *row in db.execute(query.format(where), values):
            if key not in found:
                continue  # a row without its version; the check of references between tables names it
            if part == "metrics":
                name, step, value = row
                found[key][2][part].setdefault(name, []).append([step, _json_number(value)])
            else:
                found[key][2][part].append(row)
    return {(kind, ident): entry for kind, ident, entry in found.values()}


def write_entries(db: sqlite3.Connection, changes: Mapping[Key, Any]) -> None:
    """Change the tables inside the open transaction: entries are replaced, and those that are None removed."""
    for kind, ident in (key for key, content in changes.items() if content is None):
        table, column = _PLACES[kind]
        if kind != NETWORK:
            db.execute(f"DELETE FROM {table} WHERE {column} = ?", (ident,))
    kept = {key: content for key, content in changes.items() if content is not None}
    for kind, write in _WRITERS.items():
        for (each, ident), content in kept.items():
            if each == kind:
                write(db, ident, content)
    for (kind, _), content in kept.items():
        if kind == VERSION:
            for base, how, epoch, message in content["parents"]:
                query = "INSERT OR REPLACE INTO parent SELECT ?, key, ?, ?, ? FROM model_version WHERE id = ?"
                db.execute(query, (content["key"], how, epoch, message, base))
    for ident in (ident for (kind, ident), content in changes.items() if content is None and kind == NETWORK):
        db.execute(
            "DELETE FROM network WHERE hash = ? AND NOT EXISTS (SELECT 1 FROM model_version WHERE network = hash)",
            (ident,),
        )


def clear(db: sqlite3.Connection) -> None:
    for table in ("tag", "model_version", "network", "run", "numbering"):
        db.execute(f"DELETE FROM {table}")


def write_metric_ranges(db: sqlite3.Connection, key: int) -> None:
    """Derive the ranges of a version's metrics from their values."""
    known: dict[str, dict[int, float]] = {}
    for name, step, value in db.execute("SELECT name, step, value FROM metric WHERE version = ?", (key,)):
        known.setdefault(name, {})[step] = math.nan if value is None else value
    ranges = {name: range_of(points) for name, points in known.items()}
    values = [(key, name, *map(nullable, (r.lowest, r.highest, r.last))) for name, r in ranges.items()]
    db.executemany("INSERT OR REPLACE INTO metric_range VALUES (?, ?, ?, ?, ?)", values)
    text = canonical_json({name: _listed(found) for name, found in ranges.items()}, "metrics")
    db.execute("UPDATE model_version SET metrics = ? WHERE key = ?", (text, key))


def write_words(
    db: sqlite3.Connection, key: int, name: str, message: str, values: Mapping[str, Any], files: Iterable[str]
) -> None:
    """Enter a version into the search index."""
    words = " ".join(f"{each} {value}" for each, value in values.items())
    db.execute(
        "INSERT INTO words (rowid, name, message, hyperparameters, files) VALUES (?, ?, ?, ?, ?)",
        (key, name, message, words, " ".join(files)),
    )


def hyperparameter_rows(key: int, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (key, name, canonical_json(value, f"value of {name!r}"), _as_number(value)) for name, value in values.items()
    ]


def nullable(value: float) -> float | None:
    """SQLite has no NaN."""
    return None if math.isnan(value) else float(value)


def _write_network(db: sqlite3.Connection, ident: str, content: Any) -> None:
    if db.execute("SELECT 1 FROM network WHERE hash = ?", (ident,)).fetchall():
        return
    try:
        rows = network_rows(content)
    except UsageError:  # made by an earlier version, which allowed more
        rows = None
    text = canonical_json(content, "network")
    db.execute("INSERT INTO network VALUES (?, ?, ?)", (ident, len(rows.nodes) if rows else 0, text))
    if rows is not None:
        db.executemany("INSERT INTO node VALUES (?, ?, ?, ?, ?, ?)", [(ident, *node) for node in rows.nodes])
        db.executemany("INSERT INTO edge VALUES (?, ?, ?, ?)", [(ident, *edge) for edge in rows.edges])
        db.executemany("INSERT INTO layer_name VALUES (?, ?, ?)", [(ident, *each) for each in rows.other_names])


def _write_run(db: sqlite3.Connection, ident: str, content: Any) -> None:
    values = [ident, *(content[name] for name in _RUN), canonical_json(content["header"], "header of the run")]
    names = ("name", "folder", "status", "started", "metric", "mode", "header")
    changed = ", ".join(f"{name} = excluded.{name}" for name in names)
    db.execute(f"INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (series) DO UPDATE SET {changed}", values)


def _write_version(db: sqlite3.Connection, ident: str, content: Any) -> None:
    key, values = content["key"], content["hyperparameters"]
    texts = {name: None if content[name] is None else canonical_json(content[name], name) for name in _JSON}
    row = {"id": ident, **{name: content[name] for name in _PLAIN}, **texts, "metrics": "{}"}
    row["snapshots"] = len(content["snapshots"])
    for name, table, column in (("network", "network", "hash"), ("run", "run", "series")):
        if not db.execute(f"SELECT 1 FROM {table} WHERE {column} = ?", (row[name],)).fetchall():
            row[name] = None  # its own entry was lost
    changed = ", ".join(f"{name} = excluded.{name}" for name in row if name != "key")
    db.execute(
        f"INSERT INTO model_version ({', '.join(row)}) VALUES ({', '.join('?' * len(row))}) "
        f"ON CONFLICT (key) DO UPDATE SET {changed}",
        list(row.values()),
    )
    for table in ("snapshot", "metric", "metric_range", "hyperparameter", "file"):
        db.execute(f"DELETE FROM {table} WHERE version = ?", (key,))
    db.execute("DELETE FROM parent WHERE derived = ?", (key,))
    db.execute("DELETE FROM words WHERE rowid = ?", (key,))
    db.executemany("INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?, ?)", [(key, *each) for each in content["snapshots"]])
    db.executemany("INSERT INTO file VALUES (?, ?, ?, ?, ?)", [(key, *each) for each in content["files"]])
    db.executemany("INSERT INTO hyperparameter VALUES (?, ?, ?, ?)", hyperparameter_rows(key, values))
    points = [(key, name, step, _from_json(value)) for name, rows in content["metrics"].items() for step, value in rows]
    db.executemany("INSERT INTO metric VALUES (?, ?, ?, ?)", points)
    if points:
        write_metric_ranges(db, key)
    write_words(db, key, content["name"], content["message"], values, (file[0] for file in content["files"]))
    number = content["name"], content["number"]
    db.execute("INSERT INTO numbering VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET last = MAX(last, ?)",
               (*number, content["number"]))  # fmt: skip


def _write_tag(db: sqlite3.Connection, ident: str, content: Any) -> None:
    query = "INSERT OR REPLACE INTO tag SELECT ?, key, ? FROM model_version WHERE id = ?"
    db.execute(query, (ident, content["created"], content["version"]))


def _write_numbering(db: sqlite3.Connection, ident: str, content: Any) -> None:
    db.execute("INSERT OR REPLACE INTO numbering VALUES (?, ?)", (ident, content))


_WRITERS = {
    NETWORK: _write_network, RUN: _write_run, VERSION: _write_version, TAG: _write_tag, NUMBERING: _write_numbering,
}  # fmt: skip
_PLACES = {
    NETWORK: ("network", "hash"), RUN: ("run", "series"), VERSION: ("model_version", "id"), TAG: ("tag", "name"),
    NUMBERING: ("numbering", "name"),
}  # fmt: skip


def _as_number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # where it stands among others; the number itself is in the JSON


def _listed(found: MetricRange) -> list[Any]:
    numbers: Sequence[float | None] = [nullable(n) for n in (found.lowest, found.highest, found.last)]
    return [*map(_json_number, numbers), found.lowest_step, found.highest_step, found.last_step]


def _json_number(value: float | None) -> float | str | None:
    """As JSON can hold it, which knows no infinities."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _from_json(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, str) else value
