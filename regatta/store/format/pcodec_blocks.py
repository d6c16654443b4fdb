"""Numbers by pcodec, those that end in zeros apart from the others.

Weights that were made in float16 or bfloat16 and are kept as float32 end in zeros: all of a tensor, or the rows of it
that later training never touched. Each run of RUN words is looked at by itself: the zeros that all its words end in are
not stored, and the runs with equally many are coded together.

    stream      0, then the numbers
                1, then a bundle: the zeros of each run; the numbers of the runs with fewest zeros; of the next; ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.errors import CorruptError
from regatta.store.format import codecs
from regatta.store.format.dtypes import DType, Words

Zeros: TypeAlias = NDArray[np.uint8]

RUN = 64
_WORTH = 4  # fewer zeros, or in fewer runs, are not worth a group
_WHOLE, _IN_RUNS = b"\0", b"\1"


def encode(bits: Words, dtype: DType) -> list[bytes]:
    table = _in_runs(bits)
    zeros = _final_zeros(table)
    if not zeros.any():
        return [_WHOLE + codecs.encode_values(bits.view(_number(dtype)))]
    groups = [codecs.encode_bytes(zeros)]
    for final in np.unique(zeros):
        groups.append(codecs.encode_values(_shortened(table[zeros == final].ravel(), int(final), dtype)))
    return [_IN_RUNS + codecs.bundle(groups)]


def decode(streams: Sequence[memoryview], dtype: DType, out: Words) -> None:
    stream = streams[0]
    if stream[:1] == _WHOLE:
        codecs.decode_values_into(stream[1:], out.view(_number(dtype)))
    elif stream[:1] == _IN_RUNS:
        _decode_in_runs(stream[1:], dtype, out)
    else:
        raise CorruptError(f"A stream of numbers starts with {bytes(stream[:1])!r}, which is not 0 or 1.")


def _decode_in_runs(stream: memoryview, dtype: DType, out: Words) -> None:
    first, *groups = codecs.unbundle(stream, dtype.bits + 2) or [memoryview(b"")]
    zeros = codecs.decode_bytes(first, -(-len(out) // RUN))
    kinds = np.unique(zeros)
    if len(kinds) != len(groups) or int(zeros.max(initial=0)) > dtype.bits:
        raise CorruptError(f"There are numbers of {len(groups)} groups of runs, not of {len(kinds)}.")
    table = np.empty((len(zeros), RUN), dtype.word) if len(out) % RUN else out.reshape(-1, RUN)
    for final, group in zip(kinds, groups, strict=True):
        runs = np.flatnonzero(zeros == final)
        table[runs] = _lengthened(group, len(runs) * RUN, int(final), dtype).reshape(-1, RUN)
    if len(out) % RUN:
        out[:] = table.ravel()[: len(out)]


def _in_runs(bits: Words) -> Words:
    """The words, a run in each row; the last one is filled up with zeros."""
    missing = -len(bits) % RUN
    return (np.append(bits, np.zeros(missing, bits.dtype)) if missing else bits).reshape(-1, RUN)


def _final_zeros(table: Words) -> Zeros:
    """The zero bits that all words of each run end in; 0 where that is not worth a group of runs."""
    union = np.bitwise_or.reduce(table, axis=1)
    zeros = np.zeros(len(union), np.uint8)
    for place in range(8 * union.dtype.itemsize):
        zeros += union << union.dtype.type(8 * union.dtype.itemsize - 1 - place) == 0
    counts = np.bincount(zeros)
    rare = np.flatnonzero((counts < _WORTH) | (np.arange(len(counts)) < _WORTH))
    return _lowered(zeros, rare)


def _lowered(zeros: Zeros, rare: NDArray[np.intp]) -> Zeros:
    """The zeros of runs of a rare kind, counted as the next fewer that are not rare."""
    kinds = np.arange(256)
    kinds[rare] = 0
    return np.maximum.accumulate(kinds).astype(np.uint8)[zeros]


def _shortened(words: Words, zeros: int, dtype: DType) -> NDArray[Any]:
    if zeros == 0:
        return words.view(_number(dtype))
    shift = dtype.word.type(min(zeros, dtype.bits - 1))
    return (words >> shift).astype(_narrow(zeros, dtype))


def _lengthened(stream: memoryview, count: int, zeros: int, dtype: DType) -> Words:
    if zeros == 0:
        return codecs.decode_values(stream, count, _number(dtype)).view(dtype.word)
    shift = dtype.word.type(min(zeros, dtype.bits - 1))
    words: Words = codecs.decode_values(stream, count, _narrow(zeros, dtype)).astype(dtype.word) << shift
    return words


def _narrow(zeros: int, dtype: DType) -> np.dtype[Any]:
    """The shortest unsigned integers that hold what is left of the words."""
    left = max(1, dtype.bits - zeros)
    return np.dtype(f"<u{next(width for width in (1, 2, 4, 8) if left <= 8 * width)}")


def _number(dtype: DType) -> np.dtype[Any]:
    """What pcodec takes a word for. It sorts by bits alone, so that a float16 stands for a bfloat16 as well."""
    kind = {"float": "f" if dtype.planes > 1 else "u", "signed": "i", "unsigned": "u"}[dtype.kind]
    return np.dtype(f"<{kind}{dtype.width_bytes}")
