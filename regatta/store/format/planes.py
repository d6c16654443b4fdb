"""Byte planes: the words of a chunk cut into bytes, the most significant byte of every word first.

The bits of a float are first put into plane order, with the sign after the exponent:

    F32     s eeeeeeee mmmmmmm...   ->   eeeeeeee | s mmmmmmm | mmmmmmmm | mmmmmmmm

Plane 0 is then the whole exponent, which compresses well. The other planes are sign and mantissa, which do not.
Integers already are in plane order. Plane order is the same permutation of bits for every word, so the bits that the
leading planes determine are the same in every word: `known_bits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.store.format import codecs
from regatta.store.format.dtypes import DType, Words, floats_of

Bounds: TypeAlias = tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]

_NARROWER: dict[int, np.dtype[Any]] = {8: np.dtype("<u4"), 4: np.dtype("<u2"), 2: np.dtype("u1")}


def encode(bits: Words, dtype: DType) -> list[bytes]:
    """A stream for each byte plane, leading plane first."""
    matching = dtype.kind != "float"
    return [codecs.encode_bytes(plane, matching=matching) for plane in split(bits, dtype)]


def decode(streams: Sequence[memoryview], dtype: DType, out: Words) -> None:
    """The words of the leading planes, one plane per stream; the bits of the other planes are zero."""
    known = [codecs.decode_bytes(stream, len(out)) for stream in streams]
    join([*known, *[None] * (dtype.planes - len(known))], dtype, out)


def split(bits: Words, dtype: DType) -> list[Words]:
    """The byte planes of the words, leading plane first."""
    if not is_rotated(dtype):
        return cut(bits)
    if dtype.width_bytes == 2:
        return _split_top(bits, dtype)
    if dtype.width_bytes == 4:
        return _split_top(_high(bits), dtype) + cut(bits.astype("<u2"))
    high = _high(bits)
    return _split_top(_high(high), dtype) + cut(high.astype("<u2")) + cut(bits.astype("<u4"))


def join(planes: Sequence[Words | None], dtype: DType, out: Words) -> None:
    """The words made of these planes; planes that are None give zero bits."""
    if not is_rotated(dtype):
        return paste(planes, out)
    leading, second, *rest = planes
    top = _join_top(leading, second, dtype)
    return paste([top, *(_widen(*pair) for pair in zip(rest[::2], rest[1::2], strict=True))], out)


def is_rotated(dtype: DType) -> bool:
    """Whether plane order differs from the order of bits in a word."""
    return dtype.kind == "float" and dtype.planes > 1


def cut(words: Words) -> list[Words]:
    """The bytes of the words, most significant first; halved repeatedly, since narrow words are cheap to scan."""
    if words.dtype.itemsize == 1:
        return [words]
    return cut(_high(words)) + cut(words.astype(_NARROWER[words.dtype.itemsize]))


def paste(parts: Sequence[Words | None], out: Words) -> None:
    """The words made of these parts, most significant first; None stands for zeros."""
    level = [*parts]
    while len(level) > 2:
        level = [_widen(high, low) for high, low in zip(level[::2], level[1::2], strict=True)]
    high, low = level if len(level) == 2 else (None, level[0])
    _put_together(high, low, out)


def _put_together(high: Words | None, low: Words | None, out: Words) -> None:
    out[:] = 0 if high is None else high
    if high is not None:
        out <<= out.dtype.type(8 * high.dtype.itemsize)
    if low is not None:
        out |= low


def _high(words: Words) -> Words:
    narrow = _NARROWER[words.dtype.itemsize]
    return (words >> words.dtype.type(8 * narrow.itemsize)).astype(narrow)


def _widen(high: Words | None, low: Words | None) -> Words | None:
    known = low if high is None else high
    if known is None:
        return None
    words: Words = np.empty(len(known), f"<u{2 * known.dtype.itemsize}")
    _put_together(high, low, words)
    return words


def _split_top(top: Words, dtype: DType) -> list[Words]:
    """The two leading planes, from the top 16 bits of floats."""
    if dtype.exponent_bits != 8:
        return cut(to_plane_order(top, dtype))
    second: Words = top.astype(np.uint8)
    second &= np.uint8(0x7F)
    second |= _high(top) & np.uint8(0x80)
    return [(top >> np.uint16(7)).astype(np.uint8), second]


def _join_top(leading: Words | None, second: Words | None, dtype: DType) -> Words | None:
    """The inverse of `_split_top`."""
    if leading is None or second is None or dtype.exponent_bits != 8:
        ordered = _widen(leading, second)
        return ordered if ordered is None else from_plane_order(ordered, dtype)
    top: Words = second.view(np.int8).astype(np.int16).view(np.uint16)  # sign-extended, so the sign is in place
    top &= np.uint16(0x807F)
    exponent = leading.astype(np.uint16)
    exponent <<= np.uint16(7)
    top |= exponent
    return top


def to_plane_order(words: Words, dtype: DType) -> Words:
    """The words of floats, or their top 16 bits, with the sign after the exponent."""
    if not is_rotated(dtype):
        return words
    one, places = words.dtype.type, 8 * words.dtype.itemsize
    exponent, mantissa = _fields(dtype, places)
    ordered: Words = words << one(1)
    ordered &= one(exponent << 1)
    sign = words >> one(places - 1)
    sign <<= one(places - 1 - dtype.exponent_bits)
    ordered |= sign
    ordered |= words & one(mantissa)
    return ordered


def from_plane_order(ordered: Words, dtype: DType) -> Words:
    """The inverse of `to_plane_order`."""
    if not is_rotated(dtype):
        return ordered
    one, places = ordered.dtype.type, 8 * ordered.dtype.itemsize
    exponent, mantissa = _fields(dtype, places)
    words: Words = ordered >> one(1)
    words &= one(exponent)
    sign = ordered << one(dtype.exponent_bits)
    sign &= one(1 << (places - 1))
    words |= sign
    words |= ordered & one(mantissa)
    return words


def _fields(dtype: DType, places: int) -> tuple[int, int]:
    """The masks of exponent and mantissa in the top `places` bits of a float."""
    mantissa = (1 << (places - 1 - dtype.exponent_bits)) - 1
    return (1 << (places - 1)) - 1 - mantissa, mantissa


def known_bits(dtype: DType, planes: int) -> int:
    """The mask of the bits of a word that its leading planes determine."""
    known, word = np.full(1, 255, np.uint8), np.empty(1, dtype.word)
    join([known if number < planes else None for number in range(dtype.planes)], dtype, word)
    return int(word[0])


def leading(bits: Words, planes: int, dtype: DType) -> Words:
    """The bits of the leading planes; the others are zero."""
    return bits & dtype.word.type(known_bits(dtype, planes))


def bounds(bits: Words, planes: int, dtype: DType) -> Bounds:
    """The least and the greatest number that each word can be, given its leading planes.

    The bounds are exact: float32 where that holds every number of the type, else float64. (64-bit integers that
    float64 does not hold are rounded outwards.) Where a word may be a number or a NaN, the bounds are those of the
    numbers. Where it must be a NaN, both bounds are NaN.
    """
    unknown = dtype.word.type((1 << dtype.bits) - 1 - known_bits(dtype, planes))
    bits = bits & ~unknown
    if dtype.kind != "float":
        flip = dtype.word.type((1 << (dtype.bits - 1)) if dtype.kind == "signed" else 0)
        least = (bits ^ flip) & ~unknown  # in the order of the numbers
        greatest = least | unknown
        return _rounded(least ^ flip, dtype, -np.inf), _rounded(greatest ^ flip, dtype, np.inf)
    sign = dtype.word.type(1 << (dtype.bits - 1))
    magnitude: Words = bits & ~sign
    largest = magnitude
    if unknown:
        largest = np.minimum(magnitude | (unknown & ~sign), np.maximum(magnitude, dtype.greatest))
    if unknown & sign:
        return floats_of(largest | sign, dtype), floats_of(largest, dtype)
    near, far = floats_of(bits, dtype), floats_of((bits & sign) | largest, dtype)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return np.minimum(near, far), np.maximum(near, far)


def _rounded(words: Words, dtype: DType, towards: float) -> NDArray[np.floating[Any]]:
    """Integers as floats, rounded in one direction if they do not fit."""
    values = floats_of(words, dtype)
    if dtype.bits < 64:
        return values
    one_less = floats_of(words & ~np.uint64(0x7FF), dtype)  # exact: 53 bits at most
    rest = (words & np.uint64(0x7FF)).astype(np.float64)
    error = rest - (values - one_less)  # exact: what rounding to nearest took away
    wrong = error < 0 if towards < 0 else error > 0
    values[wrong] = np.nextafter(values[wrong], towards)
    return values
