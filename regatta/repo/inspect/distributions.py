"""The distribution of the weights of a tensor, from its leading planes.

Two planes hold the top 16 bits of a float: sign, exponent and the first bits of the mantissa. There are 65,536 such
codes. A tensor is counted by code once; bounds on its mean and norm, and its histogram, are computed from the counts.
The width of a histogram bin is a power of two, so each code falls wholly into one bin. A histogram is therefore exact,
although half of the bytes were never read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.store.format.dtypes import DType, Words, dtype_named
from regatta.store.format.planes import bounds
from regatta.store.slices import PartialTensor

Floats: TypeAlias = NDArray[np.float64]

PLANES = 2  # read of floats
MAX_SIDE_BINS = 32  # on either side of zero; values beyond them are counted together
NEARLY_ALL = 0.995  # of the weights lie within the bins
CHUNK_ELEMENTS = 2**16  # as float64 they stay in the cache
SLACK = 1e-13  # relative; far above the rounding error of float64 sums by NumPy
BARS = " ▁▂▃▄▅▆▇█"


class Interval(NamedTuple):
    """Bounds on a number; the ends are equal if the number is known."""

    low: float
    high: float

    @property
    def exact(self) -> bool:
        return self.low == self.high

    @property
    def middle(self) -> float:
        return self.low if self.exact else self.low + (self.high - self.low) / 2

    def __str__(self) -> str:
        if self.exact or not math.isfinite(self.high - self.low):
            return f"{self.low:.4g}" if self.exact else f"{self.low:.4g}..{self.high:.4g}"
        half = (self.high - self.low) / 2
        if half <= 5e-5 * abs(self.middle):
            return f"{self.middle:.4g}"
        known = math.floor(math.log10(abs(self.middle) / half)) + 1 if self.middle else 1  # significant digits
        return f"{self.middle:.{min(4, max(1, known))}g}±{half:.1g}"


@dataclass(frozen=True)
class Histogram:
    """Counts of bins of equal width, from `first` times the width on, and of values below and above them.

    A bin includes its end nearer to zero, and not the other.
    """

    width: float
    first: int
    counts: tuple[int, ...]
    below: int = 0
    above: int = 0

    @property
    def edges(self) -> list[float]:
        return [self.width * (self.first + place) for place in range(len(self.counts) + 1)]

    def drawn(self, width: int = 24) -> str:
        """The histogram in one line of text, with a bar for one or several bins."""
        if not self.counts:
            return ""
        step = -(-len(self.counts) // width)
        sums = [sum(self.counts[at : at + step]) for at in range(0, len(self.counts), step)]
        top = max(sums)
        return "".join(BARS[math.ceil((len(BARS) - 1) * each / top)] for each in sums)


@dataclass(frozen=True)
class Distribution:
    """The distribution of the weights of one tensor, from `planes` of its `all_planes` planes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    planes: int
    all_planes: int
    nonfinite: int
    least: Interval
    greatest: Interval
    mean: Interval
    deviation: Interval
    norm: Interval
    histogram: Histogram = field(repr=False)
    stored_bytes: int | None = None
    encoding: str | None = None

    @property
    def bytes(self) -> int:
        return self.count * dtype_named(self.dtype).width_bytes

    @property
    def exact(self) -> bool:
        return self.planes >= self.all_planes

    def row(self) -> dict[str, Any]:
        """Flat, for a table; bounds are given by their middle."""
        known = {key: value for key, value in asdict(self).items() if key != "histogram"}
        known = {key: Interval(*value).middle if key in INTERVALS else value for key, value in known.items()}
        return {**known, "bytes": self.bytes, "histogram": self.histogram.drawn()}


INTERVALS = ("least", "greatest", "mean", "deviation", "norm")


@dataclass(frozen=True)
class MagnitudeCounts:
    """The count of each magnitude, which is between `near` and `far`; values that are not finite are counted apart."""

    near: Floats
    far: Floats
    negative: NDArray[np.bool_]
    counts: NDArray[np.int64]
    nonfinite: int

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def exponent(self) -> int:
        """Nearly all magnitudes are below two to the power of this exponent plus one."""
        if not self.count or not self.near.any():
            return 0
        order = np.argsort(self.near)
        place = np.searchsorted(np.cumsum(self.counts[order]), NEARLY_ALL * self.count)
        typical = float(self.near[order[place]]) or float(self.near.max())
        return max(-1000, math.frexp(typical)[1] - 1)

    @property
    def side(self) -> int:
        """The number of bins on either side of zero that suits the number of weights: a power of two."""
        return min(MAX_SIDE_BINS, max(4, 1 << math.ceil(math.log2(max(1, self.count)) / 3)))

    def by_bin(self, exponent: int, side: int) -> NDArray[np.int64]:
        """Counts of all bins, with the values below them first and the values above them last."""
        with np.errstate(over="ignore"):
            steps = np.minimum(np.floor(np.ldexp(self.near, -_bin_exponent(exponent, side))), side).astype(np.int64)
        bins = np.where(self.negative, -1 - steps, steps)
        return np.bincount(bins + side + 1, self.counts, 2 * side + 2).astype(np.int64)


def count_magnitudes(value: PartialTensor) -> MagnitudeCounts:
    """Count a tensor by its codes, or by its values if its type has no codes."""
    dtype, words = value.dtype, value.words.reshape(-1)
    if _has_codes(dtype):
        counts = sum((np.bincount(codes, minlength=2**16) for codes in _codes(words, dtype)), np.zeros(2**16, np.int64))
        present = np.flatnonzero(counts)
        found, counts = present.astype(np.uint64), counts[present]
        planes = min(PLANES, dtype.planes)
    else:
        unique, counts = np.unique(words, return_counts=True)
        found, planes = unique.astype(np.uint64), value.planes
    shift = max(0, dtype.bits - 16) if _has_codes(dtype) else 0
    whole = (found << np.uint64(shift)).astype(dtype.word)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        low, high = (each.astype(np.float64) for each in bounds(whole, planes, dtype))
    finite = np.isfinite(low) & np.isfinite(high)
    near, far = np.minimum(abs(low), abs(high)), np.maximum(abs(low), abs(high))
    near[(low < 0) & (high > 0)] = 0.0
    return MagnitudeCounts(
        near[finite], far[finite], ((low < 0) | np.signbit(low))[finite], counts[finite], int(counts[~finite].sum())
    )


def histogram(found: MagnitudeCounts) -> Histogram:
    """The histogram of a tensor, without the empty bins at its ends."""
    exponent, side = found.exponent, found.side
    counts = found.by_bin(exponent, side)
    inner = counts[1:-1]
    used = np.flatnonzero(inner)
    first, last = (int(used[0]), int(used[-1])) if len(used) else (side, side)
    return Histogram(
        math.ldexp(1.0, _bin_exponent(exponent, side)),
        first - side,
        tuple(inner[first : last + 1].tolist()) if len(used) else (),
        int(counts[0]),
        int(counts[-1]),
    )


def histogram_distance(left: MagnitudeCounts, right: MagnitudeCounts) -> float:
    """The share of weights in other bins, when both histograms use the same bins."""
    if not left.count or not right.count:
        return math.nan
    exponent, side = max(left.exponent, right.exponent), min(left.side, right.side)
    shares = [each.by_bin(exponent, side) / each.count for each in (left, right)]
    return float(abs(shares[0] - shares[1]).sum() / 2)


def describe_tensor(name: str, value: PartialTensor, **stored: Any) -> Distribution:
    """The distribution of a tensor, from the planes that were read."""
    found = count_magnitudes(value)
    sums = _exact_sums(value, found) if value.exact else _bounded_sums(found)
    return Distribution(
        name, value.dtype.name, value.shape, value.words.size, value.planes, value.dtype.planes, found.nonfinite,
        *sums, histogram(found), **stored,
    )  # fmt: skip


def norm(value: PartialTensor, found: MagnitudeCounts) -> Interval:
    """Bounds on the root of the sum of squares of the finite values."""
    return (_exact_sums(value, found) if value.exact else _bounded_sums(found))[-1]


def distance(left: PartialTensor, right: PartialTensor) -> Interval:
    """Bounds on the norm of the difference of two tensors, over the elements that are finite in both."""
    low = high = largest = 0.0
    for (a, b), (c, d) in zip(_intervals(left), _intervals(right), strict=True):
        with np.errstate(invalid="ignore"):
            apart, wide = np.maximum(np.maximum(a - d, c - b), 0.0), np.maximum(b - c, d - a)
        finite = np.isfinite(wide)
        if not finite.all():
            apart, wide = apart[finite], wide[finite]
        top = float(wide.max(initial=0.0))
        if top > largest:  # rescale the sums to the new largest, so that squares neither overflow nor vanish
            low, high = (each * (largest / top) ** 2 for each in (low, high))
            largest = top
        if largest:
            low += float(np.square(apart / largest).sum())
            high += float(np.square(wide / largest).sum())
    if not high:
        return Interval(0.0, 0.0)
    return Interval(largest * math.sqrt(low) * (1 - SLACK), largest * math.sqrt(high) * (1 + SLACK))


def _bounded_sums(found: MagnitudeCounts) -> tuple[Interval, Interval, Interval, Interval, Interval]:
    """Least, greatest, mean, deviation and norm, from the bounds of each code."""
    if not found.count:
        return (Interval(math.nan, math.nan),) * 4 + (Interval(0.0, 0.0),)
    low = np.where(found.negative, -found.far, found.near)
    high = np.where(found.negative, -found.near, found.far)
    scale = float(found.far.max()) or 1.0
    weights = found.counts / found.count
    middle, radius = (low / 2 + high / 2) / scale, (high / 2 - low / 2) / scale
    mean = float((weights * middle).sum())
    reach = float((weights * radius).sum()) + SLACK
    spread = math.sqrt(float((weights * np.square(middle - mean)).sum()))
    # A deviation is a norm over the root of the count, so it changes by no more than its numbers do.
    slip = math.sqrt(float((weights * np.square(radius)).sum())) + SLACK
    squares = [math.sqrt(float((found.counts * np.square(each / scale)).sum())) for each in (found.near, found.far)]
    known = bool((found.near == found.far).all())
    return (
        Interval(float(low.min()), float(high.min())),
        Interval(float(low.max()), float(high.max())),
        _interval(scale * mean, 0.0 if known else scale * reach),
        _interval(scale * spread, 0.0 if known else scale * slip, least=0.0),
        Interval(scale * squares[0], scale * squares[1])
        if known
        else Interval(scale * squares[0] * (1 - SLACK), scale * squares[1] * (1 + SLACK)),
    )


def _exact_sums(
    value: PartialTensor, found: MagnitudeCounts
) -> tuple[Interval, Interval, Interval, Interval, Interval]:
    """The same from exact values."""
    if not found.count or bool((found.near == found.far).all()):
        return _bounded_sums(found)
    scale = float(found.far.max())
    guess = float(np.average(np.where(found.negative, -found.near, found.near) / scale, weights=found.counts))
    sums, lows, highs = np.zeros(3), [], []
    for values, _ in _intervals(value):
        numbers = values[np.isfinite(values)]
        if len(numbers):
            lows.append(float(numbers.min()))
            highs.append(float(numbers.max()))
            numbers = numbers / scale
            from_guess = numbers - guess
            sums += from_guess.sum(), np.square(from_guess).sum(), np.square(numbers).sum()
    off, variance = sums[0] / found.count, sums[1] / found.count
    return (
        _interval(min(lows)),
        _interval(max(highs)),
        _interval(scale * (guess + off)),
        _interval(scale * math.sqrt(max(0.0, variance - off**2))),
        _interval(scale * math.sqrt(sums[2])),
    )


def _interval(middle: float, radius: float = 0.0, least: float = -math.inf) -> Interval:
    return Interval(max(least, float(middle - radius)), float(middle + radius))


def _bin_exponent(exponent: int, side: int) -> int:
    """The exponent of the width with which `side` bins reach two to the power of `exponent` plus one."""
    return exponent + 1 - (side.bit_length() - 1)


def _has_codes(dtype: DType) -> bool:
    return dtype.width_bytes <= 2 or dtype.kind == "float"


def _codes(words: Words, dtype: DType) -> Iterator[NDArray[np.uint16]]:
    """The top 16 bits of the words, in chunks."""
    shift = dtype.word.type(max(0, dtype.bits - 16))
    for at in range(0, len(words), CHUNK_ELEMENTS):
        yield (words[at : at + CHUNK_ELEMENTS] >> shift).astype(np.uint16)


def _intervals(value: PartialTensor) -> Iterator[tuple[Floats, Floats]]:
    """The bounds of the elements as float64, in chunks."""
    dtype, words = value.dtype, value.words.reshape(-1)
    if _has_codes(dtype) and (not value.exact or dtype.width_bytes <= 2):
        low, high = _bounds_of_codes(dtype.name)
        for codes in _codes(words, dtype):
            yield low[codes], high[codes]
        return
    for at in range(0, len(words), CHUNK_ELEMENTS):
        with np.errstate(invalid="ignore"):  # a signalling NaN
            low, high = (
                each.astype(np.float64) for each in bounds(words[at : at + CHUNK_ELEMENTS], value.planes, dtype)
            )
        yield low, high


@lru_cache(maxsize=16)
def _bounds_of_codes(name: str) -> tuple[Floats, Floats]:
    dtype = dtype_named(name)
    codes = np.arange(2 ** min(16, dtype.bits), dtype=np.uint64)
    words = (codes << np.uint64(max(0, dtype.bits - 16))).astype(dtype.word)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        low, high = (each.astype(np.float64) for each in bounds(words, min(PLANES, dtype.planes), dtype))
    return low, high
