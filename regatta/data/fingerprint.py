"""The fingerprint of a data set: a hash of all its data that does not depend on where the files are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from regatta.data.arrays import Array
from regatta.data.partition import Column

FINGERPRINT_BYTES = 16


def hash_arrays(columns: Mapping[str, Array], parameters: Sequence[Any]) -> str:
    layout = [[label, str(array.dtype), list(array.shape)] for label, array in columns.items()]
    digest = blake3(json.dumps([layout, parameters]).encode(), max_threads=blake3.AUTO)
    for array in columns.values():
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest(length=FINGERPRINT_BYTES)


def hash_rows(columns: Sequence[Column], digests: Sequence[Mapping[str, str]], parameters: Sequence[Any]) -> str:
    """The fingerprint of rows that were read one after another, from the hashes of the columns of each source."""
    layout = [[column.name, column.dtype, list(column.shape)] for column in columns]
    return blake3(json.dumps([layout, list(map(dict, digests)), parameters]).encode()).hexdigest(
        length=FINGERPRINT_BYTES
    )


def hash_files(*kinds: Sequence[Path]) -> str:
    digest = blake3(max_threads=blake3.AUTO)
    for paths in kinds:
        digest.update(f"{len(paths)}\n".encode())
        for path in paths:
            if path.is_dir():  # names and sizes only, because a folder may hold millions of files
                for file in sorted(p for p in path.rglob("*") if p.is_file()):
                    digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\n".encode())
            else:
                digest.update(f"{path.stat().st_size}\n".encode())
                digest.update_mmap(path)
    return digest.hexdigest(length=FINGERPRINT_BYTES)


def hash_fingerprints(by: str, fingerprints: Mapping[str, str]) -> str:
    """The fingerprint of several data sets that configurations choose from."""
    return blake3(json.dumps([by, sorted(fingerprints.items())]).encode()).hexdigest(length=FINGERPRINT_BYTES)
