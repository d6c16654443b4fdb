"""The file formats of partitions, each a module with the same two verbs.

    inspect(path) -> list[Stored]         names, dtypes and shapes, from the header, with every length checked
    read(path)    -> tuple of arrays      the columns in the file's order

Neither unpickles anything. A cut-off or hostile file raises DataError before memory is taken for it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

_MODULES = {".safetensors": "safetensors", ".npz": "npz", ".parquet": "parquet", ".pq": "parquet"}


class Stored(NamedTuple):
    """One array as a file's header describes it; `shape` counts its rows first."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Format(Protocol):
    def inspect(self, path: Path) -> list[Stored]: ...

    def read(self, path: Path) -> tuple[npt.NDArray[np.generic], ...]: ...


def format_of(path: Path) -> Format | None:
    """The module that reads files of this suffix; None where only the user's own `input_fn` can."""
    name = _MODULES.get(path.suffix.lower())
    return import_module(f"{__name__}.{name}") if name else None


def dtype_name(dtype: np.dtype[np.generic]) -> str:
    """The dtype as one word; texts of any length are the same type."""
    return {"U": "str", "S": "bytes"}.get(dtype.kind, dtype.name)
