"""Snapshots are published: what the store lacks of them goes into a pack, the pack gets its name, the index says so.

Between the look at what is there and the transaction, another process may have stored the same tensors, or gc may have
taken away one that these snapshots share with others. So the transaction looks again, and what is gone is then written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from regatta.errors import ConflictError
from regatta.store.folder import PackBatch
from regatta.store.format.encodings import Encoding, encoding_named
from regatta.store.format.manifest import Manifest
from regatta.store.format.pack_file import ManifestRecord
from regatta.store.format.tensor_id import RawTensor
from regatta.store.index import LOCAL
from regatta.store.writer import EncodedTensor, write_manifest

if TYPE_CHECKING:
    from regatta.store.store import ParameterStore

SMALL_TENSOR_BYTES = 256  # bytes; smaller tensors are kept raw, where the table of their streams would outweigh them
_MAX_ATTEMPTS = 8


@dataclass(frozen=True)
class NewSnapshot:
    """What `put_all` takes: a snapshot that is to be stored, and the arguments of `put` that are its own."""

    tensors: Mapping[str, Any]
    metadata: Mapping[str, str] | None = None
    reference: str | None = None


@dataclass(frozen=True)
class SnapshotDraft:
    """The same, made ready; `contents` has its tensors by id, those of a lossy scheme already encoded."""

    manifest: Manifest
    contents: Mapping[str, tuple[RawTensor, EncodedTensor | None]]
    reference: str | None

    @cached_property
    def id(self) -> str:
        return self.manifest.id


@dataclass(frozen=True)
class SnapshotCommit:
    """Snapshots that are stored together: all of them count at the same moment, or none."""

    store: ParameterStore
    drafts: Sequence[SnapshotDraft]
    encoding: Encoding

    @cached_property
    def contents(self) -> dict[str, tuple[RawTensor, EncodedTensor | None]]:
        return {tensor: content for draft in self.drafts for tensor, content in draft.contents.items()}

    def run(self) -> list[str]:
        """The snapshots' ids, when they count."""
        with self.store.folder.packing() as packing:
            for _ in range(_MAX_ATTEMPTS):
                self._write_missing(packing)
                if self._publish(packing):
                    return [draft.id for draft in self.drafts]
        raise ConflictError(
            "Other processes keep deleting what this snapshot shares with others.", place=str(self.store.path)
        )

    def _missing(self, packing: PackBatch) -> tuple[list[str], list[SnapshotDraft]]:
        """The tensors that neither the store nor a new pack has, and the drafts of which that is so of the manifest."""
        index, segments, manifests = self.store.index, packing.segments(), packing.manifests()
        tensors = [tensor for tensor in index.missing(self.contents) if tensor not in segments]
        drafts = {draft.id: draft for draft in self.drafts if draft.id not in manifests}
        return tensors, [draft for draft in drafts.values() if not index.has_snapshot(draft.id)]

    def _write_missing(self, packing: PackBatch) -> None:
        tensors, drafts = self._missing(packing)
        for tensor in tensors:
            self._encoded(tensor).write(packing)
        for draft in drafts:
            write_manifest(packing, draft.manifest)
        packing.seal()

    def _encoded(self, name: str) -> EncodedTensor:
        tensor, encoded = self.contents[name]
        if encoded is not None:
            return encoded
        small = tensor.words.nbytes < SMALL_TENSOR_BYTES
        return self.store.encoder.encode(tensor, name, encoding_named("raw") if small else self.encoding)

    def _publish(self, packing: PackBatch) -> bool:
        """In one transaction; False when something is missing that was there a moment ago."""
        index, now = self.store.index, self.store.clock()
        with index.transaction():
            if any(self._missing(packing)):
                return False
            self.store.folder.place(packing.sealed)
            for sealed in packing.sealed:
                index.add_pack(sealed.id, sealed.bytes, LOCAL, now)
            written = packing.segments()
            for tensor in index.missing(written):
                index.store_tensor(written[tensor])
            manifests = packing.manifests()
            for draft in self.drafts:
                self._publish_draft(draft, manifests, now)
            index.retire_packs(now)
        return True

    def _publish_draft(
        self, draft: SnapshotDraft, manifests: Mapping[str, tuple[ManifestRecord, str]], now: float
    ) -> None:
        index = self.store.index
        if index.has_snapshot(draft.id):
            index.renew_snapshot(draft.id, now)
        else:
            index.store_snapshot(*manifests[draft.id], draft.contents, now)
        if draft.reference is not None:
            index.set_name(draft.reference, draft.id, now)
