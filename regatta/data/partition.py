"""One partition: its header and its arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from regatta.data.formats import dtype_name, find_format
from regatta.errors import DataError


@dataclass(frozen=True)
class Column:
    """One array of a partition; `shape` is the shape of a single row."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape) if self.shape else ''}"


@dataclass(frozen=True)
class Partition:
    """A file, or a folder that an `input_fn` reads; then `rows` is None and `columns` is empty."""

    path: Path
    rows: int | None
    columns: tuple[Column, ...]


def row_columns(arrays: Mapping[str, npt.NDArray[np.generic]]) -> tuple[Column, ...]:
    """The columns that a partition with these arrays has."""
    return tuple(Column(label, dtype_name(array.dtype), array.shape[1:]) for label, array in arrays.items())


def inspect(path: str | os.PathLike[str]) -> Partition:
    """The partition at a path, read from its header alone; a DataError says what is wrong with it."""
    place = Path(os.path.abspath(path))
    if not place.exists():
        raise DataError("This partition does not exist.", place=str(place), hint="Correct the path, or write the file.")
    reader = find_format(place)
    if reader is None:
        return Partition(place, None, ())
    try:
        stored = reader.inspect(place)
    except OSError as error:
        raise DataError(f"This partition cannot be read: {error.strerror or error}.", place=str(place)) from error
    if not stored:
        raise DataError("This partition has no columns.", place=str(place))
    for array in stored:
        if not array.shape:
            raise DataError(f"The column {array.name!r} is a single value, not one per row.", place=str(place))
    names = [array.name for array in stored]
    if len(set(names)) < len(names):
        raise DataError(f"Several columns of this partition have the same name: {names}.", place=str(place))
    lengths = {array.name: array.shape[0] for array in stored}
    if len(set(lengths.values())) > 1:
        raise DataError(f"The columns of this partition have different lengths: {lengths}.", place=str(place))
    rows = stored[0].shape[0]
    if rows == 0:
        raise DataError("This partition has no rows.", place=str(place))
    return Partition(place, rows, tuple(Column(s.name, s.dtype, s.shape[1:]) for s in stored))


def read_partition(path: str | os.PathLike[str]) -> tuple[npt.NDArray[np.generic], ...]:
    """The columns of a partition as arrays: the default `input_fn`.

    Safetensors are mapped into memory: pages are read when they are used, and the arrays are read-only.
    """
    place = inspect(path).path
    reader = find_format(place)
    if reader is None:
        raise unknown_format(place)
    return reader.read(place)


def unknown_format(path: Path) -> DataError:
    return DataError(
        f"The file suffix {path.suffix!r} is unknown; .safetensors, .npz and .parquet are known.",
        place=str(path),
        hint="Give Sweep or launch, not the data set, an input_fn(path) that reads it.",
    )
