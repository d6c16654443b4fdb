"""Tensors as the store sees them: element type, shape and bits, and the id that follows from these.

The id is BLAKE3 over type, shape and canonical bytes (little-endian, C order). It does not depend on how or where a
tensor is encoded. Equal tensors have equal ids, and re-encoding a store changes none.
"""

from __future__ import annotations

import ctypes
import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from regatta.errors import UsageError
from regatta.store.format.dtypes import (
    BY_LIBRARY_NAME,
    DType,
    Words,
    array_from,
    dtype_named,
    dtype_of,
    words_from,
    words_of,
)

MAX_DIMENSIONS = 32
MAX_ELEMENTS = 2**44
MAX_NAME_BYTES = 1024  # bytes of UTF-8
_ID = re.compile(r"[0-9a-f]{64}")


class Bits(NamedTuple):
    """A tensor of a type that NumPy lacks, as `get` returns it; `put` takes one with any buffer."""

    dtype: str
    shape: tuple[int, ...]
    buffer: Any


@dataclass(frozen=True)
class RawTensor:
    """A tensor as words, which are one-dimensional and in C order."""

    dtype: DType
    shape: tuple[int, ...]
    words: Words

    @property
    def id(self) -> str:
        return tensor_id(self.dtype, self.shape, self.words)

    def value(self) -> NDArray[Any] | Bits:
        """An array if NumPy has the type, else its bits."""
        if self.dtype.numpy is None:
            return Bits(self.dtype.name, self.shape, self.words)
        return array_from(self.words, self.dtype, self.shape)


def tensor_id(dtype: DType, shape: tuple[int, ...], words: Words) -> str:
    """The id of a tensor: 64 hexadecimal digits."""
    digest = blake3(f"regatta tensor 1 {dtype.name} {','.join(map(str, shape))}\n".encode())
    digest.update(np.ascontiguousarray(words, dtype.word).view(np.uint8).data)
    return digest.hexdigest()


def snapshot_id(manifest: bytes) -> str:
    """The id of a snapshot: 64 hexadecimal digits, from the canonical text of its manifest."""
    return blake3(b"regatta snapshot 1\n" + manifest).hexdigest()


def is_id(text: object) -> bool:
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def word_count(dtype: DType, shape: tuple[int, ...]) -> int:
    """The number of words of a tensor: one per element, two per complex element."""
    return math.prod(shape) * dtype.lanes


def why_not_shape(shape: object) -> str | None:
    """Why this cannot be the shape of a tensor; None if it can."""
    if not isinstance(shape, tuple | list):
        return f"{shape!r} is not a list of sizes"
    if len(shape) > MAX_DIMENSIONS:
        return f"{len(shape)} dimensions are more than {MAX_DIMENSIONS}"
    if not all(type(size) is int and 0 <= size <= MAX_ELEMENTS for size in shape):
        return f"{list(shape)!r} holds a size that is not an integer from 0 to 2^44"
    if math.prod(size for size in shape if size) > MAX_ELEMENTS:
        return f"{list(shape)!r} has more than 2^44 elements"
    return None


def why_not_name(name: object) -> str | None:
    """Why this cannot be the name of a tensor or a reference; None if it can.

    Names become keys in files and, in exports, paths: none may lead out of its folder.
    """
    if not isinstance(name, str) or not name:
        return "is not a non-empty string"
    if len(name) > MAX_NAME_BYTES or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    if not name.isprintable():
        return "holds characters that cannot be printed"
    if any(part in ("", ".", "..") for part in re.split(r"[/\\]", name)):
        return "has an empty part, '.' or '..' between its slashes"
    return None


def check_name(name: object, what: str) -> str:
    """The name; UsageError if it cannot be one."""
    if (reason := why_not_name(name)) is not None:
        raise UsageError(f"The name {name!r:.200} of a {what} {reason}.")
    return str(name)


def as_tensor(name: str, value: Any) -> RawTensor:
    """A value as a tensor: an array, (type, shape, buffer), a PyTorch tensor or a number."""
    if isinstance(value, RawTensor):
        return value
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], str):
        return _from_bits(name, Bits(*value))
    if type(value).__module__.startswith("torch") and hasattr(value, "data_ptr"):
        return _from_torch(name, value)
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise UsageError(f"The tensor {name!r} is {type(value).__name__}, which is not an array of numbers.")
    return RawTensor(dtype_of(array), array.shape, words_of(array))


def _from_bits(name: str, bits: Bits) -> RawTensor:
    dtype, shape = dtype_named(bits.dtype), tuple(bits.shape)
    if (reason := why_not_shape(shape)) is not None:
        raise UsageError(f"The shape of the tensor {name!r} is wrong: {reason}.")
    buffer = np.ascontiguousarray(bits.buffer) if isinstance(bits.buffer, np.ndarray) else bits.buffer
    view = buffer.reshape(-1).view(np.uint8).data if isinstance(buffer, np.ndarray) else buffer
    words = words_from(view, dtype)
    if len(words) != word_count(dtype, shape):
        expected = word_count(dtype, shape) * dtype.width_bytes
        raise UsageError(
            f"The tensor {name!r} of type {dtype.name} and shape {list(shape)} has {expected} bytes; "
            f"its buffer has {words.nbytes}."
        )
    return RawTensor(dtype, shape, words)


def _from_torch(name: str, tensor: Any) -> RawTensor:
    """PyTorch is not imported here: a tensor in this process brings all that is needed."""
    name_here = BY_LIBRARY_NAME.get(str(tensor.dtype).removeprefix("torch."))
    if name_here is None or str(tensor.layout) != "torch.strided":
        what = f"a {tensor.layout} {tensor.dtype} tensor"
        raise UsageError(f"The tensor {name!r} is {what}, which the store does not support.")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    dtype, shape = dtype_named(name_here), tuple(tensor.shape)
    size = word_count(dtype, shape) * dtype.width_bytes
    if not size:
        return RawTensor(dtype, shape, np.empty(0, dtype.word))
    memory: Any = (ctypes.c_ubyte * size).from_address(plain.data_ptr())
    memory.owner = plain  # keeps the memory alive as long as the array
    return RawTensor(dtype, shape, np.frombuffer(memory, dtype.word))
