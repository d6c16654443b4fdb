"""Checks a store at three depths.

    structure   the index is sound; every listed pack file exists and is well-formed; every tensor has all its streams
                and a chain of bases that ends; every manifest matches its id, and the tensors that it lists exist
    checksums   also: every pack file matches its name, every stream its checksum
    deep        also: every tensor, decoded, has the id that it is stored under

With `repair`, bad data is moved aside and replaced if possible (repair.py). Writers may continue meanwhile: the check
sees the index as of one moment, and nothing is deleted before it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
    """The result of fsck: a sentence for each problem, each repair and each loss."""

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
    """The reasons why things are damaged, by id. Things that could not be reached may be intact."""

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
    if depth not in DEPTHS:
        raise UsageError(f"The depth of fsck is {depth!r}.", hint="It is one of " + ", ".join(DEPTHS) + ".")
    if repair:
        store.index.check_writable()
    # Where nothing can be written, no lock can be held: a process that moves data meanwhile may cause false alarms.
    with nullcontext() if store.read_only else exclusive(store.path / MAINTENANCE_LOCK, "fsck", wait):
        survey = StoreCheck(store, DEPTHS.index(depth))
        damage = survey.run()
        repairs = Repair(store, damage)
        if repair:
            repairs.run()
    sizes = len(survey.packs), len(survey.tensors), len(survey.snapshots)
    return StoreFsckResult(depth, *sizes, damage.sentences(), tuple(repairs.repaired), tuple(repairs.lost))


class StoreCheck:
    def __init__(self, store: ParameterStore, depth: int) -> None:
        self.store, self.depth = store, depth
        self.damage = Damage()
        self.records: dict[str, set[bytes]] = {}
        self.stored: dict[str, StoredTensor] = {}
        self.manifests: dict[str, tuple[ManifestRecord, str, int]] = {}
        with store.index.reading():
            self.damage.index = [f"Index: {problem}." for problem in store.index.check(depth > 0)]
            self.packs = {pack: row for pack, row in store.index.packs().items() if row[2] is None}
            self.tensors, self.snapshots = store.index.tensors(), store.index.snapshots()
            self.members = {snapshot: store.index.members(snapshot) for snapshot in self.snapshots}
            for tensor in self.tensors:
                with self._noting(self.damage.tensors, tensor):
                    self.stored[tensor] = store.index.stored(tensor)
            for snapshot in self.snapshots:
                with self._noting(self.damage.snapshots, snapshot):
                    self.manifests[snapshot] = store.index.manifest_record(snapshot)
            for name, snapshot in store.index.names().items():
                if snapshot not in self.members:
                    self.damage.names[name] = f"It refers to the snapshot {snapshot}, which is not there."

    def run(self) -> Damage:
        for pack in self.packs:
            with self._noting(self.damage.packs, pack):
                self._check_pack(pack)
        for tensor in self.stored:
            with self._noting(self.damage.tensors, tensor):
                self._check_tensor(tensor)
        for snapshot in self.manifests:
            with self._noting(self.damage.snapshots, snapshot):
                self._check_snapshot(snapshot)
        return self.damage

    @contextmanager
    def _noting(self, damage: dict[str, str], what: str) -> Iterator[None]:
        try:
            yield
        except CorruptError as error:
            damage[what] = f"{error.message} ({error.place})" if error.place else error.message
        except RegattaError as error:
            self.damage.unreachable[what] = str(error)

    def _check_pack(self, pack: str) -> None:
        size, place, _ = self.packs[pack]
        source = self.store.source
        if place & LOCAL:
            source.folder.forget(pack)  # check the file on disk, not an older mapping
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
                raise CorruptError(f"Its deltas form a cycle at {base}.")
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
