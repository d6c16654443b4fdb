"""The encodings of a chunk of words, under the numbers that the format keeps on disk.

    bits    unsigned integers of the element type's word width, one dimension, at most CHUNK of them
    base    the same chunk of the tensor that a delta refers to, same length; None for encodings that need none

`encode` gives the chunk's streams, `decode` the same bits back. A progressive encoding has one stream for each byte
plane, and its leading streams alone give the leading planes, exactly: `decode_planes`. Anything wrong with a stream is
a CorruptError, and no stream makes a decoder take more memory than `count` elements justify.

A number, once given, keeps its meaning for ever; a changed encoding takes a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from regatta.errors import CorruptError, UsageError, nearest
from regatta.store import codecs, planes
from regatta.store.dtypes import DType, Words
from regatta.store.planes import bounds, leading

CHUNK = 2**18

__all__ = ["CHUNK", "ENCODINGS", "Encoding", "bounds", "by_name", "leading"]


class Encoding(Protocol):
    id: int
    name: str
    needs_base: bool
    progressive: bool
    lossy: bool

    def streams(self, dtype: DType) -> int:
        """How many streams a chunk has."""
        ...

    def encode(self, bits: Words, dtype: DType, base: Words | None) -> list[bytes]:
        """The streams of a chunk."""
        ...

    def decode(self, streams: Sequence[memoryview], count: int, dtype: DType, base: Words | None) -> Words:
        """The bits of a chunk; the array may be read-only."""
        ...

    def decode_planes(
        self, streams: Sequence[memoryview], planes: int, count: int, dtype: DType, base: Words | None
    ) -> Words:
        """The bits that the leading planes tell, the others zero; `base` needs no more than its own leading planes."""
        ...


class Raw:
    """The words as they are, little-endian."""

    id = 0
    name = "raw"
    needs_base = False
    progressive = False
    lossy = False

    def streams(self, dtype: DType) -> int:
        return 1

    def encode(self, bits: Words, dtype: DType, base: Words | None) -> list[bytes]:
        return [bits.tobytes()]

    def decode(self, streams: Sequence[memoryview], count: int, dtype: DType, base: Words | None) -> Words:
        (stream,) = check_streams(self, streams, dtype)
        if len(stream) != count * dtype.width_bytes:
            raise CorruptError(f"A raw stream of {count} {dtype.name} words has {len(stream)} bytes.")
        return np.frombuffer(stream, dtype.word)

    def decode_planes(
        self, streams: Sequence[memoryview], planes: int, count: int, dtype: DType, base: Words | None
    ) -> Words:
        return leading(self.decode(streams, count, dtype, base), planes, dtype)


class ZstdPlanes:
    """Byte planes, each Huffman-coded by zstd: fast to write, for the moment of a commit."""

    id = 1
    name = "zstd-planes"
    needs_base = False
    progressive = True
    lossy = False

    def streams(self, dtype: DType) -> int:
        return dtype.planes

    def encode(self, bits: Words, dtype: DType, base: Words | None) -> list[bytes]:
        return encode_planes(bits, dtype)

    def decode(self, streams: Sequence[memoryview], count: int, dtype: DType, base: Words | None) -> Words:
        return decode_planes(check_streams(self, streams, dtype), count, dtype)

    def decode_planes(
        self, streams: Sequence[memoryview], planes: int, count: int, dtype: DType, base: Words | None
    ) -> Words:
        return decode_planes(check_streams(self, streams, dtype, planes)[:planes], count, dtype)


def encode_planes(bits: Words, dtype: DType) -> list[bytes]:
    """A stream for each byte plane."""
    matching = dtype.kind != "float"
    return [codecs.encode_bytes(plane, matching=matching) for plane in planes.split(bits, dtype)]


def decode_planes(streams: Sequence[memoryview], count: int, dtype: DType) -> Words:
    """The words of these leading planes."""
    if not streams:
        return np.zeros(count, dtype.word)
    known = [codecs.decode_bytes(stream, count) for stream in streams]
    return planes.join([*known, *[None] * (dtype.planes - len(known))], dtype)


def check_streams(
    encoding: Encoding, streams: Sequence[memoryview], dtype: DType, at_least: int | None = None
) -> Sequence[memoryview]:
    """The streams, when there are as many as the encoding has, or at least the leading ones that are wanted."""
    expected = encoding.streams(dtype)
    if len(streams) != expected and not (at_least is not None and at_least <= len(streams) <= expected):
        raise CorruptError(
            f"A chunk of {dtype.name} in the encoding {encoding.name} has {expected} streams, not {len(streams)}."
        )
    return streams


def _registry(all_encodings: Iterable[Encoding]) -> dict[int, Encoding]:
    return {encoding.id: encoding for encoding in all_encodings}


ENCODINGS: dict[int, Encoding] = _registry([Raw(), ZstdPlanes()])


def by_name(name: str) -> Encoding:
    """The encoding of that name."""
    for encoding in ENCODINGS.values():
        if encoding.name == name:
            return encoding
    names = [encoding.name for encoding in ENCODINGS.values()]
    raise UsageError(f"There is no encoding {name!r}.", candidates=nearest(name, names))
