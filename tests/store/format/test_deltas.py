"""Deltas: exact, small where chunks are related, grouped as the text says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from chunks import chunks, special_words
from hypothesis import given

from regatta.errors import CorruptError
from regatta.store.format import codecs, deltas
from regatta.store.format.dtypes import DTYPES, floats_of, words_of_floats

F32, BF16 = DTYPES["F32"], DTYPES["BF16"]
COUNT = 2**17


def trained(dtype, uneven: bool = False, count: int = COUNT):
    """Weights after a step and before: changed by as much whether large or small; if uneven, some neurons by more."""
    rng = np.random.default_rng(5)
    before = rng.standard_normal(count) * 0.05
    rates = np.repeat(np.exp2(rng.integers(-6, 1, count // 512)), 512) if uneven else 1
    return words_of_floats(before + 2e-4 * rates * rng.standard_normal(count), dtype), words_of_floats(before, dtype)


def size(encode, words, dtype, base) -> int:
    return sum(map(len, encode(words, dtype, base)))


def decoded(decode, streams, dtype, base):
    words = np.empty_like(base)
    decode(streams, dtype, base, words)
    return words


@given(chunks())
def test_differences_and_base_give_the_words(chunk) -> None:
    dtype, words, base = chunk
    gaps = deltas.difference(words, base)
    assert gaps.dtype == f"i{dtype.width_bytes}"
    assert np.array_equal(base + gaps.view(dtype.word), words)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda d: d.name)
def test_every_pair_of_special_words_is_exact(dtype) -> None:
    special = special_words(dtype)
    words, base = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(special, special))
    for encode, decode in (
        (deltas.encode_xor, deltas.decode_xor),
        (deltas.encode_subtract, deltas.decode_subtract),
        (deltas.encode_grouped, deltas.decode_grouped),
        (deltas.encode_subtract_planes, deltas.decode_subtract_planes),
    ):
        streams = [memoryview(stream) for stream in encode(words, dtype, base)]
        assert np.array_equal(decoded(decode, streams, dtype, base), words)


def test_float_subtraction_would_not_be_exact() -> None:
    after, before = (floats_of(words, F32) for words in trained(F32))
    assert (before + (after - before) != after).any()


@pytest.mark.parametrize("dtype", [F32, BF16], ids=lambda d: d.name)
def test_groups_are_smaller_than_no_groups_and_those_smaller_than_xor(dtype) -> None:
    after, before = trained(dtype)
    xor = size(deltas.encode_xor, after, dtype, before)
    plain = size(deltas.encode_subtract, after, dtype, before)
    grouped = size(deltas.encode_grouped, after, dtype, before)
    planes = size(deltas.encode_subtract_planes, after, dtype, before)
    assert grouped < 0.985 * plain and plain < 0.985 * xor
    assert grouped < planes < xor


def test_scales_are_stored_only_if_neurons_learn_at_different_rates() -> None:
    after, before = trained(F32)
    assert deltas._group(deltas.difference(after, before), before, F32).header[0] == b""
    after, before = trained(F32, uneven=True)
    groups = deltas._group(deltas.difference(after, before), before, F32)
    assert (
        len(codecs.decode_bytes(memoryview(groups.header[0]), COUNT // deltas.BLOCK_WORDS))
        == COUNT // deltas.BLOCK_WORDS
    )
    gaps = deltas.difference(after, before)
    without = deltas._DeltaGroups(None, [COUNT], (b"", b""))
    cost = sum(len(codecs.encode_values(part)) for part in groups.cut(gaps)) + len(groups.header[0])
    assert cost < 0.97 * sum(len(codecs.encode_values(part)) for part in without.cut(gaps))


def test_elements_of_a_group_have_neighbouring_exponents() -> None:
    after, before = trained(F32)
    groups = deltas._group(deltas.difference(after, before), before, F32)
    exponents = (before >> 23 & 255).astype(int)
    ranges = [(part.max(), part.min()) for part in groups.cut(exponents)]
    assert len(ranges) > 4 and min(groups.sizes) >= 2048 and sum(groups.sizes) == COUNT
    assert all(low >= high for (_, low), (high, _) in pairwise(ranges))
    assert all(high == low for high, low in ranges[1:-1])


def test_a_chunk_without_change_takes_a_few_bytes() -> None:
    words, _ = trained(F32, count=2**18)
    assert size(deltas.encode_subtract, words, F32, words) == 4
    assert size(deltas.encode_xor, words, F32, words) == 4
    assert size(deltas.encode_grouped, words, F32, words) < 30
    assert size(deltas.encode_subtract_planes, words, F32, words) < 50


def test_leading_planes_need_only_the_same_planes_of_the_base() -> None:
    after, before = trained(F32, uneven=True)
    streams = [memoryview(s) for s in deltas.encode_subtract_planes(after, F32, before)]
    for known, mask in ((1, 0x7F800000), (2, 0xFFFF0000), (3, 0xFFFFFF00)):
        part = decoded(deltas.decode_subtract_planes, streams[:known], F32, before & np.uint32(mask))
        assert np.array_equal(part, after & np.uint32(mask))


def rebundled(change):
    """The stream of a grouped delta with its parts changed, and what it is decoded with."""
    after, before = trained(F32, uneven=True)
    (stream,) = deltas.encode_grouped(after, F32, before)
    parts = [bytes(part) for part in codecs.split_streams(memoryview(stream), 130)]
    return [memoryview(codecs.join_streams(change(parts)))], before


def with_sizes(parts, change):
    sizes = np.frombuffer(parts[1], "<u4").copy()
    change(sizes)
    return [parts[0], sizes.tobytes(), *parts[2:]]


def grow(sizes) -> None:
    sizes[0] = 2**32 - 1


def shift(sizes) -> None:
    sizes[0] += 1
    sizes[1] -= 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda parts: parts[:1], "parts"),
        (lambda parts: parts[:-1], "sizes of its groups"),
        (lambda parts: [*parts, b"more"], "sizes of its groups"),
        (lambda parts: with_sizes(parts, grow), "elements, not"),
        (lambda parts: with_sizes(parts, shift), "pcodec|stream"),
        (lambda parts: [bytes(len(parts[0])), *parts[1:]], "zstd|codec|claims|stream"),
        (lambda parts: [b"\xff", *parts[1:]], "scale 255"),
    ],
)
def test_inconsistent_groups_are_refused(change, complaint: str) -> None:
    streams, base = rebundled(change)
    with pytest.raises(CorruptError, match=complaint):
        decoded(deltas.decode_grouped, streams, F32, base)


def test_planes_with_other_groups_are_refused() -> None:
    after, before = trained(F32)
    streams = [memoryview(s) for s in deltas.encode_subtract_planes(after, F32, before)]
    with pytest.raises(CorruptError, match="Plane 1 of a delta has 0 groups"):
        decoded(deltas.decode_subtract_planes, [streams[0], memoryview(b"")], F32, before)
