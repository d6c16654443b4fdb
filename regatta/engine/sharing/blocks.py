"""Blocks: arrays one behind the other in memory that processes share, or in a file that has no name."""

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

Array: TypeAlias = NDArray[Any]
ALIGNED = 64
CHUNK = 4 * 2**20
_ALONE = ", or leave share=False: what each model prepares for itself may be anything."


@dataclass(frozen=True)
class BlockLayout:
    """Where in a block which array is: a tree of tuples and dicts whose leaves are numbers of arrays."""

    tree: Any
    leaves: tuple[tuple[str, tuple[int, ...], int], ...]  # type, shape and offset
    bytes: int

    def as_json(self) -> dict[str, Any]:
        return {"tree": self.tree, "leaves": [list(leaf) for leaf in self.leaves], "bytes": self.bytes}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> BlockLayout:
        leaves = tuple((dtype, tuple(shape), offset) for dtype, shape, offset in told["leaves"])
        return cls(told["tree"], leaves, told["bytes"])


class UnsharableError(UsageError):
    """Data that no block can hold, though a model may train on it."""


def plain(data: Any, maker: str) -> Any:
    """The same tuples and dicts with arrays of NumPy at their ends, of which blocks are made; says what is none."""
    if isinstance(data, tuple | list):
        return tuple(plain(part, maker) for part in data)
    if isinstance(data, dict):
        return {name: plain(part, maker) for name, part in data.items()}
    array = _array(data)
    if array is None or array.dtype.hasobject or array.ndim == 0:
        what = type(data).__name__ if array is None else f"an array of dtype {array.dtype} and shape {array.shape}"
        raise UnsharableError(
            f"{maker} returned {what}; needed are arrays with a row for each example, in tuples or dicts.",
            hint=f"Return arrays of numbers{_ALONE if maker == 'input_fn' else '.'}",
        )
    return array


def _array(data: Any) -> Array | None:
    if isinstance(data, np.ndarray):
        return data
    if not hasattr(data, "__array__") or isinstance(data, np.generic):
        return None
    try:  # a tensor; of some types, such as bfloat16, NumPy knows nothing
        return np.asarray(data.detach() if hasattr(data, "detach") else data)
    except (TypeError, RuntimeError, ValueError):
        return None


def leaves_of(data: Any) -> Iterator[Array]:
    if isinstance(data, tuple | dict):
        for part in data if isinstance(data, tuple) else data.values():
            yield from leaves_of(part)
    else:
        yield data


def layout_of(data: Any, rows: int | None = None) -> BlockLayout:
    """The layout of plain data; of more rows like these, where a number is given."""
    leaves: list[tuple[str, tuple[int, ...], int]] = []
    end = 0
    for array in leaves_of(data):
        if array.dtype.fields is not None:
            raise UnsharableError(f"An array of dtype {array.dtype} cannot be shared.", hint=f"Give columns{_ALONE}")
        shape = array.shape if rows is None else (rows, *array.shape[1:])
        leaves.append((array.dtype.str, shape, end))
        size = math.prod(shape) * array.dtype.itemsize
        end += -(-size // ALIGNED) * ALIGNED
    return BlockLayout(_tree(data, iter(range(len(leaves)))), tuple(leaves), end)


def _tree(data: Any, numbers: Iterator[int]) -> Any:
    if isinstance(data, tuple):
        return {"tuple": [_tree(part, numbers) for part in data]}
    if isinstance(data, dict):
        for name in data:
            if not isinstance(name, str | int):
                told = f"A dict with the key {name!r} cannot be shared."
                raise UnsharableError(told, hint=f"Use words or numbers as keys{_ALONE}")
        return {"dict": [[name, _tree(part, numbers)] for name, part in data.items()]}
    return next(numbers)


def new_block(size: int, folder: Path | None = None) -> int:
    """An open file of that size without a name: in memory, or on the disk of the folder. OSError: there is no room."""
    if folder is None and hasattr(os, "memfd_create"):
        file = os.memfd_create("regatta-block", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(dir=folder) as unnamed:
            file = os.dup(unnamed.fileno())
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, max(1, size))  # now, for a mapped page that finds no room kills its process
        else:
            os.ftruncate(file, max(1, size))
    except OSError:
        os.close(file)
        raise
    return file


def map_block(file: int, layout: BlockLayout, writing: bool = False) -> Any:
    """The arrays of a block where they lie; what readers write into them, only they see. The file can be closed."""
    access = mmap.ACCESS_WRITE if writing else mmap.ACCESS_COPY
    return arrays_in(mmap.mmap(file, max(1, layout.bytes), access=access), layout)


def arrays_in(room: mmap.mmap | Array, layout: BlockLayout) -> Any:
    """The arrays of a block in memory that begins with the first of them."""
    arrays = [
        np.frombuffer(room, dtype, math.prod(shape), offset).reshape(shape) for dtype, shape, offset in layout.leaves
    ]
    return _grown(layout.tree, arrays)


def _grown(tree: Any, arrays: list[Array]) -> Any:
    if isinstance(tree, int):
        return arrays[tree]
    if "tuple" in tree:
        return tuple(_grown(part, arrays) for part in tree["tuple"])
    return {name: _grown(part, arrays) for name, part in tree["dict"]}


def copy_block(file: int, size: int, folder: Path) -> int:
    """The same block on the disk."""
    copied = new_block(size, folder)
    try:
        for offset in range(0, size, CHUNK):
            os.pwrite(copied, os.pread(file, min(CHUNK, size - offset), offset), offset)
    except OSError:
        os.close(copied)
        raise
    return copied
