"""Finds what the index has lost although pack files still hold it: gc would delete it there.

SQLite has no checksums, so a damaged index may lack rows, or name another base or pack. The manifests of all snapshots
say what is needed, and the records of tensors how they are stored. What no pack file holds any more is lost whatever gc
does, and is not named here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from regatta.errors import CorruptError, RegattaError
from regatta.store.index import LOCAL, StoredTensor
from regatta.store.maintenance.rebuild_index import choose_copies, readable_manifests
from regatta.store.maintenance.repair import take_census
from regatta.store.reader import check_stored

if TYPE_CHECKING:
    from regatta.store.store import ParameterStore


def index_problems(store: ParameterStore) -> list[str]:
    """A sentence for each thing that the index lacks or has wrong, and that the pack files can mend."""
    # What is found once may only have been moved meanwhile, by another process.
    return _look_for_problems(store) and _look_for_problems(store)


def _look_for_problems(store: ParameterStore) -> list[str]:
    index = store.index
    with index.reading():
        if found := [f"Index: {problem}." for problem in index.check(whole=True)]:
            return found
        try:
            bases = index.bases()
            tensors = _wrong_tensors(store, bases)
            needed, snapshots = _read_manifests(store)
        except CorruptError as error:
            return [f"Index: {error.message}"]
    tensors |= dict.fromkeys(needed - bases.keys(), "the index does not list it")
    return _held(store, tensors, snapshots)


def _wrong_tensors(store: ParameterStore, bases: Mapping[str, str | None]) -> dict[str, str]:
    """The tensors that the index lists, and does not say are lost, but that cannot be read as it says; and bases."""
    index = store.index
    sound: dict[str, StoredTensor] = {}
    found: dict[str, str] = {}
    with suppress(RegattaError):  # then each of the others is looked at by itself
        for stored in index.all_stored():
            check_stored(stored, stored)
            if stored.base == bases[stored.tensor]:
                sound[stored.tensor] = stored
    for tensor in bases.keys() - sound.keys() - index.lost().keys():
        try:
            stored = index.stored(tensor)
            check_stored(stored, stored)
            sound[tensor] = stored
        except RegattaError as error:
            found[tensor] = error.message.rstrip(".")
    for tensor, base in bases.items():
        if base is not None and base not in bases:
            found[base] = f"the index does not list it, and the tensor {tensor} is a delta to it"
    return found | _not_in_their_packs(store, sound.values())


def _not_in_their_packs(store: ParameterStore, several: Iterable[StoredTensor]) -> dict[str, str]:
    """The tensors whose pack file here does not hold them as the index says: what does may be about to be deleted."""
    found: dict[str, str] = {}
    held: dict[str, set[bytes]] = {}
    for stored in several:
        for part in stored.segments:
            if not part.place & LOCAL:
                continue
            if part.pack not in held:
                held[part.pack] = _records(store, part.pack)
            if part.segment.pack() not in held[part.pack]:
                found[stored.tensor] = f"pack {part.pack} does not hold it as the index says"
    return found


def _records(store: ParameterStore, pack: str) -> set[bytes]:
    """What a pack file holds; nothing if it cannot be read."""
    try:
        return {record.pack() for record in store.folder.records(pack)}
    except RegattaError:
        return set()


def _read_manifests(store: ParameterStore) -> tuple[set[str], dict[str, str]]:
    """The tensors that snapshots need, and the snapshots whose manifest is not there or not as the index says."""
    index, needed, wrong = store.index, set(), {}
    for snapshot in index.snapshots():
        members = index.members(snapshot)
        try:
            manifest = store.read_manifest(snapshot, *index.manifest_record(snapshot))
        except RegattaError as error:
            needed |= members
            wrong[snapshot] = error.message.rstrip(".")
            continue
        listed = {entry.id for entry in manifest.tensors.values()}
        needed |= listed
        if listed != members:
            wrong[snapshot] = "the index lists other tensors than its manifest"
    return needed, wrong


def _held(store: ParameterStore, tensors: Mapping[str, str], snapshots: Mapping[str, str]) -> list[str]:
    """The sentences about what pack files here hold."""
    if not tensors and not snapshots:
        return []
    census = take_census(store, remote=False)
    copies = choose_copies(store, census).keys() & tensors.keys() if tensors else set()
    manifests = readable_manifests(store, census).keys() & snapshots.keys() if snapshots else set()
    return [
        *(f"Tensor {tensor}: {tensors[tensor]}, but a pack file holds it." for tensor in sorted(copies)),
        *(f"Snapshot {snapshot}: {snapshots[snapshot]}, but a pack file holds it." for snapshot in sorted(manifests)),
    ]
