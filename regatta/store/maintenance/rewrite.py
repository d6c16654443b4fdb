"""Moves stored tensors into other encodings, into other pack files, to the remote and back.

Rewritten data is compared with the original before the index changes. Old pack files stay until gc finds that they
were not needed for the grace period. Ids never change, and readers are not disturbed.

A pack file that loses tensors to a new encoding loses the rest of its content as well, which is copied along. So gc
can delete it, and the bytes on the disk are known before the index changes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from regatta.durable import exclusive
from regatta.errors import CorruptError, NotFoundError, UsageError
from regatta.paths import MAINTENANCE_LOCK, bytes_on_disk
from regatta.store.folder import PackBatch
from regatta.store.format.dtypes import Words
from regatta.store.format.encodings import ENCODINGS
from regatta.store.format.pack_file import Segment
from regatta.store.format.tensor_id import RawTensor, word_count
from regatta.store.index import LOCAL, MAX_CHAIN_LENGTH, REMOTE, Index, LocatedSegment, StoredTensor
from regatta.store.remote import PackSource, Remote

if TYPE_CHECKING:
    from regatta.store.store import ParameterStore

EncodingPlan = Mapping[str, tuple[int, str | None]]
_BASE_ROW_BYTES = 128  # of the index, for a tensor that has a base
_MIN_SAVED_BYTES = 2**14  # less is not worth writing pack files again: the index may grow by as much


def reencode(store: ParameterStore, plan: EncodingPlan, wait: bool, only_smaller: bool) -> int:
    words = lru_cache(maxsize=3)(store.words)  # the base of the next delta is often a tensor that was just read
    changed: dict[str, StoredTensor] = {}
    with exclusive(store.path / MAINTENANCE_LOCK, "reencode", wait), store.folder.packing() as packing:
        for stored, encoding, base in _check_plan(store, plan):
            tensor = RawTensor(stored.dtype, stored.shape, words(stored.tensor))
            if tensor.id != stored.tensor:
                raise CorruptError(f"The tensor {stored.tensor} cannot be re-encoded: it is damaged.", hint="Run fsck.")
            against: tuple[str, Words] | None = None if base is None else (base, words(base))
            encoded = store.encoder.encode(tensor, stored.tensor, ENCODINGS[encoding], against, verify=True)
            # A tensor without a base can stay as it is: that lengthens no chain and closes no cycle.
            if (
                only_smaller
                and stored.base is None
                and _bytes_in_store([encoded.segment]) >= _bytes_in_store([part.segment for part in stored.segments])
            ):
                continue
            encoded.write(packing)
            changed[stored.tensor] = stored
        emptied = {part.pack for stored in changed.values() for part in stored.segments if part.place & LOCAL}
        for pack in sorted(emptied):
            copy_out(store, pack, packing, without=changed)
        packing.seal()
        if only_smaller and not _frees_space(store, packing, emptied, changed.values()):
            return 0
        if changed:
            swap(store, packing, changed=changed, copied=emptied)
    return len(changed)


def _bytes_in_store(segments: Iterable[Segment]) -> int:
    """The bytes of a tensor in its pack files and in the index."""
    return sum(
        segment.size + 2 * len(segment.pack()) + (_BASE_ROW_BYTES if segment.base else 0) for segment in segments
    )


def _frees_space(
    store: ParameterStore, packing: PackBatch, emptied: Iterable[str], old: Iterable[StoredTensor]
) -> bool:
    """Whether the new pack files take clearly less of the disk than those that they replace."""
    before = sum(bytes_on_disk(store.folder.path(pack)) for pack in emptied)
    after = sum(bytes_on_disk(pack.path) for pack in packing.sealed)
    bases = sum(segments[0][0].base is not None for segments in packing.segments().values())
    bases -= sum(stored.base is not None for stored in old)
    return after + max(0, bases) * _BASE_ROW_BYTES + _MIN_SAVED_BYTES <= before


def _check_plan(store: ParameterStore, plan: EncodingPlan) -> list[tuple[StoredTensor, int, str | None]]:
    """The changes of a plan; an error if any of them is impossible."""
    with store.index.reading():
        graph, lost = store.index.bases(), store.index.lost()
        named = {*plan, *(base for _, base in plan.values() if base is not None)}
        for tensor in named:
            if tensor not in graph or tensor in lost:
                raise NotFoundError(f"The plan names the tensor {tensor!r:.80}, which the store cannot read.")
        stored = {tensor: store.index.stored(tensor) for tensor in named}
    for tensor, (encoding, base) in plan.items():
        _check_edge(stored[tensor], encoding, None if base is None else stored[base])
    check_graph({**graph, **{tensor: base for tensor, (_, base) in plan.items()}})
    edges = ((stored[tensor], encoding, base) for tensor, (encoding, base) in plan.items())
    return [(one, encoding, base) for one, encoding, base in edges if (encoding, base) != (one.encoding, one.base)]


def _check_edge(stored: StoredTensor, encoding: int, base: StoredTensor | None) -> None:
    found = ENCODINGS.get(encoding)
    if found is None or found.lossy:
        reason = "is not known" if found is None else f"({found.name}) is lossy: it would change the tensor"
        raise UsageError(f"The plan wants tensor {stored.tensor} in the encoding {encoding!r}, which {reason}.")
    if found.needs_base != (base is not None):
        given = "no" if base is None else "a"
        raise UsageError(f"The plan gives tensor {stored.tensor}, to be encoded as {found.name}, {given} base.")
    if base is None:
        return
    sizes = [word_count(one.dtype, one.shape) for one in (stored, base)]
    if stored.dtype != base.dtype or sizes[0] != sizes[1]:
        raise UsageError(
            f"Tensor {stored.tensor} ({sizes[0]} words of {stored.dtype.name}) cannot be a delta to {base.tensor} "
            f"({sizes[1]} words of {base.dtype.name})."
        )


def check_graph(bases: Mapping[str, str | None]) -> None:
    """Refuse cycles of deltas, and chains of more than MAX_CHAIN_LENGTH tensors."""
    depths: dict[str | None, int] = {None: 0}
    for tensor in bases:
        path: dict[str, None] = {}
        at: str | None = tensor
        while at not in depths:
            if at in path:
                raise UsageError(f"The deltas of tensor {tensor} would form a cycle at {at}.")
            path[str(at)] = None
            at = bases.get(str(at))
        for step in reversed(path):
            depths[step] = depths[at] + 1
            at = step
        if depths[tensor] > MAX_CHAIN_LENGTH:
            message = f"The deltas of tensor {tensor} would go through {depths[tensor]} tensors."
            raise UsageError(message, hint=f"{MAX_CHAIN_LENGTH} is the limit.")


def swap(
    store: ParameterStore,
    packing: PackBatch,
    remote: PackBatch | None = None,
    changed: Container[str] | None = None,
    copied: Container[str] = (),
) -> None:
    """Enter sealed pack files into the index: their tensors are stored there from now on.

    With `changed`, only these tensors are; everything else in the files comes from the `copied` packs. A tensor that
    was lost, and that another process has stored again since, is no longer there, and its old copy is not entered.
    """
    index, now = store.index, store.clock()
    with index.transaction():
        store.folder.place(packing.sealed)
        moved = {
            tensor: segments for tensor, segments in packing.segments().items() if changed is None or tensor in changed
        }
        for pack in packing.sealed:
            index.add_pack(pack.id, pack.bytes, LOCAL, now)
            for record in pack.records:
                if not isinstance(record, Segment) or record.tensor not in moved:
                    index.move_record(record, pack.id, copied)
        for pack in remote.sealed if remote is not None else ():
            index.add_pack(pack.id, pack.bytes, REMOTE, now)
        for tensor, segments in (remote.segments() if remote is not None else {}).items():
            moved.setdefault(tensor, []).extend(segments)
        index.store_tensors(moved.values())
        check_graph(index.bases())
        index.retire_packs(now)


def copy_out(store: ParameterStore, pack: str, packing: PackBatch, without: Container[str] = ()) -> None:
    """Copy the needed content of a pack file unchanged, but for some tensors."""
    with store.index.reading():
        segments, manifests = store.index.contents(pack)
    for located in segments:
        if located.segment.tensor not in without:
            packing.add(located.segment, checked_streams(store.source, located, located.segment))
    for record, place in manifests:
        packing.add(record, [store.source.read(pack, place, [(record.offset, record.length)])[0]])


def needed(index: Index, snapshots: Iterable[str] | None) -> dict[str, StoredTensor]:
    """How the tensors of these snapshots (by default all) and their bases are stored."""
    found: dict[str, StoredTensor] = {}
    for snapshot in index.snapshots() if snapshots is None else snapshots:
        for tensor in index.members(snapshot):
            if tensor not in found:
                found |= {stored.tensor: stored for stored in index.chain(tensor)}
    return found


def push(store: ParameterStore, snapshots: list[str] | None) -> int:
    remote = _remote(store)
    with exclusive(store.path / MAINTENANCE_LOCK, "push"):
        packs = [pack for pack, place in _packs(store, snapshots).items() if not place & REMOTE]
        for pack in packs:
            remote.push(store.folder.path(pack), pack)
            with store.index.transaction():
                store.index.move_pack(pack, LOCAL | REMOTE)
    return len(packs)


def recall(store: ParameterStore, snapshots: list[str], wait: bool) -> int:
    remote = _remote(store)
    with exclusive(store.path / MAINTENANCE_LOCK, "recall", wait), store.folder.packing() as packing:
        packs = [pack for pack, place in _packs(store, snapshots).items() if not place & LOCAL]
        for pack in packs:
            packing.receive(pack, partial(remote.fetch, pack))
        with store.index.transaction():
            store.folder.place(packing.sealed)
            for pack in packs:
                store.index.move_pack(pack, LOCAL | REMOTE)
    return len(packs)


def offload(store: ParameterStore, snapshots: list[str], tensors: list[str], keep_planes: int, wait: bool) -> int:
    if keep_planes < 1:
        raise UsageError(f"At least one plane stays here, not {keep_planes}.")
    remote, folder = _remote(store), store.folder
    lock = exclusive(store.path / MAINTENANCE_LOCK, "offload", wait)
    with lock, folder.packing() as here, folder.packing() as there:
        with store.index.reading():
            stored = needed(store.index, snapshots) | {tensor: store.index.stored(tensor) for tensor in tensors}
        for one in stored.values():
            parted = ENCODINGS[one.encoding].progressive and one.dtype.planes > keep_planes
            if parted and all(part.place & LOCAL for part in one.segments):
                _split(store, one, keep_planes, here, there)
        here.seal()
        for pack in there.seal():
            remote.push(pack.path, pack.id)
        swap(store, here, there)
    return sum(segment.size for segments in there.segments().values() for segment, _ in segments)


def _split(store: ParameterStore, stored: StoredTensor, keep: int, here: PackBatch, there: PackBatch) -> None:
    for part in stored.segments:
        segment = part.segment
        kept = min(max(keep - segment.first, 0), segment.count)
        if kept:
            high = segment.part(segment.first, kept)
            here.add(high, checked_streams(store.source, part, high))
        if kept < segment.count:
            low = segment.part(segment.first + kept, segment.count - kept)
            there.add(low, checked_streams(store.source, part, low))


def checked_streams(source: PackSource, located: LocatedSegment, part: Segment) -> Iterator[memoryview]:
    """The streams of a segment one by one, each checked against its checksum."""
    (data,) = source.read(located.pack, located.place, [(part.offset, part.size)])
    at = 0
    for length, check in part.table.tolist():
        stream = data[at : at + length]
        if xxh3_64_intdigest(stream) != check:
            message = f"A stream of tensor {part.tensor} does not match its checksum."
            raise CorruptError(message, place=source.where(located))
        yield stream
        at += length


def _packs(store: ParameterStore, snapshots: list[str] | None) -> dict[str, int]:
    """The packs that these snapshots need, for manifests and tensors, and where they are."""
    with store.index.reading():
        wanted = store.index.snapshots() if snapshots is None else snapshots
        found = {pack: place for _, pack, place in map(store.index.manifest_record, wanted)}
        parts = (part for stored in needed(store.index, wanted).values() for part in stored.segments)
        return found | {part.pack: part.place for part in parts}


def _remote(store: ParameterStore) -> Remote:
    if store.remote is None:
        raise UsageError("The store has no remote.", place=str(store.path), hint="Open it with `remote=`.")
    return store.remote
