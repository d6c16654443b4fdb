"""Element types: their words, and words as numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chunks import chunks, random_bits, special_words
from hypothesis import given
from safetensors.numpy import save

from regatta.errors import UsageError
from regatta.store.format.dtypes import (
    DTYPES,
    array_from,
    dtype_named,
    dtype_of,
    floats_of,
    words_from,
    words_of,
    words_of_floats,
)

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"])
def test_names_are_those_of_safetensors(name: str) -> None:
    array = np.zeros(3, name)
    assert f'"dtype":"{dtype_of(array).name}"'.encode() in save({"a": array})


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.numpy is not None], ids=lambda d: d.name)
def test_arrays_survive_the_conversion_to_words(dtype) -> None:
    rng = np.random.default_rng(0)
    array = (rng.integers(0, 2, (3, 5)) * rng.standard_normal((3, 5))).astype(dtype.numpy)
    words = words_of(array)
    assert words.dtype == dtype.word and len(words) == array.size * dtype.lanes
    assert words.tobytes() == array.tobytes()
    assert array_from(words, dtype, (3, 5)).tobytes() == array.tobytes()
    assert array_from(words, dtype, (3, 5)).dtype == array.dtype


def test_words_are_in_c_order_and_little_endian_whatever_the_array_is() -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4)
    plain = np.ascontiguousarray(array).astype("<f4")
    assert dtype_of(array).name == "F32"
    assert words_of(array).tobytes() == plain.tobytes()
    assert words_of(array.T).tobytes() == plain.T.tobytes()
    assert words_of(array[::2, ::-1]).tobytes() == plain[::2, ::-1].tobytes()


def test_words_of_a_contiguous_array_are_not_copied() -> None:
    array = np.zeros((4, 4), np.float32)
    assert np.shares_memory(words_of(array), array)


def test_empty_and_scalar_arrays_have_words() -> None:
    assert len(words_of(np.zeros((0, 3), np.float32))) == 0
    assert len(words_of(np.float64(1.5).reshape(()))) == 1


def test_a_buffer_with_half_an_element_is_refused() -> None:
    with pytest.raises(UsageError, match="7 bytes does not hold whole elements of F32"):
        words_from(b"1234567", DTYPES["F32"])
    assert len(words_from(b"12345678", DTYPES["C64"])) == 2
    with pytest.raises(UsageError, match="C64"):
        words_from(b"1234", DTYPES["C64"])


def test_unknown_types_are_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="BF16"):
        dtype_named("bf16")
    with pytest.raises(UsageError, match="datetime64"):
        dtype_of(np.zeros(2, "datetime64[s]"))


@pytest.mark.parametrize("name", TORCH)
def test_every_word_is_the_number_that_torch_says(name: str) -> None:
    dtype = DTYPES[name]
    rng = np.random.default_rng(1)
    every = np.arange(1 << min(16, dtype.bits), dtype=np.uint64).astype(dtype.word)
    words = every if dtype.bits <= 16 else np.concatenate([special_words(dtype), random_bits(dtype, 5000, rng)])
    signed = torch.from_numpy(words.view(f"i{dtype.width_bytes}").copy())
    wide = torch.float64 if dtype.bits == 64 else torch.float32
    expected = signed.view(TORCH[name]).to(wide).numpy()
    found = floats_of(words, dtype)
    assert found.dtype == (np.float64 if dtype.bits == 64 else np.float32)
    np.testing.assert_array_equal(found, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(expected)[numbers])


@pytest.mark.parametrize("name", ["F64", "F32", "F16", "BF16"])
def test_numbers_are_rounded_as_torch_rounds_them(name: str) -> None:
    rng = np.random.default_rng(2)
    ties = np.ldexp(rng.integers(0, 1 << 20, 4000).astype(np.float32), rng.integers(-60, 20, 4000))
    values = np.concatenate([ties, rng.standard_normal(4000), [0.0, -0.0, np.inf, -np.inf]]).astype(np.float32)
    expected = torch.from_numpy(values).to(TORCH[name])
    words = words_of_floats(values, DTYPES[name])
    assert torch.equal(
        torch.from_numpy(words.view(f"i{words.itemsize}").copy()),
        expected.view(getattr(torch, f"int{8 * words.itemsize}")),
    )
    assert np.isnan(floats_of(words_of_floats(np.array([np.nan, -np.nan]), DTYPES[name]), DTYPES[name])).all()


@given(chunks())
def test_words_from_their_own_bytes_are_the_same_words(chunk) -> None:
    dtype, words, _ = chunk
    words = words[: len(words) // dtype.lanes * dtype.lanes]
    assert np.array_equal(words_from(words.tobytes(), dtype), words)
