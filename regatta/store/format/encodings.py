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
from functools import partial

import numpy as np

from regatta.errors import CorruptError, UsageError, nearest
from regatta.store.format import deltas, lossy, pcodec_blocks, planes
from regatta.store.format.dtypes import CHUNK_WORDS, DType, Words
from regatta.store.format.planes import bounds, leading

__all__ = ["CHUNK_WORDS", "ENCODINGS", "Encoding", "bounds", "encoding_named", "leading"]


@dataclass(frozen=True)
class Encoding:
    """One encoding of chunks. A progressive decoder takes any number of leading streams, at least one for a delta."""

    id: int
    name: str
    encoder: Callable[..., list[bytes]]  # of the bits, their type and, if it needs one, the base
    decoder: Callable[..., None]  # of the streams, the type, the base if it needs one, and the array to fill
    progressive: bool = False
    lossy: bool = False
    needs_base: bool = False

    def streams(self, dtype: DType) -> int:
        """The number of streams of a chunk; a progressive encoding has one per plane, most significant first."""
        return dtype.planes if self.progressive else 1

    def encode(self, bits: Words, dtype: DType, base: Words | None) -> list[bytes]:
        return self.encoder(_checked(bits, dtype), dtype, *self._bases(base, len(bits), dtype))

    def decode(
        self, streams: Sequence[memoryview], count: int, dtype: DType, base: Words | None, out: Words | None = None
    ) -> Words:
        """The bits of a chunk, in `out` (a contiguous array of `count` words) or in a new array."""
        words = _room(out, count, dtype)
        self._decode_streams(self.streams(dtype), streams, dtype, base, words)
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
        """The bits of the leading planes; the other bits are zero.

        A progressive encoding needs only the leading streams, and only the leading planes of the base. Any other
        encoding needs all streams and the whole base.
        """
        words = _room(out, count, dtype)
        if self.needs_base and planes == 0:
            words[:] = 0
        elif self.progressive:
            self._decode_streams(planes, streams, dtype, base, words)
        else:
            words[:] = leading(self.decode(streams, count, dtype, base), planes, dtype)
        return words

    def _decode_streams(
        self, wanted: int, streams: Sequence[memoryview], dtype: DType, base: Words | None, out: Words
    ) -> None:
        bases = self._bases(base, len(out), dtype)
        if not wanted <= len(streams) <= self.streams(dtype):
            raise CorruptError(
                f"A chunk of {dtype.name} in the encoding {self.name} has {self.streams(dtype)} streams "
                f"and needs {wanted} of them; there are {len(streams)}."
            )
        self.decoder(streams[:wanted], dtype, *bases, out)

    def _bases(self, base: Words | None, count: int, dtype: DType) -> tuple[Words, ...]:
        """The base, checked; empty for an encoding without one."""
        if not self.needs_base:
            return ()
        if base is None or base.dtype != dtype.word or base.shape != (count,):
            found = "none" if base is None else f"{base.shape} {base.dtype}"
            raise UsageError(f"The encoding {self.name} needs a base of {count} {dtype.word}; there is {found}.")
        return (np.ascontiguousarray(base),)


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


def _decode_raw(streams: Sequence[memoryview], dtype: DType, out: Words) -> None:
    if len(streams[0]) != out.nbytes:
        raise CorruptError(f"A raw stream of {len(out)} {dtype.name} words has {len(streams[0])} bytes.")
    out[:] = np.frombuffer(streams[0], dtype.word)


_delta = partial(Encoding, needs_base=True)
_ALL = (
    Encoding(0, "raw", lambda bits, dtype: [bits.tobytes()], _decode_raw),
    Encoding(1, "zstd-planes", planes.encode, planes.decode, progressive=True),
    Encoding(2, "pcodec", pcodec_blocks.encode, pcodec_blocks.decode),
    _delta(3, "xor", deltas.encode_xor, deltas.decode_xor, progressive=True),
    _delta(4, "subtract", deltas.encode_subtract, deltas.decode_subtract),
    _delta(5, "subtract-grouped", deltas.encode_grouped, deltas.decode_grouped),
    _delta(6, "subtract-planes", deltas.encode_subtract_planes, deltas.decode_subtract_planes, progressive=True),
    *(Encoding(number, name, encode, decode, lossy=True) for number, name, encode, decode in lossy.schemes()),
)
ENCODINGS: dict[int, Encoding] = {encoding.id: encoding for encoding in _ALL}
_BY_NAME = {encoding.name: encoding for encoding in _ALL}


def encoding_named(name: str) -> Encoding:
    if name not in _BY_NAME:
        raise UsageError(f"There is no encoding {name!r}.", candidates=nearest(name, _BY_NAME))
    return _BY_NAME[name]
