"""The parameter store: snapshots of tensors enter, and the same bits leave, however they are encoded in between.

    <store>/index.sqlite    where everything is (index.py)
    <store>/packs/          the bytes (folder.py, format/pack_file.py, FORMAT.md)
    <store>/tmp/            pack files being written
    <store>/quarantine/     bad files that fsck moved aside

A snapshot is stored when `put` returns. Many processes may write at once; nearly all of their work runs in parallel,
and only the transactions of the index wait for each other. Operations that remove or move data (reencode, offload, gc,
fsck) run one at a time, under a lock. `gc` removes what nothing refers to, after a grace period.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from regatta.durable import make_lock_file
from regatta.errors import ConflictError, CorruptError, NotFoundError, UsageError, nearest
from regatta.paths import INDEX, MAINTENANCE_LOCK, store_exists, writable_folder
from regatta.store.commit import NewSnapshot, SnapshotCommit, SnapshotDraft
from regatta.store.folder import MissingPackError, PackFolder
from regatta.store.format.dtypes import DType, Words
from regatta.store.format.encodings import Encoding, encoding_named
from regatta.store.format.manifest import Manifest, ManifestEntry, make_manifest, parse_manifest
from regatta.store.format.pack_file import ManifestRecord
from regatta.store.format.tensor_id import RawTensor, as_tensor, check_name, word_count
from regatta.store.index import LOCAL, Index, StoredTensor
from regatta.store.maintenance import fsck, gc, rebuild_index, rewrite
from regatta.store.reader import ChunkCache, ReadRequest, TensorReader
from regatta.store.remote import PackSource, Remote
from regatta.store.slices import narrow
from regatta.store.writer import EncodedTensor, TensorEncoder, unpack_manifest

DEFAULT_ENCODING = "zstd-planes"
CACHE_BYTES = 2**28
GC_GRACE_S = 14 * 86_400.0
_MAX_ATTEMPTS = 5
_READ_TENSORS = 1000  # read together; with more, Python's collector would pass over all that they need again and again
T = TypeVar("T")


@dataclass(frozen=True)
class StorageInfo:
    """How a tensor is stored. `stored_bytes` counts all of its streams, `remote_bytes` those only at the remote."""

    tensor: str
    dtype: DType
    shape: tuple[int, ...]
    encoding: int
    base: str | None
    stored_bytes: int
    remote_bytes: int


class ParameterStore:
    """A store in a folder; close it, or use it as a context manager."""

    def __init__(
        self,
        path: Path,
        threads: int,
        cache_bytes: int,
        clock: Callable[[], float],
        read_only: bool = False,
        rebuilding: bool = False,
    ) -> None:
        self.path, self.clock, self.read_only = path, clock, read_only
        self.remote: Remote | None = None
        self.folder = PackFolder(path)
        if not read_only:
            self.folder.create()
            make_lock_file(path / MAINTENANCE_LOCK)
        self.index = Index(path / INDEX, read_only, rebuilding)
        self.source = PackSource(self.folder, None)
        self._pool = ThreadPoolExecutor(threads, "store") if threads > 1 else None
        self.reader = TensorReader(self.source, self._pool, ChunkCache(cache_bytes))
        self.encoder = TensorEncoder(self._pool)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        create: bool = True,
        read_only: bool = False,
        remote: str | Remote | None = None,
        threads: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> ParameterStore:
        """The store in a folder, created if it does not exist. The store remembers its remote.

        `read_only` opens a store in a folder that cannot be written, as it is at this moment.
        """
        root = Path(path)
        if (read_only or not create) and not store_exists(root):
            raise NotFoundError("There is no parameter store.", place=str(root))
        if not read_only:
            writable_folder(root, "parameter store")
        store = cls(root, threads or min(8, os.cpu_count() or 1), cache_bytes, clock, read_only)
        store.set_remote(remote)
        return store

    @classmethod
    def rebuild(cls, path: str | Path, *, remote: str | None = None) -> rebuild_index.RebuildResult:
        """Make a new index from the pack files; no process may have the store open."""

        def reopen(known_remote: str | None) -> ParameterStore:
            store = cls(Path(path), 1, 0, time.time, rebuilding=True)
            store.set_remote(remote or known_remote)
            return store

        return rebuild_index.rebuild(Path(path), reopen)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self.index.close()

    def __enter__(self) -> ParameterStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Writing

    def put(
        self,
        tensors: Mapping[str, Any],
        *,
        metadata: Mapping[str, str] | None = None,
        reference: str | None = None,
        encoding: str = DEFAULT_ENCODING,
        scheme: str | None = None,
    ) -> str:
        """Store a snapshot and return its id. Tensors that the store already has cost nothing.

        Values are arrays, numbers, PyTorch tensors or (type name, shape, buffer). `reference` names the snapshot, which
        keeps it from gc. `scheme` is a lossy encoding for float tensors: the store keeps the result, and the manifest
        names the scheme.
        """
        plain = _encoding(encoding, lossy=False)
        lossy = _encoding(scheme, lossy=True) if scheme is not None else None
        return SnapshotCommit(self, [self._draft(NewSnapshot(tensors, metadata, reference), lossy)], plain).run()[0]

    def put_all(self, snapshots: Iterable[NewSnapshot], *, encoding: str = DEFAULT_ENCODING) -> list[str]:
        """Store several snapshots as `put` does one, in one transaction: all of them, or none."""
        plain, drafts = _encoding(encoding, lossy=False), [self._draft(snapshot, None) for snapshot in snapshots]
        return SnapshotCommit(self, drafts, plain).run() if drafts else []

    def reencode(
        self, plan: Mapping[str, tuple[int, str | None]], *, wait: bool = True, only_smaller: bool = False
    ) -> int:
        """Store tensors in other encodings, {tensor id: (encoding id, the base's tensor id or None)}; their number.

        Every tensor is decoded again and compared before one transaction updates the index. Ids never change. A base
        has the same type and number of elements as its tensor. The plan may not contain unknown ids, cycles, chains
        longer than MAX_CHAIN_LENGTH or lossy encodings. With `only_smaller`, tensors that would not shrink stay as they
        are, and nothing changes unless the pack files take less of the disk.
        """
        return rewrite.reencode(self, plan, wait, only_smaller)

    # Reading

    def snapshots(self) -> list[str]:
        """The ids of all snapshots, oldest first."""
        return self.index.snapshots()

    def manifest(self, snapshot: str) -> Manifest:
        """The manifest of a snapshot: its tensors and its metadata."""
        found = self.resolve(snapshot, "snapshots")
        return self._retrying(lambda: self.read_manifest(found, *self.index.manifest_record(found)))

    def get(self, what: str, names: Iterable[str] | None = None, planes: int | None = None, slices: Any = None) -> Any:
        """A snapshot's tensors as a dict, all or some, or one tensor by its id.

        Values are arrays, or Bits where NumPy lacks the type. With `planes` they are PartialTensors: the leading planes
        and the bounds that these give. `slices` is a basic index of NumPy; for a snapshot, a dict of them by name.
        """
        if self.index.with_prefix(_hex(what), "snapshots"):
            known, picks = self.manifest(what).tensors, slices or {}
            wanted = list(known if names is None else names)
            for name in (*wanted, *picks):
                if name not in known:
                    message = f"The snapshot {self.resolve(what, 'snapshots')} has no tensor {name!r}."
                    raise NotFoundError(message, candidates=nearest(name, known))
            return self.read({name: known[name] for name in wanted}, planes, picks)
        tensor = self.resolve(what, "tensors")
        return self.read({tensor: tensor}, planes, {tensor: slices})[tensor]

    def read(
        self,
        tensors: Mapping[str, str | ManifestEntry],
        planes: int | None = None,
        slices: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """{name: value} for {name: the full id of a tensor, or its entry in a manifest}, read together.

        The type and the shape of an entry are compared with those in the index. Planes and slices are as in `get`.
        """
        if planes is not None and planes < 1:
            raise UsageError(f"At least one plane is read, not {planes}.")
        found: dict[str, Any] = {}
        names = list(tensors)
        for at in range(0, len(names), _READ_TENSORS):
            some = {name: tensors[name] for name in names[at : at + _READ_TENSORS]}
            found |= self._retrying(partial(self._read, some, planes, slices or {}))
        return found

    def words(self, tensor: str, start: int = 0, stop: int | None = None) -> Words:
        """The words of a tensor, or some of them; only the chunks that contain these are decoded."""

        def read() -> Words:
            with self.index.reading():
                chain = self.index.chain(self.resolve(tensor, "tensors"))
            total = word_count(chain[0].dtype, chain[0].shape)
            low, high, _ = slice(start, stop).indices(total)
            return self.reader.read([ReadRequest(chain, low, max(low, high))])[0]

        return self._retrying(read)

    def entry(self, tensor: str) -> StorageInfo:
        """How a tensor is stored now."""
        with self.index.reading():
            return _info(self.index.stored(self.resolve(tensor, "tensors")))

    def entries(self) -> Iterator[StorageInfo]:
        """How each tensor that can be read is stored."""
        return map(_info, self.index.all_stored())

    def resolve(self, prefix: str, table: str) -> str:
        """The id in "snapshots" or "tensors" with this prefix."""
        found = self.index.with_prefix(_hex(prefix), table)
        if not found:
            raise NotFoundError(f"The store has no {table.removesuffix('s')} {prefix}.", place=str(self.path))
        if len(found) > 1:
            raise UsageError(f"Several {table} begin with {prefix}.", hint="Give more of the id.")
        return found[0]

    # References

    def reference(self, name: str, snapshot: str, *, expected: str | None = None) -> None:
        """Name a snapshot, which keeps it; with `expected`, only if the name refers to that snapshot now."""
        check_name(name, "reference")
        with self.index.transaction():
            found, target = self.index.names().get(name), self.resolve(snapshot, "snapshots")
            if expected is not None and found != expected:
                raise ConflictError(f"{name!r} refers to {found}, not to {expected}.", place=str(self.path))
            self.index.set_name(name, target, self.clock())

    def release(self, name: str) -> None:
        """Remove a name; its snapshot stays for the grace period."""
        with self.index.transaction():
            known = self.index.names()
            if name not in known:
                raise NotFoundError(f"There is no reference {name!r}.", candidates=nearest(name, known))
            now = self.clock()
            self.index.renew_snapshot(known[name], now)
            self.index.set_name(name, None, now)

    def release_all(self, names: Iterable[str]) -> None:
        """Remove names in one transaction; those that are not there are passed over."""
        with self.index.transaction():
            known, now = self.index.names(), self.clock()
            for name in names:
                if name in known:
                    self.index.renew_snapshot(known[name], now)
                    self.index.set_name(name, None, now)

    def references(self, prefix: str = "") -> dict[str, str]:
        """{name: snapshot} of all names, or of those with a prefix."""
        return self.index.names(prefix)

    @contextmanager
    def lease(self, snapshots: Sequence[str], seconds: float = 3600.0) -> Iterator[None]:
        """Protect snapshots without a name from gc, until the block or the time ends."""
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        with self.index.transaction():
            held = [self.resolve(snapshot, "snapshots") for snapshot in snapshots]
            self.index.set_lease(name, held, self.clock() + seconds)
        try:
            yield
        finally:
            with self.index.transaction():
                self.index.set_lease(name, (), 0.0)

    def gc_preview(self, released: Iterable[str] = (), *, grace: float = GC_GRACE_S) -> gc.StoreGcResult:
        """What `gc` would delete if these names were released; nothing is changed."""
        return gc.preview(self, released, grace)

    def gc(self, *, grace: float = GC_GRACE_S, wait: bool = True) -> gc.StoreGcResult:
        """Delete data that no name, lease or delta needs, once it is older than `grace` seconds."""
        return gc.collect(self, grace, wait)

    def fsck(self, depth: fsck.Depth = "structure", *, repair: bool = False, wait: bool = True) -> fsck.StoreFsckResult:
        """Check the store: its "structure", all "checksums", or "deep": decode every tensor and compare its id."""
        return fsck.check(self, depth, repair, wait)

    # The remote

    def set_remote(self, remote: str | Remote | None) -> None:
        """Set the remote for pack files; None keeps the one that was set before."""
        if isinstance(remote, str):
            with self.index.transaction():
                self.index.set("remote", remote)
        known = self.index.setting("remote")
        if remote is not None or known is not None:
            self.remote = remote if isinstance(remote, Remote) else Remote(str(known))
            self.source.remote = self.remote

    def push(self, snapshots: Iterable[str] | None = None) -> int:
        """Copy all that these snapshots (by default all) need to the remote; the number of pack files copied."""
        return rewrite.push(self, None if snapshots is None else [self.resolve(s, "snapshots") for s in snapshots])

    def offload(
        self, snapshots: Iterable[str], keep_planes: int, *, tensors: Iterable[str] = (), wait: bool = True
    ) -> int:
        """Keep only the leading planes of these snapshots here and the others at the remote; the bytes freed here.

        This includes the bases of deltas, except for single `tensors`. Encodings that are not progressive stay here.
        """
        chosen = [self.resolve(snapshot, "snapshots") for snapshot in snapshots]
        single = [self.resolve(tensor, "tensors") for tensor in tensors]
        return rewrite.offload(self, chosen, single, keep_planes, wait)

    def recall(self, snapshots: Iterable[str], *, wait: bool = True) -> int:
        """Fetch all that these snapshots need from the remote; the number of pack files fetched."""
        return rewrite.recall(self, [self.resolve(s, "snapshots") for s in snapshots], wait)

    # Internals

    def _draft(self, snapshot: NewSnapshot, scheme: Encoding | None) -> SnapshotDraft:
        named = {check_name(name, "tensor"): as_tensor(name, value) for name, value in snapshot.tensors.items()}
        if snapshot.reference is not None:
            check_name(snapshot.reference, "reference")
        members: dict[str, ManifestEntry] = {}
        contents: dict[str, tuple[RawTensor, EncodedTensor | None]] = {}
        for name, tensor in named.items():
            kept, encoded = tensor, None
            if scheme is not None and tensor.dtype.kind == "float" and tensor.words.size:
                try:
                    kept, encoded = self.encoder.lossy(tensor, scheme)
                except UsageError as error:
                    raise UsageError(f"The tensor {name!r}: {error.message}", hint=error.hint) from error
            member = ManifestEntry(kept.id, tensor.dtype.name, tensor.shape)
            if scheme is not None and kept is not tensor and tensor.id != member.id:
                member = replace(member, scheme=scheme.name, original=tensor.id)
            members[name] = member
            contents[member.id] = kept, encoded
        return SnapshotDraft(make_manifest(members, snapshot.metadata), contents, snapshot.reference)

    def _read(
        self, tensors: Mapping[str, str | ManifestEntry], planes: int | None, slices: Mapping[str, Any]
    ) -> dict[str, Any]:
        ids = [each if isinstance(each, str) else each.id for each in tensors.values()]
        with self.index.reading():
            chains = dict(zip(tensors, self.index.chains(ids), strict=True))
        for name, wanted in tensors.items():
            head = chains[name][0]
            if not isinstance(wanted, str) and (head.dtype.name, head.shape) != (wanted.dtype, wanted.shape):
                raise CorruptError(
                    f"The index has the tensor {name!r} as {head.dtype.name} {list(head.shape)}; "
                    f"its manifest has it as {wanted.dtype} {list(wanted.shape)}.",
                    place=str(self.index.path),
                    hint=self.index.remedy,
                )
        windows = {name: narrow(chain[0].shape, slices.get(name)) for name, chain in chains.items()}
        requests = []
        for name, chain in chains.items():
            start, stop = (lanes_at * chain[0].dtype.lanes for lanes_at in windows[name].span)
            requests.append(ReadRequest(chain, start, stop, planes))
        words = dict(zip(tensors, self.reader.read(requests), strict=True))
        return {name: windows[name].value(words[name], chains[name][0], planes) for name in tensors}

    def read_manifest(self, snapshot: str, record: ManifestRecord, pack: str, place: int) -> Manifest:
        (data,) = self.source.read(pack, place, [(record.offset, record.length)])
        where = f"pack {pack}"
        return parse_manifest(unpack_manifest(data, snapshot, where), snapshot, where)

    def _retrying(self, read: Callable[[], T]) -> T:
        """Read again if a pack file was replaced between the query of the index and the access to the file."""
        for _ in range(_MAX_ATTEMPTS - 1):
            try:
                return read()
            except MissingPackError:
                continue
        return read()


def _encoding(name: str, lossy: bool) -> Encoding:
    """An encoding without a base, lossy or not as required."""
    found = encoding_named(name)
    if found.needs_base or found.lossy != lossy:
        kind = "needs a base" if found.needs_base else "is lossy" if found.lossy else "is not lossy"
        raise UsageError(
            f"The encoding {name!r} {kind}.", hint="A lossy one is given as `scheme`, others as `encoding`."
        )
    return found


def _info(stored: StoredTensor) -> StorageInfo:
    known = stored.tensor, stored.dtype, stored.shape, stored.encoding, stored.base
    remote = sum(part.segment.size for part in stored.segments if not part.place & LOCAL)
    return StorageInfo(*known, sum(part.segment.size for part in stored.segments), remote)


def _hex(prefix: str) -> str:
    """A prefix of an id, checked and in lower case."""
    text = prefix.lower() if isinstance(prefix, str) else ""
    if not 4 <= len(text) <= 64 or any(digit not in "0123456789abcdef" for digit in text):
        raise UsageError(f"{prefix!r:.100} is not an id: 4 to 64 hexadecimal digits.")
    return text
