"""Indices into tensors: the words to read for one, and the value made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.errors import UsageError
from regatta.store.format.dtypes import DType, Words, array_from
from regatta.store.format.encodings import ENCODINGS
from regatta.store.format.planes import bounds
from regatta.store.format.tensor_id import Bits
from regatta.store.index import StoredTensor


@dataclass(frozen=True)
class PartialTensor:
    """A tensor whose leading planes were read.

    `planes` is the number of known planes: all, if the encoding is not progressive. `words` are the bits, with zeros
    in unknown planes. Complex numbers have an additional axis for their two parts.
    """

    dtype: DType
    shape: tuple[int, ...]
    planes: int
    words: Words

    @property
    def exact(self) -> bool:
        return self.planes >= self.dtype.planes

    @property
    def bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The least and the greatest number that each element can be."""
        lower, upper = bounds(self.words.reshape(-1), self.planes, self.dtype)
        return lower.reshape(self.words.shape), upper.reshape(self.words.shape)


@dataclass(frozen=True)
class SliceWindow:
    """The elements `span` of a tensor, their shape, and the index of the requested ones among them."""

    span: tuple[int, int]
    shape: tuple[int, ...]
    index: tuple[int | slice, ...]

    def value(self, words: Words, stored: StoredTensor, planes: int | None) -> Any:
        dtype = stored.dtype
        if planes is not None:
            apart = words.reshape(self.shape if dtype.lanes == 1 else (*self.shape, dtype.lanes))
            apart = np.asarray(apart[self.index])
            known = min(planes, dtype.planes) if ENCODINGS[stored.encoding].progressive else dtype.planes
            shape = apart.shape if dtype.lanes == 1 else apart.shape[:-1]
            return PartialTensor(dtype, shape, known, apart)
        picked = np.asarray(array_from(words, dtype, self.shape)[self.index])
        return picked if dtype.numpy is not None else Bits(dtype.name, picked.shape, picked)


def narrow(shape: tuple[int, ...], index: Any) -> SliceWindow:
    """The window of a basic index as in NumPy: integers, slices and at most one Ellipsis."""
    picks = () if index is None else index if isinstance(index, tuple) else (index,)
    if Ellipsis in picks:
        at = picks.index(Ellipsis)
        filler = (slice(None),) * (len(shape) - len(picks) + 1)
        picks = (*picks[:at], *filler, *picks[at + 1 :])
    if len(picks) > len(shape):
        raise UsageError(f"The index {index!r} has more dimensions than the shape {list(shape)}.")
    try:
        for size, pick in zip(shape, picks, strict=False):
            range(size)[pick]
        start, inner, rest = _narrow(shape, picks)
    except (IndexError, TypeError, ValueError) as error:
        raise UsageError(f"The index {index!r} does not fit the shape {list(shape)}: {error}.") from error
    return SliceWindow((start, start + math.prod(inner)), inner, rest)


def _narrow(shape: tuple[int, ...], picks: tuple[Any, ...]) -> tuple[int, tuple[int, ...], tuple[int | slice, ...]]:
    """The start of the smallest contiguous block that holds the picked elements, its shape, and the index into it."""
    if not picks:
        return 0, shape, ()
    row, pick = math.prod(shape[1:]), picks[0]
    chosen = range(shape[0])[pick]
    if isinstance(chosen, int):
        start, inner, rest = _narrow(shape[1:], picks[1:])
        return chosen * row + start, inner, rest
    if len(chosen) == 1:
        start, inner, rest = _narrow(shape[1:], picks[1:])
        return chosen[0] * row + start, (1, *inner), (slice(None), *rest)
    if not chosen:
        return 0, (0, *shape[1:]), (slice(None), *picks[1:])
    low, high = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1])
    stop = chosen.stop - low
    within = slice(chosen.start - low, stop if stop >= 0 else None, chosen.step)
    return low * row, (high - low + 1, *shape[1:]), (within, *picks[1:])
