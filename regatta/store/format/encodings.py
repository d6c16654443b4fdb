"""The encodings of a chunk of words, under the numbers that the format keeps on disk.

    bits    unsigned integers of the element type's word width, one dimension, at most CHUNK of them
    base    the same chunk of the tensor that a delta refers to, same length; None for encodings that need none

`encode` gives the chunk's streams, `decode` the same bits back. A progressive encoding has one stream for each byte
plane, and its leading streams alone give the leading planes, exactly: `decode_planes`. Anything wrong with a stream is
a CorruptError, and no stream makes a decoder take more memory than `count` elements justify.

    number  name                what
    0       raw                 the words
    1       zstd-planes         byte planes, Huffman-coded by zstd: fast to write, for the moment of a commit
    2       pcodec              the numbers, by pcodec, without the zeros that they end in: the smallest without a base
    3       xor                 byte planes of the bits that differ from the base
    4       subtract            differences of the bits as integers: the fastest to add up again
    5       subtract-grouped    the same in groups with like differences: the smallest
    6       subtract-planes     differences of byte planes in the same groups
    16..    see lossy.py

A number, once given, keeps its meaning for ever; a changed encoding takes a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from regatta.errors import CorruptError, UsageError, nearest
from regatta.store.format import (
    deltas,
    lossy,
    pcodec_blocks,
    planes,
)
from regatta.store.format.dtypes import CHUNK, DType, Words
from regatta.store.format.planes import bounds, leading

__all__ = ["CHUNK", "ENCODINGS", "Encoding", "bounds", "by_name", "leading"]

Encoder: TypeAlias = Callable[[Words, DType], list[bytes]]
Decoder: TypeAlias = Callable[[Sequence[memoryview], DType, Words], None]
DeltaEncoder: TypeAlias = Callable[[Words, DType, Words], list[bytes]]
DeltaDecoder: TypeAlias = Callable[[Sequence[memoryview], DType, Words, Words], None]


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
        """How many streams a chunk has; for progressive encodings one for each plane, most significant first."""
        ...

    def encode(self, bits: Words, dtype: DType, base: Words | None) -> list[bytes]:
        """The streams of a chunk."""
        ...

    def decode(
        self, streams: Sequence[memoryview], count: int, dtype: DType, base: Words | None, out: Words | None = None
    ) -> Words:
        """The bits of a chunk: `out` where it is given, a contiguous array of `count` words, else a new array."""
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
        """The bits of the leading planes, the others zero; `base` needs no more than its own leading planes.

        A progressive encoding needs no more than the leading streams, one that is not needs all of them and all of
        the base.
        """
        ...


@dataclass(frozen=True)
class Direct:
    """An encoding of the words alone. The decoder of a progressive one takes any number of leading streams."""

    id: int
    name: str
    encoder: Encoder
    decoder: Decoder
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
class Delta:
    """An encoding of the words by those of a base. The decoder of a progressive one takes any number of planes > 0."""

    id: int
    name: str
    encoder: DeltaEncoder
    decoder: DeltaDecoder
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
    if bits.dtype != dtype.word or bits.ndim != 1 or len(bits) > CHUNK:
        raise UsageError(
            f"A chunk of {dtype.name} is one dimension of at most {CHUNK} {dtype.word}, not {bits.shape} {bits.dtype}."
        )
    return np.ascontiguousarray(bits)


def _room(out: Words | None, count: int, dtype: DType) -> Words:
    """Where the words of a chunk go."""
    if not 0 <= count <= CHUNK:
        raise CorruptError(f"A chunk has at most {CHUNK} words, not {count}.")
    if out is None:
        return np.empty(count, dtype.word)
    if out.dtype != dtype.word or out.shape != (count,) or not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError(f"{count} {dtype.word} cannot be put into an array of {out.shape} {out.dtype}.")
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
    Direct(0, "raw", _encode_raw, _decode_raw),
    Direct(1, "zstd-planes", planes.encode, planes.decode, progressive=True),
    Direct(2, "pcodec", pcodec_blocks.encode, pcodec_blocks.decode),
    Delta(3, "xor", deltas.encode_xor, deltas.decode_xor, progressive=True),
    Delta(4, "subtract", deltas.encode_subtract, deltas.decode_subtract),
    Delta(5, "subtract-grouped", deltas.encode_grouped, deltas.decode_grouped),
    Delta(6, "subtract-planes", deltas.encode_subtract_planes, deltas.decode_subtract_planes, progressive=True),
    *(Direct(number, name, encode, decode, lossy=True) for number, name, encode, decode in lossy.schemes()),
)
ENCODINGS: dict[int, Encoding] = {encoding.id: encoding for encoding in _ALL}


def by_name(name: str) -> Encoding:
    """The encoding of that name."""
    for encoding in ENCODINGS.values():
        if encoding.name == name:
            return encoding
    names = [encoding.name for encoding in ENCODINGS.values()]
    raise UsageError(f"There is no encoding {name!r}.", candidates=nearest(name, names))
