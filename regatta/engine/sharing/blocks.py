"""Blocks: arrays one after another in shared memory, or in a file without a name."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.errors import UsageError
from regatta.frameworks.base import describe

Array: TypeAlias = NDArray[Any]
ALIGNMENT_BYTES = 64
COPY_CHUNK_BYTES = 4 * 2**20
_UNSHARED_HINT = ", or set share=False: data that each model prepares for itself may be anything."


@dataclass(frozen=True)
class BlockLayout:
    """Where in a block each array is: a tree of tuples and dicts whose leaves are numbers of arrays."""

    tree: Any
    leaves: tuple[tuple[str, tuple[int, ...], int], ...]  # type, shape and offset
    bytes: int

    def as_json(self) -> dict[str, Any]:
        return {"tree": self.tree, "leaves": [list(leaf) for leaf in self.leaves], "bytes": self.bytes}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> BlockLayout:
        leaves = tuple((dtype, tuple(shape), offset) for dtype, shape, offset in fields["leaves"])
        return cls(fields["tree"], leaves, fields["bytes"])


class UnsharableError(UsageError):
    """Data that no block can hold, though a model may train on it."""


def to_arrays(data: Any, function: str) -> Any:
    """The same tuples and dicts with NumPy arrays as leaves; `function` returned the data, and is named in errors."""
    if isinstance(data, tuple | list):
        return tuple(to_arrays(part, function) for part in data)
    if isinstance(data, dict):
        return {name: to_arrays(part, function) for name, part in data.items()}
    array = _to_array(data)
    if array is None or array.dtype.hasobject or array.ndim == 0:
        what = describe(data) if array is None else f"an array of dtype {array.dtype} and shape {array.shape}"
        raise UnsharableError(
            f"{function} returned {what}; needed are arrays with a row for each example, in tuples or dicts.",
            hint=f"Return arrays of numbers{_UNSHARED_HINT if function == 'input_fn' else '.'}",
        )
    return array


def _to_array(data: Any) -> Array | None:
    if isinstance(data, np.ndarray):
        return data
    if not hasattr(data, "__array__") or isinstance(data, np.generic):
        return None
    try:  # a tensor; NumPy lacks some types, such as bfloat16
        return np.asarray(data.detach() if hasattr(data, "detach") else data)
    except (TypeError, RuntimeError, ValueError):
        return None


def iterate_arrays(data: Any) -> Iterator[Array]:
    """The arrays of nested tuples and dicts, in order."""
    if isinstance(data, tuple | dict):
        for part in data if isinstance(data, tuple) else data.values():
            yield from iterate_arrays(part)
    else:
        yield data


def layout_of(data: Any, rows: int | None = None) -> BlockLayout:
    """The layout of nested arrays; with `rows`, the layout of arrays of the same kind with that many rows."""
    leaves: list[tuple[str, tuple[int, ...], int]] = []
    end = 0
    for array in iterate_arrays(data):
        if array.dtype.fields is not None:
            raise UnsharableError(
                f"An array of dtype {array.dtype} cannot be shared.", hint=f"Give columns{_UNSHARED_HINT}"
            )
        shape = array.shape if rows is None else (rows, *array.shape[1:])
        leaves.append((array.dtype.str, shape, end))
        size = math.prod(shape) * array.dtype.itemsize
        end += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return BlockLayout(_tree_of(data, iter(range(len(leaves)))), tuple(leaves), end)


def _tree_of(data: Any, numbers: Iterator[int]) -> Any:
    if isinstance(data, tuple):
        return {"tuple": [_tree_of(part, numbers) for part in data]}
    if isinstance(data, dict):
        for name in data:
            if not isinstance(name, str | int):
                raise UnsharableError(
                    f"A dict with the key {name!r} cannot be shared.",
                    hint=f"Use words or numbers as keys{_UNSHARED_HINT}",
                )
        return {"dict": [[name, _tree_of(part, numbers)] for name, part in data.items()]}
    return next(numbers)


def new_block(size: int, folder: Path | None = None) -> int:
    """An open file of that size without a name: in memory, or on the disk of the folder. OSError: it has no room."""
    if folder is None and hasattr(os, "memfd_create"):
        file = os.memfd_create("regatta-block", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(dir=folder) as unnamed:
            file = os.dup(unnamed.fileno())
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, max(1, size))  # now: a mapped page without room would kill its process later
        else:
            os.ftruncate(file, max(1, size))
    except OSError:
        os.close(file)
        raise
    return file


def map_block(file: int, layout: BlockLayout, writing: bool = False) -> Any:
    """The arrays of a block, mapped; a reader's changes stay private to it. The file may be closed afterwards."""
    access = mmap.ACCESS_WRITE if writing else mmap.ACCESS_COPY
    return arrays_in(mmap.mmap(file, max(1, layout.bytes), access=access), layout)


def arrays_in(buffer: mmap.mmap | Array, layout: BlockLayout) -> Any:
    arrays = [
        np.frombuffer(buffer, dtype, math.prod(shape), offset).reshape(shape) for dtype, shape, offset in layout.leaves
    ]
    return _fill_tree(layout.tree, arrays)


def _fill_tree(tree: Any, arrays: list[Array]) -> Any:
    if isinstance(tree, int):
        return arrays[tree]
    if "tuple" in tree:
        return tuple(_fill_tree(part, arrays) for part in tree["tuple"])
    return {name: _fill_tree(part, arrays) for name, part in tree["dict"]}


def copy_block(file: int, size: int, folder: Path) -> int:
    copied = new_block(size, folder)
    try:
        for offset in range(0, size, COPY_CHUNK_BYTES):
            os.pwrite(copied, os.pread(file, min(COPY_CHUNK_BYTES, size - offset), offset), offset)
    except OSError:
        os.close(copied)
        raise
    return copied
