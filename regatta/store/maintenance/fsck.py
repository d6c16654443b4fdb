"""Checking a store, in three depths.

    structure   the index is sound, every pack that it names is there and well-formed, every tensor has all its streams
                and a chain of bases that ends, every manifest is the one its id names and what it lists is there
    checksums   and every pack is the one its name says, every stream matches its checksum
    deep        and every tensor, recreated, has the id that it is stored under

With `repair`, what is bad is moved aside and replaced where that can be (repair.py). Writers may go on meanwhile: the
store is looked at as it was in one moment, and nothing is taken away before this is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from regatta.durable import exclusive
from regatta.errors import CorruptError, RegattaError, UsageError
from regatta.paths import MAINTENANCE_LOCK
from regatta.store.format.pack_file import ManifestRecord
from regatta.store.index import LOCAL, StoredTensor
from regatta.store.maintenance.repair import Repair, recreated_id
from regatta.store.maintenance.rewrite import checked_streams
from regatta.store.reader import check_stored

if TYPE_CHECKING:
    from regatta.store.store import ParameterStore

Depth: TypeAlias = Literal["structure", "checksums", "deep"]
DEPTHS = ("structure", "checksums", "deep")


@dataclass(frozen=True)
class StoreFsckResult:
    """What fsck found: a sentence for each problem, for each thing that was repaired and for each that is lost."""

    depth: Depth
    packs: int
    tensors: int
    snapshots: int
    problems: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.problems


@dataclass
class Damage:
    """What is wrong, by what it is wrong with, and why. What could not be reached is not known to be wrong."""

    index: list[str] = field(default_factory=list)
    packs: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)

    def sentences(self) -> tuple[str, ...]:
        kinds = {
            "Pack": self.packs,
            "Tensor": self.tensors,
            "Snapshot": self.snapshots,
            "Name": self.names,
            "Not reached:": self.unreachable,
        }
        found = (f"{kind} {what}: {why}" for kind, items in kinds.items() for what, why in items.items())
        return (*self.index, *found)


def check(store: ParameterStore, depth: Depth, repair: bool, wait: bool) -> StoreFsckResult:
    """See ParameterStore.fsck."""
    if depth not in DEPTHS:
        raise UsageError(f"The depth of fsck is {depth!r}.", hint="It is one of " + ", ".join(DEPTHS) + ".")
    with exclusive(store.path / MAINTENANCE_LOCK, "fsck", wait):
        survey = StoreCheck(store, DEPTHS.index(depth))
        damage = survey.run()
        mended = Repair(store, damage.packs, damage.tensors, damage.snapshots)
        if repair:
            mended.run()
    sizes = len(survey.packs), len(survey.tensors), len(survey.snapshots)
    return StoreFsckResult(depth, *sizes, damage.sentences(), tuple(mended.repaired), tuple(mended.lost))


class StoreCheck:
    """One look at a store."""

    def __init__(self, store: ParameterStore, depth: int) -> None:
        self.store, self.depth = store, depth
        self.damage = Damage()
        self.records: dict[str, set[bytes]] = {}
        self.stored: dict[str, StoredTensor] = {}
        self.manifests: dict[str, tuple[ManifestRecord, str, int]] = {}
        with store.index.reading():
            self._look()

    def run(self) -> Damage:
        for pack in self.packs:
            self._try(self.damage.packs, pack, self._check_pack)
        for tensor in self.stored:
            self._try(self.damage.tensors, tensor, self._check_tensor)
        for snapshot in self.manifests:
            self._try(self.damage.snapshots, snapshot, self._check_snapshot)
        return self.damage

    def _look(self) -> None:
        """What the index says, all at one moment."""
        index, damage = self.store.index, self.damage
        damage.index = [f"Index: {problem}." for problem in index.check()]
        self.packs = {pack: row for pack, row in index.packs().items() if row[2] is None}
        self.tensors, self.snapshots = index.tensors(), index.snapshots()
        self.members = {snapshot: index.members(snapshot) for snapshot in self.snapshots}
        for tensor in self.tensors:
            self._try(damage.tensors, tensor, self._look_at_tensor)
        for snapshot in self.snapshots:
            self._try(damage.snapshots, snapshot, self._look_at_snapshot)
        for name, snapshot in index.names().items():
            if snapshot not in self.members:
                damage.names[name] = f"It refers to the snapshot {snapshot}, which is not there."

    def _look_at_tensor(self, tensor: str) -> None:
        self.stored[tensor] = self.store.index.stored(tensor)

    def _look_at_snapshot(self, snapshot: str) -> None:
        self.manifests[snapshot] = self.store.index.manifest_record(snapshot)

    def _try(self, damage: dict[str, str], what: str, look: Callable[[str], None]) -> None:
        try:
            look(what)
        except CorruptError as error:
            damage[what] = f"{error.message} ({error.place})" if error.place else error.message
        except RegattaError as error:
            self.damage.unreachable[what] = str(error)

    def _check_pack(self, pack: str) -> None:
        size, place, _ = self.packs[pack]
        source = self.store.source
        if place & LOCAL:
            source.folder.forget(pack)  # what was mapped before is not what is there now
        if (found := source.size(pack, place)) != size:
            raise CorruptError(f"It has {found} bytes, not {size}.")
        self.records[pack] = {record.pack() for record in source.records(pack, place, size)}
        if self.depth >= 1 and (digest := source.digest(pack, place)) != pack:
            raise CorruptError(f"Its content is that of a pack {digest}.")

    def _check_tensor(self, tensor: str) -> None:
        chain = self._chain(tensor)
        for part in self.stored[tensor].segments:
            self._check_record(part.pack, part.segment.pack())
            for _ in checked_streams(self.store.source, part, part.segment) if self.depth >= 1 else ():
                pass
        if self.depth >= 2:
            found = recreated_id(self.store, chain)
            if found != tensor:
                raise CorruptError(f"What is stored under that id is the tensor {found}.")

    def _check_record(self, pack: str, record: bytes) -> None:
        if pack in self.damage.unreachable:
            raise RegattaError(f"Its pack {pack} was not reached.")
        if pack not in self.records:
            raise CorruptError(f"Its pack {pack} cannot be read.")
        if record not in self.records[pack]:
            raise CorruptError(f"Its pack {pack} has no such record.")

    def _chain(self, tensor: str) -> list[StoredTensor]:
        chain = {tensor: self.stored[tensor]}
        base = self.stored[tensor].base
        while base is not None:
            if base in chain:
                raise CorruptError(f"Its deltas go in a circle at {base}.")
            if base not in self.stored:
                raise CorruptError(f"Its base {base} is not there.")
            chain[base] = self.stored[base]
            base = chain[base].base
        for one in chain.values():
            check_stored(one, chain[tensor])
        return list(chain.values())

    def _check_snapshot(self, snapshot: str) -> None:
        record, pack, _ = self.manifests[snapshot]
        self._check_record(pack, record.pack())
        manifest = self.store.read_manifest(snapshot, *self.manifests[snapshot])
        listed = {member.id: member for member in manifest.tensors.values()}
        if listed.keys() != self.members[snapshot]:
            raise CorruptError("The index lists other tensors than its manifest.")
        for tensor, member in listed.items():
            if tensor not in self.stored:
                raise CorruptError(f"Its tensor {tensor} is not there.")
            if (self.stored[tensor].dtype.name, self.stored[tensor].shape) != (member.dtype, member.shape):
                raise CorruptError(f"Its tensor {tensor} is stored with another type or shape.")
