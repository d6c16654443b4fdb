"""Garbage collection: marks from names, leases and recent snapshots over tensors and the bases of deltas.

Nothing that was released less than `grace` seconds ago is deleted, so active readers, and writers that found a tensor
present, need not be asked. First the index drops unneeded snapshots and tensors. Pack files that are no longer needed
get a date, and are deleted when that date is old enough, too. Sparsely used pack files are copied together.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regatta.durable import exclusive
from regatta.errors import UsageError
from regatta.paths import MAINTENANCE_LOCK
from regatta.store.index import LOCAL
from regatta.store.maintenance.rewrite import copy_out, relocate

if TYPE_CHECKING:
    from regatta.store.store import ParameterStore

SPARSE_SHARE = 0.5  # a pack file is copied if less than this share of it is needed


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
        now = store.clock()
        with store.index.transaction():
            snapshots, tensors = store.index.drop_unneeded(now, grace)
            store.index.retire_packs(now)
        copied = _compact(store)
        before = store.clock() - grace
        packs, size = _sweep(store, before)
        store.folder.sweep_tmp(before)
    return StoreGcResult(snapshots, tensors, packs, copied, size)


def _compact(store: ParameterStore) -> int:
    """Copy the needed content out of sparsely used pack files; the number of pack files emptied."""
    with store.index.reading():
        used, packs = store.index.used_bytes(), store.index.packs()
    sparse = [
        pack
        for pack, (size, place, retired) in packs.items()
        if retired is None and place & LOCAL and used.get(pack, 0) < SPARSE_SHARE * size
    ]
    if sparse:
        with store.folder.packing() as packing:
            for pack in sparse:
                copy_out(store, pack, packing)
            packing.seal()
            relocate(store, packing)
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
