"""The index of a store, in SQLite: where each tensor lies, which snapshots need it, and what keeps them.

Everything except names and leases can be rebuilt from the pack files. The index is authoritative: a tensor that it
does not list is not in the store, even if its bytes are still in some pack file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from regatta.errors import CorruptError, NotFoundError
from regatta.store.database import Database
from regatta.store.format.dtypes import DType
from regatta.store.format.pack_file import ManifestRecord, Record, Segment, parse_record

MAX_CHAIN_LENGTH = 128  # tensors in a chain of deltas, the last of which has no base
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

    def missing(self, tensors: Iterable[str]) -> list[str]:
        """The tensors among these that the store does not have."""
        query = "SELECT 1 FROM tensors WHERE tensor = ? AND lost IS NULL"
        return [tensor for tensor in tensors if not self._all(query, bytes.fromhex(tensor))]

    def tensors(self) -> list[str]:
        return [row[0].hex() for row in self._all("SELECT tensor FROM tensors ORDER BY tensor")]

    def lost(self) -> dict[str, str]:
        """The tensors that cannot be read, and the reasons."""
        return {row[0].hex(): row[1] for row in self._all("SELECT tensor, lost FROM tensors WHERE lost IS NOT NULL")}

    def snapshots(self) -> list[str]:
        """Oldest first."""
        return [row[0].hex() for row in self._all("SELECT snapshot FROM snapshots ORDER BY created, snapshot")]

    def has_snapshot(self, snapshot: str) -> bool:
        """Whether its manifest can be read: fsck may have put its pack file aside."""
        query = "SELECT 1 FROM snapshots JOIN packs USING (pack) WHERE snapshot = ?"
        return bool(self._all(query, bytes.fromhex(snapshot)))

    def with_prefix(self, prefix: str, table: str) -> list[str]:
        """The ids in a table with this prefix; at most two, enough to know whether there is exactly one."""
        column = table.removesuffix("s")
        query = f"SELECT {column} FROM {table} WHERE {column} BETWEEN ? AND ? LIMIT 2"
        bounds = (bytes.fromhex(prefix.ljust(64, digit)) for digit in "0f")
        return [row[0].hex() for row in self._all(query, *bounds)]

    def stored(self, tensor: str, even_lost: bool = False) -> StoredTensor:
        rows = self._all("SELECT encoding, base, lost FROM tensors WHERE tensor = ?", bytes.fromhex(tensor))
        if not rows:
            raise NotFoundError(f"There is no tensor {tensor}.", place=str(self.path.parent))
        encoding, base, lost = rows[0]
        if lost is not None and not even_lost:
            raise CorruptError(
                f"The tensor {tensor} is lost: {lost}.",
                place=str(self.path.parent),
                hint="Store it again, or give the store a remote that has it and run fsck with repair.",
            )
        query = "SELECT record, pack, place FROM segments JOIN packs USING (pack) WHERE tensor = ? ORDER BY first"
        segments = self._located(tensor, self._all(query, bytes.fromhex(tensor)))
        return StoredTensor(tensor, encoding, base.hex() if base is not None else None, segments)

    def all_stored(self) -> Iterator[StoredTensor]:
        """How each tensor that is not lost is stored, in the order of ids."""
        rows = self._all(
            "SELECT tensor, encoding, base, record, pack, place FROM tensors JOIN segments USING (tensor) "
            "JOIN packs USING (pack) WHERE lost IS NULL ORDER BY tensor, first"
        )
        for tensor, parts in groupby(rows, key=lambda row: row[0].hex()):
            found = list(parts)
            base = found[0][2].hex() if found[0][2] is not None else None
            yield StoredTensor(tensor, found[0][1], base, self._located(tensor, [row[3:] for row in found]))

    def chain(self, tensor: str) -> list[StoredTensor]:
        """A tensor, its base, the base of that and so on, up to a tensor without a base."""
        found = [self.stored(tensor)]
        while (base := found[-1].base) is not None:
            if any(base == stored.tensor for stored in found):
                raise CorruptError(f"The deltas of tensor {tensor} form a cycle at {base}.", place=str(self.path))
            if len(found) >= MAX_CHAIN_LENGTH:
                message = f"The deltas of tensor {tensor} go deeper than {MAX_CHAIN_LENGTH}."
                raise CorruptError(message, place=str(self.path))
            try:
                found.append(self.stored(base))
            except NotFoundError as error:
                raise CorruptError(f"The base {base} of {found[-1].tensor} is gone.", place=str(self.path)) from error
        return found

    def bases(self) -> dict[str, str | None]:
        """The whole graph of deltas: {tensor: base}."""
        rows = self._all("SELECT tensor, base FROM tensors")
        return {tensor.hex(): base.hex() if base is not None else None for tensor, base in rows}

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

    def members(self, snapshot: str) -> set[str]:
        rows = self._all("SELECT tensor FROM members WHERE snapshot = ?", bytes.fromhex(snapshot))
        return {row[0].hex() for row in rows}

    def names(self, prefix: str = "") -> dict[str, str]:
        query = "SELECT name, snapshot FROM names WHERE name >= ? AND name < ? ORDER BY name"
        return {name: snapshot.hex() for name, snapshot in self._all(query, prefix, prefix + chr(0x10FFFF))}

    def packs(self) -> dict[str, tuple[int, int, float | None]]:
        """{pack: (bytes, place, time since which it is not needed)}"""
        rows = self._all("SELECT pack, bytes, place, retired FROM packs")
        return {pack.hex(): (size, place, retired) for pack, size, place, retired in rows}

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

    def used_bytes(self) -> dict[str, int]:
        """The bytes of each pack that are still needed, records included."""
        rows = self._all(
            "SELECT pack, SUM(bytes + length(record) + 4) FROM (SELECT pack, bytes, record FROM segments "
            "UNION ALL SELECT pack, bytes, record FROM snapshots) GROUP BY pack"
        )
        return {pack.hex(): used for pack, used in rows}

    def check(self) -> list[str]:
        """The problems that SQLite itself finds in the file."""
        return [row[0] for row in self._all("PRAGMA quick_check") if row[0] != "ok"]

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

    def store_tensor(self, segments: Sequence[tuple[Segment, str]]) -> None:
        """Replace the segments of a tensor by these, each in its pack."""
        first, key = segments[0][0], bytes.fromhex(segments[0][0].tensor)
        base = bytes.fromhex(first.base) if first.base is not None else None
        self._run("INSERT OR REPLACE INTO tensors VALUES (?, ?, ?, NULL)", key, first.encoding, base)
        self._run("DELETE FROM segments WHERE tensor = ?", key)
        for segment, pack in segments:
            values = key, segment.first, bytes.fromhex(pack), segment.size, segment.pack()
            self._run("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", *values)

    def move_record(self, record: Record, pack: str) -> None:
        """Replace a segment or a manifest by its copy in another pack."""
        values = bytes.fromhex(pack), record.pack()
        if isinstance(record, ManifestRecord):
            key = bytes.fromhex(record.snapshot)
            self._run("UPDATE snapshots SET pack = ?, record = ? WHERE snapshot = ?", *values, key)
        else:
            key, first = bytes.fromhex(record.tensor), record.first
            self._run("UPDATE segments SET pack = ?, record = ? WHERE tensor = ? AND first = ?", *values, key, first)

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
        for tensor in set(tensors):
            self._run("INSERT OR IGNORE INTO members VALUES (?, ?)", key, bytes.fromhex(tensor))

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
