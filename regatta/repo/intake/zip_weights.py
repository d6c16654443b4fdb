"""Weights from untrusted zip archives: npz files and exported programs.

Nothing is unpickled. Every size in an archive is compared with its real bytes before memory is allocated. Archives that
would unpack to far more than their size, and archives with overlapping entries, are refused.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regatta.errors import CorruptError, DataError
from regatta.repo.intake.limits import MAX_LOG_BYTES, SMALL_BYTES, check_json, check_limit, check_tensor_bytes
from regatta.repo.intake.pickle_check import check_pickle
from regatta.store.format.dtypes import dtype_named
from regatta.store.format.tensor_id import Bits, why_not_shape

MAX_ENTRIES = 100_000
MAX_GROWTH = 200  # an archive may unpack to this many times its bytes, or up to SMALL_BYTES
WEIGHTS = "/data/weights/model_weights_config.json"
_SCALARS = {
    1: "U8", 2: "I8", 3: "I16", 4: "I32", 5: "I64", 6: "F16", 7: "F32", 8: "F64", 10: "C64", 11: "C128", 12: "BOOL",
    13: "BF16", 28: "U16", 29: "F8_E4M3", 30: "F8_E5M2", 34: "U32", 35: "U64",
}  # fmt: skip
_STRIDED = 7


@contextmanager
def opened(path: Path, *, stored: bool = False) -> Iterator[zipfile.ZipFile]:
    """Open an archive after its checks; with `stored`, compressed entries are refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check(archive, path, stored)
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OverflowError) as error:
        raise DataError(f"The archive cannot be read: {error}.", place=str(path)) from error


def _check(archive: zipfile.ZipFile, path: Path, stored: bool) -> None:
    entries, size = archive.infolist(), path.stat().st_size
    check_limit("entries in the archive", len(entries), MAX_ENTRIES, path)
    names = archive.namelist()
    if any(name.endswith("/constants.pkl") for name in names) and any("/code/" in name for name in names):
        raise DataError(
            "This is a TorchScript program, which torch.jit.save wrote: code that would have to be trusted.",
            place=str(path),
            hint="Save its weights: torch.save(torch.jit.load(PATH).state_dict(), ...), or add it with --as file.",
        )
    if stored and any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise DataError("An entry of the archive is compressed, which PyTorch never does.", place=str(path))
    if (packed := sum(entry.compress_size for entry in entries)) > size:
        raise DataError(f"The entries claim {packed} bytes of an archive of {size}: they overlap.", place=str(path))
    if (claimed := sum(entry.file_size for entry in entries)) > max(SMALL_BYTES, MAX_GROWTH * size) or (
        stored and claimed > size
    ):
        raise DataError(
            f"The archive of {size} bytes claims to unpack to {claimed}.",
            place=str(path),
            hint="If it is right, save it without compression, or as safetensors.",
        )


def check_checkpoint(archive: zipfile.ZipFile, path: Path) -> int:
    """Refuse archives that `torch.load` should not see; the bytes in the entries of the others.

    PyTorch compares names of entries without case, so two that differ in case are the same to it.
    """
    names = Counter(entry.filename.lower() for entry in archive.infolist())
    if twice := [name for name, count in names.items() if count > 1]:
        raise DataError(f"The archive has two entries {twice[0]!r:.100}.", place=str(path))
    for entry in archive.infolist():
        if entry.filename.lower().endswith("data.pkl"):
            check_limit("bytes in the pickle of a checkpoint", entry.file_size, MAX_LOG_BYTES, path)
            check_pickle(archive.read(entry), path)
    return sum(entry.file_size for entry in archive.infolist())


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with opened(path) as archive:
        names = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        return {entry.filename.removesuffix(".npy"): _array(archive, entry, path) for entry in names}


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> np.ndarray[Any, Any]:
    with archive.open(entry) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, fortran, dtype = read(file)
        except (KeyError, ValueError) as error:
            raise DataError(f"{entry.filename!r:.100} is not an array: {error}.", place=str(path)) from error
        if dtype.hasobject:
            raise DataError(f"{entry.filename!r:.100} holds Python objects, which are not read.", place=str(path))
        reason = why_not_shape(shape)
        wanted = 0 if reason else int(np.prod(shape, dtype=object)) * dtype.itemsize
        if reason or wanted > entry.file_size:
            problem = reason or f"it claims {wanted} bytes and has {entry.file_size}"
            raise DataError(f"{entry.filename!r:.100} is not an array: {problem}.", place=str(path))
        content = file.read(wanted)
    if len(content) != wanted:
        raise DataError(f"{entry.filename!r:.100} ends after {len(content)} of {wanted} bytes.", place=str(path))
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def read_exported(path: Path) -> dict[str, Bits]:
    """The weights of a program that `torch.export.save` wrote: JSON and raw bytes; its graph is not executed.

    Pickles in the program, such as sample inputs, are not read.
    """
    with opened(path, stored=True) as archive:
        configs = [name for name in archive.namelist() if name.endswith(WEIGHTS)]
        if len(configs) != 1:
            raise DataError(
                "The exported program has no list of weights that can be read without trusting the file.",
                place=str(path),
                hint="PyTorch 2.9 and newer write one. Export it again, or add its state dict as safetensors.",
            )
        folder, size = configs[0].rpartition("/")[0], path.stat().st_size
        found: dict[str, Bits] = {}
        made = 0
        for name, entry in _config(archive, configs[0], path).items():
            layout = _layout(name, entry, path)
            made += layout.bytes
            check_tensor_bytes(made, size, path)
            content = _entry(archive, f"{folder}/{entry['path_name']}", name, path)
            found[name] = Bits(layout.dtype, layout.shape, _gathered(content, layout, f"{path}: {name}"))
        return found


@dataclass(frozen=True)
class _Layout:
    """How the elements of a tensor lie in its storage."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def width(self) -> int:
        """The bytes of an element."""
        return dtype_named(self.dtype).width_bytes * dtype_named(self.dtype).lanes

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.width


def _config(archive: zipfile.ZipFile, name: str, path: Path) -> dict[str, Mapping[str, Any]]:
    check_limit("bytes in the list of weights", archive.getinfo(name).file_size, MAX_LOG_BYTES, path)
    try:
        text = archive.read(name).decode()
        check_json(text, path)
        found = json.loads(text)["config"]
        return {str(key): dict(value) | {"path_name": str(value["path_name"])} for key, value in found.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"The list of weights cannot be read: {error!r:.200}.", place=str(path)) from error


def _layout(name: str, config: Mapping[str, Any], path: Path) -> _Layout:
    try:
        meta = config["tensor_meta"]
        shape = tuple(int(size["as_int"]) for size in meta["sizes"])
        strides = tuple(int(stride["as_int"]) for stride in meta["strides"])
        dtype, plain = _SCALARS[meta["dtype"]], meta["layout"] == _STRIDED and not config["use_pickle"]
        offset = int(meta["storage_offset"].get("as_int", 0))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"The weight {name!r:.100} cannot be read: {error!r:.100}.", place=str(path)) from error
    if not plain:
        raise DataError(f"The weight {name!r:.100} is pickled or sparse, and is not read.", place=str(path))
    if (reason := why_not_shape(shape)) is not None or len(strides) != len(shape):
        raise DataError(f"The weight {name!r:.100} has no shape: {reason or strides}.", place=str(path))
    return _Layout(dtype, shape, strides, offset)


def _entry(archive: zipfile.ZipFile, entry: str, name: str, path: Path) -> bytes:
    try:
        return archive.read(entry)
    except KeyError as error:
        raise DataError(f"The weight {name!r:.100} cannot be read: {error!r:.100}.", place=str(path)) from error


def _gathered(content: bytes, layout: _Layout, place: str) -> np.ndarray[Any, Any]:
    """The elements of a tensor in row-major order, from a storage with any strides."""
    width, shape, strides, offset = layout.width, layout.shape, layout.strides, layout.offset
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if not layout.bytes:
        return np.empty(0, np.uint8)
    if offset < 0 or any(stride < 0 for stride in strides) or (last + 1) * width > len(content):
        raise CorruptError(f"The tensor reaches beyond its {len(content)} bytes.", place=place)
    flat = np.frombuffer(io.BytesIO(content).getbuffer(), np.uint8)[offset * width :]
    view = np.lib.stride_tricks.as_strided(flat, (*shape, width), (*(s * width for s in strides), 1), writeable=False)
    return np.ascontiguousarray(view).reshape(-1)
