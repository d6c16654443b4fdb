"""A snapshot is published: what the store lacks of it goes into a pack, the pack gets its name, and the index says so.

Between the look at what is there and the transaction, another process may have stored the same tensors, or gc may have
taken away one that this snapshot shares with others. So the transaction looks again, and what is gone is then written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regatta.errors import ConflictError
from regatta.store.encodings import Encoding, by_name
from regatta.store.folder import Packing
from regatta.store.identity import Tensor
from regatta.store.index import LOCAL
from regatta.store.manifest import Manifest
from regatta.store.writer import Encoded, write_manifest

if TYPE_CHECKING:
    from regatta.store.store import ParameterStore

SMALL = 256  # bytes; smaller tensors are kept raw, where the table of their streams would outweigh them
_ATTEMPTS = 8


@dataclass(frozen=True)
class Commit:
    """A snapshot to be stored; `contents` has its tensors by id, those of a lossy scheme already encoded."""

    store: ParameterStore
    manifest: Manifest
    contents: Mapping[str, tuple[Tensor, Encoded | None]]
    encoding: Encoding
    reference: str | None

    def run(self) -> str:
        """The snapshot's id, when it counts."""
        with self.store.folder.packing() as packing:
            for _ in range(_ATTEMPTS):
                self._write_missing(packing)
                if self._publish(packing):
                    return self.manifest.id
        raise ConflictError(
            "Other processes keep deleting what this snapshot shares with others.", place=str(self.store.path)
        )

    def _missing(self, packing: Packing) -> tuple[list[str], bool]:
        """The tensors that neither the store nor a new pack has, and whether that is so of the manifest."""
        index, written = self.store.index, packing.segments()
        tensors = [tensor for tensor in index.missing(self.contents) if tensor not in written]
        return tensors, self.manifest.id not in packing.manifests() and not index.has_snapshot(self.manifest.id)

    def _write_missing(self, packing: Packing) -> None:
        tensors, manifest = self._missing(packing)
        for tensor in tensors:
            self._encoded(tensor).write(packing)
        if manifest:
            write_manifest(packing, self.manifest)
        packing.seal()

    def _encoded(self, name: str) -> Encoded:
        tensor, encoded = self.contents[name]
        if encoded is not None:
            return encoded
        small = tensor.words.nbytes < SMALL
        return self.store.encoder.encode(tensor, name, by_name("raw") if small else self.encoding)

    def _publish(self, packing: Packing) -> bool:
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
            if index.has_snapshot(self.manifest.id):
                index.renew_snapshot(self.manifest.id, now)
            else:
                index.store_snapshot(*packing.manifests()[self.manifest.id], self.contents, now)
            if self.reference is not None:
                index.set_name(self.reference, self.manifest.id, now)
            index.retire_packs(now)
        return True
