"""Files of states of models in training: safetensors files, the last state and one per epoch.

The next worker can read a state after `publishing` has named it. The state is durable when `make_durable` returns.
The folder of a run:

    states/<configuration>/<epoch>-<visits>.safetensors     after that number of partitions of the epoch

States at ends of epochs move into the parameter store of the repository (state_archive.py), which restores the same
files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from regatta.durable import fsync_path, replacing
from regatta.errors import CorruptError, DiskError, NotFoundError

_NAME = re.compile(r"(\d+)-(\d+)\.safetensors")
VERSION = 1


class StateFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, config: str, epoch: int, visits: int) -> Path:
        """The file of a configuration's state after a number of visits in an epoch."""
        return self.folder / config / f"{epoch:04d}-{visits:03d}.safetensors"

    def drop(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def files(self, config: str) -> dict[tuple[int, int], Path]:
        """The existing states by epoch and visits."""
        named = ((state_key(path.name), path) for path in (self.folder / config).glob("*.safetensors"))
        return {key: path for key, path in named if key is not None}

    def missing(self, config: str, epoch: int | None) -> NotFoundError:
        which = "no state" if epoch is None else f"no state of epoch {epoch}"
        return NotFoundError(f"Configuration {config} has {which} in {self.folder}.")


def state_key(name: str) -> tuple[int, int] | None:
    """The epoch and the visits in the name of a state file; None if it is not one."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


@contextmanager
def publishing(path: Path) -> Iterator[Path]:
    """A temporary name to write a state under. When the block ends without an error, other workers may read the state.

    The folder is created. No two writers share a name: a worker that is taken for dead may still write its state.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=False, durable_name=False) as written:
        yield written


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While a state is written in this block, errors of the disk become DiskError; other errors pass."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError) as error:
        if isinstance(error, SafetensorError) and "I/O error" not in str(error):
            raise
        raise DiskError(
            f"The state cannot be written: {error}.",
            place=str(path),
            hint="Free some space, or make the folder writable.",
        ) from error


def make_durable(path: Path) -> tuple[str, int]:
    """Force a state and its name to the disk; returns its BLAKE3 digest and its size."""
    digest = blake3().update_mmap(path).hexdigest() if path.stat().st_size else blake3().hexdigest()
    for target in (path, path.parent, path.parent.parent):
        fsync_path(target)
    return digest, path.stat().st_size


def state_metadata(framework: str, tree: Any, **more: Any) -> dict[str, str]:
    """The metadata of a state file: a single entry, so that equal states are equal files."""
    meta = {"version": VERSION, "framework": framework, "tree": tree, **more}
    return {"regatta": json.dumps(meta, separators=(",", ":"))}


def state_framework(path: Path) -> str:
    return str(read_metadata(path)["framework"])


def read_metadata(path: Path) -> dict[str, Any]:
    with _opened(path, "np") as (_, meta):
        return meta


def read_state(path: Path, library: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of a state, for the library "pt" or "np", and its metadata."""
    with _opened(path, library) as (file, meta):
        return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118 (not a dict)


@contextmanager
def _opened(path: Path, library: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework=library) as file:
            meta = json.loads((file.metadata() or {}).get("regatta", "{}"))
            if not isinstance(meta, dict) or meta.get("version") != VERSION:
                found = meta.get("version") if isinstance(meta, dict) else None
                raise CorruptError(f"Not a state of version {VERSION}, but {found}.", place=str(path))
            if not isinstance(meta.get("framework"), str) or not isinstance(meta.get("tree"), dict):
                raise CorruptError("The state lacks its framework or its tree.", place=str(path))
            yield file, meta
    except FileNotFoundError as error:
        raise NotFoundError("The state is not there.", place=str(path)) from error
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CorruptError(f"The state cannot be read: {error}.", place=str(path)) from error


def read_weights(path: Path, digest: str | None = None) -> dict[str, NDArray[Any]]:
    """The model's tensors in a state, by name; bfloat16 and float8, which NumPy lacks, become float32.

    With the BLAKE3 digest of the file, a file that has changed since is an error.
    """
    tensors, meta = read_state(path, "pt")
    if digest is not None and blake3().update_mmap(path).hexdigest() != digest:
        raise CorruptError(
            "The state is not the one that the run wrote.",
            place=str(path),
            hint="Read another epoch, or train the run again: regatta replay compares every state.",
        )
    return {name: _as_array(tensors[source]) for name, source in sorted(model_names(tensors, meta).items())}


def model_names(tensors: Iterable[str], meta: Mapping[str, Any]) -> dict[str, str]:
    """The model's own names of tensors: {name: the tensor's name in the file}. A tensor may have several names."""
    sources = {name: name for name in tensors} | meta.get("same_as", {})
    return {name.removeprefix("model/"): source for name, source in sources.items() if name.startswith("model/")}


def _as_array(tensor: Any) -> NDArray[Any]:
    try:
        return np.array(tensor.numpy())
    except TypeError:
        return np.array(tensor.float().numpy())
