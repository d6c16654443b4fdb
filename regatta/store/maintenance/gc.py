"""Garbage collection: marks from names, leases and recent snapshots over tensors and the bases of deltas.

Nothing that was released less than `grace` seconds ago is deleted, so active readers, and writers that found a tensor
present, need not be asked. First the index drops unneeded snapshots and tensors. Pack files that are no longer needed
get a date, and are deleted when that date is old enough, too. Sparsely used pack files are copied together.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regatta.durable import FULL, exclusive
from regatta.errors import CorruptError, UsageError
from regatta.paths import MAINTENANCE_LOCK
from regatta.store.format.pack_file import EMPTY_BYTES
from regatta.store.index import LOCAL
from regatta.store.maintenance.index_check import index_problems
from regatta.store.maintenance.rewrite import copy_out, swap

if TYPE_CHECKING:
    from regatta.store.store import ParameterStore

SPARSE_SHARE = 0.9  # a pack file is copied if less than this share of it is needed


@dataclass(frozen=True)
class StoreGcResult:
    """What gc removed: counts, and the bytes of the files."""

    snapshots: int
    tensors: int
    packs: int
    copied_packs: int
    bytes: int


def collect(store: ParameterStore, grace: float, wait: bool) -> StoreGcResult:
    if grace < 0:
        raise UsageError(f"The grace period is {grace} seconds; it cannot be negative.")
    with exclusive(store.path / MAINTENANCE_LOCK, "gc", wait):
        _check_index(store)
        now = store.clock()
        with store.index.transaction():
            snapshots, tensors = store.index.drop_unneeded(now, grace)
            store.index.retire_packs(now)
        store.folder.sweep_tmp(now - grace)
        first = _sweep(store, now - grace)  # the copies need room
        copied = _compact(store)
        second = _sweep(store, store.clock() - grace) if copied else (0, 0)
    return StoreGcResult(snapshots, tensors, first[0] + second[0], copied, first[1] + second[1])


def _check_index(store: ParameterStore) -> None:
    """Refuse to delete anything that only the index does not need."""
    if found := index_problems(store):
        more = f" And {len(found) - 1} more." if len(found) > 1 else ""
        raise CorruptError(
            f"Nothing was deleted, because the index is damaged. {found[0]}{more}",
            place=str(store.index.path),
            hint=store.index.remedy,
        )


def preview(store: ParameterStore, released: Iterable[str], grace: float) -> StoreGcResult:
    """What `collect` would delete; the changes of the index are taken back."""
    now = store.clock()
    with store.index.rolled_back():
        known = store.index.names()
        for name in known.keys() & set(released):
            store.index.renew_snapshot(known[name], now)
            store.index.set_name(name, None, now)
        snapshots, tensors = store.index.drop_unneeded(now, grace)
        store.index.retire_packs(now)
        used, packs = store.index.used_bytes(), store.index.packs()
    gone = [size for size, _, retired in packs.values() if retired is not None and retired <= now - grace]
    sparse = _sparse_packs(used, packs)
    copied = sum(packs[pack][0] - used.get(pack, 0) for pack in sparse) if not grace else 0
    files = {pack: found for pack, found in store.folder.present() if pack not in packs}
    unlisted = [found.st_size for found in files.values() if found.st_mtime <= now - grace]
    return StoreGcResult(snapshots, tensors, len(gone), len(sparse), sum(gone) + copied + sum(unlisted))


def _sparse_packs(used: Mapping[str, int], packs: Mapping[str, tuple[int, int, float | None]]) -> set[str]:
    return {
        pack
        for pack, (size, place, retired) in packs.items()
        if retired is None and place & LOCAL and used.get(pack, 0) + EMPTY_BYTES < SPARSE_SHARE * size
    }


def _compact(store: ParameterStore) -> int:
    """Copy the needed content out of sparsely used pack files; the number of pack files emptied."""
    with store.index.reading():
        used, packs = store.index.used_bytes(), store.index.packs()
    sparse = _sparse_packs(used, packs)
    if not sparse:
        return 0
    try:
        with store.folder.packing() as packing:
            for pack in sorted(sparse):
                copy_out(store, pack, packing)
            packing.seal()
            swap(store, packing, changed=(), copied=sparse)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return 0  # no room for the copies; the pack files stay as they are until the next gc
    return len(sparse)


def _sweep(store: ParameterStore, before: float) -> tuple[int, int]:
    """Delete pack files not needed since then, and files that were never listed; their number and bytes."""
    with store.index.transaction():
        packs = store.index.packs().items()
        dropped = {pack for pack, (_, _, retired) in packs if retired is not None and retired <= before}
        store.index.drop_packs(dropped)
    with store.index.transaction():  # a writer may have stored one of them again in between
        known = store.index.packs()
        files = {pack: found for pack, found in store.folder.present() if pack not in known}
        unneeded = {
            pack: found.st_size
            for pack, found in files.items()
            if stat.S_ISREG(found.st_mode) and (pack in dropped or found.st_mtime <= before)
        }
        store.folder.remove(unneeded)
    return len(unneeded), sum(unneeded.values())
