"""Lossy schemes, chosen by name: each keeps fewer bits of every weight.

    float16, bfloat16     the nearest number of that type, ties to even; NaN and infinities stay what they are
    fixed-k               fixed point with k bits, sign included: multiples of the least power of two at which the
                          largest weight still fits; the error is at most half of that power
    uniform-k             2^k values at equal distances from the smallest weight to the largest; the error is at most
                          half a distance
    random-k              2^k of the weights, drawn at random, so more where weights are dense; each weight becomes
                          the nearest of them

Decoding returns the type that was encoded. Encoding the result again with the same scheme changes nothing, so a store
keeps, and names, the weights after the loss. The power of two and the values belong to a chunk and are in its stream.
Fixed point and quantization cannot represent NaN, infinities and minus zero. They refuse the first two and turn minus
zero into zero, unless the chunk has at most 2^k distinct values, which are then kept unchanged.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.errors import CorruptError, UsageError
from regatta.store.format import codecs
from regatta.store.format.dtypes import DTYPES, DType, Words, floats_of, words_of_floats

EncodeFunction: TypeAlias = Callable[[Words, DType], list[bytes]]
DecodeFunction: TypeAlias = Callable[[Sequence[memoryview], DType, Words], None]
Floats: TypeAlias = NDArray[np.floating[Any]]
Table: TypeAlias = Callable[[Words, Floats, int], Floats]

FIXED_BITS = range(2, 25)
QUANTIZED_BITS = range(1, 9)
_STEP = struct.Struct("<h")  # the exponent of fixed point's power of two


def schemes() -> Iterator[tuple[int, str, EncodeFunction, DecodeFunction]]:
    """Number, name, encoder and decoder of every scheme."""
    for number, name, target in ((16, "float16", "F16"), (17, "bfloat16", "BF16")):
        to = DTYPES[target]
        yield number, name, partial(_encode_cast, to=to), partial(_decode_cast, to=to)
    for bits in FIXED_BITS:
        yield 32 + bits, f"fixed-{bits}", partial(_encode_fixed, digits=bits), partial(_decode_fixed, digits=bits)
    for bits in QUANTIZED_BITS:
        decoder = partial(_decode_quantized, digits=bits)
        yield 64 + bits, f"uniform-{bits}", partial(_encode_quantized, digits=bits, table=_even_values), decoder
        yield 80 + bits, f"random-{bits}", partial(_encode_quantized, digits=bits, table=_drawn_values), decoder


def _encode_cast(bits: Words, dtype: DType, to: DType) -> list[bytes]:
    values = _floats(bits, dtype, to.name)
    cast = words_of_floats(values, to)
    lost = np.isinf(floats_of(cast, to)) & np.isfinite(values)
    if lost.any():
        raise UsageError(
            f"The weight {values[lost][0]} is out of the range of {to.name}.",
            hint="Store these weights as they are" + (", or as bfloat16." if to.name == "F16" else "."),
        )
    return [codecs.encode_values(cast.view(np.float16))]


def _decode_cast(streams: Sequence[memoryview], dtype: DType, out: Words, to: DType) -> None:
    cast = codecs.decode_values(streams[0], len(out), np.dtype("<f2")).view(to.word)
    out[:] = words_of_floats(floats_of(cast, to), dtype)


def _encode_fixed(bits: Words, dtype: DType, digits: int) -> list[bytes]:
    if digits > dtype.mantissa_bits + 2:
        raise UsageError(f"{dtype.name} has at most {dtype.mantissa_bits + 2} bits of fixed point, not {digits}.")
    values = _finite_floats(bits, dtype, f"fixed-{digits}")
    most = (1 << (digits - 1)) - 1
    step = _step(float(np.abs(values).max(initial=0)), most, dtype)
    codes = np.clip(np.rint(np.ldexp(values, -step)), -most, most).astype(np.int32)
    with np.errstate(over="ignore"):
        beyond = np.isinf(floats_of(words_of_floats(np.ldexp(codes.astype(np.float64), step), dtype), dtype))
    codes[beyond] -= np.sign(codes[beyond])
    return [_STEP.pack(step) + codecs.encode_values(codes)]


def _step(largest: float, most: int, dtype: DType) -> int:
    """The exponent of the least power of two such that `most` times it reaches the largest weight."""
    if largest == 0:
        return 0
    fraction, exponent = math.frexp(largest)
    whole, extra = math.frexp(most)
    step = exponent - extra + (fraction > whole)
    least = 2 - (1 << (dtype.exponent_bits - 1)) - dtype.mantissa_bits  # the exponent of the type's least number
    return max(step, least)


def _decode_fixed(streams: Sequence[memoryview], dtype: DType, out: Words, digits: int) -> None:
    stream = streams[0]
    if len(stream) < _STEP.size:
        raise CorruptError(f"A fixed-point stream of {len(stream)} bytes has no exponent.")
    (step,) = _STEP.unpack(stream[: _STEP.size])
    codes = codecs.decode_values(stream[_STEP.size :], len(out), np.dtype("<i4"))
    with np.errstate(over="ignore", under="ignore"):
        out[:] = words_of_floats(np.ldexp(codes.astype(np.float64), step), dtype)


def _encode_quantized(bits: Words, dtype: DType, digits: int, table: Table) -> list[bytes]:
    values = _finite_floats(bits, dtype, f"{digits}-bit quantization").astype(np.float64)
    kept = np.unique(bits)
    if len(kept) <= 1 << digits:
        codes = kept.searchsorted(bits)
    else:
        rounded = words_of_floats(table(bits, values, 1 << digits), dtype)
        levels = np.unique(floats_of(rounded, dtype).astype(np.float64))
        kept = words_of_floats(levels + 0.0, dtype)
        codes = (levels[1:] / 2 + levels[:-1] / 2).searchsorted(values)
    return [codecs.join_streams([kept.tobytes(), codecs.encode_bytes(codes.astype(np.uint8), thorough=True)])]


def _decode_quantized(streams: Sequence[memoryview], dtype: DType, out: Words, digits: int) -> None:
    parts = codecs.split_streams(streams[0], 2)
    if len(parts) != 2 or len(parts[0]) % dtype.width_bytes or len(parts[0]) > dtype.width_bytes << digits:
        raise CorruptError(f"A {digits}-bit quantized stream has {len(parts)} parts, or too long a table of codes.")
    table = np.frombuffer(parts[0], dtype.word)
    codes = codecs.decode_bytes(parts[1], len(out))
    if len(out) and int(codes.max()) >= len(table):
        raise CorruptError(f"A quantized stream holds the code {codes.max()}; its table has {len(table)} values.")
    out[:] = table[codes]


def _even_values(bits: Words, values: Floats, count: int) -> Floats:
    share = np.arange(count) / (count - 1)
    even: Floats = values.min() * (1 - share) + values.max() * share
    return even


def _drawn_values(bits: Words, values: Floats, count: int) -> Floats:
    """Some of the values; always the same ones for the same chunk."""
    draw = np.random.default_rng(zlib.crc32(bits.data))
    return draw.choice(values, count, replace=False)


def _finite_floats(bits: Words, dtype: DType, scheme: str) -> Floats:
    values = _floats(bits, dtype, scheme)
    if not np.isfinite(values).all():
        raise UsageError(
            f"{scheme} has no code for NaN and infinities, and there are some.",
            hint="Store these weights as they are, or as float16 or bfloat16.",
        )
    return values


def _floats(bits: Words, dtype: DType, scheme: str) -> Floats:
    if dtype.kind != "float" or dtype.planes == 1:
        raise UsageError(f"{scheme} is a scheme for floats of 16 bits or more, not for {dtype.name}.")
    return floats_of(bits, dtype)
