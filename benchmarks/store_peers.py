"""What the store's encodings are measured against, one tensor at a time: other codecs, and the paper's own scheme.

A peer turns the words of a tensor into bytes and back, given the words of a base where it makes deltas. All run in one
thread. Tensors of fewer than 64 elements are kept as they are by all peers, and are not measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray
from store_corpus import Snapshot

from regatta.store.format.dtypes import DTYPES, DType
from regatta.store.format.encodings import CHUNK_WORDS, Encoding, encoding_named

Words: TypeAlias = NDArray[Any]
Stored: TypeAlias = Any  # what a codec's decoder takes
SMALL = 64
ZIPNN_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class Codec:
    """Encode words against a base, or against none; decode; say how many bytes are stored."""

    name: str
    encode: Callable[[Words, DType, Words | None], Stored]
    decode: Callable[[Stored, DType, Words | None], Words]
    size: Callable[[Stored], int] = len


def tensors(snapshot: Snapshot, base: Snapshot | None = None) -> list[tuple[DType, Words, Words | None]]:
    """The tensors of a snapshot that are worth compressing, each with its base."""
    return [
        (DTYPES[dtype], words, None if base is None else base[name][2])
        for name, (dtype, _, words) in snapshot.items()
        if len(words) >= SMALL and dtype in ZIPNN_NAMES
    ]


def ours(name: str) -> Codec:
    """One of the store's encodings, chunk by chunk as the store does it."""
    encoding = encoding_named(name)
    return Codec(name, _chunk_encoder(encoding), _chunk_decoder(encoding), chunked_size)


def chunked_size(chunks: Sequence[tuple[int, Sequence[memoryview]]]) -> int:
    return sum(len(stream) for _, streams in chunks for stream in streams)


def _chunk_encoder(encoding: Encoding) -> Callable[[Words, DType, Words | None], Stored]:
    def encode(words: Words, dtype: DType, base: Words | None) -> Stored:
        stored = []
        for start in range(0, len(words), CHUNK_WORDS):
            part = words[start : start + CHUNK_WORDS]
            against = None if base is None else base[start : start + CHUNK_WORDS]
            stored.append((len(part), [memoryview(s) for s in encoding.encode(part, dtype, against)]))
        return stored

    return encode


def _chunk_decoder(encoding: Encoding) -> Callable[[Stored, DType, Words | None], Words]:
    def decode(stored: Stored, dtype: DType, base: Words | None) -> Words:
        words = np.empty(sum(count for count, _ in stored), dtype.word)
        start = 0
        for count, streams in stored:
            part = slice(start, start + count)
            encoding.decode(streams, count, dtype, None if base is None else base[part], words[part])
            start += count
        return words

    return decode


def zipnn() -> Codec:
    """ZipNN, which changes the buffer that it is given: it gets a copy."""
    return Codec("ZipNN", _zipnn_encode, _zipnn_decode)


def _zipnn(dtype: DType) -> Any:
    from zipnn import ZipNN

    return ZipNN(bytearray_dtype=ZIPNN_NAMES[dtype.name], input_format="byte", threads=1)


def _zipnn_encode(words: Words, dtype: DType, base: Words | None) -> Stored:
    return _zipnn(dtype).compress(bytearray(words.tobytes()))


def _zipnn_decode(stored: Stored, dtype: DType, base: Words | None) -> Words:
    return np.frombuffer(_zipnn(dtype).decompress(stored), dtype.word)


def raw_zstd() -> Codec:
    return Codec(
        "zstd-3",
        lambda words, dtype, base: zstandard.ZstdCompressor(level=3).compress(words.tobytes()),
        lambda stored, dtype, base: np.frombuffer(zstandard.ZstdDecompressor().decompress(stored), dtype.word),
    )


def byte_planes(words: Words) -> list[bytes]:
    """The bytes of the words as they are in memory, the high ones first: the paper's segments."""
    table = words.view(np.uint8).reshape(len(words), -1)
    return [table[:, place].tobytes() for place in reversed(range(table.shape[1]))]


def from_byte_planes(planes: Sequence[bytes], dtype: DType) -> Words:
    table = np.stack([np.frombuffer(plane, np.uint8) for plane in reversed(planes)], axis=1)
    return np.ascontiguousarray(table).reshape(-1).view(dtype.word)


def planes_with(name: str, compress: Callable[[bytes], bytes], decompress: Callable[[bytes], bytes]) -> Codec:
    return Codec(
        name,
        lambda words, dtype, base: [compress(plane) for plane in byte_planes(words)],
        lambda stored, dtype, base: from_byte_planes([decompress(plane) for plane in stored], dtype),
        lambda stored: sum(map(len, stored)),
    )


def paper() -> Codec:
    """The ModelHub paper's scheme: each byte plane by zlib."""
    return planes_with("planes+zlib (paper)", zlib.compress, zlib.decompress)


def planes_zstd() -> Codec:
    fast, back = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
    return planes_with("planes+zstd-3", fast.compress, back.decompress)


def xor(codec: Codec) -> Codec:
    """XOR with the base, then that codec."""

    def encode(words: Words, dtype: DType, base: Words | None) -> Stored:
        return codec.encode(words ^ _some(base), dtype, None)

    def decode(stored: Stored, dtype: DType, base: Words | None) -> Words:
        return codec.decode(stored, dtype, None) ^ _some(base)

    return Codec(f"XOR+{codec.name}", encode, decode, codec.size)


def float_subtraction(codec: Codec) -> Codec:
    """The paper's subtraction, on floats, and since that loses bits, an XOR that puts them right; float32 only."""

    def parts(words: Words, base: Words) -> tuple[Words, Words]:
        gap = words.view(np.float32) - base.view(np.float32)
        return gap.view(np.uint32), words ^ (base.view(np.float32) + gap).view(np.uint32)

    def encode(words: Words, dtype: DType, base: Words | None) -> Stored:
        gap, wrong = parts(words, _some(base))
        return codec.encode(gap, dtype, None), zlib.compress(wrong.tobytes())

    def decode(stored: Stored, dtype: DType, base: Words | None) -> Words:
        gap = codec.decode(stored[0], dtype, None).view(np.float32)
        rough = (_some(base).view(np.float32) + gap).view(np.uint32)
        return rough ^ np.frombuffer(zlib.decompress(stored[1]), np.uint32)

    return Codec(f"float SUB+{codec.name}", encode, decode, lambda stored: codec.size(stored[0]) + len(stored[1]))


def _some(base: Words | None) -> Words:
    assert base is not None, "a delta needs a base"
    return base
