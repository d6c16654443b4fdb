"""The encodings of a chunk of words, under the numbers that the format keeps on disk.

    bits    unsigned integers as wide as the element type's words, one dimension, at most CHUNK_WORDS of them
    base    the same chunk of the tensor that a delta refers to, same length; None for encodings without a base

`encode` returns the streams of a chunk, `decode` the same bits. A progressive encoding has one stream for each byte
plane, and `decode_planes` restores the leading planes exactly from the leading streams alone. A damaged stream raises
CorruptError. No stream makes a decoder take more memory than `count` elements justify.

    number  name                what
    0       raw                 the words
    1       zstd-planes         byte planes, Huffman-coded by zstd: fast to write, used at commit
    2       pcodec              the numbers, by pcodec, without their trailing zero bits: the smallest without a base
    3       xor                 byte planes of the bits that differ from the base
    4       subtract            differences of the bits as integers: the fastest to add up again
    5       subtract-grouped    the same in groups with like differences: the smallest
    6       subtract-planes     differences of byte planes in the same groups
    16..    see lossy.py

A number never changes its meaning; a changed encoding takes a new number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from regatta.errors import CorruptError, UsageError, nearest
from regatta.store.format import deltas, lossy, pcodec_blocks, planes
from regatta.store.format.dtypes import CHUNK_WORDS, DType, Words
from regatta.store.format.planes import bounds, leading

__all__ = ["CHUNK_WORDS", "ENCODINGS", "Encoding", "bounds", "encoding_named", "leading"]

EncodeFunction: TypeAlias = Callable[[Words, DType], list[bytes]]
DecodeFunction: TypeAlias = Callable[[Sequence[memoryview], DType, Words], None]
DeltaEncodeFunction: TypeAlias = Callable[[Words, DType, Words], list[bytes]]
DeltaDecodeFunction: TypeAlias = Callable[[Sequence[memoryview], DType, Words, Words], None]


class Encoding(Protocol):
    @property
    def id(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def needs_base(self) -> bool: ...

    @property
    def progressive(self) -> bool: ...

    @property
    def lossy(self) -> bool: ...

    def streams(self, dtype: DType) -> int:
        """The number of streams of a chunk; a progressive encoding has one per plane, most significant first."""
        ...

    def encode(self, bits: Words, dtype: DType, base: Words | None) -> list[bytes]:
        """The streams of a chunk."""
        ...

    def decode(
        self, streams: Sequence[memoryview], count: int, dtype: DType, base: Words | None, out: Words | None = None
    ) -> Words:
        """The bits of a chunk, in `out` (a contiguous array of `count` words) or in a new array."""
        ...

    def decode_planes(
        self,
        streams: Sequence[memoryview],
        planes: int,
        count: int,
        dtype: DType,
        base: Words | None,
        out: Words | None = None,
    ) -> Words:
        """The bits of the leading planes; the other bits are zero.

        A progressive encoding needs only the leading streams, and only the leading planes of the base. Any other
        encoding needs all streams and the whole base.
        """
        ...


@dataclass(frozen=True)
class DirectEncoding:
    """An encoding without a base. A progressive decoder takes any number of leading streams."""

    id: int
    name: str
    encoder: EncodeFunction
    decoder: DecodeFunction
    progressive: bool = False
    lossy: bool = False
    needs_base: bool = False

    def streams(self, dtype: DType) -> int:
        return dtype.planes if self.progressive else 1

    def encode(self, bits: Words, dtype: DType, base: Words | None) -> list[bytes]:
        return self.encoder(_checked(bits, dtype), dtype)

    def decode(
        self, streams: Sequence[memoryview], count: int, dtype: DType, base: Words | None, out: Words | None = None
    ) -> Words:
        words = _room(out, count, dtype)
        self.decoder(_leading_streams(self, streams, self.streams(dtype), dtype), dtype, words)
        return words

    def decode_planes(
        self,
        streams: Sequence[memoryview],
        planes: int,
        count: int,
        dtype: DType,
        base: Words | None,
        out: Words | None = None,
    ) -> Words:
        words = _room(out, count, dtype)
        if not self.progressive:
            words[:] = leading(self.decode(streams, count, dtype, base), planes, dtype)
            return words
        self.decoder(_leading_streams(self, streams, planes, dtype), dtype, words)
        return words


@dataclass(frozen=True)
class DeltaEncoding:
    """An encoding relative to a base. A progressive decoder takes any number of leading streams but zero."""

    id: int
    name: str
    encoder: DeltaEncodeFunction
    decoder: DeltaDecodeFunction
    progressive: bool = False
    lossy: bool = False
    needs_base: bool = True

    def streams(self, dtype: DType) -> int:
        return dtype.planes if self.progressive else 1

    def encode(self, bits: Words, dtype: DType, base: Words | None) -> list[bytes]:
        return self.encoder(_checked(bits, dtype), dtype, _checked_base(self, base, len(bits), dtype))

    def decode(
        self, streams: Sequence[memoryview], count: int, dtype: DType, base: Words | None, out: Words | None = None
    ) -> Words:
        words, base = _room(out, count, dtype), _checked_base(self, base, count, dtype)
        self.decoder(_leading_streams(self, streams, self.streams(dtype), dtype), dtype, base, words)
        return words

    def decode_planes(
        self,
        streams: Sequence[memoryview],
        planes: int,
        count: int,
        dtype: DType,
        base: Words | None,
        out: Words | None = None,
    ) -> Words:
        words = _room(out, count, dtype)
        if not self.progressive or planes == 0:
            words[:] = leading(self.decode(streams, count, dtype, base), planes, dtype) if planes else 0
            return words
        base = _checked_base(self, base, count, dtype)
        self.decoder(_leading_streams(self, streams, planes, dtype), dtype, base, words)
        return words


def _checked(bits: Words, dtype: DType) -> Words:
    if bits.dtype != dtype.word or bits.ndim != 1 or len(bits) > CHUNK_WORDS:
        raise UsageError(
            f"A chunk of {dtype.name} has one dimension and at most {CHUNK_WORDS} {dtype.word}; "
            f"this one has {bits.shape} {bits.dtype}."
        )
    return np.ascontiguousarray(bits)


def _room(out: Words | None, count: int, dtype: DType) -> Words:
    """The array that the words of a chunk go into."""
    if not 0 <= count <= CHUNK_WORDS:
        raise CorruptError(f"A chunk has at most {CHUNK_WORDS} words, not {count}.")
    if out is None:
        return np.empty(count, dtype.word)
    if out.dtype != dtype.word or out.shape != (count,) or not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError(f"{count} {dtype.word} do not fit an array of {out.shape} {out.dtype}.")
    return out


def _checked_base(encoding: Encoding, base: Words | None, count: int, dtype: DType) -> Words:
    if base is None or base.dtype != dtype.word or base.shape != (count,):
        found = "none" if base is None else f"{base.shape} {base.dtype}"
        raise UsageError(f"The encoding {encoding.name} needs a base of {count} {dtype.word}; there is {found}.")
    return np.ascontiguousarray(base)


def _leading_streams(
    encoding: Encoding, streams: Sequence[memoryview], wanted: int, dtype: DType
) -> Sequence[memoryview]:
    if not wanted <= len(streams) <= encoding.streams(dtype):
        raise CorruptError(
            f"A chunk of {dtype.name} in the encoding {encoding.name} has {encoding.streams(dtype)} streams, "
            f"of which {wanted} are needed; there are {len(streams)}."
        )
    return streams[:wanted]


def _encode_raw(bits: Words, dtype: DType) -> list[bytes]:
    return [bits.tobytes()]


def _decode_raw(streams: Sequence[memoryview], dtype: DType, out: Words) -> None:
    if len(streams[0]) != out.nbytes:
        raise CorruptError(f"A raw stream of {len(out)} {dtype.name} words has {len(streams[0])} bytes.")
    out[:] = np.frombuffer(streams[0], dtype.word)


_ALL: tuple[Encoding, ...] = (
    DirectEncoding(0, "raw", _encode_raw, _decode_raw),
    DirectEncoding(1, "zstd-planes", planes.encode, planes.decode, progressive=True),
    DirectEncoding(2, "pcodec", pcodec_blocks.encode, pcodec_blocks.decode),
    DeltaEncoding(3, "xor", deltas.encode_xor, deltas.decode_xor, progressive=True),
    DeltaEncoding(4, "subtract", deltas.encode_subtract, deltas.decode_subtract),
    DeltaEncoding(5, "subtract-grouped", deltas.encode_grouped, deltas.decode_grouped),
    DeltaEncoding(6, "subtract-planes", deltas.encode_subtract_planes, deltas.decode_subtract_planes, progressive=True),
    *(DirectEncoding(number, name, encode, decode, lossy=True) for number, name, encode, decode in lossy.schemes()),
)
ENCODINGS: dict[int, Encoding] = {encoding.id: encoding for encoding in _ALL}


def encoding_named(name: str) -> Encoding:
    """The encoding of that name."""
    for encoding in ENCODINGS.values():
        if encoding.name == name:
            return encoding
    names = [encoding.name for encoding in ENCODINGS.values()]
    raise UsageError(f"There is no encoding {name!r}.", candidates=nearest(name, names))
