"""Rebuilds a lost or damaged index: everything except names and leases is in the pack files.

The old index is moved to quarantine/. Names are taken from it if it can still be read. A snapshot without a name gets
the name `recovered/<id>`, so gc does not delete it before a person has looked. Until the new index is filled it is
marked, so that a rebuild that was killed has to be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.durable import exclusive, put_aside
from regatta.errors import CorruptError, NotFoundError, RegattaError
from regatta.paths import INDEX, PACKS, QUARANTINE, USERS_LOCK
from regatta.store.format.pack_file import ManifestRecord
from regatta.store.format.tensor_id import is_id, why_not_name
from regatta.store.index import MAX_CHAIN_LENGTH, StoredTensor
from regatta.store.maintenance.repair import PackCensus, take_census
from regatta.store.reader import check_stored
from regatta.store.sqlite import sqlite3

if TYPE_CHECKING:
    from regatta.store.store import ParameterStore


RECOVERED = "recovered/"


@dataclass(frozen=True)
class RebuildResult:
    """What was found, and what could not be read."""

    packs: int
    tensors: int
    snapshots: int
    names: int
    unreadable: tuple[str, ...]


def rebuild(path: Path, reopen: Callable[[str | None], ParameterStore]) -> RebuildResult:
    if not (path / PACKS).is_dir():
        raise NotFoundError("There is no parameter store.", place=str(path))
    with exclusive(path / USERS_LOCK, "rebuild", wait=False):
        rows = _rows(path / INDEX, "SELECT name, lower(hex(snapshot)) FROM names")
        names = {name: snapshot for name, snapshot in rows if why_not_name(name) is None and is_id(snapshot)}
        remotes = _rows(path / INDEX, "SELECT value FROM store WHERE key = 'remote'")
        put_aside(sorted(path.glob(f"{INDEX}*"), reverse=True), path / QUARANTINE)  # the file itself at last
    with reopen(remotes[0][0] if remotes else None) as store:
        return _fill(store, take_census(store, remote=True), names)


def _rows(index: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of the old index, if it can be read."""
    if not index.exists():
        return []
    try:
        db = sqlite3.connect(index)
        try:
            return db.execute(query).fetchall()
        finally:
            db.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return []


def _fill(store: ParameterStore, census: PackCensus, names: dict[str, str]) -> RebuildResult:
    """Enter everything that was found into the new index, in one transaction."""
    index, now = store.index, store.clock()
    chosen, manifests = choose_copies(store, census), readable_manifests(store, census)
    names = {name: snapshot for name, snapshot in names.items() if snapshot in manifests}
    names |= {f"{RECOVERED}{snapshot}": snapshot for snapshot in manifests.keys() - set(names.values())}
    with index.transaction():
        for (pack, place), size in census.sizes.items():
            index.add_pack(pack, size, place, now)
        for stored in chosen.values():
            index.store_tensor([(part.segment, part.pack) for part in stored.segments])
        for record, pack, tensors in manifests.values():
            index.store_snapshot(record, pack, tensors, now)
        for name, snapshot in names.items():
            index.set_name(name, snapshot, now)
        index.retire_packs(now)
        index.set("rebuilding", None)
    return RebuildResult(len(census.sizes), len(chosen), len(manifests), len(names), tuple(census.unreadable))


def choose_copies(store: ParameterStore, census: PackCensus) -> dict[str, StoredTensor]:
    """One stored copy of each tensor: first those without a base, then deltas to chosen tensors, so no cycles."""
    versions = {tensor: list(census.versions(store, tensor)) for tensor in census.tensors}
    chosen: dict[str, StoredTensor] = {}
    depths: dict[str | None, int] = {None: 0}
    grown = True
    while grown:
        grown = False
        for tensor in versions.keys() - chosen.keys():
            for version in versions[tensor]:
                if depths.get(version.base, MAX_CHAIN_LENGTH) < MAX_CHAIN_LENGTH and _fits(version, chosen):
                    chosen[tensor], depths[tensor], grown = version, depths[version.base] + 1, True
                    break
    for tensor in versions.keys() - chosen.keys():
        where = ", ".join(sorted({located.pack for located in census.tensors[tensor]}))
        census.unreadable.append(f"No pack of {where} holds tensor {tensor} completely, together with its bases.")
    return chosen


def _fits(version: StoredTensor, chosen: dict[str, StoredTensor]) -> bool:
    try:
        check_stored(version, version)
        if version.base is not None:
            check_stored(chosen[version.base], version)
    except CorruptError:
        return False
    return True


def readable_manifests(store: ParameterStore, census: PackCensus) -> dict[str, tuple[ManifestRecord, str, list[str]]]:
    """An intact manifest of each snapshot that has one: its record, its pack and its tensors."""
    found = {}
    for snapshot, places in census.manifests.items():
        for record, pack, place in places:
            try:
                manifest = store.read_manifest(snapshot, record, pack, place)
            except RegattaError as error:
                census.unreadable.append(str(error))
                continue  # there may be another copy
            found[snapshot] = record, pack, [member.id for member in manifest.tensors.values()]
            break
    return found
