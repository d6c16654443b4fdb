"""The contract of all encodings, and decoders with hostile streams."""

from __future__ import annotations

import base64
import json
import threading
from itertools import pairwise

import fuzz_encodings
import numpy as np
import pytest
from chunks import EDGES, KINDS, chunks, mixed, nearby, special, special_words, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from locations import FIXTURES

from regatta.errors import CorruptError, UsageError
from regatta.store.format.dtypes import DTYPES, DType, Words, words_of_floats
from regatta.store.format.encodings import CHUNK_WORDS, ENCODINGS, Encoding, bounds, encoding_named, leading

EXACT = [encoding for encoding in ENCODINGS.values() if not encoding.lossy]
FUZZED = [*EXACT, *map(encoding_named, ("float16", "fixed-8", "uniform-3", "random-8"))]
F32, BF16 = DTYPES["F32"], DTYPES["BF16"]

exact = pytest.mark.parametrize("encoding", EXACT, ids=lambda e: e.name)
types = pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda d: d.name)


def streams_of(encoding: Encoding, words: Words, dtype: DType, base: Words | None) -> list[memoryview]:
    streams = encoding.encode(words, dtype, base)
    assert len(streams) == encoding.streams(dtype)
    assert all(type(stream) is bytes for stream in streams)
    return [memoryview(stream) for stream in streams]


def assert_exact(encoding: Encoding, words: Words, dtype: DType, base: Words) -> None:
    before, base_before = words.copy(), base.copy()
    streams = streams_of(encoding, words, dtype, base if encoding.needs_base else None)
    found = encoding.decode(streams, len(words), dtype, base)
    assert found.dtype == dtype.word and found.tobytes() == before.tobytes()
    room = np.empty(len(words) + 2, dtype.word)[1:-1]
    assert encoding.decode(streams, len(words), dtype, base, room) is room
    assert room.tobytes() == before.tobytes()
    assert words.tobytes() == before.tobytes() and base.tobytes() == base_before.tobytes()


def test_encoding_numbers_and_names_never_change() -> None:
    expected = {
        0: "raw",
        1: "zstd-planes",
        2: "pcodec",
        3: "xor",
        4: "subtract",
        5: "subtract-grouped",
        6: "subtract-planes",
        16: "float16",
        17: "bfloat16",
        **{32 + k: f"fixed-{k}" for k in range(2, 25)},
        **{64 + k: f"uniform-{k}" for k in range(1, 9)},
        **{80 + k: f"random-{k}" for k in range(1, 9)},
    }
    assert {number: encoding.name for number, encoding in ENCODINGS.items()} == expected
    assert all(
        ENCODINGS[number].id == number and encoding_named(name).id == number for number, name in expected.items()
    )
    assert {e.name for e in EXACT if e.needs_base} == {"xor", "subtract", "subtract-grouped", "subtract-planes"}
    assert {e.name for e in EXACT if e.progressive} == {"zstd-planes", "xor", "subtract-planes"}


def old_words() -> tuple[Words, Words]:
    """Weights after a step and before, made of integers alone: the same on every machine, for ever."""
    draws = (np.arange(30_000, dtype=np.uint64) * np.uint64(2654435761) >> np.uint64(9)).reshape(6, 5000) & np.uint64(
        0xFFFF
    )
    before = draws[:4].sum(axis=0).astype(np.float64) - 2**17
    after = before + (draws[4].astype(np.float64) - 2**15) / 2**8
    return words_of_floats(after / 2**20, BF16), words_of_floats(before / 2**20, BF16)


def test_streams_of_earlier_versions_are_still_read() -> None:
    """The fixture is what version 1 of each encoding wrote for these words."""
    words, base = old_words()
    old = json.loads((FIXTURES / "store" / "encodings-1.json").read_text())
    assert set(old) == {encoding.name for encoding in EXACT}
    for name, texts in old.items():
        streams = [memoryview(base64.b85decode(text)) for text in texts]
        assert np.array_equal(encoding_named(name).decode(streams, len(words), BF16, base), words), name


@exact
@given(chunk=chunks())
@settings(max_examples=60, deadline=None)
def test_every_chunk_is_restored_bit_for_bit(encoding: Encoding, chunk: tuple[DType, Words, Words]) -> None:
    dtype, words, base = chunk
    assert_exact(encoding, words, dtype, base)


@exact
@types
def test_every_length_at_the_edges(encoding: Encoding, dtype: DType) -> None:
    rng = np.random.default_rng(7)
    for count in EDGES:
        words = mixed(dtype, count, rng)
        assert_exact(encoding, words, dtype, nearby(words, dtype, rng))


@exact
@types
def test_special_words_survive(encoding: Encoding, dtype: DType) -> None:
    words = np.resize(special_words(dtype), 300)
    assert_exact(encoding, words, dtype, np.resize(special_words(dtype)[::-1], 300))
    assert_exact(encoding, words, dtype, special(dtype, 300, np.random.default_rng(8)))


@exact
@given(chunk=chunks(), data=st.data())
@settings(max_examples=40, deadline=None)
def test_leading_planes_are_exact_and_need_no_more_of_the_base(encoding, chunk, data) -> None:
    dtype, words, base = chunk
    streams = streams_of(encoding, words, dtype, base)
    planes = data.draw(st.integers(0, dtype.planes))
    if encoding.progressive:
        streams, base = streams[:planes], leading(base, planes, dtype)
    found = encoding.decode_planes(streams, planes, len(words), dtype, base)
    assert np.array_equal(found, leading(words, planes, dtype))


def test_chains_of_leading_planes_give_bounds_that_hold() -> None:
    rng = np.random.default_rng(9)
    chain = [weights(F32, 5000, rng)]
    for _ in range(4):
        chain.append(nearby(chain[-1], F32, rng))
    known = leading(chain[0], 2, F32)
    for base, words in pairwise(chain):
        streams = streams_of(encoding_named("subtract-planes"), words, F32, base)
        known = encoding_named("subtract-planes").decode_planes(streams[:2], 2, len(words), F32, known)
    lower, upper = bounds(known, 2, F32)
    assert (lower <= chain[-1].view(np.float32)).all() and (chain[-1].view(np.float32) <= upper).all()


def test_two_planes_of_a_direct_float32_chunk_are_at_most_two_fifths_of_it() -> None:
    lengths = [
        len(s)
        for s in encoding_named("zstd-planes").encode(weights(F32, CHUNK_WORDS, np.random.default_rng(0)), F32, None)
    ]
    assert sum(lengths[:2]) <= 0.4 * sum(lengths)


@exact
def test_no_encoding_of_weights_is_longer_than_they_are_by_more_than_a_few_bytes(encoding: Encoding) -> None:
    rng = np.random.default_rng(10)
    noise = rng.integers(0, 2**32, 2**16).astype(np.uint32)
    for count in (0, 1, 64, 2**16):
        streams = streams_of(encoding, noise[:count], F32, noise[::-1][:count].copy())
        assert sum(map(len, streams)) <= 4 * count + 1000


@exact
def test_threads_do_not_disturb_one_another(encoding: Encoding) -> None:
    rng = np.random.default_rng(11)
    wrong: list[int] = []

    def work(number: int) -> None:
        words = mixed(F32, 20_000, np.random.default_rng(number))
        base = nearby(words, F32, np.random.default_rng(number + 1))
        for _ in range(5):
            if not np.array_equal(
                encoding.decode(streams_of(encoding, words, F32, base), len(words), F32, base), words
            ):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(int(n),)) for n in rng.integers(0, 10**6, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="one dimension and at most 262144"):
        encoding_named("raw").encode(np.zeros(CHUNK_WORDS + 1, np.uint32), F32, None)
    with pytest.raises(UsageError, match=r"uint32.*uint16"):
        encoding_named("raw").encode(np.zeros(3, np.uint16), F32, None)
    with pytest.raises(UsageError, match="xor needs a base of 3 uint32; there is none"):
        encoding_named("xor").encode(np.zeros(3, np.uint32), F32, None)
    with pytest.raises(UsageError, match=r"there is \(2,\) uint32"):
        encoding_named("xor").decode([memoryview(b"")] * 4, 3, F32, np.zeros(2, np.uint32))
    with pytest.raises(UsageError, match=r"3 uint32 do not fit an array of \(4,\) uint32"):
        encoding_named("raw").decode([memoryview(bytes(12))], 3, F32, None, np.zeros(4, np.uint32))
    with pytest.raises(UsageError, match="do not fit"):
        encoding_named("raw").decode([memoryview(bytes(12))], 3, F32, None, np.zeros(6, np.uint32)[::2])
    with pytest.raises(UsageError, match="pcodec"):
        encoding_named("pcodecs")
    with pytest.raises(CorruptError, match="has 4 streams and needs 4 of them; there are 3"):
        encoding_named("zstd-planes").decode([memoryview(b"a")] * 3, 1, F32, None)
    with pytest.raises(CorruptError, match="at most 262144 words, not 262145"):
        encoding_named("raw").decode([memoryview(b"")], CHUNK_WORDS + 1, F32, None)


def test_strided_arrays_are_stored_like_copies() -> None:
    words = weights(F32, 2000, np.random.default_rng(12))
    for encoding in EXACT:
        streams = streams_of(encoding, words[::2], F32, words[1::2])
        assert np.array_equal(encoding.decode(streams, 1000, F32, words[1::2]), words[::2])


def test_the_seeds_of_the_fuzzer_decode() -> None:
    for seed in fuzz_encodings.seeds():
        encoding, dtype, count = fuzz_encodings._choices(seed)
        streams = fuzz_encodings._streams(memoryview(seed)[3:], encoding.streams(dtype))
        encoding.decode(streams, count, dtype, (np.arange(count) * 2654435761).astype(dtype.word))
        fuzz_encodings.one_input(seed)
        fuzz_encodings.one_input(seed[: len(seed) // 2])


def damaged(stream: bytes, rng: np.random.Generator) -> bytes:
    """A stream with bits turned, bytes changed where headers are, or a piece taken out, put in or cut off."""
    bad = bytearray(stream)
    if not bad:
        return rng.bytes(int(rng.integers(1, 20)))
    way, place = int(rng.integers(6)), int(rng.integers(len(bad)))
    if way == 0:
        bad[place] ^= 1 << int(rng.integers(8))
    elif way == 1:
        for _ in range(int(rng.integers(1, 8))):
            bad[int(rng.integers(min(len(bad), 64)))] = int(rng.integers(256))
    elif way == 2:
        del bad[place:]
    elif way == 3:
        bad += rng.bytes(int(rng.integers(1, 20)))
    elif way == 4:
        del bad[place : place + int(rng.integers(1, 9))]
    else:
        bad[place : place + 4] = int(rng.choice([0, 1, 2**16, 2**31, 2**32 - 1])).to_bytes(4, "little")
    return bytes(bad)


@pytest.mark.parametrize(
    "encoding", [*EXACT, *map(encoding_named, ("float16", "fixed-8", "uniform-3", "random-8"))], ids=lambda e: e.name
)
@given(
    dtype=st.sampled_from([DTYPES[name] for name in ("F64", "F32", "BF16", "I32", "U8")]),
    kind=st.sampled_from(KINDS),
    count=st.sampled_from((64, 300, 5000)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40, deadline=None)
def test_damaged_streams_are_refused_or_give_as_many_words(encoding, dtype, kind, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = kind(dtype, count, rng)
    base = nearby(words, dtype, rng)
    try:
        streams = encoding.encode(words, dtype, base)
    except UsageError:  # a lossy scheme that is not for this type
        return
    for _ in range(25):
        hurt = int(rng.integers(len(streams)))
        bad = [memoryview(damaged(s, rng) if n == hurt else s) for n, s in enumerate(streams)]
        try:
            found = encoding.decode(bad, count, dtype, base)
        except CorruptError:
            continue
        assert found.dtype == dtype.word and found.shape == (count,)


@exact
@given(junk=st.lists(st.binary(max_size=200), min_size=8, max_size=8), count=st.integers(0, 3000))
@settings(max_examples=100, deadline=None)
def test_junk_is_refused_or_gives_as_many_words(encoding: Encoding, junk: list[bytes], count: int) -> None:
    streams = [memoryview(stream) for stream in junk[: encoding.streams(F32)]]
    try:
        found = encoding.decode(streams, count, F32, np.zeros(count, np.uint32))
    except CorruptError:
        return
    assert found.shape == (count,)
