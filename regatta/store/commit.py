"""Commits snapshots: writes missing tensors to a pack file, gives the file its name and updates the index.

Between the first look at the index and the transaction, another process may have stored the same tensors, or gc may
have removed one that these snapshots share. The transaction therefore looks again; if a tensor is gone, it is written
and the commit starts over.
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
from regatta.store.format.tensor_id import RawTensor
from regatta.store.index import LOCAL
from regatta.store.writer import EncodedTensor, write_manifest

if TYPE_CHECKING:
    from regatta.store.store import ParameterStore

SMALL_TENSOR_BYTES = 1024  # smaller tensors are stored raw: the tables of their streams take what they save
_MAX_ATTEMPTS = 8


@dataclass(frozen=True)
class NewSnapshot:
    """A snapshot for `put_all`: the arguments that `put` takes for a single one."""

    tensors: Mapping[str, Any]
    metadata: Mapping[str, str] | None = None
    reference: str | None = None


@dataclass(frozen=True)
class SnapshotDraft:
    """A snapshot that is ready to be stored. `contents` has its tensors by id; lossy ones are already encoded."""

    manifest: Manifest
    contents: Mapping[str, tuple[RawTensor, EncodedTensor | None]]
    reference: str | None

    @cached_property
    def id(self) -> str:
        return self.manifest.id


@dataclass(frozen=True)
class SnapshotCommit:
    """Stores several snapshots in one transaction: all of them, or none."""

    store: ParameterStore
    drafts: Sequence[SnapshotDraft]
    encoding: Encoding

    @cached_property
    def contents(self) -> dict[str, tuple[RawTensor, EncodedTensor | None]]:
        return {tensor: content for draft in self.drafts for tensor, content in draft.contents.items()}

    def run(self) -> list[str]:
        with self.store.folder.packing() as packing:
            for _ in range(_MAX_ATTEMPTS):
                tensors, drafts = self._missing(packing)
                for tensor in tensors:
                    self._encoded(tensor).write(packing)
                for draft in drafts:
                    write_manifest(packing, draft.manifest)
                packing.seal()
                if self._publish(packing):
                    return [draft.id for draft in self.drafts]
        message = "Other processes keep deleting what this snapshot shares with others."
        raise ConflictError(message, place=str(self.store.path))

    def _missing(self, packing: PackBatch) -> tuple[list[str], list[SnapshotDraft]]:
        """The tensors, and the drafts whose manifests, that neither the store nor a new pack file has."""
        index, segments, manifests = self.store.index, packing.segments(), packing.manifests()
        tensors = [tensor for tensor in index.missing(self.contents) if tensor not in segments]
        drafts = {draft.id: draft for draft in self.drafts if draft.id not in manifests}
        return tensors, [draft for draft in drafts.values() if not index.has_snapshot(draft.id)]

    def _encoded(self, name: str) -> EncodedTensor:
        tensor, encoded = self.contents[name]
        if encoded is not None:
            return encoded
        small = tensor.words.nbytes < SMALL_TENSOR_BYTES
        return self.store.encoder.encode(tensor, name, encoding_named("raw") if small else self.encoding)

    def _publish(self, packing: PackBatch) -> bool:
        """Update the index in one transaction; False if something is missing that was there before."""
        index, now = self.store.index, self.store.clock()
        with index.transaction():
            if any(self._missing(packing)):
                return False
            self.store.folder.place(packing.sealed)
            for sealed in packing.sealed:
                index.add_pack(sealed.id, sealed.bytes, LOCAL, now)
            written = packing.segments()
            index.store_tensors([written[tensor] for tensor in index.missing(written)])
            manifests = packing.manifests()
            for draft in self.drafts:
                if index.has_snapshot(draft.id):
                    index.renew_snapshot(draft.id, now)
                else:
                    index.store_snapshot(*manifests[draft.id], draft.contents, now)
                if draft.reference is not None:
                    index.set_name(draft.reference, draft.id, now)
            index.retire_packs(now)
        return True
