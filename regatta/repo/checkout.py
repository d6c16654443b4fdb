"""Versions written out to folders; nothing is written anywhere else, whatever their files are called."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.errors import ConflictError
from regatta.location import writable_folder
from regatta.repo.files import FileEntry, write_inside
from regatta.repo.records import Description, Version

if TYPE_CHECKING:
    from regatta.repo.repo import Repo

WEIGHTS, ABOUT = "weights.safetensors", "version.json"


def check_out(repo: Repo, version: Version, target: Path, snapshot: int | str | None, overwrite: bool) -> Path:
    """See Repo.checkout."""
    alone = target.suffix == ".safetensors"
    taken = target.exists() and (alone or not target.is_dir() or any(target.iterdir()))
    if taken and not overwrite:
        raise ConflictError(
            "There is something already.", place=str(target), hint="Name another place, or overwrite=True."
        )
    if alone:
        writable_folder(target.parent, "folder")
        repo.weights(version, snapshot).to_safetensors(target, _origin(version))
        return target
    writable_folder(target, "folder")
    description = repo.describe(version)
    if description.snapshots:
        repo.weights(version, snapshot).to_safetensors(target / WEIGHTS, _origin(version))
    for file in description.files:
        with repo.files.open(file.hash) as content:
            write_inside(target, FileEntry(f"files/{file.path}", file.hash, file.bytes, file.executable), content)
    text = json.dumps(version_json(description), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_inside(target, FileEntry(ABOUT, "", 0), io.BytesIO(text.encode()))
    return target


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
