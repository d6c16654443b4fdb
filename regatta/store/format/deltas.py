"""Deltas: a chunk as its difference to the same chunk of another tensor, the base.

Floats are never subtracted as floats, because b + (a - b) is not always a. Their bits are subtracted as integers that
wrap around, which is exact for NaN payloads, infinities and both zeros. The bits of floats of one sign are ordered by
magnitude, so near numbers have small differences. Where the sign changes, the difference is half the range.
(Putting both signs into one order first would cost six more passes over a chunk, and bytes as well.)

    xor               the bits that differ, in byte planes                           exact in leading planes alone
    subtract          pcodec or a Huffman code models the differences                the fastest to decode
    subtract grouped  the same; elements with similar differences share a model      the smallest
    subtract planes   each byte plane subtracted by itself, in the same groups       exact in leading planes alone

Groups. A training step changes large and small weights by about the same amount. Near a small weight more floats lie
within that amount, so the exponent of the base predicts the size of the difference. Consecutive weights, mostly of
one neuron, change similarly: each block of BLOCK_WORDS elements has a scale, which is stored where that pays. Exponent
and scale give the key of an element. Elements are sorted by key and cut into groups, and each group is coded by
itself. The decoder knows the base and the scales, so it knows the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.errors import CorruptError
from regatta.store.format import codecs, planes
from regatta.store.format.dtypes import DType, Words

Keys: TypeAlias = NDArray[np.uint8]
Differences: TypeAlias = NDArray[np.signedinteger[Any]]
Order: TypeAlias = NDArray[np.int64]

BLOCK_WORDS = 64
_KEYS = 128
_MAX_SCALE = _KEYS // 2 - 1  # the limit of both the distance of exponents and the scale
_CENTRE = 128  # the code of no difference in a plane: small steps up and down have neighbouring codes
_SAMPLE_EVERY = 7  # one element in seven is looked at to decide whether scales pay
_MIN_GROUP_WORDS = 2048  # in smaller groups pcodec's tables cost more than they save


def difference(bits: Words, base: Words) -> Differences:
    """The words minus their base, wrapping around."""
    return (bits - base).view(f"<i{bits.dtype.itemsize}")


def encode_xor(bits: Words, dtype: DType, base: Words) -> list[bytes]:
    return planes.encode(bits ^ base, dtype)


def decode_xor(streams: Sequence[memoryview], dtype: DType, base: Words, out: Words) -> None:
    """The words of the leading planes, one plane per stream; the base must be known in the same planes."""
    planes.decode(streams, dtype, out)
    out ^= base
    _keep_leading(out, len(streams), dtype)


def encode_subtract(bits: Words, dtype: DType, base: Words) -> list[bytes]:
    return [codecs.encode_values(difference(bits, base), quick=True)]


def decode_subtract(streams: Sequence[memoryview], dtype: DType, base: Words, out: Words) -> None:
    codecs.decode_values_into(streams[0], out.view(_signed(dtype)))
    out += base


def encode_grouped(bits: Words, dtype: DType, base: Words) -> list[bytes]:
    gaps = difference(bits, base)
    groups = _group(gaps, base, dtype)
    return [codecs.join_streams([*groups.header, *map(codecs.encode_values, groups.cut(gaps))])]


def decode_grouped(streams: Sequence[memoryview], dtype: DType, base: Words, out: Words) -> None:
    groups, parts = _regroup(streams[0], dtype, base)
    gaps = np.empty(len(base), _signed(dtype))
    for part, room in zip(parts, groups.rooms(gaps), strict=True):
        codecs.decode_values_into(part, room)
    groups.restore(gaps.view(dtype.word), out)
    out += base


def encode_subtract_planes(bits: Words, dtype: DType, base: Words) -> list[bytes]:
    groups = _group(difference(bits, base), base, dtype)
    gaps = _without_carry(planes.to_plane_order(bits, dtype), planes.to_plane_order(base, dtype), np.subtract)
    header: list[bytes] = [*groups.header]
    streams = []
    for plane in planes.cut(groups.sort(gaps)):
        plane ^= np.uint8(_CENTRE)
        parts = [codecs.encode_bytes(room, thorough=True) for room in groups.rooms(plane)]
        streams.append(codecs.join_streams(header + parts))
        header = []
    return streams


def decode_subtract_planes(streams: Sequence[memoryview], dtype: DType, base: Words, out: Words) -> None:
    """The words of the leading planes, one plane per stream; the base must be known in the same planes."""
    groups, first = _regroup(streams[0], dtype, base)
    known: list[Words | None] = []
    for number, parts in enumerate([first, *(codecs.split_streams(stream, _KEYS) for stream in streams[1:])]):
        if len(parts) != len(groups.sizes):
            raise CorruptError(f"Plane {number} of a delta has {len(parts)} groups, not {len(groups.sizes)}.")
        decoded = [codecs.decode_bytes(part, size) for part, size in zip(parts, groups.sizes, strict=True)]
        known.append(np.concatenate(decoded) ^ np.uint8(_CENTRE))
    # No plane carries into another: two planes of wide words are computed in their top 16 bits, in half the time.
    narrow = len(known) <= 2 < dtype.planes
    below = dtype.word.type(max(0, dtype.bits - 16))
    width = 2 if narrow else dtype.planes
    against = (base >> below).astype("<u2") if narrow else base
    gaps = np.empty(len(base), against.dtype)
    planes.paste([*known, *[None] * (width - len(known))], gaps)
    sorted_back = np.empty_like(gaps) if narrow else out
    groups.restore(gaps, sorted_back)
    words = _without_carry(sorted_back, planes.to_plane_order(against, dtype), np.add)
    out[:] = planes.from_plane_order(words, dtype)
    if narrow:
        out <<= below
    _keep_leading(out, len(streams), dtype)


def _keep_leading(words: Words, known: int, dtype: DType) -> None:
    """Zero the bits after the leading planes, where the base may have set some."""
    if known < dtype.planes:
        words &= dtype.word.type(planes.known_bits(dtype, known))


def _without_carry(first: Words, second: Words, operation: np.ufunc) -> Words:
    """An operation on each byte separately."""
    result: Words = operation(first.view(np.uint8), second.view(np.uint8)).view(first.dtype)
    return result


@dataclass(frozen=True)
class _DeltaGroups:
    """The groups of a chunk: the order of its elements, the sizes of the groups, and the header that stores both."""

    order: Order | None  # None if there is one group
    sizes: Sequence[int]
    header: tuple[bytes, bytes] = (b"", b"")

    def sort(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self.order is None else values.take(self.order)

    def restore(self, values: Words, out: Words) -> None:
        """The inverse of `sort`."""
        out[slice(None) if self.order is None else self.order] = values

    def rooms(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """The groups of sorted values, as views."""
        ends = np.cumsum(self.sizes)
        return [values[end - size : end] for size, end in zip(self.sizes, ends, strict=True)]

    def cut(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        return self.rooms(self.sort(values))


def _group(gaps: Differences, base: Words, dtype: DType) -> _DeltaGroups:
    if len(gaps) < 2 * _MIN_GROUP_WORDS or not gaps.any():
        return _DeltaGroups(None, [len(gaps)], (b"", np.array([len(gaps)], "<u4").tobytes()))
    distance = _distances(base, dtype)
    lengths = _bit_lengths(gaps)
    scales = _scales(lengths, distance)
    keys, header = distance, b""
    if scales is not None:
        scaled, stream = _scaled(distance, scales), codecs.encode_bytes(scales)
        if _bits_of(lengths, scaled) + 8 * len(stream) < _bits_of(lengths, distance):
            keys, header = scaled, stream
    sizes = _sizes(np.bincount(keys, minlength=_KEYS))
    order = keys.argsort(kind="stable") if len(sizes) > 1 else None
    return _DeltaGroups(order, sizes, (header, np.array(sizes, "<u4").tobytes()))


def _regroup(stream: memoryview, dtype: DType, base: Words) -> tuple[_DeltaGroups, list[memoryview]]:
    """The groups that a stream describes, and the stream of each."""
    bundle = codecs.split_streams(stream, _KEYS + 2)
    if len(bundle) < 3 or len(bundle[1]) != 4 * (len(bundle) - 2):
        raise CorruptError(f"A grouped delta has {len(bundle)} parts, and the sizes of its groups are missing.")
    scales, packed, *parts = bundle
    sizes = [int(size) for size in np.frombuffer(packed, "<u4")]
    if sum(sizes) != len(base):
        raise CorruptError(f"The groups of a delta hold {sum(sizes)} elements, not {len(base)}.")
    if len(sizes) == 1:
        return _DeltaGroups(None, sizes), parts
    keys = _distances(base, dtype)
    if len(scales):
        keys = _scaled(keys, codecs.decode_bytes(scales, -(-len(base) // BLOCK_WORDS)))
    return _DeltaGroups(keys.argsort(kind="stable"), sizes), parts


def _distances(base: Words, dtype: DType) -> Keys:
    """How far each exponent is below the greatest, as far as the leading plane says; zeros for integers."""
    if dtype.kind != "float":
        return np.zeros(len(base), np.uint8)
    kept = min(dtype.exponent_bits, 8 if dtype.planes > 1 else 7)
    shift = dtype.word.type(dtype.bits - 1 - kept)
    exponents = (base >> shift).astype(np.uint8)
    if kept < 8:
        exponents &= np.uint8((1 << kept) - 1)
    greatest = exponents.max(initial=1)
    distances: Keys = np.clip(greatest - np.clip(exponents, np.uint8(1), greatest), np.uint8(0), np.uint8(_MAX_SCALE))
    return distances


def _bit_lengths(gaps: Differences) -> NDArray[np.int16]:
    """The lengths of the differences in bits, approximate for those that a float32 does not hold exactly."""
    magnitude = np.abs(gaps).view(f"u{gaps.itemsize}").astype(np.float32)
    exponents = (magnitude.view(np.uint32) >> np.uint32(23)).astype(np.int16)
    return np.clip(exponents, np.int16(126), np.int16(254)) - np.int16(126)


def _scales(lengths: NDArray[np.int16], distance: Keys) -> NDArray[np.uint8] | None:
    """How many bits longer than in other blocks the differences of each block are; None if all are alike."""
    excess = lengths - distance
    whole = len(excess) // BLOCK_WORDS * BLOCK_WORDS
    means = excess[:whole].reshape(-1, BLOCK_WORDS).mean(axis=1, dtype=np.float32)
    if whole < len(excess):
        means = np.append(means, excess[whole:].mean(dtype=np.float32))
    scales = np.rint(means - np.median(means))
    scales -= scales.min()
    return np.minimum(scales, _MAX_SCALE).astype(np.uint8) if scales.any() else None


def _scaled(distance: Keys, scales: NDArray[np.uint8]) -> Keys:
    if int(scales.max()) > _MAX_SCALE:
        raise CorruptError(f"A delta has a block with the scale {scales.max()}; the greatest is {_MAX_SCALE}.")
    whole = len(distance) // BLOCK_WORDS * BLOCK_WORDS
    keys = np.empty_like(distance)
    np.add(
        distance[:whole].reshape(-1, BLOCK_WORDS),
        scales[: whole // BLOCK_WORDS, None],
        out=keys[:whole].reshape(-1, BLOCK_WORDS),
    )
    keys[whole:] = distance[whole:] + scales[-1]
    return keys


def _bits_of(lengths: NDArray[np.int16], keys: Keys) -> float:
    """The entropy of the differences' lengths given their keys: the part of the cost that the keys decide."""
    some = slice(None, None, _SAMPLE_EVERY)
    joint = np.bincount(keys[some].astype(np.intp) << 7 | lengths[some], minlength=_KEYS << 7).reshape(_KEYS, 128)
    return _SAMPLE_EVERY * (_entropy(joint.ravel()) - _entropy(joint.sum(axis=1)))


def _entropy(counts: NDArray[np.intp]) -> float:
    """-n log n summed over the counts, up to a constant."""
    positive = counts[counts > 0].astype(np.float64)
    return float(-(positive * np.log2(positive)).sum())


def _sizes(counts: NDArray[np.intp]) -> list[int]:
    """The sizes of groups: consecutive keys are merged until a group is large enough."""
    sizes: list[int] = [0]
    for count in counts:
        if sizes[-1] >= _MIN_GROUP_WORDS:
            sizes.append(0)
        sizes[-1] += int(count)
    if len(sizes) > 1 and sizes[-1] < _MIN_GROUP_WORDS:
        last = sizes.pop()
        sizes[-1] += last
    return sizes


def _signed(dtype: DType) -> np.dtype[np.signedinteger[Any]]:
    return np.dtype(f"<i{dtype.width_bytes}")
