"""Byte planes: the words of a chunk cut into bytes, the most telling byte of every word first.

A float's bits are first put into plane order, sign behind exponent:

    F32     s eeeeeeee mmmmmmm...   ->   eeeeeeee | s mmmmmmm | mmmmmmmm | mmmmmmmm

so that plane 0 is the whole exponent, which compresses, and the planes after it are the sign and the mantissa, which
do not. Integers are in plane order as they are. Plane order is a permutation of the bits of a word, the same for every
word: what is known of a word when only its leading planes are is `known_bits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.store.dtypes import DType, Words, floats_of

Bounds: TypeAlias = tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]

_NARROWER: dict[int, np.dtype[Any]] = {8: np.dtype("<u4"), 4: np.dtype("<u2"), 2: np.dtype("u1")}


def split(bits: Words, dtype: DType) -> list[Words]:
    """The byte planes of the words, leading plane first."""
    if dtype.width_bytes == 1:
        return [bits]
    return _cut(bits, dtype)


def _cut(words: Words, dtype: DType, leading: bool = True) -> list[Words]:
    """Halves of halves: the narrower the words, the cheaper each pass over them; exponent and sign are on top."""
    if words.dtype.itemsize == 1:
        return [words]
    narrow = _NARROWER[words.dtype.itemsize]
    if words.dtype.itemsize == 2 and leading and dtype.kind == "float":
        words = _sign_behind_exponent(words, dtype)
    high = (words >> words.dtype.type(8 * narrow.itemsize)).astype(narrow)
    return _cut(high, dtype, leading) + _cut(words.astype(narrow), dtype, leading=False)


def join(planes: Sequence[Words | None], dtype: DType) -> Words:
    """The words of these planes; the bits of planes that are None are zero."""
    level: list[Words | None] = [*planes]
    while len(level) > 1:
        level = [_widen(high, low) for high, low in zip(level[::2], level[1::2], strict=True)]
        leading = level[0]
        if leading is not None and leading.dtype.itemsize == 2 and dtype.kind == "float":
            level[0] = _sign_before_exponent(leading, dtype)
    (words,) = level
    if words is None:
        raise ValueError("join needs at least one plane")
    return words


def _widen(high: Words | None, low: Words | None) -> Words | None:
    if high is None and low is None:
        return None
    first = high if high is not None else low
    assert first is not None
    wide = np.dtype(f"<u{2 * first.dtype.itemsize}")
    if high is None:
        return first.astype(wide)
    words: Words = high.astype(wide)
    words <<= wide.type(8 * first.dtype.itemsize)
    if low is not None:
        words |= low
    return words


def _sign_behind_exponent(top: Words, dtype: DType) -> Words:
    """The top 16 bits of floats in plane order."""
    exponent, mantissa = _masks_of_top(dtype)
    ordered: Words = top << np.uint16(1)
    ordered &= np.uint16(exponent << 1)
    sign = top >> np.uint16(15)
    sign <<= np.uint16(15 - dtype.exponent_bits)
    ordered |= sign
    ordered |= top & np.uint16(mantissa)
    return ordered


def _sign_before_exponent(ordered: Words, dtype: DType) -> Words:
    """The inverse of `_sign_behind_exponent`."""
    exponent, mantissa = _masks_of_top(dtype)
    top: Words = ordered >> np.uint16(1)
    top &= np.uint16(exponent)
    sign = ordered << np.uint16(dtype.exponent_bits)
    sign &= np.uint16(0x8000)
    top |= sign
    top |= ordered & np.uint16(mantissa)
    return top


def _masks_of_top(dtype: DType) -> tuple[int, int]:
    """Where the exponent and the mantissa lie in the top 16 bits of a float."""
    mantissa = (1 << (15 - dtype.exponent_bits)) - 1
    return 0x7FFF - mantissa, mantissa


def known_bits(dtype: DType, planes: int) -> int:
    """The mask of the bits of a word that its leading planes tell."""
    ones = np.full(1, 255, np.uint8)
    wanted = [ones if number < planes else None for number in range(dtype.planes)]
    return int(join(wanted, dtype)[0]) if planes else 0


def leading(bits: Words, planes: int, dtype: DType) -> Words:
    """The bits of the leading planes, the others zero."""
    return bits & dtype.word.type(known_bits(dtype, planes))


def bounds(bits: Words, planes: int, dtype: DType) -> Bounds:
    """The least and the greatest number that each word can be, given the leading planes of it.

    Exact, as float32 where that holds every number of the type, else as float64 (64-bit integers that float64 does not
    hold are rounded outwards). Where the planes leave room for a NaN beside numbers, the bounds are those of the
    numbers; where they tell that it is a NaN, both bounds are NaN.
    """
    unknown = dtype.word.type((1 << dtype.bits) - 1 - known_bits(dtype, planes))
    bits = bits & ~unknown
    if dtype.kind != "float":
        return _integer_bounds(bits, unknown, dtype)
    sign = dtype.word.type(1 << (dtype.bits - 1))
    magnitude: Words = bits & ~sign
    largest = magnitude
    if unknown:
        largest = np.minimum(magnitude | (unknown & ~sign), np.maximum(magnitude, dtype.greatest))
    if unknown & sign:
        return floats_of(largest | sign, dtype), floats_of(largest, dtype)
    near, far = floats_of(bits, dtype), floats_of((bits & sign) | largest, dtype)
    return np.minimum(near, far), np.maximum(near, far)


def _integer_bounds(bits: Words, unknown: Any, dtype: DType) -> Bounds:
    flip = dtype.word.type((1 << (dtype.bits - 1)) if dtype.kind == "signed" else 0)
    least = (bits ^ flip) & ~unknown  # in the order of the numbers
    greatest = least | unknown
    return _rounded(least ^ flip, dtype, -np.inf), _rounded(greatest ^ flip, dtype, np.inf)


def _rounded(words: Words, dtype: DType, towards: float) -> NDArray[np.floating[Any]]:
    """Integers as floats, rounded in one direction where they do not fit."""
    values = floats_of(words, dtype)
    if dtype.bits < 64:
        return values
    one_less = floats_of(words & ~np.uint64(0x7FF), dtype)  # exact: 53 bits at most
    rest = (words & np.uint64(0x7FF)).astype(np.float64)
    error = rest - (values - one_less)  # exact: what rounding to nearest took away
    wrong = error < 0 if towards < 0 else error > 0
    values[wrong] = np.nextafter(values[wrong], towards)
    return values
