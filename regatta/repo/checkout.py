"""Writes versions to files and folders. No file is written outside the folder, whatever its name."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from regatta.durable import replacing
from regatta.errors import ConflictError, UsageError
from regatta.paths import writable_folder
from regatta.repo.catalog.networks import canonical_json
from regatta.repo.catalog.records import Description, Version
from regatta.repo.file_store import FileEntry, write_inside
from regatta.repo.repo import Repo
from regatta.repo.snapshots import choose_snapshot
from regatta.repo.weights import ORIGIN_EPOCH, ORIGIN_VERSION, Weights

WEIGHTS, METADATA = "weights.safetensors", "version.json"
FORMATS = "Weights are written as .safetensors, .npz, .pt and .pth, models as .onnx, whole versions to folders."
# Suffixes of model files that are not written: a folder of such a name would be a mistake.
OTHER_SUFFIXES = (
    ".bin", ".ckpt", ".gguf", ".h5", ".hdf5", ".joblib", ".json", ".keras", ".mar", ".mlmodel", ".msgpack", ".npy",
    ".pb", ".pkl", ".pickle", ".pt2", ".tar", ".tflite", ".zip",
)  # fmt: skip


def check_out(repo: Repo, version: Version, target: Path, snapshot: int | str | None, overwrite: bool) -> Path:
    suffix = target.suffix.lower()
    write = _WRITERS.get(suffix)
    occupied = target.exists() and (write is not None or not target.is_dir() or any(target.iterdir()))
    if occupied and not overwrite:
        raise ConflictError(
            "The target exists already.", place=str(target), hint="Choose another path, or overwrite=True."
        )
    if suffix in OTHER_SUFFIXES and not target.is_dir():
        raise UsageError(
            f"A version cannot be written as {suffix}.",
            place=str(target),
            hint=f"{FORMATS} Load one of them with the framework that writes {suffix}.",
        )
    if write is not None:
        if target.is_dir() and not target.is_symlink():
            raise ConflictError("The target is a folder.", place=str(target), hint="Choose another path.")
        writable_folder(target.parent, "folder")
        chosen = choose_snapshot(repo, version, snapshot)
        write(repo.weights(version, snapshot), target, Origin(repo, version, chosen.epoch))
        return target
    writable_folder(target, "folder")
    description = repo.describe(version)
    if description.snapshots:
        origin = Origin(repo, version, choose_snapshot(repo, version, snapshot).epoch)
        _write_safetensors(repo.weights(version, snapshot), target / WEIGHTS, origin)
    for file in description.files:
        with repo.files.open(file) as content:
            write_inside(target, FileEntry(f"files/{file.path}", file.hash, file.bytes, file.executable), content)
    text = json.dumps(version_json(description), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_inside(target, FileEntry(METADATA, "", 0), io.BytesIO(text.encode()))
    return target


@dataclass(frozen=True)
class Origin:
    """Where weights come from. `add` reads it from the metadata of a file."""

    repo: Repo
    version: Version
    epoch: int | None

    def metadata(self) -> dict[str, str]:
        epoch = {} if self.epoch is None else {ORIGIN_EPOCH: str(self.epoch)}
        return {ORIGIN_VERSION: self.version.id, "regatta.name": self.version.name, **epoch}


def _write_safetensors(weights: Weights, target: Path, origin: Origin) -> None:
    weights.to_safetensors(target, origin.metadata())


def _write_npz(weights: Weights, target: Path, origin: Origin) -> None:
    """A file for np.load; types that NumPy lacks are refused."""
    with (
        replacing(target, durable=False, durable_name=False) as written,
        zipfile.ZipFile(written, "w", allowZip64=True) as archive,
    ):
        for name, value in weights.in_order():
            if not isinstance(value, np.ndarray):
                raise UsageError(
                    f"The tensor {name!r} is of the type {value.dtype}, which NumPy lacks.",
                    place=str(target),
                    hint="Check it out as .safetensors or .pt.",
                )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, value, allow_pickle=False)


def _write_torch(weights: Weights, target: Path, origin: Origin) -> None:
    from regatta.frameworks.torch.files import write_state_dict

    write_state_dict(target, weights.members, weights.in_order())


def _write_onnx(weights: Weights, target: Path, origin: Origin) -> None:
    """The network with its weights, as a model for inference."""
    from regatta.network import from_json, to_onnx

    stored = origin.repo.network(origin.version)
    if stored is None:
        raise UsageError(
            f"The version {origin.version.reference} has no network, which an ONNX file needs.",
            hint="Commit it with one (`regatta add net.json --as network`), or check out .safetensors or .pt.",
        )
    model = to_onnx(from_json(canonical_json(stored, "network")), weights)
    for key, value in origin.metadata().items():
        model.metadata_props.add(key=key, value=value)
    with replacing(target, durable=False, durable_name=False) as written:
        written.write_bytes(model.SerializeToString())


_WRITERS: dict[str, Callable[[Weights, Path, Origin], None]] = {
    ".safetensors": _write_safetensors, ".npz": _write_npz, ".pt": _write_torch, ".pth": _write_torch,
    ".onnx": _write_onnx,
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
