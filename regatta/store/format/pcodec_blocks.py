"""Numbers by pcodec, with the words that end in zero bits coded apart from the others.

Weights that were made in float16 or bfloat16 and are kept as float32 end in zero bits: the whole tensor, or the rows
that later training never touched. Each block of BLOCK_WORDS words is handled by itself. The zero bits that all its
words end in are not stored, and blocks with equally many are coded together.

    stream      0, then the numbers
                1, then a bundle: the zero bits of each block; the numbers of blocks with the fewest; the next; ...
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

BLOCK_WORDS = 64
_WORTH = 4  # fewer zero bits, or fewer blocks, are not worth a group
_WHOLE, _IN_BLOCKS = b"\0", b"\1"


def encode(bits: Words, dtype: DType) -> list[bytes]:
    # One block per row; the last block is padded with zeros.
    missing = -len(bits) % BLOCK_WORDS
    table = (np.append(bits, np.zeros(missing, bits.dtype)) if missing else bits).reshape(-1, BLOCK_WORDS)
    zeros = _final_zeros(table)
    if not zeros.any():
        return [_WHOLE + codecs.encode_values(bits.view(_number(dtype)))]
    groups = [codecs.encode_bytes(zeros)]
    for final in np.unique(zeros):
        groups.append(codecs.encode_values(_shortened(table[zeros == final].ravel(), int(final), dtype)))
    return [_IN_BLOCKS + codecs.join_streams(groups)]


def decode(streams: Sequence[memoryview], dtype: DType, out: Words) -> None:
    stream = streams[0]
    if stream[:1] == _WHOLE:
        codecs.decode_values_into(stream[1:], out.view(_number(dtype)))
    elif stream[:1] == _IN_BLOCKS:
        _decode_in_blocks(stream[1:], dtype, out)
    else:
        raise CorruptError(f"A stream of numbers starts with {bytes(stream[:1])!r}, which is not 0 or 1.")


def _decode_in_blocks(stream: memoryview, dtype: DType, out: Words) -> None:
    first, *groups = codecs.split_streams(stream, dtype.bits + 2) or [memoryview(b"")]
    zeros = codecs.decode_bytes(first, -(-len(out) // BLOCK_WORDS))
    kinds = np.unique(zeros)
    if len(kinds) != len(groups) or int(zeros.max(initial=0)) > dtype.bits:
        raise CorruptError(f"There are {len(groups)} groups of blocks, not {len(kinds)}.")
    table = np.empty((len(zeros), BLOCK_WORDS), dtype.word) if len(out) % BLOCK_WORDS else out.reshape(-1, BLOCK_WORDS)
    for final, group in zip(kinds, groups, strict=True):
        blocks = np.flatnonzero(zeros == final)
        table[blocks] = _lengthened(group, len(blocks) * BLOCK_WORDS, int(final), dtype).reshape(-1, BLOCK_WORDS)
    if len(out) % BLOCK_WORDS:
        out[:] = table.ravel()[: len(out)]


def _final_zeros(table: Words) -> Zeros:
    """The zero bits that all words of each block end in; 0 where a group of such blocks would not pay."""
    union = np.bitwise_or.reduce(table, axis=1)
    zeros = np.zeros(len(union), np.uint8)
    for place in range(8 * union.dtype.itemsize):
        zeros += union << union.dtype.type(8 * union.dtype.itemsize - 1 - place) == 0
    counts = np.bincount(zeros)
    rare = np.flatnonzero((counts < _WORTH) | (np.arange(len(counts)) < _WORTH))
    # Replace rare numbers of zero bits by the next lower number that is not rare.
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
    """The shortest unsigned integers that hold the remaining bits of the words."""
    left = max(1, dtype.bits - zeros)
    return np.dtype(f"<u{next(width for width in (1, 2, 4, 8) if left <= 8 * width)}")


def _number(dtype: DType) -> np.dtype[Any]:
    """The type that pcodec reads words as. It sorts by bits alone, so float16 also stands for bfloat16."""
    kind = {"float": "f" if dtype.planes > 1 else "u", "signed": "i", "unsigned": "u"}[dtype.kind]
    return np.dtype(f"<{kind}{dtype.width_bytes}")
