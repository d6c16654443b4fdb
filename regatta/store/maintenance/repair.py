"""Repairs a damaged store.

A bad pack file is replaced by the remote's copy. If there is none, its content is searched for in the bad file itself,
in all other pack files here, and in all at the remote. A copy of a tensor is taken if it decodes to the right id. Bad
pack files go to quarantine/. A tensor that is found nowhere is marked as lost, and so are the deltas to it. Storing it
again, or a later repair with a better remote, restores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from regatta.errors import RegattaError
from regatta.store.folder import PackBatch
from regatta.store.format.manifest import Manifest
from regatta.store.format.pack_file import ManifestRecord, Segment
from regatta.store.format.tensor_id import tensor_id, word_count
from regatta.store.index import LOCAL, MAX_CHAIN_LENGTH, REMOTE, LocatedSegment, StoredTensor
from regatta.store.maintenance.rewrite import checked_streams
from regatta.store.reader import ReadRequest

if TYPE_CHECKING:
    from regatta.store.maintenance.fsck import Damage
    from regatta.store.store import ParameterStore


def recreated_id(store: ParameterStore, chain: list[StoredTensor]) -> str:
    """The id of a tensor as decoded over this chain."""
    head = chain[0]
    (words,) = store.reader.read([ReadRequest(chain, 0, word_count(head.dtype, head.shape))])
    return tensor_id(head.dtype, head.shape, words)


@dataclass
class PackCensus:
    """All records of all readable pack files: the places where a tensor or a manifest may be found."""

    tensors: dict[str, list[LocatedSegment]] = field(default_factory=dict)
    manifests: dict[str, list[tuple[ManifestRecord, str, int]]] = field(default_factory=dict)
    sizes: dict[tuple[str, int], int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)

    def add(self, store: ParameterStore, pack: str, place: int, size: int) -> None:
        """Add the records of a pack file, or note why it cannot be read."""
        try:
            records = store.source.records(pack, place, size)
        except RegattaError as error:
            self.unreadable.append(str(error))
            return
        self.sizes[pack, place] = size
        for record in records:
            if isinstance(record, Segment):
                self.tensors.setdefault(record.tensor, []).append(LocatedSegment(record, pack, place))
            else:
                self.manifests.setdefault(record.snapshot, []).append((record, pack, place))

    def versions(self, store: ParameterStore, tensor: str) -> Iterator[StoredTensor]:
        """All complete encodings of a tensor that are stored, those without a base first."""
        found: dict[tuple[int, str | None], dict[int, LocatedSegment]] = {}
        for located in self.tensors.get(tensor, ()):
            segment = located.segment
            parts = found.setdefault((segment.encoding, segment.base), {})
            if segment.first not in parts:
                with suppress(RegattaError):
                    for _ in checked_streams(store.source, located, segment):
                        pass
                    parts[segment.first] = located
        for (encoding, base), parts in sorted(found.items(), key=lambda item: item[0][1] is not None):
            if parts:
                yield StoredTensor(tensor, encoding, base, tuple(parts[first] for first in sorted(parts)))


def take_census(store: ParameterStore, remote: bool) -> PackCensus:
    """Read the pack files here, and those at the remote if it can be reached."""
    census = PackCensus()
    for pack, stat in store.folder.present():
        census.add(store, pack, LOCAL, stat.st_size)
    if remote and store.remote is not None:
        try:
            found = list(store.remote.packs())
        except RegattaError as error:
            census.unreadable.append(str(error))
            return census
        for pack, size in found:
            census.add(store, pack, REMOTE, size)
    return census


class Repair:
    """Repairs the damage that fsck found. `repaired` and `lost` describe the result. The caller holds the lock."""

    def __init__(self, store: ParameterStore, damage: Damage) -> None:
        self.store, self.index = store, store.index
        self.bad_packs, self.bad_snapshots = dict(damage.packs), dict(damage.snapshots)
        self.suspects = dict(damage.tensors)
        self.seen: dict[str, list[str]] = {}  # the packs of suspects when they were found
        self.good: dict[str, list[StoredTensor]] = {}
        self.wrong: dict[str, str] = {}  # well-formed packs that hold another tensor than they claim
        self.repaired: list[str] = []
        self.lost: list[str] = []

    def run(self) -> None:
        self.store.reader.cache.clear()  # it may hold chunks decoded from bad data
        for pack in [pack for pack in self.bad_packs if self._replace(pack)]:
            self.repaired.append(f"Pack {pack} was replaced by the remote's copy.")
            del self.bad_packs[pack]
        self.census = take_census(self.store, remote=True)
        self._suspect()
        self._settle_tensors()
        if wrong := {pack: self.wrong[pack] for pack in self.wrong.keys() & self.index.packs().keys()}:
            self.bad_packs |= wrong  # everything else in these packs must be copied out as well
            self.store.reader.cache.clear()
            self._suspect()
            self._settle_tensors()
        manifests = self._settle_snapshots()
        with self.store.folder.packing() as packing:
            self._copy(packing, manifests)
            self._publish(packing, manifests)

    def _replace(self, pack: str) -> bool:
        remote, folder = self.store.remote, self.store.folder
        if remote is None:
            return False
        with folder.packing() as packing:
            try:
                packing.receive(pack, lambda file: remote.fetch(pack, file))
            except RegattaError:
                return False
            with self.index.transaction():
                folder.put_aside(pack)
                folder.place(packing.sealed)
                self.index.move_pack(pack, LOCAL | REMOTE)
        return True

    def _suspect(self) -> None:
        """Suspect also everything in a bad pack, and every delta to a suspect."""
        with self.index.reading():
            bases = self.index.bases()
            for pack, why in self.bad_packs.items():
                for located in self.index.contents(pack)[0]:
                    self.suspects.setdefault(located.segment.tensor, f"Its pack {pack} is bad: {why}")
                for record, _ in self.index.contents(pack)[1]:
                    self.bad_snapshots.setdefault(record.snapshot, f"Its pack {pack} is bad: {why}")
        grown = True
        while grown:
            deltas = [t for t, base in bases.items() if base in self.suspects and t not in self.suspects]
            self.suspects |= {tensor: f"Its base {bases[tensor]} is lost." for tensor in deltas}
            grown = bool(deltas)
        self.seen |= {tensor: self._packs_of(tensor) for tensor in self.suspects.keys() - self.seen.keys()}

    def _settle_tensors(self) -> None:
        """Find an intact copy of each suspect; a delta is tried after its base."""
        while any([self._settle(tensor) for tensor in sorted(self.suspects.keys() - self.good.keys())]):
            pass

    def _settle(self, tensor: str) -> bool:
        for version in (*self._current(tensor), *self.census.versions(self.store, tensor)):
            below = self._chain_of(version.base) if version.base is not None else []
            if below is None or len(below) >= MAX_CHAIN_LENGTH:
                continue
            try:
                if (found := recreated_id(self.store, [version, *below])) == tensor:
                    self.good[tensor] = [version, *below]
                    return True
                self.wrong |= {part.pack: f"It holds {found} as {tensor}." for part in version.segments}
            except RegattaError:
                continue  # this copy cannot be read; there may be others
        return False

    def _current(self, tensor: str) -> list[StoredTensor]:
        """How the index says it is stored, even if it is lost."""
        try:
            return [self.index.stored(tensor, even_lost=True)]
        except RegattaError:
            return []

    def _packs_of(self, tensor: str) -> list[str]:
        return [part.pack for version in self._current(tensor) for part in version.segments]

    def _chain_of(self, base: str) -> list[StoredTensor] | None:
        """The chain of a base; None as long as it is not known to be intact."""
        if base in self.good or base in self.suspects:
            return self.good.get(base)
        try:
            return self.index.chain(base)
        except RegattaError:
            return None

    def _settle_snapshots(self) -> dict[str, tuple[Manifest, ManifestRecord, str, int]]:
        found = {}
        for snapshot in self.bad_snapshots:
            places = list(self.census.manifests.get(snapshot, ()))
            with suppress(RegattaError):
                places.insert(0, self.index.manifest_record(snapshot))
            for record, pack, place in places:
                try:
                    found[snapshot] = self.store.read_manifest(snapshot, record, pack, place), record, pack, place
                    break
                except RegattaError:
                    continue
        return found

    def _copy(self, packing: PackBatch, manifests: Mapping[str, tuple[Manifest, ManifestRecord, str, int]]) -> None:
        """Copy everything that is in a bad pack, or in one that the index does not list."""
        staying = self.index.packs().keys() - self.bad_packs.keys()
        for version, *_ in self.good.values():
            if any(part.pack not in staying for part in version.segments):
                for part in version.segments:
                    packing.add(part.segment, checked_streams(self.store.source, part, part.segment))
        for _, record, pack, place in manifests.values():
            if pack not in staying:
                packing.add(record, self.store.source.read(pack, place, [(record.offset, record.length)]))
        packing.seal()

    def _publish(self, packing: PackBatch, manifests: Mapping[str, tuple[Manifest, ManifestRecord, str, int]]) -> None:
        index, now = self.index, self.store.clock()
        with index.transaction():
            # A copy of all that was in a bad pack has its name: it is the hash of the content.
            self._put_aside(self.bad_packs.keys() & {sealed.id for sealed in packing.sealed})
            self.store.folder.place(packing.sealed)
            for sealed in packing.sealed:
                index.add_pack(sealed.id, sealed.bytes, LOCAL, now)
            copies = packing.segments()
            for tensor, (version, *_) in self.good.items():
                index.store_tensor(copies.get(tensor) or [(part.segment, part.pack) for part in version.segments])
            for snapshot, (manifest, record, pack, _) in manifests.items():
                placed = packing.manifests().get(snapshot, (record, pack))
                index.store_snapshot(*placed, [member.id for member in manifest.tensors.values()], now)
            self._give_up(manifests)
            self._put_aside(self.bad_packs.keys() - {sealed.id for sealed in packing.sealed})
            index.retire_packs(now)

    def _give_up(self, manifests: Iterable[str]) -> None:
        """Mark what was found nowhere as lost."""
        for tensor, why in self.suspects.items():
            if tensor in self.good:
                self.repaired.append(f"Tensor {tensor} was found intact.")
            elif self._packs_of(tensor) != self.seen[tensor]:
                self.repaired.append(f"Tensor {tensor} was stored again by another process.")
            else:
                self.lost.append(f"Tensor {tensor}: {why}")
                self.index.mark_lost(tensor, why.rstrip("."))
        for snapshot, why in self.bad_snapshots.items():
            if snapshot in manifests:
                self.repaired.append(f"The manifest of snapshot {snapshot} was found intact.")
            else:
                self.lost.append(f"The manifest of snapshot {snapshot}: {why}")

    def _put_aside(self, packs: Iterable[str]) -> None:
        for pack in packs:
            self.index.drop_segments(pack)
            self.index.drop_packs([pack])
            if (aside := self.store.folder.put_aside(pack)) is not None:
                self.store.folder.forget(pack)
                self.repaired.append(f"Pack {pack} was moved aside to {aside}.")
