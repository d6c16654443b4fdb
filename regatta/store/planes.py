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


def split(bits: Words, dtype: DType) -> list[Words]:
    """The byte planes of the words, leading plane first."""
    return [plane(bits, dtype, number) for number in range(dtype.planes)]


def plane(bits: Words, dtype: DType, number: int) -> Words:
    """One byte plane of the words."""
    if not is_rotated(dtype):
        return _byte(bits, dtype, number)
    # The truncating cast keeps the low byte: the exponent, or as much of it as one plane takes.
    left = dtype.bits - 8 * (number + 1)
    sign = dtype.mantissa_bits  # where plane order puts the sign
    if left > sign:
        return (bits >> (left - 1)).astype(np.uint8)
    if left + 8 <= sign:
        return _byte(bits, dtype, number)
    return _plane_of_sign(bits, dtype, left)


def _byte(bits: Words, dtype: DType, number: int) -> Words:
    """One byte of the words as they are, counted from the most significant."""
    shift = dtype.bits - 8 * (number + 1)
    return (bits >> shift).astype(np.uint8) if shift else bits.astype(np.uint8)


def _plane_of_sign(bits: Words, dtype: DType, left: int) -> Words:
    """The plane where exponent, sign and mantissa meet: the bits above the sign are one place off."""
    sign = 1 << (dtype.mantissa_bits - left)
    above, below = 0x100 - 2 * sign, sign - 1
    joined = _byte(bits, dtype, dtype.planes - 1 - left // 8) & np.uint8(below)
    if above:
        joined |= (bits >> (left - 1)).astype(np.uint8) & np.uint8(above)
    joined |= (bits >> (dtype.bits - 8)).astype(np.uint8) >> np.uint8(7) << np.uint8(dtype.mantissa_bits - left)
    return joined


def is_rotated(dtype: DType) -> bool:
    """Whether plane order differs from the order of the bits in a word."""
    return dtype.kind == "float" and dtype.planes > 1


def join(planes: Sequence[Words], count: int, dtype: DType) -> Words:
    """The words of which these are the leading planes; the bits of the others are zero."""
    ordered = np.zeros(count, dtype.word)
    for number, values in enumerate(planes):
        shift = dtype.bits - 8 * (number + 1)
        ordered |= values.astype(dtype.word) << dtype.word.type(shift)
    return from_plane_order(ordered, dtype) if is_rotated(dtype) else ordered


def to_plane_order(bits: Words, dtype: DType) -> Words:
    """The words with their sign moved behind the exponent."""
    one = dtype.word.type
    mantissa = (1 << dtype.mantissa_bits) - 1
    exponent = ((1 << dtype.exponent_bits) - 1) << (dtype.mantissa_bits + 1)
    sign = (bits >> one(dtype.bits - 1)) << one(dtype.mantissa_bits)
    ordered: Words = (bits & one(mantissa)) | ((bits << one(1)) & one(exponent)) | sign
    return ordered


def from_plane_order(ordered: Words, dtype: DType) -> Words:
    """The inverse of `to_plane_order`."""
    one = dtype.word.type
    mantissa = (1 << dtype.mantissa_bits) - 1
    exponent = ((1 << dtype.exponent_bits) - 1) << dtype.mantissa_bits
    sign = ((ordered >> one(dtype.mantissa_bits)) & one(1)) << one(dtype.bits - 1)
    bits: Words = (ordered & one(mantissa)) | ((ordered >> one(1)) & one(exponent)) | sign
    return bits


def known_bits(dtype: DType, planes: int) -> int:
    """The mask of the bits of a word that its leading planes tell."""
    unknown = 8 * (dtype.planes - planes)
    mask = (1 << dtype.bits) - (1 << unknown)
    if not is_rotated(dtype):
        return mask
    return int(from_plane_order(np.array([mask], dtype.word), dtype)[0])


def leading(bits: Words, planes: int, dtype: DType) -> Words:
    """The bits of the leading planes, the others zero."""
    return bits & dtype.word.type(known_bits(dtype, planes))


def bounds(bits: Words, planes: int, dtype: DType) -> Bounds:
    """The least and the greatest number that each word can be, given the leading planes of it.

    Exact, as float32 where that holds every number of the type, else as float64 (64-bit integers beyond 2^53 are
    rounded outwards). Where the planes leave room for a NaN beside numbers, the bounds are those of the numbers; where
    they tell that it is a NaN, both bounds are NaN.
    """
    unknown = dtype.word.type((1 << dtype.bits) - 1 - known_bits(dtype, planes))
    bits = bits & ~unknown
    if dtype.kind != "float":
        return _integer_bounds(bits, unknown, dtype)
    sign = dtype.word.type(1 << (dtype.bits - 1))
    magnitude = bits & ~sign
    largest = magnitude
    if unknown:  # Infinity, unless the known bits are a NaN's already. No type with hidden bits lacks infinities.
        infinity = dtype.word.type(((1 << dtype.exponent_bits) - 1) << dtype.mantissa_bits)
        largest = np.minimum(magnitude | (unknown & ~sign), np.maximum(infinity, magnitude))
    if unknown & sign:
        return floats_of(largest | sign, dtype), floats_of(largest, dtype)
    near, far = floats_of(bits, dtype), floats_of((bits & sign) | largest, dtype)
    return np.minimum(near, far), np.maximum(near, far)


def _integer_bounds(bits: Words, unknown: Any, dtype: DType) -> Bounds:
    flip = dtype.word.type((1 << (dtype.bits - 1)) if dtype.kind == "signed" else 0)
    least = (bits ^ flip) & ~unknown  # in the order of the numbers
    lower, upper = floats_of(least ^ flip, dtype), floats_of((least | unknown) ^ flip, dtype)
    if dtype.bits < 64:
        return lower, upper
    return np.nextafter(lower, -np.inf), np.nextafter(upper, np.inf)
