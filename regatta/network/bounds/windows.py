"""Which inputs each output of a convolution or of a pooling layer depends on, for any number of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.network.bounds.balls import Array

Taps = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Windows:
    """`taps[t, o]` is the flat index of operand t of output o; the index `size` stands for padding."""

    taps: Taps
    size: int
    shape: tuple[int, ...]

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        return self.taps < self.size

    def gather(self, x: Array, fill: float = 0.0) -> Array:
        """(..., space) to (..., taps, outputs)."""
        if not self.inside.all():
            x = np.concatenate([x, np.full((*x.shape[:-1], 1), fill)], axis=-1)
        return np.take(x, self.taps, axis=-1)

    def scatter(self, columns: Array) -> Array:
        """The transpose of `gather` with zeros: (..., taps, outputs) to (..., space)."""
        out = np.zeros((*columns.shape[:-2], self.size + 1))
        for number, places in enumerate(self.taps):
            if self._apart[number]:
                out[..., places] += columns[..., number, :]
            else:
                np.add.at(out, (..., places), columns[..., number, :])  # type: ignore[arg-type]
        return out[..., : self.size]

    def unfold(self, x: Array) -> Array:
        """(channels, batch, space) to (channels, taps, batch, outputs), padded with zeros: for one large product."""
        if not self.inside.all():
            x = np.concatenate([x, np.zeros((*x.shape[:-1], 1))], axis=-1)
        columns = np.empty((len(x), len(self.taps), x.shape[1], self.taps.shape[1]))
        for number, places in enumerate(self.taps):
            columns[:, number] = np.take(x, places, axis=-1)
        return columns

    def fold(self, columns: Array) -> Array:
        """The transpose of `unfold`."""
        return self.scatter(columns.transpose(0, 2, 1, 3))

    @cached_property
    def _apart(self) -> list[bool]:
        """Whether a tap has a different place for each output, except for padding."""
        inside = [row[row < self.size] for row in self.taps]
        return [len(np.unique(row)) == len(row) for row in inside]


def sliding(
    space: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool = False,
) -> Windows:
    """The windows of a kernel; padding is one number for each axis, or all starts and then all ends."""
    dims = len(space)
    begins, ends = padding[:dims], padding[dims:] if len(padding) == 2 * dims else padding
    axes = []
    for axis in range(dims):
        size, reach = space[axis], dilation[axis] * (kernel[axis] - 1) + 1
        count = _count(size, begins[axis], ends[axis], reach, stride[axis], ceil)
        starts = np.arange(count) * stride[axis] - begins[axis]
        axes.append(starts[None, :] + dilation[axis] * np.arange(kernel[axis])[:, None])
    return _combined(axes, space)


def adaptive(space: Sequence[int], output: Sequence[Any]) -> Windows:
    """The windows of adaptive pooling: output o of n sees floor(o size / n) to ceil((o + 1) size / n)."""
    axes = []
    for size, wanted in zip(space, output, strict=True):
        count = size if wanted is None else int(wanted)
        starts = np.arange(count) * size // count
        ends = -(-(np.arange(count) + 1) * size // count)
        places = starts[None, :] + np.arange((ends - starts).max())[:, None]
        axes.append(np.where(places < ends, places, -1))
    return _combined(axes, space)


def _count(size: int, begin: int, end: int, reach: int, stride: int, ceil: bool) -> int:
    room = size + begin + end - reach
    count = (-(-room // stride) if ceil else room // stride) + 1
    starts_in_padding = ceil and (count - 1) * stride >= size + begin
    return count - 1 if starts_in_padding else count


def _combined(axes: Sequence[NDArray[Any]], space: Sequence[int]) -> Windows:
    """Flat indices from the indices along each axis: (taps, outputs) each."""
    size, shape = int(np.prod(space)), tuple(places.shape[1] for places in axes)
    if min(shape) < 1:
        raise ValueError(f"a window is larger than the space {tuple(space)}")
    rows = []
    for choice in product(*(range(places.shape[0]) for places in axes)):
        flat, inside = np.zeros(shape, np.intp), np.ones(shape, bool)
        for axis, tap in enumerate(choice):
            along = axes[axis][tap].reshape([-1 if other == axis else 1 for other in range(len(axes))])
            inside &= (along >= 0) & (along < space[axis])
            flat = flat * space[axis] + along
        rows.append(np.where(inside, flat, size).reshape(-1))
    return Windows(np.stack(rows), size, shape)
