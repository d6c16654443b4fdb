"""Numbers that end in zeros: found run by run, cheap, and exact whatever they are."""

from __future__ import annotations

import numpy as np
import pytest
from chunks import chunks, weights
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.errors import CorruptError
from regatta.store.format import codecs, pcodec_blocks
from regatta.store.format.dtypes import DTYPES, words_of

F32 = DTYPES["F32"]
ROW = 384


def decoded(stream: bytes, count: int, dtype=F32):
    words = np.empty(count, dtype.word)
    pcodec_blocks.decode([memoryview(stream)], dtype, words)
    return words


def embedding(rows: int = 300):
    """A table with every fifth row trained in float32; the other rows still are float16."""
    rng = np.random.default_rng(13)
    table = (rng.standard_normal((rows, ROW)) * 0.05).astype(np.float16).astype(np.float32)
    table[::5] += (rng.standard_normal((len(table[::5]), ROW)) * 1e-4).astype(np.float32)
    return words_of(table)


@given(chunks(), st.integers(0, 64), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_blocks_with_any_number_of_trailing_zeros_are_restored(chunk, zeros: int, seed: int) -> None:
    dtype, words, _ = chunk
    shifts = np.random.default_rng(seed).integers(0, min(zeros, dtype.bits - 1) + 1, len(words) // 64 + 1)
    words = words << np.repeat(shifts, 64)[: len(words)].astype(dtype.word)
    (stream,) = pcodec_blocks.encode(words, dtype)
    assert np.array_equal(decoded(stream, len(words), dtype), words)


def test_untrained_float16_rows_cost_as_much_as_float16() -> None:
    words = embedding()
    trained = words.reshape(-1, ROW)[::5].ravel()
    rest = np.delete(words.reshape(-1, ROW), np.s_[::5], axis=0).ravel()
    (together,), (apart,) = pcodec_blocks.encode(words, F32), pcodec_blocks.encode(trained, F32)
    halves = words_of(rest.view(np.float32).astype(np.float16))
    (as_halves,) = pcodec_blocks.encode(halves, DTYPES["F16"])
    assert len(together) < 1.02 * (len(apart) + len(as_halves))
    assert len(together) < 0.75 * len(codecs.encode_values(words.view(np.float32)))


def test_weights_without_trailing_zeros_cost_one_more_byte() -> None:
    words = weights(F32, 50_000, np.random.default_rng(14))
    assert len(pcodec_blocks.encode(words, F32)[0]) == 1 + len(codecs.encode_values(words.view(np.float32)))


def test_bfloat16_stored_as_float32_costs_as_much_as_bfloat16() -> None:
    words = weights(DTYPES["BF16"], 50_000, np.random.default_rng(15))
    (wide,) = pcodec_blocks.encode(words.astype(np.uint32) << np.uint32(16), F32)
    assert len(wide) < 1.01 * len(pcodec_blocks.encode(words, DTYPES["BF16"])[0])


def hostile() -> dict[str, bytes]:
    words = embedding()
    (stream,) = pcodec_blocks.encode(words, F32)
    zeros, *groups = [bytes(part) for part in codecs.split_streams(memoryview(stream)[1:], 40)]
    many = codecs.encode_bytes(np.full(len(words) // 64, 33, np.uint8))
    return {
        "nothing": b"",
        "another start": b"\2" + stream[1:],
        "no bundle": b"\1",
        "too few groups": b"\1" + codecs.join_streams([zeros, *groups[:-1]]),
        "too many groups": b"\1" + codecs.join_streams([zeros, *groups, groups[-1]]),
        "groups exchanged": b"\1" + codecs.join_streams([zeros, *reversed(groups)]),
        "more zeros than bits": b"\1" + codecs.join_streams([many, groups[0]]),
        "parts without end": b"\1" + bytes(4 * 1000),
        "cut off": stream[:-1],
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_streams_are_refused(name: str) -> None:
    with pytest.raises(CorruptError):
        decoded(hostile()[name], len(embedding()))
