"""The weights of a snapshot as far as they have been read: bounds for each weight, and the bytes read.

Each stream of the store counts once: the planes of a tensor, and those of the bases of its deltas. Tensors that are not
stored in planes are read in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.errors import DataError, nearest
from regatta.network.bounds import Ball, between, exactly
from regatta.network.graph import Network
from regatta.repo.weights import Weights
from regatta.store.format.dtypes import DType, dtype_named, floats_of
from regatta.store.format.encodings import ENCODINGS
from regatta.store.format.manifest import ManifestEntry
from regatta.store.format.tensor_id import Bits, word_count
from regatta.store.index import StoredTensor
from regatta.store.slices import PartialTensor
from regatta.store.store import ParameterStore

LEADING = 2
Streams: TypeAlias = Mapping[tuple[str, int], int]


class ProgressiveWeights:
    """`planes` says how many of each tensor are known, `boxes` between what its weights are."""

    def __init__(self, weights: Weights, store: ParameterStore | None, network: Network) -> None:
        self.weights = weights
        self.names = _checked_names(weights, network)
        self.dtypes = {name: dtype_named(weights.members[name].dtype) for name in self.names}
        self.streams = {name: _streams(weights.members[name], store) for name in self.names}
        self.planes = dict.fromkeys(self.names, 0)
        self.boxes: dict[str, Ball] = {}
        self._read: dict[tuple[str, int], int] = {}

    @property
    def is_wide(self) -> bool:
        """Whether there are weights that float32 does not hold, so that the model computes in float64."""
        return any(dtype.name == "F64" for dtype in self.dtypes.values())

    @property
    def bytes_read(self) -> int:
        return sum(self._read.values())

    @property
    def bytes_full(self) -> int:
        return sum({k: v for name in self.names for k, v in self.streams[name][-1].items()}.values())

    @property
    def unread(self) -> list[str]:
        return [name for name in self.names if self.planes[name] < self.dtypes[name].planes]

    def cost(self, name: str) -> int:
        """The bytes of the next plane of a tensor."""
        needed = self.streams[name][min(self.planes[name], len(self.streams[name]) - 1)]
        return sum(size for key, size in needed.items() if key not in self._read)

    def deepen(self, names: Iterable[str], planes: int | None = None) -> None:
        """Read one more plane of each tensor, or the first `planes` planes."""
        wanted: dict[int, list[str]] = {}
        for name in names:
            target = min(planes or self.planes[name] + 1, self.dtypes[name].planes)
            if target > self.planes[name]:
                wanted.setdefault(target, []).append(name)
        for target, together in wanted.items():
            for name, value in self.weights.read(together, target).items():
                self._read.update(self.streams[name][target - 1])
                self.planes[name] = value.planes
                self.boxes[name] = _box(value)

    def values(self) -> dict[str, NDArray[Any]]:
        """All weights in full, in the type in which the model computes."""
        made = {}
        for name, value in self.weights.read(self.names).items():
            self._read.update(self.streams[name][-1])
            self.planes[name] = self.dtypes[name].planes
            made[name] = _numbers(value, self.dtypes[name], self.is_wide)
        return made

    def middle(self) -> dict[str, NDArray[Any]]:
        """The weights in the middle of their bounds, in the type in which the model computes."""
        return {name: _numbers(box.centre, self.dtypes[name], self.is_wide) for name, box in self.boxes.items()}

    def nonfinite_tensor(self) -> str | None:
        """The name of a tensor with NaN or infinite weights, by its leading plane; None if there is none."""
        bad = (name for name, box in self.boxes.items() if not np.isfinite(box.size).all())
        return next(bad, None)


def _checked_names(weights: Weights, network: Network) -> list[str]:
    for name, parameter in network.parameters.items():
        if name not in weights:
            raise DataError(
                f"The weights do not have {name!r}, which the network needs.", candidates=nearest(name, weights)
            )
        shape = weights.members[name].shape
        fits = len(shape) == len(parameter.shape) and all(
            wanted in (None, size) for wanted, size in zip(parameter.shape, shape, strict=True)
        )
        if not fits:
            raise DataError(f"{name!r} has the shape {shape}; the network says {parameter.shape}.")
        if dtype_named(weights.members[name].dtype).lanes > 1:
            raise DataError(f"{name!r} is of complex numbers; a network of real ones can be evaluated.")
    return list(network.parameters)


def _streams(member: ManifestEntry, store: ParameterStore | None) -> tuple[Streams, ...]:
    """The bytes of a tensor's streams, by tensor and number: for the first plane, for the first two, and so on."""
    dtype = dtype_named(member.dtype)
    if store is None or not member.id:  # a state file of a run: its planes are contiguous
        words = word_count(dtype, member.shape)
        key = member.id or f"file {id(member)}"
        return tuple({(key, n): words for n in range(k)} for k in range(1, dtype.planes + 1))
    with store.index.reading():
        chain = store.index.chain(member.id)
    return tuple(_needed(chain, planes, dtype) for planes in range(1, dtype.planes + 1))


def _needed(chain: Iterable[StoredTensor], planes: int, dtype: DType) -> dict[tuple[str, int], int]:
    """The streams that hold the first planes of the head of a chain: see regatta/store/reader.py."""
    found, apart = {}, planes < dtype.planes
    for stored in chain:
        apart = apart and ENCODINGS[stored.encoding].progressive
        for located in stored.segments:
            segment = located.segment
            lengths = segment.table["length"].astype(np.int64).reshape(segment.count, segment.chunks).sum(axis=1)
            for row, length in enumerate(lengths.tolist()):
                if not apart or segment.first + row < planes:
                    found[stored.tensor, segment.first + row] = length
    return found


def _box(value: PartialTensor) -> Ball:
    low, high = value.bounds
    return exactly(low) if value.exact else between(low, high)


def _numbers(value: Any, dtype: DType, wide: bool) -> NDArray[Any]:
    if isinstance(value, Bits):
        value = floats_of(np.asarray(value.buffer).reshape(-1), dtype).reshape(value.shape)
    floats = np.asarray(value)
    return floats.astype(np.float64 if wide else np.float32) if dtype.kind == "float" else floats
