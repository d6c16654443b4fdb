"""The element types of the store, and the words that its encodings work on.

An encoding never sees floats. It sees words: unsigned integers, one for each element, two for a complex element. The
names of types are those of safetensors; C128 is an addition, for NumPy's complex128.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.errors import CorruptError, UsageError, nearest

CHUNK_WORDS = 2**18  # words are encoded in chunks of this size
Words: TypeAlias = NDArray[np.unsignedinteger[Any]]
Kind: TypeAlias = Literal["float", "signed", "unsigned"]


@dataclass(frozen=True)
class DType:
    """One element type; `width_bytes` is the width of a word, `lanes` the number of words in an element."""

    name: str
    width_bytes: int
    kind: Kind
    exponent_bits: int = 0
    lanes: int = 1
    numpy_name: str | None = None

    @property
    def bits(self) -> int:
        return 8 * self.width_bytes

    @property
    def mantissa_bits(self) -> int:
        """The bits after the exponent; floats only."""
        return self.bits - 1 - self.exponent_bits

    @property
    def element_bytes(self) -> int:
        return self.width_bytes * self.lanes

    @property
    def planes(self) -> int:
        """The byte planes of a word, most significant first."""
        return self.width_bytes

    @cached_property
    def word(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The unsigned integer type of a word, little-endian on every machine."""
        return np.dtype(f"<u{self.width_bytes}")

    @cached_property
    def greatest(self) -> Any:
        """The word of the greatest positive number, or of infinity if the type has it; floats only."""
        infinity = ((1 << self.exponent_bits) - 1) << self.mantissa_bits
        return self.word.type(0x7E if self.name == "F8_E4M3" else infinity)

    @property
    def numpy(self) -> np.dtype[Any] | None:
        """NumPy's own type; None for bfloat16 and the float8 types."""
        return None if self.numpy_name is None else np.dtype(self.numpy_name)


_ALL = (
    DType("F64", 8, "float", 11, numpy_name="<f8"),
    DType("F32", 4, "float", 8, numpy_name="<f4"),
    DType("F16", 2, "float", 5, numpy_name="<f2"),
    DType("BF16", 2, "float", 8),
    DType("F8_E4M3", 1, "float", 4),
    DType("F8_E5M2", 1, "float", 5),
    DType("I64", 8, "signed", numpy_name="<i8"),
    DType("I32", 4, "signed", numpy_name="<i4"),
    DType("I16", 2, "signed", numpy_name="<i2"),
    DType("I8", 1, "signed", numpy_name="i1"),
    DType("U64", 8, "unsigned", numpy_name="<u8"),
    DType("U32", 4, "unsigned", numpy_name="<u4"),
    DType("U16", 2, "unsigned", numpy_name="<u2"),
    DType("U8", 1, "unsigned", numpy_name="u1"),
    DType("BOOL", 1, "unsigned", numpy_name="?"),
    DType("C64", 4, "float", 8, lanes=2, numpy_name="<c8"),
    DType("C128", 8, "float", 11, lanes=2, numpy_name="<c16"),
)
DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in _ALL}
_BY_NUMPY = {dtype.numpy: dtype for dtype in _ALL if dtype.numpy is not None}
_BY_FOREIGN_NAME = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
# The names that NumPy, ml_dtypes and PyTorch use, and ours.
BY_LIBRARY_NAME = {dtype.numpy.name: dtype.name for dtype in _ALL if dtype.numpy is not None} | _BY_FOREIGN_NAME


def dtype_named(name: str) -> DType:
    """The element type with this safetensors name."""
    if name not in DTYPES:
        raise UsageError(
            f"There is no element type {name!r}.",
            hint="The store knows " + ", ".join(DTYPES) + ".",
            candidates=nearest(name, DTYPES),
        )
    return DTYPES[name]


def dtype_of(array: NDArray[Any]) -> DType:
    """The element type of an array, including the bfloat16 and float8 arrays of ml_dtypes."""
    if array.dtype.name in _BY_FOREIGN_NAME:
        return DTYPES[_BY_FOREIGN_NAME[array.dtype.name]]
    found = _BY_NUMPY.get(array.dtype.newbyteorder("<"))
    if found is None:
        raise UsageError(
            f"The store keeps no arrays of {array.dtype}.",
            hint="It keeps floats, complex numbers, integers and booleans of fixed width.",
        )
    return found


def words_of(array: NDArray[Any]) -> Words:
    """The words of an array in C order, 1-D; a view if the array is contiguous and little-endian."""
    dtype = dtype_of(array)
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and np.little_endian is False):
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(dtype.word)


def words_from(buffer: Any, dtype: DType) -> Words:
    """The words in a buffer of canonical (little-endian, C order) bytes, without a copy."""
    view = memoryview(buffer)
    if view.nbytes % dtype.element_bytes:
        raise UsageError(f"A buffer of {view.nbytes} bytes does not hold whole elements of {dtype.name}.")
    return np.frombuffer(view, dtype.word)


def array_from(words: Words, dtype: DType, shape: tuple[int, ...]) -> NDArray[Any]:
    """The words as an array of this shape, in NumPy's own type if it has one."""
    flat = words if dtype.numpy is None else words.view(dtype.numpy)
    return flat.reshape(shape)


def floats_of(words: Words, dtype: DType) -> NDArray[np.floating[Any]]:
    """The words as numbers: float32 if that holds every number of the type exactly, else float64."""
    if dtype.kind != "float":
        values = words.view(f"<{'i' if dtype.kind == 'signed' else 'u'}{dtype.width_bytes}")
        return values.astype(np.float32 if dtype.width_bytes <= 2 else np.float64)
    if dtype.name == "F8_E4M3":
        return _E4M3[words]
    if dtype.name == "BF16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype.name == "F8_E5M2":
        words = words.astype(np.uint16) << np.uint16(8)
    if words.dtype.itemsize > 2:
        return words.view(f"<f{words.dtype.itemsize}")
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return words.view("<f2").astype(np.float32)


def words_of_floats(values: NDArray[np.floating[Any]], dtype: DType) -> Words:
    """Numbers as words of a float type of at least 16 bits: rounded to nearest, ties to even, NaN payloads cut."""
    if dtype.kind != "float" or dtype.planes == 1:
        raise CorruptError(f"Words of {dtype.name} are not kept as floats.")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype.name != "BF16":
            return values.astype(f"<f{dtype.width_bytes}").view(dtype.word)
        words = values.astype("<f4").view("<u4")
    rounded = (words + (np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    quiet = words >> np.uint32(16) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def _e4m3_values() -> NDArray[np.floating[Any]]:
    """The numbers of float8_e4m3fn: exponent bias 7, no infinities, NaN if all bits except the sign are set."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = np.ldexp(np.where(exponent == 0, mantissa, mantissa + 8), np.maximum(exponent, 1) - 10)
    magnitude[code & 127 == 127] = np.nan
    values: NDArray[np.float32] = np.copysign(magnitude, np.where(code < 128, 1.0, -1.0)).astype(np.float32)
    return values


_E4M3 = _e4m3_values()
