"""States of models in training in the parameter store, from which the same files can be restored.

A state is a snapshot with the tensors under their own names and the file's header as metadata, so the file can be
rebuilt byte for byte. A reference keeps it:

    runs/<series>/<configuration>/<epoch>-<visits>

The series is the run's name and a hash of the first line of its journal. So a run with the name of a deleted one never
sees the other's states. A file is deleted only after the store has returned the same bytes, with the hash in the
journal. At any time there is the file or the snapshot.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from regatta.errors import CorruptError, NotFoundError, RegattaError
from regatta.paths import JOURNAL, STATES, store_beside, store_exists
from regatta.safetensors_io import LENGTH_BYTES, Header, HeaderError, parse_header, split_header
from regatta.store.commit import NewSnapshot
from regatta.store.format.dtypes import dtype_named, floats_of
from regatta.store.format.manifest import Manifest
from regatta.store.format.tensor_id import Bits, RawTensor, as_tensor, check_name
from regatta.store.states.state_files import StateFolder, model_names, publishing, read_weights, state_key, writing
from regatta.store.store import ParameterStore

STATE_REFERENCES = "runs/"
_READ_BATCH_BYTES = 2**26  # tensors are read in groups of this size


@dataclass(frozen=True)
class RawState:
    """A state file, its configuration, and its BLAKE3 digest in the journal."""

    path: Path
    config: str
    hash: str


class StoredStates(NamedTuple):
    """The result of storing states: files that the store has as well, and the reasons why it lacks others."""

    stored: list[Path]
    failed: dict[Path, str]


def series_of(run: Path) -> str | None:
    """The series of a run's states in a store; None if the run has no journal with a first record."""
    try:
        with (run / JOURNAL).open("rb") as file:
            line = file.readline(2**24)
        name = json.loads(line)["name"] if line.endswith(b"\n") else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return None if name is None else f"{name}.{blake3(line).hexdigest()[:12]}"


def reference_of(series: str, config: str, path: Path) -> str:
    return f"{STATE_REFERENCES}{series}/{config}/{path.stem}"


def store_states(store: ParameterStore, series: str, states: Iterable[RawState]) -> StoredStates:
    """Store states in one transaction, and check that the store returns the same bytes."""
    found, failed = _readable(states, series)
    snapshots = store.put_all(snapshot for _, snapshot in found)
    stored = []
    for (state, _), snapshot in zip(found, snapshots, strict=True):
        try:
            _check_hash(_pieces(store, snapshot), state)
        except RegattaError as error:
            failed[state.path] = str(error)
        else:
            stored.append(state.path)
    return StoredStates(stored, failed)


def series_bases(references: Mapping[str, str]) -> dict[str, list[str]]:
    """The snapshot that each state may be a delta to: the previous state of the same configuration."""
    trials: dict[str, list[tuple[tuple[int, int], str]]] = {}
    for name, snapshot in references.items():
        trial, _, stem = name.rpartition("/")
        if name.startswith(STATE_REFERENCES) and (key := state_key(f"{stem}.safetensors")) is not None:
            trials.setdefault(trial, []).append((key, snapshot))
    ordered = (sorted(states) for states in trials.values())
    return {after: [before] for states in ordered for (_, before), (_, after) in pairwise(states) if before != after}


class RunStates:
    """All states of a run, as files or in the store of its repository."""

    def __init__(self, run: Path) -> None:
        self.states = StateFolder(run / STATES)
        self._store = store_beside(run)
        self._run = run

    def weights(
        self, config: str, epoch: int | None = None, digests: Mapping[str, str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """The model's tensors after an epoch; without one, the newest.

        Files are compared with `digests`, which has their BLAKE3 digests by file name; the store checks what it reads.
        """
        _, found = self._find(config, epoch)
        if isinstance(found, Path):
            try:
                return read_weights(found, (digests or {}).get(found.name))
            except (NotFoundError, FileNotFoundError):  # it has just moved into the store
                return self.weights(config, epoch, digests)
        with self._opened() as store:
            wanted = stored_names(store.manifest(found), found)
            values = store.get(found, sorted(set(wanted.values())))
            return {name: _as_array(values[source]) for name, source in sorted(wanted.items())}

    def materialize(self, config: str, epoch: int | None = None, target: Path | None = None) -> Path:
        """The file of the state after an epoch, or of the newest one; restored if only the store has it.

        With a target, the file appears there and stays. Without one, it is restored to its own place, which is safe
        only while no archiver moves states of this run into the store.
        """
        key, found = self._find(config, epoch)
        if not isinstance(found, Path):
            with self._opened() as store:
                return _rebuild(store, found, target or self.states.path(config, *key))
        if target is None:
            return found
        try:
            return _linked(found, target)
        except FileNotFoundError:
            return self.materialize(config, epoch, target)

    def _find(self, config: str, epoch: int | None) -> tuple[tuple[int, int], Path | str]:
        """Epoch and visits, and the file or the snapshot. Files come first: one that vanishes then is in the store."""
        found: dict[tuple[int, int], Path | str] = dict(self.states.files(config))
        for key, snapshot in self._stored(config).items():
            found.setdefault(key, snapshot)
        wanted = [key for key in found if epoch is None or key[0] == epoch]
        if not wanted:
            raise self.states.missing(config, epoch)
        return max(wanted), found[max(wanted)]

    def _stored(self, config: str) -> dict[tuple[int, int], str]:
        series = series_of(self._run)
        if series is None or not store_exists(self._store):
            return {}
        with self._opened() as store:
            names = store.references(f"{STATE_REFERENCES}{series}/{config}/")
        keys = ((state_key(f"{name.rpartition('/')[2]}.safetensors"), snapshot) for name, snapshot in names.items())
        return {key: snapshot for key, snapshot in keys if key is not None}

    def _opened(self) -> ParameterStore:
        return ParameterStore.open(self._store, create=False)


def _readable(states: Iterable[RawState], series: str) -> tuple[list[tuple[RawState, NewSnapshot]], dict[Path, str]]:
    """The states whose files match the journal, and the reasons why others do not; missing files are left out."""
    found, failed = [], {}
    for state in states:
        try:
            view = map_file(state.path)
            _check_hash([view], state)
            header, tensors = parse_tensors(view, str(state.path))
            metadata = {"header": header.text.decode(), "hash": state.hash}
            reference = reference_of(series, state.config, state.path)
            found.append((state, NewSnapshot(tensors, metadata, reference)))
        except FileNotFoundError:
            continue
        except (RegattaError, OSError) as error:
            failed[state.path] = str(error)
    return found, failed


def parse_tensors(view: memoryview, place: str) -> tuple[Header, dict[str, RawTensor]]:
    """The header of a safetensors file and its tensors, as views of its bytes; CorruptError says what is wrong.

    A file with gaps or overlaps is refused, because the store could not restore it.
    """
    try:
        header = split_header(view)
        header.check_coverage(len(view))
        entries = header.tensors()
    except HeaderError as error:
        raise CorruptError(f"This is not a whole safetensors file: {error}.", place=place) from error
    body = view[header.size :]
    tensors = {
        check_name(name, "tensor"): as_tensor(name, Bits(dtype, shape, body[start:stop]))
        for name, dtype, shape, start, stop in entries
    }
    return header, tensors


def map_file(path: Path) -> memoryview:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise CorruptError("The file is empty.", place=str(path))
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _check_hash(pieces: Iterable[bytes | memoryview], state: RawState, copy: BinaryIO | None = None) -> None:
    digest = blake3()
    for piece in pieces:
        if copy is not None:
            copy.write(piece)
        digest.update(piece)
    if digest.hexdigest() != state.hash:
        raise CorruptError(f"The state has the hash {digest.hexdigest()}, not {state.hash}.", place=str(state.path))


def _pieces(store: ParameterStore, snapshot: str) -> Iterator[bytes | memoryview]:
    """The bytes of a state file, as the store returns them."""
    manifest = store.manifest(snapshot)
    header = _header(manifest, snapshot)
    yield len(header.text).to_bytes(LENGTH_BYTES, "little") + header.text
    try:
        names = [entry.name for entry in header.tensors()]
    except HeaderError as error:
        raise CorruptError(f"The header of the state cannot be read: {error}.", place=f"snapshot {snapshot}") from error
    if not manifest.tensors.keys() >= set(names):
        raise CorruptError("The header names tensors that the snapshot lacks.", place=f"snapshot {snapshot}")
    for group in _groups(manifest, names):
        values = store.read({name: manifest.tensors[name] for name in group})
        for name in group:
            yield as_tensor(name, values[name]).words.view("u1").data


def _header(manifest: Manifest, snapshot: str) -> Header:
    try:
        return parse_header(manifest.metadata["header"].encode())
    except KeyError:
        raise CorruptError("The snapshot has no header of a state.", place=f"snapshot {snapshot}") from None
    except HeaderError as error:
        raise CorruptError(f"The header of the state cannot be read: {error}.", place=f"snapshot {snapshot}") from error


def _groups(manifest: Manifest, names: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for name in names:
        group.append(name)
        size += manifest.tensors[name].bytes
        if size >= _READ_BATCH_BYTES:
            yield group
            group, size = [], 0
    yield group


def _rebuild(store: ParameterStore, snapshot: str, path: Path) -> Path:
    """Restore a state file; it appears only if its hash is right."""
    state = RawState(path, "", store.manifest(snapshot).metadata.get("hash", ""))
    with writing(path), publishing(path) as written, written.open("wb") as file:
        _check_hash(_pieces(store, snapshot), state, file)
    return path


def _linked(path: Path, target: Path) -> Path:
    """A hard link to a file, which stays when the first name goes; a copy on file systems without hard links."""
    with publishing(target) as link:
        try:
            os.link(path, link)
        except PermissionError:
            shutil.copyfile(path, link)
    return target


def stored_names(manifest: Manifest, snapshot: str) -> dict[str, str]:
    """The model's own names of tensors in a stored state: {name: the tensor's name in the snapshot}."""
    return header_names(_header(manifest, snapshot), manifest.tensors, f"snapshot {snapshot}")


def header_names(header: Header, tensors: Iterable[str], place: str) -> dict[str, str]:
    """The same for a state file with this header."""
    try:
        meta = json.loads(header.metadata["regatta"])
        return model_names(tensors, meta)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"The header does not belong to a state: {error!r:.200}.", place=place) from error


def _as_array(value: NDArray[Any] | Bits) -> NDArray[Any]:
    if isinstance(value, Bits):
        return np.array(floats_of(value.buffer, dtype_named(value.dtype))).reshape(value.shape)
    return value
