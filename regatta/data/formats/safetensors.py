"""Safetensors: a length, a JSON header, then raw arrays, which are mapped into memory and not copied.

The library cannot map a file without copying, so this module reads the header and maps the arrays itself.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regatta.data.formats import StoredColumn, broken_file, dtype_name
from regatta.errors import DataError
from regatta.safetensors_io import Header, HeaderError, TensorEntry, read_header

# The one entry in the metadata, itself JSON: {"columns": their order, which the format does not keep,
# "dataset": fingerprint}. There is only one, because the library writes several entries in a random order.
METADATA_KEY = "regatta"
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
_CODES = {np.dtype(text).name: code for code, text in _DTYPES.items()}
_broken = partial(broken_file, "This is not a whole safetensors file")


class MappedTensor(NamedTuple):
    """A tensor as the header describes it, of a type that NumPy has."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int  # from the start of the file


def type_code(dtype: str) -> str:
    """The format's word for a dtype that NumPy has."""
    return _CODES[dtype]


def inspect(path: Path) -> list[StoredColumn]:
    return [StoredColumn(t.name, dtype_name(t.dtype), t.shape) for t in tensors(path)]


def read(path: Path) -> tuple[npt.NDArray[np.generic], ...]:
    return tuple(_map_array(path, tensor) for tensor in tensors(path))


def notes(path: Path) -> dict[str, Any]:
    """The notes in the header of a file that Regatta wrote, even if its data is cut off; otherwise empty."""
    try:
        return _notes(read_header(path), path)
    except HeaderError as error:
        raise _broken(path, str(error)) from error


def tensors(path: Path) -> list[MappedTensor]:
    """The tensors of the header, in the order of the columns, after checking them against the file's size."""
    try:
        header = read_header(path)
        found = {entry.name: _tensor(entry, header.size, path) for entry in header.tensors()}
        header.check_coverage(path.stat().st_size)
    except HeaderError as error:
        raise _broken(path, str(error)) from error
    return [found[name] for name in _column_order(found, _notes(header, path), path)]


def _tensor(entry: TensorEntry, start: int, path: Path) -> MappedTensor:
    if entry.dtype not in _DTYPES:
        raise DataError(
            f"The column {entry.name!r} is of type {entry.dtype!r}, which NumPy does not have.",
            place=str(path),
            hint="Convert it, for example to F32, or pass an input_fn under another file suffix.",
        )
    dtype, size = np.dtype(_DTYPES[entry.dtype]), entry.stop - entry.start
    if size != math.prod(entry.shape) * dtype.itemsize:
        what = f"{entry.name!r} of shape {list(entry.shape)} and type {entry.dtype}"
        raise HeaderError(f"{what} does not take {size} bytes")
    return MappedTensor(entry.name, dtype, entry.shape, start + entry.start)


def _column_order(found: dict[str, MappedTensor], noted: dict[str, Any], path: Path) -> list[str]:
    """The order in the notes; without notes x, y, the numbered columns, then the others by name."""
    if "columns" not in noted:
        return sorted(found, key=_default_position)
    order = noted["columns"]
    if not isinstance(order, list) or sorted(order, key=str) != sorted(found):
        raise _broken(path, f"its metadata lists the columns {order!r}, but they are {sorted(found)}")
    return order


def _default_position(name: str) -> tuple[int, int, str]:
    if name in ("x", "y"):
        return 0, 0, name
    return (1, len(name), name) if name.isdigit() else (2, 0, name)


def _notes(header: Header, path: Path) -> dict[str, Any]:
    texts = header.metadata
    if not isinstance(texts, dict) or METADATA_KEY not in texts:
        return {}
    try:
        noted = json.loads(texts[METADATA_KEY])
    except (TypeError, ValueError, RecursionError) as error:
        raise _broken(path, f"its metadata {METADATA_KEY!r} is not JSON ({error})") from error
    if not isinstance(noted, dict):
        raise _broken(path, f"its metadata {METADATA_KEY!r} is {noted!r}, not a JSON object")
    return noted


def _map_array(path: Path, tensor: MappedTensor) -> npt.NDArray[np.generic]:
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, tensor.dtype)
    # A private mapping: a tensor made from the array may write to it, and a read-only mapping would kill the process.
    array = np.memmap(path, tensor.dtype, "c", tensor.offset, tensor.shape).view(np.ndarray)
    array.flags.writeable = False
    return array if array.flags.aligned else array.copy()  # frameworks do not accept misaligned arrays
