"""Versions written out to folders; nothing is written anywhere else, whatever their files are called."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from regatta.durable import replacing
from regatta.errors import ConflictError, CorruptError, UsageError
from regatta.paths import writable_folder
from regatta.repo.catalog.records import Description, Version
from regatta.repo.file_store import FileEntry, write_inside
from regatta.repo.snapshots import choose, state_file, stored_id

if TYPE_CHECKING:
    from regatta.repo.repo import Repo
    from regatta.repo.weights import Weights

WEIGHTS, ABOUT = "weights.safetensors", "version.json"


def check_out(repo: Repo, version: Version, target: Path, snapshot: int | str | None, overwrite: bool) -> Path:
    """See Repo.checkout."""
    write = _WRITERS.get(target.suffix.lower())
    alone = write is not None
    taken = target.exists() and (alone or not target.is_dir() or any(target.iterdir()))
    if taken and not overwrite:
        raise ConflictError(
            "There is something already.", place=str(target), hint="Name another place, or overwrite=True."
        )
    if write is not None:
        if target.is_dir() and not target.is_symlink():
            raise ConflictError("There is a folder of that name.", place=str(target), hint="Name another place.")
        writable_folder(target.parent, "folder")
        write(_sound_weights(repo, version, snapshot), target, _origin(version))
        return target
    writable_folder(target, "folder")
    description = repo.describe(version)
    if description.snapshots:
        _sound_weights(repo, version, snapshot).to_safetensors(target / WEIGHTS, _origin(version))
    for file in description.files:
        if (reason := repo.files.why_bad(file.hash, file.bytes, whole=True)) is not None:
            raise CorruptError(f"The file {file.path!r:.200} is not as it was committed: {reason}.", place=file.hash)
        with repo.files.open(file.hash) as content:
            write_inside(target, FileEntry(f"files/{file.path}", file.hash, file.bytes, file.executable), content)
    text = json.dumps(version_json(description), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_inside(target, FileEntry(ABOUT, "", 0), io.BytesIO(text.encode()))
    return target


def _sound_weights(repo: Repo, version: Version, wanted: int | str | None) -> Weights:
    """The weights; the store checks what it reads, and the file of a run is checked here."""
    snapshot = choose(repo, version, wanted)
    path = state_file(repo, version, snapshot) if stored_id(repo, snapshot) is None else None
    if path is not None and snapshot.digest not in (None, blake3().update_mmap(path).hexdigest()):
        raise CorruptError(
            f"The weights of {version.reference} are not those that the run wrote.",
            place=str(path),
            hint="regatta fsck --depth deep tells what else is damaged.",
        )
    return repo.weights(version, wanted)


def _write_safetensors(weights: Weights, target: Path, origin: dict[str, str]) -> None:
    weights.to_safetensors(target, origin)


def _write_npz(weights: Weights, target: Path, origin: dict[str, str]) -> None:
    """As np.load reads it; types that NumPy lacks have no place there."""
    import numpy as np

    with (
        replacing(target, durable=False, durable_name=False) as written,
        zipfile.ZipFile(written, "w", allowZip64=True) as archive,
    ):
        for name, value in weights.items():
            if not isinstance(value, np.ndarray):
                raise UsageError(
                    f"NumPy has no type {value.dtype}, of which the tensor {name!r} is.",
                    place=str(target),
                    hint="Check it out as .safetensors or .pt.",
                )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, value, allow_pickle=False)


def _write_torch(weights: Weights, target: Path, origin: dict[str, str]) -> None:
    from regatta.frameworks.torch.files import write_state_dict

    write_state_dict(target, weights.read())


_WRITERS = {
    ".safetensors": _write_safetensors, ".npz": _write_npz, ".pt": _write_torch, ".pth": _write_torch,
}  # fmt: skip


def version_json(description: Description) -> dict[str, Any]:
    """What is known of a version, as JSON: no key goes or changes its meaning within a `format`."""
    version = description.version
    return {
        "format": 1,
        "id": version.id,
        "name": version.name,
        "number": version.number,
        "created": version.created,
        "message": version.message,
        "hyperparameters": version.hyperparameters,
        "metadata": version.metadata,
        "git": version.git,
        "run": description.run.name if description.run else None,
        "config": version.config,
        "network": description.network,
        "tags": list(description.tags),
        "parents": [{"id": link.base, "kind": link.kind, "epoch": link.epoch} for link in description.parents],
        "metrics": [[point.name, point.step, _spelt(point.value)] for point in description.metrics],
        "files": [{"path": file.path, "hash": file.hash, "bytes": file.bytes} for file in description.files],
    }


def _origin(version: Version) -> dict[str, str]:
    """What the file of the weights says of where it comes from."""
    return {"regatta.version": version.id, "regatta.name": version.name}


def _spelt(value: float) -> float | str:
    """JSON has no NaN and no infinities."""
    return value if abs(value) < float("inf") else str(value)
