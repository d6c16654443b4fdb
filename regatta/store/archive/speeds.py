"""Measures once how fast this machine decodes tensors, which gives the recreation costs of all candidate edges."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from regatta.store.format.dtypes import CHUNK_WORDS, DType, Words, dtype_named
from regatta.store.format.encodings import ENCODINGS, Encoding

_LIKE = {1: "F8_E4M3", 2: "BF16", 4: "F32", 8: "F64"}  # the type that represents all types of its width
_WORDS = CHUNK_WORDS // 4
_REPEATS = 3


@dataclass(frozen=True)
class Speeds:
    """Bytes per second: of decoding by encoding and word width, and of reading from here and from the remote."""

    decode: Mapping[tuple[int, int], float]
    read: float = 2e9
    per_tensor: float = 5e-5  # seconds to look up a tensor of any size
    remote: float = 5e7
    per_request: float = 0.05  # seconds until the remote answers

    def recreation(self, encoding: int, dtype: DType, count: int, stored: float, remote: float = 0.0) -> float:
        """Seconds to read and decode `count` words, given their base; `remote` of the bytes are at the remote."""
        speed = self.decode.get((encoding, dtype.width_bytes), self.read)
        near = self.per_tensor + (stored - remote) / self.read + count * dtype.width_bytes / speed
        return near + (self.per_request + remote / self.remote if remote else 0.0)


@lru_cache(maxsize=1)
def measured_speeds() -> Speeds:
    """Decoding speeds of one thread, the best of a few repeats, on synthetic weights and a synthetic training step.

    Reading assumes that files are in the system's cache; callers that know the speed of their disk pass it.
    """
    return Speeds(
        {
            (encoding.id, width): _decoding_speed(encoding, dtype_named(name))
            for encoding in ENCODINGS.values()
            if not encoding.lossy
            for width, name in _LIKE.items()
        }
    )


def _decoding_speed(encoding: Encoding, dtype: DType) -> float:
    # Weights after and before a training step.
    random = np.random.default_rng(1)
    before = random.normal(0, 0.05, _WORDS)
    after = before + random.normal(0, 0.001, _WORDS)
    words, base = _top_words(after, dtype), _top_words(before, dtype)
    against = base if encoding.needs_base else None
    streams = [memoryview(stream) for stream in encoding.encode(words, dtype, against)]
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.thread_time()  # which does not count what other processes take
        encoding.decode(streams, len(words), dtype, against)
        best = min(best, time.thread_time() - start)
    return float(words.nbytes / max(best, 1e-9))


def _top_words(values: np.ndarray[tuple[int], np.dtype[np.float64]], dtype: DType) -> Words:
    """Numbers cut to their leading bits: similar enough to any type of this width to time its decoding."""
    if dtype.width_bytes == 8:
        return values.view(np.uint64)
    words = values.astype(np.float32).view(np.uint32) >> np.uint32(32 - 8 * dtype.width_bytes)
    return words.astype(dtype.word)
