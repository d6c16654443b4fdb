"""Weights on their way in and out: arguments of `commit` become snapshots, and a snapshot becomes tensors by name.

A snapshot of a version is either the weights as they were committed, or the state of a model in training, which
contains its weights. Such a state may still be a file of its run. Readers see the same mapping for all of these.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from blake3 import blake3

from regatta.errors import CorruptError, DataError, NotFoundError, UsageError, nearest
from regatta.repo.intake.zip_weights import read_npz
from regatta.store.export import write_safetensors
from regatta.store.format.manifest import Manifest, ManifestEntry
from regatta.store.format.planes import leading
from regatta.store.format.tensor_id import RawTensor, as_tensor
from regatta.store.slices import PartialTensor
from regatta.store.states.state_archive import header_names, map_file, parse_tensors, stored_names
from regatta.store.store import ParameterStore

SnapshotInput: TypeAlias = "Mapping[str, Any] | str | Path | StoredWeights"
WeightsInput: TypeAlias = "SnapshotInput | Mapping[int, SnapshotInput] | Sequence[SnapshotInput]"
SUFFIXES = (".safetensors", ".npz")
ORIGIN_VERSION, ORIGIN_EPOCH = "regatta.version", "regatta.epoch"  # in the metadata of a file that was checked out
_GROUP_BYTES, _GROUP_TENSORS = 2**24, 1000


@dataclass(frozen=True)
class NewWeights:
    """A snapshot that is ready for the store."""

    epoch: int | None
    tensors: Mapping[str, RawTensor]
    metadata: Mapping[str, str]

    @property
    def parameters(self) -> int:
        return sum(int(np.prod(tensor.shape, dtype=np.int64)) for tensor in self.tensors.values())

    @property
    def bytes(self) -> int:
        return sum(tensor.words.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True)
class StoredWeights:
    """A snapshot that is in the store already, under a name that keeps it until a version does."""

    snapshot: str
    epoch: int | None
    parameters: int
    bytes: int


def new_weights(weights: WeightsInput | None) -> list[NewWeights | StoredWeights]:
    """Snapshots from tensors by name, a file, a list of these, or {epoch: one of these}."""
    if weights is None:
        return []
    if isinstance(weights, Mapping) and weights and all(type(key) is int for key in weights):
        by_epoch: dict[Any, Any] = dict(weights)
        return [_one_snapshot(by_epoch[epoch], epoch) for epoch in sorted(by_epoch)]
    if isinstance(weights, Mapping | str | Path | StoredWeights):
        return [_one_snapshot(weights, None)]
    if isinstance(weights, Sequence):
        return [_one_snapshot(each, None) for each in weights]
    raise UsageError(
        f"Weights are tensors by name, a file, or several of these, not {type(weights).__name__}.",
        hint="For a PyTorch module, pass model.state_dict().",
    )


def _one_snapshot(weights: Any, epoch: int | None) -> NewWeights | StoredWeights:
    if isinstance(weights, StoredWeights):
        return weights
    if isinstance(weights, str | Path):
        return from_file(Path(weights), epoch)
    if not isinstance(weights, Mapping):
        raise UsageError(f"A snapshot is tensors by name or a file, not {type(weights).__name__}.")
    return NewWeights(epoch, {name: as_tensor(str(name), value) for name, value in weights.items()}, {})


def from_file(path: Path, epoch: int | None) -> NewWeights:
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"Weights come from {' and '.join(SUFFIXES)} files, not from {path.suffix or 'one without a suffix'!r}.",
            place=str(path),
            hint="Load it with its framework, and pass its tensors by name.",
        )
    try:
        if path.suffix == ".npz":
            return NewWeights(epoch, {name: as_tensor(name, value) for name, value in read_npz(path).items()}, {})
        header, tensors = parse_tensors(map_file(path), str(path))
    except FileNotFoundError as error:
        raise NotFoundError("There is no such file.", place=str(path)) from error
    except CorruptError as error:
        raise DataError(error.message, place=str(path)) from error
    except IsADirectoryError as error:
        raise DataError("This is a folder, not a file.", place=str(path)) from error
    if not isinstance(header.metadata, dict):
        raise DataError("The metadata in the header is not an object.", place=str(path))
    return NewWeights(epoch, tensors, header.metadata)


class Weights(Mapping[str, Any]):
    """The tensors of a model at one snapshot, by the model's own names. A tensor is read when it is accessed.

    Values are arrays, or Bits for types that NumPy lacks. `members` has types and shapes without reading any tensor.
    """

    def __init__(
        self,
        members: Mapping[str, ManifestEntry],
        read: Callable[[Sequence[str], int | None], dict[str, Any]],
        place: str,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.members, self.place, self._read, self._forget = dict(sorted(members.items())), place, read, forget

    def __getitem__(self, name: str) -> Any:
        if name not in self.members:
            raise KeyError(name)
        return self._read([name], None)[name]

    def __contains__(self, name: object) -> bool:
        return name in self.members

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return f"<weights of {len(self)} tensors, {self.parameters:,} parameters, {self.place}>"

    @property
    def parameters(self) -> int:
        return sum(int(np.prod(member.shape, dtype=np.int64)) for member in self.members.values())

    @property
    def bytes(self) -> int:
        return sum(member.bytes for member in self.members.values())

    def read(self, names: Iterable[str] | None = None, planes: int | None = None) -> dict[str, Any]:
        """All tensors or some, at once; with `planes`, their leading planes and the bounds from these."""
        return self._read(self.check_names(self.members if names is None else names), planes)

    def check_names(self, names: Iterable[str]) -> list[str]:
        """The names as a list, after checking that each is the name of a tensor."""
        wanted = list(names)
        for name in wanted:
            if name not in self.members:
                raise NotFoundError(
                    f"There is no tensor {name!r} in {self.place}.", candidates=nearest(name, self.members)
                )
        return wanted

    def in_order(self) -> Iterator[tuple[str, Any]]:
        """All tensors by name, read in groups of limited size: quicker than one by one, and never all in memory."""
        group: list[str] = []
        size = 0
        for name, member in self.members.items():
            group.append(name)
            size += member.bytes
            if size >= _GROUP_BYTES or len(group) >= _GROUP_TENSORS:
                yield from self._read(group, None).items()
                self._forget()
                group, size = [], 0
        yield from self._read(group, None).items()

    def to_safetensors(self, path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
        """Write a safetensors file, tensor by tensor; the file appears whole or not at all."""
        write_safetensors(Path(path), Manifest(self.members, dict(metadata or {})), self.in_order())


def stored_weights(store: ParameterStore, snapshot: str, kind: str) -> Weights:
    """The weights in a snapshot of the store; `kind` is "weights" or "state"."""
    manifest = store.manifest(snapshot)
    names = stored_names(manifest, snapshot) if kind == "state" else {name: name for name in manifest.tensors}
    members = {name: manifest.tensors[source] for name, source in names.items()}

    def read(wanted: Sequence[str], planes: int | None) -> dict[str, Any]:
        return store.read({name: members[name] for name in wanted}, planes)

    return Weights(members, read, f"snapshot {snapshot[:10]}", store.folder.forget_pages)


def state_file_weights(path: Path, digest: str | None = None) -> Weights:
    """The weights in a state file of a run. With its digest, the whole file is compared before a tensor is read."""
    view = map_file(path)
    header, tensors = parse_tensors(view, str(path))
    is_checked = digest is None
    names = header_names(header, tensors, str(path))
    members = {
        name: ManifestEntry("", tensors[source].dtype.name, tensors[source].shape) for name, source in names.items()
    }

    def read(wanted: Sequence[str], planes: int | None) -> dict[str, Any]:
        nonlocal is_checked
        if not is_checked:
            if blake3(view).hexdigest() != digest:
                raise CorruptError(
                    "The state is not the one that the run wrote.",
                    place=str(path),
                    hint="regatta fsck --depth deep shows what else is damaged.",
                )
            is_checked = True
        return {name: _value(tensors[names[name]], planes) for name in wanted}

    return Weights(members, read, os.path.basename(path))


def _value(tensor: RawTensor, planes: int | None) -> Any:
    if planes is None:
        return tensor.value()
    if planes < 1:
        raise UsageError(f"At least one plane is read, not {planes}.")
    dtype = tensor.dtype
    words = leading(tensor.words, planes, dtype).reshape(
        tensor.shape if dtype.lanes == 1 else (*tensor.shape, dtype.lanes)
    )
    return PartialTensor(dtype, tensor.shape, min(planes, dtype.planes), words)
