"""The tables of the catalog, as a list of migration steps; the file holds the number of steps done.

A released step is never changed; a change of the tables is a further step.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from regatta.errors import UsageError
from regatta.store.sqlite import sqlite3

_RELATIONS = """
CREATE TABLE network (                                   -- canonical JSON by its hash
    hash TEXT PRIMARY KEY, nodes INTEGER NOT NULL, json TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE node (                                      -- derived from it
    network TEXT NOT NULL REFERENCES network ON DELETE CASCADE, node TEXT NOT NULL, position INTEGER NOT NULL,
    kind TEXT NOT NULL, name TEXT NOT NULL, attributes TEXT NOT NULL,
    PRIMARY KEY (network, node)
) WITHOUT ROWID;
CREATE TABLE edge (                                      -- "source" is operand number "operand" of "target"
    network TEXT NOT NULL REFERENCES network ON DELETE CASCADE, target TEXT NOT NULL, operand INTEGER NOT NULL,
    source TEXT NOT NULL,
    PRIMARY KEY (network, target, operand)
) WITHOUT ROWID;
CREATE TABLE run (
    series TEXT PRIMARY KEY, name TEXT NOT NULL, folder TEXT NOT NULL, status TEXT NOT NULL, started REAL NOT NULL,
    metric TEXT NOT NULL, mode TEXT NOT NULL, header TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE numbering (name TEXT PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE model_version (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, number INTEGER NOT NULL,
    created REAL NOT NULL, message TEXT NOT NULL, network TEXT REFERENCES network, metadata TEXT NOT NULL,
    git TEXT, run TEXT REFERENCES run, config TEXT,
    hyperparameters TEXT NOT NULL, metrics TEXT NOT NULL, -- the same as the tables, in one piece for whoever lists
    snapshots INTEGER NOT NULL DEFAULT 0, parameters INTEGER, bytes INTEGER, -- of the last snapshot
    UNIQUE (name, number), UNIQUE (run, config)
);
CREATE TABLE snapshot (
    version INTEGER NOT NULL REFERENCES model_version ON DELETE CASCADE, position INTEGER NOT NULL,
    epoch INTEGER, kind TEXT NOT NULL CHECK (kind IN ('weights', 'state')),
    reference TEXT NOT NULL,                             -- the name that keeps it in the parameter store
    snapshot TEXT,                                       -- its id there; NULL while it is a file of its run
    digest TEXT,                                         -- BLAKE3 of that file
    PRIMARY KEY (version, position)
) WITHOUT ROWID;
CREATE TABLE metric (
    version INTEGER NOT NULL REFERENCES model_version ON DELETE CASCADE, name TEXT NOT NULL, step INTEGER NOT NULL,
    value REAL,                                          -- NULL is NaN
    PRIMARY KEY (version, name, step)
) WITHOUT ROWID;
CREATE TABLE metric_range (                              -- derived: where each metric was lowest, highest and at last
    version INTEGER NOT NULL REFERENCES model_version ON DELETE CASCADE, name TEXT NOT NULL,
    lowest REAL, highest REAL, last REAL,
    PRIMARY KEY (version, name)
) WITHOUT ROWID;
CREATE TABLE hyperparameter (
    version INTEGER NOT NULL REFERENCES model_version ON DELETE CASCADE, name TEXT NOT NULL,
    json TEXT NOT NULL, number REAL,                     -- of numbers
    PRIMARY KEY (version, name)
) WITHOUT ROWID;
CREATE TABLE file (
    version INTEGER NOT NULL REFERENCES model_version ON DELETE CASCADE, path TEXT NOT NULL, hash TEXT NOT NULL,
    bytes INTEGER NOT NULL, executable INTEGER NOT NULL,
    PRIMARY KEY (version, path)
) WITHOUT ROWID;
CREATE TABLE parent (
    derived INTEGER NOT NULL REFERENCES model_version ON DELETE CASCADE,
    base INTEGER NOT NULL REFERENCES model_version ON DELETE CASCADE,
    kind TEXT NOT NULL, epoch INTEGER, "commit" TEXT NOT NULL,
    PRIMARY KEY (derived, base)
) WITHOUT ROWID;
CREATE TABLE tag (
    name TEXT PRIMARY KEY, version INTEGER NOT NULL REFERENCES model_version ON DELETE CASCADE, created REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX version_by_time ON model_version (created);
CREATE INDEX version_by_network ON model_version (network);
CREATE INDEX node_by_kind ON node (kind, network);
CREATE INDEX lowest_metric ON metric_range (name, lowest);
CREATE INDEX highest_metric ON metric_range (name, highest);
CREATE INDEX last_metric ON metric_range (name, last);
CREATE INDEX hyperparameter_by_number ON hyperparameter (name, number);
CREATE INDEX hyperparameter_by_value ON hyperparameter (name, json);
CREATE INDEX file_by_hash ON file (hash);
CREATE INDEX parent_by_base ON parent (base);
CREATE INDEX tag_by_version ON tag (version);
CREATE VIRTUAL TABLE words USING fts5 (
    name, message, hyperparameters, files, tokenize = "unicode61 remove_diacritics 2", prefix = '2 3'
);
CREATE TRIGGER forget_words AFTER DELETE ON model_version BEGIN DELETE FROM words WHERE rowid = old.key; END;
"""

_LOG_POSITION = """
CREATE TABLE version_log (                               -- one row: how much of which version log the tables have
    log TEXT NOT NULL, lines INTEGER NOT NULL, bytes INTEGER NOT NULL
);
"""

_LAYER_NAMES = """
CREATE TABLE layer_name (                                -- derived: other names of layers whose own says little
    network TEXT NOT NULL REFERENCES network ON DELETE CASCADE, node TEXT NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (network, node, name)
) WITHOUT ROWID;
CREATE INDEX edge_by_source ON edge (network, source);
"""


def add_layer_names(db: sqlite3.Connection, temporary: bool = False) -> None:
    """Other names of layers (regatta/network/aliases.py), and the edges by source: queries look for both.

    Temporary ones are for catalogs that cannot be upgraded, since they are open for reading only.
    """
    from regatta.network.aliases import other_names

    if temporary:
        db.execute(
            "CREATE TEMP TABLE layer_name (network TEXT, node TEXT, name TEXT, PRIMARY KEY (network, node, name))"
        )
    else:
        for statement in _statements(_LAYER_NAMES):
            db.execute(statement)
    rows = db.execute("SELECT network, node, kind, name FROM node ORDER BY network, position").fetchall()
    for network, nodes in groupby(rows, key=lambda row: row[0]):
        names = other_names(row[1:] for row in nodes)
        db.executemany("INSERT INTO layer_name VALUES (?, ?, ?)", [(network, *each) for each in names])


Step = str | Callable[[sqlite3.Connection], None]
STEPS: tuple[Step, ...] = (_RELATIONS, _LOG_POSITION, add_layer_names)
OLDEST_READABLE = 1  # the steps that a catalog must have to be read, in a folder where it cannot be upgraded


def migrate(db: sqlite3.Connection, place: str) -> None:
    """Upgrade the tables, inside the open transaction; tables of a later version are refused."""
    done = steps_done(db, place)
    for step in STEPS[done:]:
        if not isinstance(step, str):
            step(db)
            continue
        for statement in _statements(step):
            db.execute(statement)
    if done < len(STEPS):
        db.execute(f"PRAGMA user_version = {len(STEPS)}")


def steps_done(db: sqlite3.Connection, place: str) -> int:
    done = int(db.execute("PRAGMA user_version").fetchone()[0])
    if done > len(STEPS):
        raise UsageError(
            f"The catalog was written by a later version: it has format {done}, this one reads {len(STEPS)}.",
            place=place,
            hint="Update Regatta.",
        )
    return done


def _statements(script: str) -> list[str]:
    """The single statements, since `executescript` would commit first; a trigger contains semicolons."""
    found, rest = [], ""
    for line in script.splitlines():
        rest += line + "\n"
        if sqlite3.complete_statement(rest):
            found.append(rest.strip())
            rest = ""
    return found
