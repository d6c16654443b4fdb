"""The file formats of partitions, each a module with the same two functions.

    inspect(path) -> list[StoredColumn]         names, dtypes and shapes, from the header, with every length checked
    read(path)    -> tuple of arrays      the columns in the file's order

Neither unpickles anything. A truncated or malicious file raises DataError before memory is allocated for it.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from regatta.errors import DataError

_MODULES = {".safetensors": "safetensors", ".npz": "npz", ".parquet": "parquet", ".pq": "parquet"}


class StoredColumn(NamedTuple):
    """One array as a file's header describes it; the first number of `shape` is its rows."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Format(Protocol):
    def inspect(self, path: Path) -> list[StoredColumn]: ...

    def read(self, path: Path) -> tuple[npt.NDArray[np.generic], ...]: ...


def find_format(path: Path) -> Format | None:
    """The module that reads files of this suffix; None where only the user's own `input_fn` can."""
    name = _MODULES.get(path.suffix.lower())
    return import_module(f"{__name__}.{name}") if name else None


def dtype_name(dtype: np.dtype[np.generic]) -> str:
    """The dtype as one word; strings of any length have the same type."""
    return {"U": "str", "S": "bytes"}.get(dtype.kind, dtype.name)


def broken_file(problem: str, path: Path, reason: str) -> DataError:
    return DataError(f"{problem}: {reason}.", place=os.fspath(path), hint="Write the partition again.")
