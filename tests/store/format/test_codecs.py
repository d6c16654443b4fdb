"""Entropy coders: what goes in comes out, streams are as short as they should be, and hostile ones are refused."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pcodec import ChunkConfig, DeltaSpec, ModeSpec, PagingSpec, wrapped

from regatta.errors import CorruptError
from regatta.store.format import codecs

COUNT = 5000
KINDS = ["<f2", "<f4", "<f8", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8"]


def byte_arrays():
    """Bytes of every shape of distribution that the coders tell apart."""

    def make(kind: str, count: int, seed: int):
        rng = np.random.default_rng(seed)
        if kind == "exponents":
            return np.clip(rng.normal(120, 3, count), 0, 255).astype(np.uint8)
        if kind == "edges":
            return rng.choice([0, 1, 254, 255], count).astype(np.uint8)
        if kind == "constant":
            return np.full(count, seed % 256, np.uint8)
        if kind == "repeating":
            return np.resize(rng.integers(0, 256, 37), count).astype(np.uint8)
        return rng.integers(0, 256, count).astype(np.uint8)

    kinds = st.sampled_from(["exponents", "edges", "constant", "repeating", "random"])
    counts = st.one_of(st.sampled_from([0, 1, 63, 64, 65, 255, 256, 257]), st.integers(0, 5000))
    return st.builds(make, kinds, counts, st.integers(0, 2**32 - 1))


@given(byte_arrays(), st.booleans(), st.booleans())
def test_bytes_survive_encoding(values, matching: bool, thorough: bool) -> None:
    stream = codecs.encode_bytes(values, matching=matching, thorough=thorough)
    assert len(stream) <= len(values)
    assert np.array_equal(codecs.decode_bytes(memoryview(stream), len(values)), values)


@given(st.sampled_from(KINDS), st.integers(0, 3000), st.integers(0, 64), st.integers(0, 2**32 - 1), st.booleans())
def test_values_survive_bit_for_bit(kind: str, count: int, shift: int, seed: int, quick: bool) -> None:
    rng = np.random.default_rng(seed)
    words = np.frombuffer(rng.bytes(8 * count), np.int64) >> min(shift, 63)
    values = words.astype(f"<i{kind[-1]}" if kind[-1] != "1" else "i1").view(kind)
    stream = memoryview(codecs.encode_values(values, quick=quick))
    assert len(stream) <= values.nbytes
    assert codecs.decode_values(stream, count, values.dtype).tobytes() == values.tobytes()
    room = np.empty(count, kind)
    codecs.decode_values_into(stream, room)
    assert room.tobytes() == values.tobytes()


def test_few_values_and_equal_ones_need_no_codec() -> None:
    few = np.arange(codecs.MIN_CODED_VALUES - 1, dtype=np.uint8)
    assert codecs.encode_bytes(few) == few.tobytes()
    assert codecs.encode_bytes(np.full(2**18, 7, np.uint8)) == b"\x07"
    assert codecs.encode_values(np.full(2**18, -3, np.int32)) == struct.pack("<i", -3)
    nan = np.full(1000, 0x7FC00123, np.uint32).view(np.float32)
    assert codecs.encode_values(nan) == nan[:1].tobytes()


def test_random_bytes_are_kept_as_they_are() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 10_000).astype(np.uint8)
    assert codecs.encode_bytes(noise, thorough=True) == noise.tobytes()


def exponents(count: int = 2**17):
    values = (np.random.default_rng(1).standard_normal(count) * 0.05).astype(np.float32)
    return (values.view(np.uint32) >> 23).astype(np.uint8)


def entropy_bytes(values) -> float:
    shares = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(shares * np.log2(shares)).sum() * len(values) / 8)


def test_pairs_come_within_one_and_a_half_percent_of_the_entropy_and_beat_plain_huffman_codes() -> None:
    values = exponents()
    stream = codecs.encode_bytes(values)
    assert stream[0] == codecs.PAIRS
    plain = zstandard.ZstdCompressor(level=3).compress(values.tobytes())
    assert len(stream) < 1.015 * entropy_bytes(values)
    assert len(stream) < 0.99 * len(plain)


def test_small_integers_are_coded_as_bytes_where_that_is_shorter_or_quicker() -> None:
    rng = np.random.default_rng(2)
    values = np.rint(rng.standard_normal(2**17) * 3).astype(np.int16)
    values[::500] = rng.integers(-30_000, 30_000, len(values[::500]))
    quick, short = codecs.encode_values(values, quick=True), codecs.encode_values(values)
    assert quick[0] == codecs.NARROW
    assert len(short) <= len(quick) <= 1.03 * len(short)
    assert np.array_equal(codecs.decode_values(memoryview(quick), len(values), values.dtype), values)


def test_repeated_passages_are_found_where_they_are_looked_for() -> None:
    passage = np.random.default_rng(3).integers(0, 256, 1000).astype(np.uint8)
    assert len(codecs.encode_bytes(np.tile(passage, 40), matching=True)) < 1300


def test_joined_streams_are_split_again() -> None:
    parts = [b"", b"one", b"\0" * 300]
    assert [bytes(part) for part in codecs.split_streams(memoryview(codecs.join_streams(parts)), 3)] == parts
    assert codecs.split_streams(memoryview(b""), 0) == []


@pytest.mark.parametrize("stream", [b"\1\0\0", b"\5\0\0\0abc", codecs.join_streams([b"a", b"b", b"c"])])
def test_inconsistent_bundles_are_refused(stream: bytes) -> None:
    with pytest.raises(CorruptError, match="bundle"):
        codecs.split_streams(memoryview(stream), 2)


def zstd_frame(size: int) -> bytes:
    return bytes((codecs.ZSTD,)) + zstandard.ZstdCompressor().compress(bytes(size))


def pcodec_stream(config: ChunkConfig, values) -> bytes:
    file = wrapped.FileCompressor()
    chunk = file.chunk_compressor(values, config)
    meta = chunk.write_meta()
    header = struct.pack("<B2sI", codecs.PCODEC, file.write_header(), len(meta))
    return header + meta + chunk.write_page(0)


def pairs_stream(code: int, rest: bytes) -> bytes:
    pairs = bytes([code | code << 4])
    return struct.pack("<BBI", codecs.PAIRS, 0, len(pairs)) + pairs + rest


RAMP = np.arange(COUNT, dtype=np.uint32)
PAGES = PagingSpec.equal_pages_up_to(1 << 24)
HOSTILE = {
    "empty": b"",
    "unknown codec": b"\xff1234",
    "zstd frame that claims more": zstd_frame(2**30),
    "zstd frame that claims less": zstd_frame(COUNT - 1),
    "zstd frame with more behind it": zstd_frame(COUNT) + b"more",
    "zstd frame cut off": bytes((codecs.ZSTD,)) + zstandard.ZstdCompressor().compress(RAMP.tobytes()[:COUNT])[:-3],
    "zstd frame without its size": bytes((codecs.ZSTD,))
    + zstandard.ZstdCompressor(write_content_size=False).compress(bytes(COUNT)),
    "not a zstd frame": bytes((codecs.ZSTD,)) + b"nothing of the sort",
    "pairs without an end": struct.pack("<BBI", codecs.PAIRS, 0, 2**32 - 1),
    "pairs with a code too many": pairs_stream(9, b""),
    "pairs without the others": pairs_stream(8, b""),
    "pairs within pairs": pairs_stream(8, pairs_stream(8, bytes(COUNT))),
    "pcodec without metadata": struct.pack("<BHI", codecs.PCODEC, 0x0104, 0) + b"....",
    "pcodec with metadata beyond its end": struct.pack("<BHI", codecs.PCODEC, 0x0104, 2**32 - 1) + bytes(9),
    "pcodec of another format": struct.pack("<BHI", codecs.PCODEC, 0x0103, 9) + bytes(20),
    "header alone": struct.pack("<BHI", codecs.PCODEC, 0x0104, 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_streams_are_refused(name: str) -> None:
    stream = memoryview(HOSTILE[name])
    with pytest.raises(CorruptError):
        codecs.decode_bytes(stream, COUNT)
    for kind in ("<f4", "<i4", "<i2", "<u8"):
        with pytest.raises(CorruptError):
            codecs.decode_values(stream, COUNT, np.dtype(kind))


@pytest.mark.parametrize(
    "config",
    [
        ChunkConfig(mode_spec=ModeSpec.classic(), delta_spec=DeltaSpec.try_lookback(), paging_spec=PAGES),
        ChunkConfig(mode_spec=ModeSpec.classic(), delta_spec=DeltaSpec.try_consecutive(1), paging_spec=PAGES),
        ChunkConfig(mode_spec=ModeSpec.try_dict(), delta_spec=DeltaSpec.no_op(), paging_spec=PAGES),
        ChunkConfig(mode_spec=ModeSpec.try_int_mult(3), delta_spec=DeltaSpec.no_op(), paging_spec=PAGES),
    ],
    ids=["lookback", "consecutive", "dict", "int-mult"],
)
def test_modes_of_pcodec_that_are_not_written_are_not_read(config: ChunkConfig) -> None:
    stream = pcodec_stream(config, np.resize(RAMP[:300] * 3, COUNT))
    assert stream[7] != 0, "pcodec did not take the mode that it was asked to try"
    with pytest.raises(CorruptError, match="not ours"):
        codecs.decode_values(memoryview(stream), COUNT, RAMP.dtype)


@pytest.mark.parametrize("count", [COUNT - 1, COUNT + 1, 2**18])
def test_streams_of_another_length_are_refused(count: int) -> None:
    values = np.random.default_rng(4).standard_normal(COUNT).astype(np.float32)
    with pytest.raises(CorruptError):
        codecs.decode_values(memoryview(codecs.encode_values(values)), count, values.dtype)
    with pytest.raises(CorruptError):
        codecs.decode_bytes(memoryview(codecs.encode_bytes(exponents(COUNT))), count)


def test_a_bomb_takes_no_memory() -> None:
    bomb = memoryview(zstd_frame(2**28))
    tracemalloc.start()
    with pytest.raises(CorruptError, match="claims 268435456 bytes where 5000"):
        codecs.decode_bytes(bomb, COUNT)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
