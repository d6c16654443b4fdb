"""Lossy schemes: how far off they are, what they refuse, and that a second time changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from chunks import KINDS, seeds, weights
from hypothesis import assume, given
from hypothesis import strategies as st

from regatta.errors import CorruptError, UsageError
from regatta.store.format import codecs
from regatta.store.format.dtypes import DTYPES, Words, floats_of, words_of, words_of_floats
from regatta.store.format.encodings import ENCODINGS, Encoding, encoding_named

SCHEMES = [encoding for encoding in ENCODINGS.values() if encoding.lossy]
FLOATS = [dtype for dtype in DTYPES.values() if dtype.kind == "float" and dtype.planes > 1]
F32, BF16 = DTYPES["F32"], DTYPES["BF16"]


def kept(encoding: Encoding, words: Words, dtype=F32) -> Words:
    """What a scheme leaves of these words."""
    streams = [memoryview(stream) for stream in encoding.encode(words, dtype, None)]
    assert len(streams) == 1
    return encoding.decode(streams, len(words), dtype, None)


def layer(count: int = 4000) -> Words:
    return weights(F32, count, np.random.default_rng(6))


def test_there_are_casts_fixed_point_and_both_quantizations() -> None:
    names = {scheme.name for scheme in SCHEMES}
    expected = {"float16", "bfloat16"} | {f"fixed-{k}" for k in range(2, 25)}
    assert names == expected | {f"{kind}-{k}" for kind in ("uniform", "random") for k in range(1, 9)}
    assert not any(scheme.needs_base or scheme.progressive for scheme in SCHEMES)


@given(st.sampled_from(SCHEMES), st.sampled_from(FLOATS), st.sampled_from(KINDS), st.integers(0, 3000), seeds)
def test_a_second_time_changes_nothing(scheme, dtype, kind, count: int, seed: int) -> None:
    words = kind(dtype, count, np.random.default_rng(seed))
    try:
        once = kept(scheme, words, dtype)
    except UsageError:
        assume(False)
    assert once.dtype == dtype.word and len(once) == count
    assert np.array_equal(kept(scheme, once, dtype), once)


def test_casts_round_to_the_nearest() -> None:
    words = layer()
    for name, dtype in (("float16", DTYPES["F16"]), ("bfloat16", BF16)):
        expected = floats_of(words_of_floats(floats_of(words, F32), dtype), dtype)
        np.testing.assert_array_equal(floats_of(kept(encoding_named(name), words), F32), expected)
    third = words_of(np.array([1 / 3], np.float32))
    assert floats_of(kept(encoding_named("bfloat16"), third), F32)[0] == np.float32(0.333984375)


def test_casts_keep_nan_and_infinities() -> None:
    words = words_of(np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], np.float32))
    for name in ("float16", "bfloat16"):
        found = floats_of(kept(encoding_named(name), words), F32)
        np.testing.assert_array_equal(found, floats_of(words, F32))
        assert np.signbit(found).tolist()[1:] == [False, True, True, False]


@pytest.mark.parametrize("digits", [2, 3, 8, 12, 16, 24])
def test_fixed_point_is_off_by_half_a_step_at_most(digits: int) -> None:
    words = layer()
    values, found = (
        floats_of(w, F32).astype(np.float64) for w in (words, kept(encoding_named(f"fixed-{digits}"), words))
    )
    most = 2 ** (digits - 1) - 1
    step = 2.0 ** np.ceil(np.log2(np.abs(values).max() / most))
    assert np.abs(values - found).max() <= step / 2
    assert np.abs(found / step).max() <= most and np.array_equal(found / step, np.rint(found / step))


@pytest.mark.parametrize("digits", range(1, 9))
def test_uniform_quantization_is_off_by_half_a_distance_at_most(digits: int) -> None:
    words = layer()
    values, found = floats_of(words, F32), floats_of(kept(encoding_named(f"uniform-{digits}"), words), F32)
    distance = (values.max() - values.min()) / (2**digits - 1)
    assert np.abs(values - found).max() <= distance / 2 * 1.0001
    assert len(np.unique(found)) <= 2**digits
    assert found.min() == values.min() and found.max() == values.max()


@pytest.mark.parametrize("digits", range(1, 9))
def test_random_quantization_takes_the_nearest_of_some_weights(digits: int) -> None:
    words = layer()
    values, found = floats_of(words, F32), floats_of(kept(encoding_named(f"random-{digits}"), words), F32)
    table = np.unique(found)
    assert len(table) <= 2**digits and np.isin(table, values).all()
    nearest = np.abs(values[:, None] - table).min(axis=1)
    np.testing.assert_array_equal(np.abs(values - found), nearest)
    assert np.array_equal(
        kept(encoding_named(f"random-{digits}"), words), kept(encoding_named(f"random-{digits}"), words)
    )


def test_fewer_bits_take_less_space() -> None:
    words = layer(2**16)
    sizes = [len(encoding_named(f"uniform-{k}").encode(words, F32, None)[0]) for k in (8, 6, 4, 2)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] < len(words) and sizes[-1] < len(words) / 8 * 2.1
    fixed = [len(encoding_named(f"fixed-{k}").encode(words, F32, None)[0]) for k in (16, 12, 8)]
    assert fixed == sorted(fixed, reverse=True)


def test_few_distinct_values_are_kept_including_minus_zero() -> None:
    words = words_of(np.resize(np.array([-0.0, 0.0, 1.5, -2.25], np.float32), 500))
    for name in ("uniform-2", "random-2"):
        assert np.array_equal(kept(encoding_named(name), words), words)


@pytest.mark.parametrize("name", ["fixed-8", "uniform-4", "random-4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_without_a_code_are_refused(name: str, bad: float) -> None:
    values = floats_of(layer(100), F32).copy()
    values[50] = bad
    with pytest.raises(UsageError, match="no code for NaN and infinities"):
        encoding_named(name).encode(words_of(values), F32, None)


def test_numbers_out_of_the_range_of_a_cast_are_refused() -> None:
    with pytest.raises(UsageError, match=r"70000\.0 is out of the range of F16") as caught:
        encoding_named("float16").encode(words_of(np.array([1, 70000], np.float32)), F32, None)
    assert caught.value.hint is not None and "bfloat16" in caught.value.hint
    with pytest.raises(UsageError, match="out of the range of BF16"):
        encoding_named("bfloat16").encode(words_of(np.array([1e300])), DTYPES["F64"], None)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
@pytest.mark.parametrize("name", ["I32", "BOOL", "F8_E4M3"])
def test_types_that_are_not_floats_are_refused(scheme: Encoding, name: str) -> None:
    with pytest.raises(UsageError, match=r"floats of 16 bits or more|bits of fixed point"):
        scheme.encode(np.zeros(3, DTYPES[name].word), DTYPES[name], None)


def test_more_digits_than_a_type_has_are_refused() -> None:
    assert len(kept(encoding_named("fixed-9"), weights(BF16, 100, np.random.default_rng(0)), BF16)) == 100
    with pytest.raises(UsageError, match="BF16 has at most 9 bits"):
        encoding_named("fixed-10").encode(np.zeros(3, np.uint16), BF16, None)


@pytest.mark.parametrize("name", ["fixed-2", "fixed-8", "fixed-24"])
def test_fixed_point_holds_at_both_ends_of_the_range(name: str) -> None:
    largest, least = np.finfo(np.float32).max, np.float32(2**-149)
    for extreme in (largest, -largest, least):
        words = words_of(np.array([extreme, 0, extreme / 3], np.float32))
        found = kept(encoding_named(name), words)
        assert np.isfinite(floats_of(found, F32)).all()
        assert np.array_equal(kept(encoding_named(name), found), found)


def test_hostile_codes_are_refused() -> None:
    codes = codecs.encode_bytes(np.full(100, 3, np.uint8))
    table = np.zeros(3, np.uint32).tobytes()
    for parts in ([table, codes], [table], [table, codes, b""], [table[:-1], codes], [bytes(4 * 17), codes]):
        with pytest.raises(CorruptError):
            encoding_named("uniform-4").decode([memoryview(codecs.join_streams(parts))], 100, F32, None)
    with pytest.raises(CorruptError, match="no exponent"):
        encoding_named("fixed-8").decode([memoryview(b"\1")], 100, F32, None)
