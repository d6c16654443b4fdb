"""Writes versions to folders. No file is written outside the folder, whatever its name."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from regatta.durable import replacing
from regatta.errors import ConflictError, CorruptError, UsageError
from regatta.paths import writable_folder
from regatta.repo.catalog.records import Description, Version
from regatta.repo.file_store import FileEntry, write_inside
from regatta.repo.repo import Repo
from regatta.repo.snapshots import choose_snapshot, state_file, stored_id
from regatta.repo.weights import Weights

WEIGHTS, METADATA = "weights.safetensors", "version.json"


def check_out(repo: Repo, version: Version, target: Path, snapshot: int | str | None, overwrite: bool) -> Path:
    write = _WRITERS.get(target.suffix.lower())
    occupied = target.exists() and (write is not None or not target.is_dir() or any(target.iterdir()))
    if occupied and not overwrite:
        raise ConflictError(
            "The target exists already.", place=str(target), hint="Choose another path, or overwrite=True."
        )
    if write is not None:
        if target.is_dir() and not target.is_symlink():
            raise ConflictError("The target is a folder.", place=str(target), hint="Choose another path.")
        writable_folder(target.parent, "folder")
        write(_checked_weights(repo, version, snapshot), target, _origin(version))
        return target
    writable_folder(target, "folder")
    description = repo.describe(version)
    if description.snapshots:
        _checked_weights(repo, version, snapshot).to_safetensors(target / WEIGHTS, _origin(version))
    for file in description.files:
        if (reason := repo.files.problem_of(file.hash, file.bytes, whole=True)) is not None:
            raise CorruptError(f"The file {file.path!r:.200} is not as it was committed: {reason}.", place=file.hash)
        with repo.files.open(file.hash) as content:
            write_inside(target, FileEntry(f"files/{file.path}", file.hash, file.bytes, file.executable), content)
    text = json.dumps(version_json(description), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_inside(target, FileEntry(METADATA, "", 0), io.BytesIO(text.encode()))
    return target


def _checked_weights(repo: Repo, version: Version, wanted: int | str | None) -> Weights:
    """The weights, checked: the store checks what it reads, and a state file of a run is checked here."""
    snapshot = choose_snapshot(repo, version, wanted)
    path = state_file(repo, version, snapshot) if stored_id(repo, snapshot) is None else None
    if path is not None and snapshot.digest not in (None, blake3().update_mmap(path).hexdigest()):
        raise CorruptError(
            f"The weights of {version.reference} are not those that the run wrote.",
            place=str(path),
            hint="regatta fsck --depth deep shows what else is damaged.",
        )
    return repo.weights(version, wanted)


def _write_npz(weights: Weights, target: Path, origin: dict[str, str]) -> None:
    """A file for np.load; types that NumPy lacks are refused."""
    with (
        replacing(target, durable=False, durable_name=False) as written,
        zipfile.ZipFile(written, "w", allowZip64=True) as archive,
    ):
        for name, value in weights.items():
            if not isinstance(value, np.ndarray):
                raise UsageError(
                    f"The tensor {name!r} is of the type {value.dtype}, which NumPy lacks.",
                    place=str(target),
                    hint="Check it out as .safetensors or .pt.",
                )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, value, allow_pickle=False)


def _write_torch(weights: Weights, target: Path, origin: dict[str, str]) -> None:
    from regatta.frameworks.torch.files import write_state_dict

    write_state_dict(target, weights.read())


_WRITERS: dict[str, Callable[[Weights, Path, dict[str, str]], None]] = {
    ".safetensors": Weights.to_safetensors, ".npz": _write_npz, ".pt": _write_torch, ".pth": _write_torch,
}  # fmt: skip


def version_json(description: Description) -> dict[str, Any]:
    """The metadata of a version as JSON; keys and their meaning stay the same within a `format`."""
    version = description.version
    return {
        "format": 1,
        **version.fields("id", "name", "number", "created", "message", "hyperparameters", "metadata", "git"),
        "run": description.run.name if description.run else None,
        "config": version.config,
        "network": description.network,
        "tags": list(description.tags),
        "parents": [{"id": link.base, "kind": link.kind, "epoch": link.epoch} for link in description.parents],
        # JSON has neither NaN nor infinities: their text stands for them.
        "metrics": [[p.name, p.step, p.value if isfinite(p.value) else str(p.value)] for p in description.metrics],
        "files": [{"path": file.path, "hash": file.hash, "bytes": file.bytes} for file in description.files],
    }


def _origin(version: Version) -> dict[str, str]:
    """The metadata of a weights file: where the weights come from."""
    return {"regatta.version": version.id, "regatta.name": version.name}
