"""The index of a store, in SQLite: where each tensor lies, which snapshots need it, and what keeps them.

Everything except names and leases can be rebuilt from the pack files. The index is authoritative: a tensor that it
does not list is not in the store, even if its bytes are still in some pack file.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from regatta.errors import CorruptError, NotFoundError
from regatta.store.database import Database, reads_rows
from regatta.store.format.dtypes import DType
from regatta.store.format.pack_file import ManifestRecord, Record, Segment, parse_record

MAX_CHAIN_LENGTH = 128  # tensors in a chain of deltas; the last one has no base
_IDS_IN_STATEMENT = 500
LOCAL, REMOTE = 1, 2  # bits: where copies of a pack are


@dataclass(frozen=True)
class LocatedSegment:
    """A segment, its pack, and where that pack is."""

    segment: Segment
    pack: str
    place: int


@dataclass(frozen=True)
class StoredTensor:
    """How a tensor is stored: its encoding, its base, and its segments in the order of their streams."""

    tensor: str
    encoding: int
    base: str | None
    segments: tuple[LocatedSegment, ...]

    @property
    def dtype(self) -> DType:
        return self.segments[0].segment.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.segments[0].segment.shape


class Index(Database):
    """The tables of a store: queries, and changes inside a transaction."""

    # Queries

    def setting(self, key: str) -> str | None:
        rows = self._all("SELECT value FROM store WHERE key = ?", key)
        return str(rows[0][0]) if rows else None

    @reads_rows
    def missing(self, tensors: Iterable[str]) -> list[str]:
        """The tensors among these that the store does not have."""
        wanted = list(tensors)
        query = "SELECT tensor FROM tensors WHERE tensor IN ({}) AND lost IS NULL"
        known = {row[0].hex() for row in self._each(query, wanted)}
        return [tensor for tensor in wanted if tensor not in known]

    @reads_rows
    def tensors(self) -> list[str]:
        return [row[0].hex() for row in self._all("SELECT tensor FROM tensors ORDER BY tensor")]

    @reads_rows
    def lost(self) -> dict[str, str]:
        """The tensors that cannot be read, and the reasons."""
        return {row[0].hex(): row[1] for row in self._all("SELECT tensor, lost FROM tensors WHERE lost IS NOT NULL")}

    @reads_rows
    def snapshots(self) -> list[str]:
        """Oldest first."""
        return [row[0].hex() for row in self._all("SELECT snapshot FROM snapshots ORDER BY created, snapshot")]

    def has_snapshot(self, snapshot: str) -> bool:
        """Whether its manifest can be read: fsck may have put its pack file aside."""
        query = "SELECT 1 FROM snapshots JOIN packs USING (pack) WHERE snapshot = ?"
        return bool(self._all(query, bytes.fromhex(snapshot)))

    @reads_rows
    def with_prefix(self, prefix: str, table: str) -> list[str]:
        """The ids in a table with this prefix; at most two, enough to know whether there is exactly one."""
        column = table.removesuffix("s")
        query = f"SELECT {column} FROM {table} WHERE {column} BETWEEN ? AND ? LIMIT 2"
        bounds = (bytes.fromhex(prefix.ljust(64, digit)) for digit in "0f")
        return [row[0].hex() for row in self._all(query, *bounds)]

    def stored(self, tensor: str, even_lost: bool = False) -> StoredTensor:
        return self._stored([tensor], even_lost)[tensor]

    def all_stored(self) -> Iterator[StoredTensor]:
        """How each tensor that is not lost is stored, in the order of ids."""
        rows = self._all(
            "SELECT tensor, encoding, base, record, pack, place FROM tensors JOIN segments USING (tensor) "
            "JOIN packs USING (pack) WHERE lost IS NULL ORDER BY tensor, first"
        )
        with self.translating():
            for tensor, parts in groupby(rows, key=lambda row: row[0].hex()):
                found = list(parts)
                base = found[0][2].hex() if found[0][2] is not None else None
                yield StoredTensor(tensor, found[0][1], base, self._located(tensor, [row[3:] for row in found]))

    def chain(self, tensor: str) -> list[StoredTensor]:
        """A tensor, its base, the base of that and so on, up to a tensor without a base."""
        return self.chains([tensor])[0]

    def chains(self, tensors: Iterable[str]) -> list[list[StoredTensor]]:
        """The chain of each tensor; a base that several share is looked up once."""
        wanted = list(tensors)
        found = latest = self._stored(wanted)
        while bases := {one.base for one in latest.values() if one.base is not None and one.base not in found}:
            latest = self._stored(sorted(bases), even_missing=True)
            found = found | latest
        return [self._chain(tensor, found) for tensor in wanted]

    def _chain(self, tensor: str, known: Mapping[str, StoredTensor]) -> list[StoredTensor]:
        found = [known[tensor]]
        while (base := found[-1].base) is not None:
            if any(base == stored.tensor for stored in found):
                raise CorruptError(f"The deltas of tensor {tensor} form a cycle at {base}.", place=str(self.path))
            if len(found) >= MAX_CHAIN_LENGTH:
                message = f"The deltas of tensor {tensor} go deeper than {MAX_CHAIN_LENGTH}."
                raise CorruptError(message, place=str(self.path))
            if base not in known:
                raise CorruptError(f"The base {base} of {found[-1].tensor} is gone.", place=str(self.path))
            found.append(known[base])
        return found

    @reads_rows
    def bases(self) -> dict[str, str | None]:
        """The whole graph of deltas: {tensor: base}."""
        rows = self._all("SELECT tensor, base FROM tensors")
        return {tensor.hex(): base.hex() if base is not None else None for tensor, base in rows}

    @reads_rows
    def manifest_record(self, snapshot: str) -> tuple[ManifestRecord, str, int]:
        """Where a manifest is: its record, its pack and where the pack is."""
        query = "SELECT record, pack, place FROM snapshots LEFT JOIN packs USING (pack) WHERE snapshot = ?"
        rows = self._all(query, bytes.fromhex(snapshot))
        if not rows:
            raise NotFoundError(f"There is no snapshot {snapshot}.", place=str(self.path.parent))
        if rows[0][2] is None:
            raise CorruptError(f"The manifest of snapshot {snapshot} is lost.", place=str(self.path.parent))
        record = parse_record(rows[0][0], str(self.path))
        if not isinstance(record, ManifestRecord) or record.snapshot != snapshot:
            raise CorruptError(f"The record of snapshot {snapshot} belongs to another.", place=str(self.path))
        return record, rows[0][1].hex(), rows[0][2]

    @reads_rows
    def members(self, snapshot: str) -> set[str]:
        rows = self._all("SELECT tensor FROM members WHERE snapshot = ?", bytes.fromhex(snapshot))
        return {row[0].hex() for row in rows}

    @reads_rows
    def names(self, prefix: str = "") -> dict[str, str]:
        query = "SELECT name, snapshot FROM names WHERE name >= ? AND name < ? ORDER BY name"
        return {name: snapshot.hex() for name, snapshot in self._all(query, prefix, prefix + chr(0x10FFFF))}

    @reads_rows
    def names_before(self, prefix: str, time: float) -> list[str]:
        """The names with a prefix that were given before a time."""
        query = "SELECT name FROM names WHERE name >= ? AND name < ? AND created < ? ORDER BY name"
        return [row[0] for row in self._all(query, prefix, prefix + chr(0x10FFFF), time)]

    @reads_rows
    def packs(self) -> dict[str, tuple[int, int, float | None]]:
        """{pack: (bytes, place, time since which it is not needed)}"""
        rows = self._all("SELECT pack, bytes, place, retired FROM packs")
        return {pack.hex(): (size, place, retired) for pack, size, place, retired in rows}

    @reads_rows
    def contents(self, pack: str) -> tuple[list[LocatedSegment], list[tuple[ManifestRecord, int]]]:
        """The content of a pack that is needed: segments, and manifests with the place of the pack."""
        key, place = bytes.fromhex(pack), self.packs()[pack][1]
        tensors = self._all("SELECT record FROM segments WHERE pack = ?", key)
        snapshots = self._all("SELECT record FROM snapshots WHERE pack = ?", key)
        records = [parse_record(row[0], str(self.path)) for row in tensors + snapshots]
        return (
            [LocatedSegment(record, pack, place) for record in records if isinstance(record, Segment)],
            [(record, place) for record in records if isinstance(record, ManifestRecord)],
        )

    @reads_rows
    def used_bytes(self) -> dict[str, int]:
        """The bytes of each pack that are still needed, records included."""
        rows = self._all(
            "SELECT pack, SUM(bytes + length(record) + 4) FROM (SELECT pack, bytes, record FROM segments "
            "UNION ALL SELECT pack, bytes, record FROM snapshots) GROUP BY pack"
        )
        return {pack.hex(): used for pack, used in rows}

    def check(self, whole: bool = False) -> list[str]:
        """The problems that SQLite itself finds in the file; if `whole`, in its indexes as well."""
        test = "integrity_check" if whole else "quick_check"
        return [row[0] for row in self._all(f"PRAGMA {test}") if row[0] != "ok"]

    def stored_bytes(self, tensors: Iterable[str]) -> int:
        """The bytes of these tensors in pack files, records included."""
        query = "SELECT COALESCE(SUM(bytes + length(record) + 4), 0) FROM segments WHERE tensor = ?"
        return sum(int(self._all(query, bytes.fromhex(tensor))[0][0]) for tensor in tensors)

    # Changes, inside a transaction

    def set(self, key: str, value: str | None) -> None:
        self._run("DELETE FROM store WHERE key = ?", key)
        if value is not None:
            self._run("INSERT INTO store VALUES (?, ?)", key, value)

    def add_pack(self, pack: str, size: int, place: int, now: float) -> None:
        self._run(
            "INSERT INTO packs VALUES (?, ?, ?, ?, NULL) "
            "ON CONFLICT (pack) DO UPDATE SET place = place | excluded.place, retired = NULL",
            bytes.fromhex(pack), size, place, now,
        )  # fmt: skip

    def move_pack(self, pack: str, place: int) -> None:
        self._run("UPDATE packs SET place = ? WHERE pack = ?", place, bytes.fromhex(pack))

    def drop_packs(self, packs: Iterable[str]) -> None:
        for pack in packs:
            self._run("DELETE FROM packs WHERE pack = ?", bytes.fromhex(pack))

    def store_tensors(self, tensors: Iterable[Sequence[tuple[Segment, str]]]) -> None:
        """Replace the segments of tensors by these, each in its pack."""
        rows, parts = [], []
        for segments in tensors:
            first, key = segments[0][0], bytes.fromhex(segments[0][0].tensor)
            rows.append((key, first.encoding, bytes.fromhex(first.base) if first.base is not None else None))
            parts += [(key, each.first, bytes.fromhex(pack), each.size, each.pack()) for each, pack in segments]
        # In the order of the keys, which fills the pages of the file.
        self._run_each("INSERT OR REPLACE INTO tensors VALUES (?, ?, ?, NULL)", sorted(rows, key=lambda row: row[0]))
        self._run_each("DELETE FROM segments WHERE tensor = ?", [row[:1] for row in rows])
        self._run_each("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", sorted(parts, key=lambda part: part[:2]))

    def store_tensor(self, segments: Sequence[tuple[Segment, str]]) -> None:
        self.store_tensors([segments])

    def move_record(self, record: Record, pack: str, copied: Container[str]) -> None:
        """Replace a segment or a manifest by its copy in another pack, if it is still in one of the copied packs."""
        values = bytes.fromhex(pack), record.pack()
        key: tuple[bytes | int, ...]
        if isinstance(record, ManifestRecord):
            table, where, key = "snapshots", "snapshot = ?", (bytes.fromhex(record.snapshot),)
        else:
            table, where, key = "segments", "tensor = ? AND first = ?", (bytes.fromhex(record.tensor), record.first)
        if any(row[0].hex() in copied for row in self._all(f"SELECT pack FROM {table} WHERE {where}", *key)):
            self._run(f"UPDATE {table} SET pack = ?, record = ? WHERE {where}", *values, *key)

    def mark_lost(self, tensor: str, reason: str | None) -> None:
        """Note why a tensor cannot be read; None if it can be read again."""
        self._run("UPDATE tensors SET lost = ? WHERE tensor = ?", reason, bytes.fromhex(tensor))

    def drop_segments(self, pack: str) -> None:
        self._run("DELETE FROM segments WHERE pack = ?", bytes.fromhex(pack))

    def store_snapshot(self, record: ManifestRecord, pack: str, tensors: Iterable[str], now: float) -> None:
        """Add a snapshot and the tensors that it needs; replaces an older entry."""
        key = bytes.fromhex(record.snapshot)
        self._run(
            "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)",
            key, bytes.fromhex(pack), record.size, record.pack(), now,
        )  # fmt: skip
        self._run("DELETE FROM members WHERE snapshot = ?", key)
        rows = [(key, bytes.fromhex(tensor)) for tensor in sorted(set(tensors))]
        self._run_each("INSERT OR IGNORE INTO members VALUES (?, ?)", rows)

    def renew_snapshot(self, snapshot: str, now: float) -> None:
        """Restart the age of a snapshot."""
        self._run("UPDATE snapshots SET created = ? WHERE snapshot = ?", now, bytes.fromhex(snapshot))

    def set_name(self, name: str, snapshot: str | None, now: float) -> None:
        self._run("DELETE FROM names WHERE name = ?", name)
        if snapshot is not None:
            self._run("INSERT INTO names VALUES (?, ?, ?)", name, bytes.fromhex(snapshot), now)

    def set_lease(self, lease: str, snapshots: Iterable[str], expires: float) -> None:
        """Keep snapshots until a time; without snapshots, end the lease."""
        self._run("DELETE FROM leases WHERE lease = ?", lease)
        for snapshot in set(snapshots):
            self._run("INSERT INTO leases VALUES (?, ?, ?)", lease, bytes.fromhex(snapshot), expires)

    def drop_unneeded(self, now: float, grace: float) -> tuple[int, int]:
        """Remove snapshots without name or lease, and tensors that no snapshot and no delta needs; both counts."""
        self._run("DELETE FROM leases WHERE expires < ?", now)
        snapshots = self._run(
            "DELETE FROM snapshots WHERE created < ? AND snapshot NOT IN (SELECT snapshot FROM names) "
            "AND snapshot NOT IN (SELECT snapshot FROM leases)",
            now - grace,
        )
        self._run("DELETE FROM members WHERE snapshot NOT IN (SELECT snapshot FROM snapshots)")
        tensors = self._run(
            "DELETE FROM tensors WHERE tensor NOT IN (WITH RECURSIVE live (tensor) AS (SELECT tensor FROM members "
            "UNION SELECT base FROM tensors JOIN live USING (tensor) WHERE base IS NOT NULL) SELECT tensor FROM live)"
        )
        self._run("DELETE FROM segments WHERE tensor NOT IN (SELECT tensor FROM tensors)")
        return snapshots, tensors

    def retire_packs(self, now: float) -> None:
        """Note the time for packs that are no longer needed, and clear it for packs that are needed again."""
        needed = (  # uses the indexes: one lookup per pack, not per tensor
            "(EXISTS (SELECT 1 FROM segments WHERE segments.pack = packs.pack) "
            "OR EXISTS (SELECT 1 FROM snapshots WHERE snapshots.pack = packs.pack))"
        )
        self._run(f"UPDATE packs SET retired = ? WHERE retired IS NULL AND NOT {needed}", now)
        self._run(f"UPDATE packs SET retired = NULL WHERE retired IS NOT NULL AND {needed}")

    @reads_rows
    def _stored(
        self, tensors: Sequence[str], even_lost: bool = False, even_missing: bool = False
    ) -> dict[str, StoredTensor]:
        """How each of these tensors is stored."""
        rows = {
            row[0].hex(): row[1:]
            for row in self._each("SELECT tensor, encoding, base, lost FROM tensors WHERE tensor IN ({})", tensors)
        }
        parts: dict[str, list[tuple[Any, ...]]] = {}
        query = (
            "SELECT tensor, record, pack, place FROM segments JOIN packs USING (pack) WHERE tensor IN ({}) "
            "ORDER BY tensor, first"
        )
        for tensor, *part in self._each(query, tensors):
            parts.setdefault(tensor.hex(), []).append(tuple(part))
        found = {}
        for tensor in tensors:
            if tensor not in rows:
                if even_missing:
                    continue
                raise NotFoundError(f"There is no tensor {tensor}.", place=str(self.path.parent))
            encoding, base, lost = rows[tensor]
            if lost is not None and not even_lost:
                raise CorruptError(
                    f"The tensor {tensor} is lost: {lost}.",
                    place=str(self.path.parent),
                    hint="Store it again, or give the store a remote that has it and run fsck with repair.",
                )
            segments = self._located(tensor, parts.get(tensor, ()))
            found[tensor] = StoredTensor(tensor, encoding, base.hex() if base is not None else None, segments)
        return found

    def _each(self, query: str, ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query for these ids, which take the place of {}; some hundred in a statement."""
        for at in range(0, len(ids), _IDS_IN_STATEMENT):
            keys = [bytes.fromhex(one) for one in ids[at : at + _IDS_IN_STATEMENT]]
            yield from self._all(query.format(",".join("?" * len(keys))), *keys)

    def _located(self, tensor: str, rows: Iterable[tuple[Any, ...]]) -> tuple[LocatedSegment, ...]:
        found = []
        for record, pack, place in rows:
            segment = parse_record(record, str(self.path))
            if not isinstance(segment, Segment) or segment.tensor != tensor:
                raise CorruptError(f"A record of tensor {tensor} belongs to another.", place=str(self.path))
            found.append(LocatedSegment(segment, pack.hex(), place))
        if not found:
            raise CorruptError(f"The tensor {tensor} is listed, but no pack holds it.", place=str(self.path))
        return tuple(found)
