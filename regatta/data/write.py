"""Writes partitions as files atomically: a file is complete, or it does not exist."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from regatta.data.formats import safetensors
from regatta.data.partition import Partition, inspect
from regatta.durable import fsync_file, lock_file, replacing
from regatta.errors import ConflictError, DataError


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time write into a folder; others then find its files instead of writing them again."""
    file = os.open(folder, os.O_RDONLY)
    try:
        # Where the file system has no locks, renaming still keeps every file whole.
        with contextlib.suppress(OSError):
            lock_file(file)
        yield
        fsync_file(file)
    finally:
        os.close(file)


def is_written(partition: Partition, fingerprint: str) -> bool:
    """Whether the file exists and is complete; a ConflictError if it belongs to another data set."""
    if not partition.path.exists():
        return False
    try:
        check_owner(partition.path, fingerprint)
        return inspect(partition.path) == partition
    except DataError:
        return False


def check_owner(path: Path, fingerprint: str) -> None:
    if safetensors.notes(path).get("dataset") != fingerprint:
        raise ConflictError(
            "This file belongs to other data, or to the same data split in another way.",
            place=str(path),
            hint="Pass another directory, or delete the file.",
        )


def write_partition(partition: Partition, arrays: Mapping[str, npt.NDArray[np.generic]], fingerprint: str) -> None:
    """Write a temporary file, make it durable, and rename it. `locked` makes the folder durable."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        with replacing(partition.path, durable_name=False) as written:
            save_file(dict(arrays), written, metadata=file_metadata(list(arrays), fingerprint))
            written.chmod(0o644)
    except (OSError, SafetensorError) as error:
        raise not_written(partition.path, error) from error


def file_metadata(columns: list[str], fingerprint: str) -> dict[str, str]:
    """What the header of a partition notes: the order of its columns, and the data set that it belongs to."""
    return {safetensors.METADATA_KEY: json.dumps({"columns": columns, "dataset": fingerprint})}


def not_written(path: Path, error: Exception) -> DataError:
    return DataError(
        f"This partition could not be written: {error}.",
        place=str(path),
        hint="Free some space, or pass another directory.",
    )
