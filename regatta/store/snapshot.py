"""A snapshot as a mapping from names to tensors, and its export to other formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.durable import replacing
from regatta.errors import UsageError
from regatta.safetensors_io import METADATA, encode_header, tensor_entry
from regatta.store.format.manifest import Manifest
from regatta.store.format.tensor_id import as_tensor
from regatta.store.slices import PartialTensor

if TYPE_CHECKING:
    import torch

    from regatta.store.store import ParameterStore


class Snapshot(Mapping[str, Any]):
    """The tensors of a snapshot by name. Nothing is cached: each access reads the tensor again."""

    def __init__(self, store: ParameterStore, snapshot: str) -> None:
        self.id = snapshot
        self._store = store
        self.manifest: Manifest = store.manifest(snapshot)

    def __getitem__(self, name: str) -> Any:
        return self._store.get(self.manifest.tensors[name].id)

    def __contains__(self, name: object) -> bool:
        return name in self.manifest.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.tensors)

    def __len__(self) -> int:
        return len(self.manifest.tensors)

    def __repr__(self) -> str:
        return f"<snapshot {self.id[:10]} of {len(self)} tensors>"

    def part(self, name: str, index: Any) -> Any:
        """A slice of a tensor; only the required chunks are decoded."""
        return self._store.get(self.manifest.tensors[name].id, slices=index)

    def partial(self, name: str, planes: int) -> PartialTensor:
        """The leading planes of a tensor."""
        found: PartialTensor = self._store.get(self.manifest.tensors[name].id, planes=planes)
        return found

    def to_torch(self) -> dict[str, torch.Tensor]:
        """All tensors as PyTorch tensors, read in parallel."""
        from regatta.store.torch_tensors import torch_tensors

        return torch_tensors(self._store.get(self.id))

    def to_safetensors(self, path: str | Path) -> None:
        """Write the snapshot as a safetensors file, which appears complete or not at all.

        Tensors are written one by one, so the snapshot need not fit into memory.
        """
        write_safetensors(Path(path), self.manifest, self.items())


def write_safetensors(target: Path, manifest: Manifest, tensors: Iterable[tuple[str, Any]]) -> None:
    """Write tensors, in the order of the manifest, as a file that appears complete or not at all."""
    content: dict[str, Any] = {METADATA: dict(manifest.metadata)} if manifest.metadata else {}
    end = 0
    for name, member in manifest.tensors.items():
        if member.dtype == "C128" or name == METADATA:
            raise UsageError(f"safetensors cannot hold {name!r} of type {member.dtype}.")
        start, end = end, end + member.bytes
        content[name] = tensor_entry(member.dtype, member.shape, start, end)
    with replacing(target) as written, written.open("wb") as file:
        file.write(encode_header(content))
        for name, value in tensors:
            file.write(as_tensor(name, value).words.data)
