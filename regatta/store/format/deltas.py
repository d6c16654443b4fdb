"""Deltas: a chunk as what has to be done to the same chunk of another tensor, its base.

Floats are never subtracted as floats: b + (a - b) is not a. Their bits are, as integers that wrap around: exact
whatever they stand for: NaN payloads, infinities, both zeros. The bits of floats of one sign are in the order of their
magnitudes, so that near numbers have small differences; where the sign changes, the difference is half the range away.
(Putting the bits of both signs into one order first costs six more passes over a chunk, and bytes as well.)

    xor               the bits that differ, in byte planes                           exact in leading planes alone
    subtract          pcodec, or a Huffman code, models the differences              the fastest to add up again
    subtract grouped  the same, elements with like differences modelled together     the smallest
    subtract planes   each byte plane subtracted by itself, in the same groups       exact in leading planes alone

Groups. A step of training changes a large weight and a small one by about as much, and the smaller the weight, the
more numbers lie in that much: the exponent of the base tells how large a difference will be. Weights that
follow one another, of one neuron mostly, change alike: each run of RUN elements has a scale, kept with the chunk where
that pays. Exponent and scale make the key of an element. The elements are sorted by key, cut into groups, and each
group is coded by itself. The decoder knows base and scales, so it knows the sorting.
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

RUN = 64
_KEYS = 128
_MOST = _KEYS // 2 - 1  # the greatest distance of exponents, and the greatest scale
_CENTRE = 128  # a difference of nothing, in planes: steps up and down are next to one another
_SAMPLED = 7  # one element in so many decides whether scales pay
_GROUP = 2048  # pcodec's tables cost more than fewer elements gain


def difference(bits: Words, base: Words) -> Differences:
    """How far the words are from their base; wraps around."""
    return (bits - base).view(f"<i{bits.dtype.itemsize}")


def encode_xor(bits: Words, dtype: DType, base: Words) -> list[bytes]:
    return planes.encode(bits ^ base, dtype)


def decode_xor(streams: Sequence[memoryview], dtype: DType, base: Words, out: Words) -> None:
    """The words of as many leading planes as there are streams; the base needs to be known in as many."""
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
    return [codecs.bundle([*groups.header, *map(codecs.encode_values, groups.cut(gaps))])]


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
        streams.append(codecs.bundle(header + parts))
        header = []
    return streams


def decode_subtract_planes(streams: Sequence[memoryview], dtype: DType, base: Words, out: Words) -> None:
    """The words of as many leading planes as there are streams; the base needs to be known in as many."""
    groups, first = _regroup(streams[0], dtype, base)
    known: list[Words | None] = [None] * dtype.planes
    for number, parts in enumerate([first, *(codecs.unbundle(stream, _KEYS) for stream in streams[1:])]):
        if len(parts) != len(groups.sizes):
            raise CorruptError(f"Plane {number} of a delta has {len(parts)} groups, not {len(groups.sizes)}.")
        decoded = [codecs.decode_bytes(part, size) for part, size in zip(parts, groups.sizes, strict=True)]
        known[number] = np.concatenate(decoded) ^ np.uint8(_CENTRE)
    gaps = np.empty(len(base), dtype.word)
    planes.paste(known, gaps)
    groups.restore(gaps, out)
    words = _without_carry(out, planes.to_plane_order(base, dtype), np.add)
    out[:] = planes.from_plane_order(words, dtype)
    _keep_leading(out, len(streams), dtype)


def _keep_leading(words: Words, known: int, dtype: DType) -> None:
    """Zero the bits behind the leading planes, where the base may have any."""
    if known < dtype.planes:
        words &= dtype.word.type(planes.known_bits(dtype, known))


def _without_carry(first: Words, second: Words, operation: np.ufunc) -> Words:
    """An operation on each byte by itself."""
    result: Words = operation(first.view(np.uint8), second.view(np.uint8)).view(first.dtype)
    return result


@dataclass(frozen=True)
class _Groups:
    """Which elements belong together: their order, the sizes of the groups in that order, and what tells both."""

    order: Order | None  # None where there is one group
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


def _group(gaps: Differences, base: Words, dtype: DType) -> _Groups:
    """Choose the groups for these differences."""
    if len(gaps) < 2 * _GROUP or not gaps.any():
        return _Groups(None, [len(gaps)], (b"", np.array([len(gaps)], "<u4").tobytes()))
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
    return _Groups(order, sizes, (header, np.array(sizes, "<u4").tobytes()))


def _regroup(stream: memoryview, dtype: DType, base: Words) -> tuple[_Groups, list[memoryview]]:
    """The groups that a stream tells of, and their own streams."""
    bundle = codecs.unbundle(stream, _KEYS + 2)
    if len(bundle) < 3 or len(bundle[1]) != 4 * (len(bundle) - 2):
        raise CorruptError(f"A delta in groups has {len(bundle)} parts, and does not tell the sizes of its groups.")
    scales, packed, *parts = bundle
    sizes = [int(size) for size in np.frombuffer(packed, "<u4")]
    if sum(sizes) != len(base):
        raise CorruptError(f"The groups of a delta hold {sum(sizes)} elements, not {len(base)}.")
    if len(sizes) == 1:
        return _Groups(None, sizes), parts
    keys = _distances(base, dtype)
    if len(scales):
        keys = _scaled(keys, codecs.decode_bytes(scales, -(-len(base) // RUN)))
    return _Groups(keys.argsort(kind="stable"), sizes), parts


def _distances(base: Words, dtype: DType) -> Keys:
    """How far below the greatest exponent each one is, as the leading plane tells it; zeros for integers."""
    if dtype.kind != "float":
        return np.zeros(len(base), np.uint8)
    kept = min(dtype.exponent_bits, 8 if dtype.planes > 1 else 7)
    shift = dtype.word.type(dtype.bits - 1 - kept)
    exponents = (base >> shift).astype(np.uint8)
    if kept < 8:
        exponents &= np.uint8((1 << kept) - 1)
    greatest = exponents.max(initial=1)
    distances: Keys = np.clip(greatest - np.clip(exponents, np.uint8(1), greatest), np.uint8(0), np.uint8(_MOST))
    return distances


def _bit_lengths(gaps: Differences) -> NDArray[np.int16]:
    """The binary digits of the differences, less than exact where that takes more than a float32's."""
    magnitude = np.abs(gaps).view(f"u{gaps.itemsize}").astype(np.float32)
    exponents = (magnitude.view(np.uint32) >> np.uint32(23)).astype(np.int16)
    return np.clip(exponents, np.int16(126), np.int16(254)) - np.int16(126)


def _scales(lengths: NDArray[np.int16], distance: Keys) -> NDArray[np.uint8] | None:
    """How much longer than usual the differences in each run are, in bits, from 0; None where all are alike."""
    excess = lengths - distance
    whole = len(excess) // RUN * RUN
    means = excess[:whole].reshape(-1, RUN).mean(axis=1, dtype=np.float32)
    if whole < len(excess):
        means = np.append(means, excess[whole:].mean(dtype=np.float32))
    scales = np.rint(means - np.median(means))
    scales -= scales.min()
    return np.minimum(scales, _MOST).astype(np.uint8) if scales.any() else None


def _scaled(distance: Keys, scales: NDArray[np.uint8]) -> Keys:
    """The keys that exponents and scales make."""
    if int(scales.max()) > _MOST:
        raise CorruptError(f"A delta has a run with the scale {scales.max()}; the greatest is {_MOST}.")
    whole = len(distance) // RUN * RUN
    keys = np.empty_like(distance)
    np.add(distance[:whole].reshape(-1, RUN), scales[: whole // RUN, None], out=keys[:whole].reshape(-1, RUN))
    keys[whole:] = distance[whole:] + scales[-1]
    return keys


def _bits_of(lengths: NDArray[np.int16], keys: Keys) -> float:
    """The entropy of the lengths of differences, given their keys: what of their cost the keys decide."""
    some = slice(None, None, _SAMPLED)
    joint = np.bincount(keys[some].astype(np.intp) << 7 | lengths[some], minlength=_KEYS << 7).reshape(_KEYS, 128)
    return _SAMPLED * (_entropy(joint.ravel()) - _entropy(joint.sum(axis=1)))


def _entropy(counts: NDArray[np.intp]) -> float:
    """-n log n summed over the counts, up to a constant."""
    positive = counts[counts > 0].astype(np.float64)
    return float(-(positive * np.log2(positive)).sum())


def _sizes(counts: NDArray[np.intp]) -> list[int]:
    """Keys in a row, taken together until they are worth a group."""
    sizes: list[int] = [0]
    for count in counts:
        if sizes[-1] >= _GROUP:
            sizes.append(0)
        sizes[-1] += int(count)
    if len(sizes) > 1 and sizes[-1] < _GROUP:
        last = sizes.pop()
        sizes[-1] += last
    return sizes


def _signed(dtype: DType) -> np.dtype[np.signedinteger[Any]]:
    return np.dtype(f"<i{dtype.width_bytes}")
