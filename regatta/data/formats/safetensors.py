"""Safetensors: a length, a JSON header, then raw arrays, which are mapped into memory and not copied.

The library has no reader that maps without copying, so the header is read here.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regatta.data.formats import Stored, dtype_name
from regatta.errors import DataError

HEADER_LIMIT = 100_000_000  # the format's own
# Our one entry in the metadata, itself JSON: {"columns": their order, which writers of the format do not keep,
# "dataset": fingerprint}. One, because the library writes several in an order that changes from file to file.
METADATA_KEY = "regatta"
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


class Tensor(NamedTuple):
    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int  # from the start of the file


def inspect(path: Path) -> list[Stored]:
    return [Stored(t.name, dtype_name(t.dtype), t.shape) for t in tensors(path)]


def read(path: Path) -> tuple[npt.NDArray[np.generic], ...]:
    return tuple(_mapped(path, tensor) for tensor in tensors(path))


def notes(path: Path) -> dict[str, Any]:
    """What our writer noted in the header, even of a file whose data is cut off; empty for files of others."""
    return _notes(_read_header(path)[0], path)


def tensors(path: Path) -> list[Tensor]:
    """What the header lists, in the order of the columns, after checking it against the size of the file."""
    header, start = _read_header(path)
    found = {name: _tensor(name, entry, start, path) for name, entry in header.items() if name != "__metadata__"}
    _check_coverage(found.values(), start, path)
    return [found[name] for name in _column_order(found, _notes(header, path), path)]


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _broken(path, f"its header should have {length} bytes, but the whole file has {size}: it is cut off")
        if length > HEADER_LIMIT:
            raise _broken(path, f"its header claims {length} bytes, more than the {HEADER_LIMIT} allowed")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise _broken(path, f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _broken(path, "its header is not a JSON object")
    return header, 8 + length


def _tensor(name: str, entry: Any, start: int, path: Path) -> Tensor:
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers_hold = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError) as error:
        raise _broken(path, f"the entry of {name!r} is not that of a tensor") from error
    if not numbers_hold:
        raise _broken(path, f"the entry of {name!r} has a length or offset that is not a whole number")
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise DataError(
            f"The column {name!r} is of type {kind!r}, which NumPy does not have.",
            place=str(path),
            hint="Convert it, for example to F32, or pass an input_fn under another file suffix.",
        )
    dtype = np.dtype(_DTYPES[kind])
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise _broken(path, f"{name!r} of shape {shape} and type {kind} does not take {end - begin} bytes")
    return Tensor(name, dtype, tuple(shape), start + begin)


def _check_coverage(found: Any, start: int, path: Path) -> None:
    """The arrays must follow each other without gaps or overlaps and end where the file ends."""
    position = start
    for tensor in sorted(found, key=lambda t: (t.offset, _nbytes(t))):
        if tensor.offset != position:
            raise _broken(path, f"{tensor.name!r} starts at byte {tensor.offset} instead of {position}")
        position += _nbytes(tensor)
    size = path.stat().st_size
    if size != position:
        state = "it is cut off" if size < position else "something follows the data"
        raise _broken(path, f"its header describes {position} bytes, but the file has {size}: {state}")


def _column_order(found: dict[str, Tensor], noted: dict[str, Any], path: Path) -> list[str]:
    """As noted; else x, y, the numbered ones, then the others by name."""
    if "columns" not in noted:
        return sorted(found, key=_usual_place)
    order = noted["columns"]
    if not isinstance(order, list) or sorted(order, key=str) != sorted(found):
        raise _broken(path, f"its metadata lists the columns {order!r}, but they are {sorted(found)}")
    return order


def _usual_place(name: str) -> tuple[int, int, str]:
    if name in ("x", "y"):
        return 0, 0, name
    return (1, len(name), name) if name.isdigit() else (2, 0, name)


def _notes(header: dict[str, Any], path: Path) -> dict[str, Any]:
    texts = header.get("__metadata__")
    if not isinstance(texts, dict) or METADATA_KEY not in texts:
        return {}
    try:
        noted = json.loads(texts[METADATA_KEY])
    except (TypeError, ValueError, RecursionError) as error:
        raise _broken(path, f"its metadata {METADATA_KEY!r} is not JSON ({error})") from error
    if not isinstance(noted, dict):
        raise _broken(path, f"its metadata {METADATA_KEY!r} is {noted!r}, not a JSON object")
    return noted


def _mapped(path: Path, tensor: Tensor) -> npt.NDArray[np.generic]:
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, tensor.dtype)
    # Private, though nobody should write: a tensor made of it can, and of a read-only mapping the process would die.
    array = np.memmap(path, tensor.dtype, "c", tensor.offset, tensor.shape).view(np.ndarray)
    array.flags.writeable = False
    return array if array.flags.aligned else array.copy()  # frameworks do not take misaligned arrays


def _nbytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize


def _broken(path: Path, reason: str) -> DataError:
    return DataError(
        f"This is not a whole safetensors file: {reason}.", place=os.fspath(path), hint="Write the partition again."
    )
