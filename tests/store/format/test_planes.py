"""Byte planes: what they hold, and what a few of them tell."""

from __future__ import annotations

import numpy as np
import pytest
from chunks import chunks, random_bits, special_words, weights
from hypothesis import given
from hypothesis import strategies as st

from regatta.errors import CorruptError
from regatta.store.format import planes
from regatta.store.format.dtypes import DTYPES, floats_of, words_of

ALL = pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda d: d.name)


def test_planes_of_a_float32_are_its_exponent_its_sign_with_the_mantissa_and_the_rest() -> None:
    sign, exponent, mantissa = 1, 0b1000_0011, 0b101_0001_1100_1010_0011_0101
    word = np.array([sign << 31 | exponent << 23 | mantissa], np.uint32)
    found = [int(plane[0]) for plane in planes.split(word, DTYPES["F32"])]
    assert found == [exponent, sign << 7 | mantissa >> 16, mantissa >> 8 & 255, mantissa & 255]


def test_planes_of_other_floats_have_the_sign_behind_the_exponent() -> None:
    half = np.array([0b1_10101_1100110011], np.uint16)
    assert [f"{int(p[0]):08b}" for p in planes.split(half, DTYPES["F16"])] == ["10101111", "00110011"]
    double = np.array([1 << 63 | 0b10101010111 << 52 | 0xABCDEF0123456], np.uint64)
    ordered = 0b10101010111 << 53 | 1 << 52 | 0xABCDEF0123456
    assert bytes(int(p[0]) for p in planes.split(double, DTYPES["F64"])) == ordered.to_bytes(8, "big")


def test_planes_of_integers_are_their_bytes() -> None:
    word = np.array([0x0123456789ABCDEF], np.uint64)
    assert bytes(int(p[0]) for p in planes.split(word, DTYPES["I64"])) == bytes.fromhex("0123456789abcdef")


def joined(parts, count: int, dtype):
    words = np.empty(count, dtype.word)
    planes.join(parts, dtype, words)
    return words


@given(chunks())
def test_join_undoes_split(chunk) -> None:
    dtype, words, _ = chunk
    assert np.array_equal(joined(planes.split(words, dtype), len(words), dtype), words)
    ordered = planes.to_plane_order(words, dtype)
    assert np.array_equal(planes.from_plane_order(ordered, dtype), words)
    assert [p.tobytes() for p in planes.cut(ordered)] == [p.tobytes() for p in planes.split(words, dtype)]
    again = np.empty_like(words)
    planes.paste(planes.cut(words), again)
    assert np.array_equal(again, words)


@given(chunks(), st.data())
def test_leading_planes_are_the_known_bits(chunk, data) -> None:
    dtype, words, _ = chunk
    known = data.draw(st.integers(0, dtype.planes))
    parts = planes.split(words, dtype)[:known] + [None] * (dtype.planes - known)
    assert np.array_equal(joined(parts, len(words), dtype), planes.leading(words, known, dtype))
    assert bin(planes.known_bits(dtype, known)).count("1") == 8 * known


@ALL
def test_zero_planes_decode_to_zeros(dtype) -> None:
    words = np.ones(5, dtype.word)
    planes.decode([], dtype, words)
    assert not words.any()
    with pytest.raises(CorruptError):
        planes.decode([memoryview(b"")] * dtype.planes, dtype, words)


@ALL
@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_every_number_and_are_reached(dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = np.concatenate([random_bits(dtype, 2000, rng), weights(dtype, 500, rng), special_words(dtype)])
    values = floats_of(words, dtype)
    numbers = ~np.isnan(values)
    for known in range(dtype.planes + 1):
        lower, upper = planes.bounds(words, known, dtype)
        assert lower.dtype == upper.dtype == values.dtype
        assert (lower[numbers] <= values[numbers]).all() and (values[numbers] <= upper[numbers]).all()
        _assert_reached(lower, words, known, dtype)
        _assert_reached(upper, words, known, dtype)


def _assert_reached(bound, words, known: int, dtype) -> None:
    """A bound is the number of some word with the same leading planes, so nothing tighter holds."""
    if dtype.kind != "float":
        return
    reaching = words_of(bound) if dtype.bits >= 32 else _lookup(bound, dtype)
    mask = dtype.word.type(planes.known_bits(dtype, known))
    same = (reaching & mask) == (words & mask)
    assert (same | np.isnan(bound) | (bound == 0)).all()  # which zero it is, is all one


def _lookup(values, dtype):
    """The words of these numbers, from a table of all words of the type."""
    numbers = enumerate(floats_of(_every(dtype), dtype).tolist())
    table = {value: word for word, value in numbers if value == value}
    return np.array([table.get(value, 0) for value in values.tolist()], dtype.word)


def _every(dtype):
    return np.arange(1 << dtype.bits, dtype=np.uint64).astype(dtype.word)


def test_bounds_of_all_planes_are_the_number_itself() -> None:
    values = np.array([1.5, -0.1, 0.0, np.inf, np.nan], np.float32)
    lower, upper = planes.bounds(words_of(values), 4, DTYPES["F32"])
    np.testing.assert_array_equal(lower, values)
    np.testing.assert_array_equal(upper, values)


def test_the_sign_of_a_float32_is_in_the_second_plane() -> None:
    words = words_of(np.array([1.75, -1.75], np.float32))
    lower, upper = planes.bounds(words, 1, DTYPES["F32"])
    largest = np.float32(2) - np.float32(2**-23)
    assert lower.tolist() == [-largest, -largest] and upper.tolist() == [largest, largest]
    lower, upper = planes.bounds(words, 2, DTYPES["F32"])
    assert (lower < 0).tolist() == [False, True]
    assert np.allclose(upper - lower, 2**-7, rtol=1e-3)


def test_a_nan_beside_numbers_leaves_the_bounds_of_the_numbers() -> None:
    nan = np.array([0x7F800001, 0xFFC00000], np.uint32)
    lower, upper = planes.bounds(nan, 2, DTYPES["F32"])
    assert lower[0] == upper[0] == np.inf  # infinity, or a NaN
    assert np.isnan(lower[1]) and np.isnan(upper[1])


@pytest.mark.parametrize("name", ["I64", "U64"])
def test_bounds_of_long_integers_are_rounded_outwards_and_by_no_more_than_needed(name: str) -> None:
    dtype = DTYPES[name]
    exact = [0, 1, -1, 2**53, 2**53 + 1, 2**62 + 1, 2**63 - 1, -(2**63), -(2**53) - 1]
    integers = [value if name == "I64" else value % 2**64 for value in exact]
    words = np.array([value % 2**64 for value in integers], np.uint64)
    for value, lower, upper in zip(integers, *planes.bounds(words, 8, dtype), strict=True):
        assert int(lower) <= value <= int(upper)
        assert lower == upper if int(float(value)) == value else upper == np.nextafter(lower, np.inf)
