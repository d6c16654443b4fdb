"""Writes partitions while their rows are read one after another: the rows of a data set are never all in memory.

The fingerprint of the data is known after the last row. Until then the files are in a temporary folder, and their
headers have room for it.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from blake3 import blake3

from regatta.data.arrays import Array
from regatta.data.fingerprint import FINGERPRINT_BYTES
from regatta.data.formats import safetensors
from regatta.data.order import Indices
from regatta.data.partition import Column, Partition
from regatta.data.write import file_metadata, not_written
from regatta.durable import fsync_path, temporary_name
from regatta.safetensors_io import METADATA, encode_header, tensor_entry

_NOT_KNOWN = "0" * 2 * FINGERPRINT_BYTES  # as long as any fingerprint


@contextmanager
def unfinished_folder(home: Path, name: str) -> Iterator[Path]:
    """A temporary folder for files that are moved away when they are complete; what is left in it is deleted.

    Their names begin with a dot, so that a backup leaves them out.
    """
    folder = temporary_name(home / name)
    with _writing(folder):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class UnfinishedPartition:
    """A partition's file into which rows are written in any order."""

    def __init__(self, path: Path, rows: int, columns: Sequence[Column]) -> None:
        self._path, self._rows, self._columns = path, rows, {column.name: column for column in columns}
        # Large items come first, so each column begins at a multiple of its items.
        by_item = sorted(columns, key=lambda column: -np.dtype(column.dtype).itemsize)
        self._row_bytes = {c.name: np.dtype(c.dtype).itemsize * math.prod(c.shape) for c in by_item}
        header = self._header(_NOT_KNOWN)
        self._start = len(header)
        with _writing(path), open(path, "xb") as file:
            file.write(header)
            file.truncate(len(header) + rows * sum(self._row_bytes.values()))

    def write(self, positions: Indices, block: Mapping[str, Array]) -> None:
        """Write rows to these positions; those of neighbours, in their order, at once."""
        cuts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
        start = self._start
        with _writing(self._path), open(self._path, "r+b") as file:
            for name, size in self._row_bytes.items():
                for first, last in pairwise(cuts):
                    file.seek(start + int(positions[first]) * size)
                    file.write(block[name][first:last].tobytes())
                start += size * self._rows

    def finish(self, partition: Partition, fingerprint: str) -> None:
        """Make the file durable and give it its final name. `locked` makes the folder durable."""
        with _writing(partition.path):
            with open(self._path, "r+b") as file:
                file.write(self._header(fingerprint))
            self._path.chmod(0o644)
            fsync_path(self._path)
            os.replace(self._path, partition.path)

    def _header(self, fingerprint: str) -> bytes:
        bounds = pairwise(accumulate((size * self._rows for size in self._row_bytes.values()), initial=0))
        content: dict[str, object] = {METADATA: file_metadata(list(self._columns), fingerprint)}
        for name, (start, stop) in zip(self._row_bytes, bounds, strict=True):
            column = self._columns[name]
            code = safetensors.type_code(column.dtype)
            content[name] = tensor_entry(code, (self._rows, *column.shape), start, stop)
        return encode_header(content)


class RowScatter:
    """Sends the rows of one source, in the order in which they are read, to their places in several partitions."""

    def __init__(self, files: Sequence[UnfinishedPartition], parts: Sequence[Indices]) -> None:
        rows = sum(map(len, parts))
        self._files = files
        self._file_of = np.empty(rows, np.int32)
        self._position = np.empty(rows, np.int64)
        self._digests: dict[str, blake3] = {}
        for number, indices in enumerate(parts):
            self._file_of[indices] = number
            self._position[indices] = np.arange(len(indices))

    def write(self, start: int, block: Mapping[str, Array]) -> None:
        """Write a block of rows; `start` is the number of its first row in the source."""
        stop = start + len(next(iter(block.values())))
        files, positions = self._file_of[start:stop], self._position[start:stop]
        for label, array in block.items():
            self._digests.setdefault(label, blake3()).update(array.tobytes())
        for number in np.unique(files).tolist():
            rows = np.flatnonzero(files == number)
            self._files[number].write(positions[rows], {label: array[rows] for label, array in block.items()})

    def digests(self) -> dict[str, str]:
        """A hash of each column, with its rows in the order of the source."""
        return {label: digest.hexdigest() for label, digest in self._digests.items()}


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise not_written(path, error) from error
