"""Chunks of words to encode: like weights, unlike anything, and full of the floats that are easily lost."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from regatta.store.format.dtypes import CHUNK_WORDS, DTYPES, DType, Words, words_of_floats

LENGTHS = (0, 1, 2, 63, 64, 65, 255, 1000, 4096, 5001)
EDGES = (0, 1, 63, 64, CHUNK_WORDS)

dtypes = st.sampled_from([*DTYPES.values()])
seeds = st.integers(0, 2**32 - 1)
lengths = st.one_of(st.sampled_from(LENGTHS), st.integers(0, 9000))


def random_bits(dtype: DType, count: int, rng: np.random.Generator) -> Words:
    return np.frombuffer(rng.bytes(count * dtype.width_bytes), dtype.word)


def weights(dtype: DType, count: int, rng: np.random.Generator) -> Words:
    """Numbers as a layer has them; for integers, small ones."""
    if dtype.kind == "float" and dtype.planes > 1:
        return words_of_floats(rng.standard_normal(count) * 0.05, dtype)
    return rng.integers(0, 9, count).astype(dtype.word)


def special_words(dtype: DType) -> Words:
    """Zero, minus zero, the least subnormals, infinities, NaN of both signs and several payloads, all ones."""
    top = 1 << (dtype.bits - 1)
    infinity = ((1 << dtype.exponent_bits) - 1) << dtype.mantissa_bits if dtype.kind == "float" else top - 1
    patterns = {0, 1, 2, top, top + 1, infinity, infinity + 1, infinity - 1, top + infinity, top - 1, 2 * top - 1}
    return np.array([pattern % (2 * top) for pattern in sorted(patterns)], np.uint64).astype(dtype.word)


def special(dtype: DType, count: int, rng: np.random.Generator) -> Words:
    return rng.choice(special_words(dtype), count).astype(dtype.word)


def mixed(dtype: DType, count: int, rng: np.random.Generator) -> Words:
    """Weights, one in ten of them special."""
    words = weights(dtype, count, rng).copy()
    places = rng.random(count) < 0.1
    words[places] = special(dtype, int(places.sum()), rng)
    return words


def constant(dtype: DType, count: int, rng: np.random.Generator) -> Words:
    return np.repeat(random_bits(dtype, 1, rng), count)


def sparse(dtype: DType, count: int, rng: np.random.Generator) -> Words:
    words = weights(dtype, count, rng).copy()
    words[rng.random(count) < 0.95] = 0
    return words


KINDS = (random_bits, weights, special, mixed, constant, sparse)


def nearby(words: Words, dtype: DType, rng: np.random.Generator) -> Words:
    """Words as a step of training leaves them: most a little different, runs of them more than others."""
    reach = 1 << max(1, dtype.bits // 3)
    step = (
        rng.integers(-reach, reach, len(words)) >> np.repeat(rng.integers(0, 8, len(words) // 64 + 1), 64)[: len(words)]
    )
    return words + step.astype(np.int64).view(np.uint64).astype(dtype.word)


@st.composite
def chunks(draw: Any, dtypes: st.SearchStrategy[DType] = dtypes) -> tuple[DType, Words, Words]:
    """An element type, a chunk of it, and a base."""
    dtype, rng = draw(dtypes), np.random.default_rng(draw(seeds))
    words = draw(st.sampled_from(KINDS))(dtype, draw(lengths), rng)
    related = draw(st.sampled_from(("near", "same", "other")))
    if related == "same":
        return dtype, words, words.copy()
    if related == "near":
        return dtype, words, nearby(words, dtype, rng)
    return dtype, words, mixed(dtype, len(words), rng)
