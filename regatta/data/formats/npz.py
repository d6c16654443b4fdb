"""NumPy's npz: a zip file with one array per member, read into memory and checked against its checksums."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np
import numpy.typing as npt

from regatta.data.formats import StoredColumn, broken_file, dtype_name
from regatta.errors import DataError

# The highest compression ratio of deflate, by zlib's documentation. A member that claims more is malformed.
_MAX_DEFLATE_RATIO = 1032
_KNOWN_VERSIONS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_broken = partial(broken_file, "This is not a whole npz file")


def inspect(path: Path) -> list[StoredColumn]:
    with _open(path) as archive:
        return [_header(archive, member, path) for member in archive.infolist()]


def read(path: Path) -> tuple[npt.NDArray[np.generic], ...]:
    with _open(path) as archive:
        return tuple(_array(archive, member, path) for member in archive.infolist())


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive. The errors of zipfile and zlib on a damaged one become a DataError."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _broken(path, f"{error}; it may be cut off") from error


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> StoredColumn:
    """A member's name, dtype and shape, after checking them against its size in the archive."""
    if not member.filename.endswith(".npy"):
        raise _broken(path, f"its member {member.filename!r} is not an array")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _broken(path, f"{member.filename!r} has a compression that npz files do not use")
    stored = member.compress_type == zipfile.ZIP_STORED
    if member.file_size > member.compress_size * (1 if stored else _MAX_DEFLATE_RATIO):
        sizes = f"{member.file_size} bytes from {member.compress_size} in the archive"
        raise _broken(path, f"{member.filename!r} claims {sizes}")
    with archive.open(member) as file:
        shape, _, dtype = _array_header(file, member, path)
        length = file.tell() + math.prod(shape) * dtype.itemsize
    if length != member.file_size:
        raise _broken(path, f"{member.filename!r} should have {length} bytes by its header, but has {member.file_size}")
    return StoredColumn(_column(member), dtype_name(dtype), shape)


def _array_header(
    file: IO[bytes], member: zipfile.ZipInfo, path: Path
) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    try:
        version = np.lib.format.read_magic(file)
        if version not in _KNOWN_VERSIONS:
            raise ValueError(f"version {version} of the format does not hold plain arrays")
        shape, fortran, dtype = _KNOWN_VERSIONS[version](file)
    except (ValueError, OverflowError, SyntaxError, TokenError) as error:  # NumPy reads headers as Python literals
        raise _broken(path, f"the header of {member.filename!r} cannot be read ({error})") from error
    if dtype.kind not in "biufcSUmM" or dtype.itemsize == 0:
        raise DataError(
            f"The column {_column(member)!r} is of type {dtype}; objects and records are not read.",
            place=os.fspath(path),
            hint="Save it as an array of numbers.",
        )
    if any(type(n) is not int or n < 0 for n in shape):
        raise _broken(path, f"{member.filename!r} has the shape {shape}")
    return shape, fortran, dtype


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> npt.NDArray[np.generic]:
    """The array itself. Zipfile compares the checksum when the member is read to its end."""
    _header(archive, member, path)
    with archive.open(member) as file:
        shape, fortran, dtype = _array_header(file, member, path)
        data = file.read()
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise _broken(path, f"{member.filename!r} ends after {len(data)} bytes")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    return array if array.flags.aligned else array.copy()


def _column(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")
