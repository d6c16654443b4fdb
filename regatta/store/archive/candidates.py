"""Candidate edges of the storage graph: which tensors may be deltas to which, and the costs of each option.

Pairs come from declarations (the previous snapshot, the last one of a parent version, a base) and from sketches: a few
numbers of each tensor, compared with those of other tensors of its type and size. The storage of an edge is estimated
by encoding a sample, its recreation time from measured speeds. A delta is about as large in either direction (the
ModelHub paper, section IV-B), so one estimate serves both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.errors import UsageError, nearest
from regatta.store.archive.speeds import Speeds
from regatta.store.archive.storage_graph import StorageEdge
from regatta.store.format.dtypes import CHUNK_WORDS, DType, Words
from regatta.store.format.encodings import ENCODINGS, Encoding
from regatta.store.format.manifest import Manifest

SAMPLE_WORDS = 2**16
SAMPLE_BLOCKS = 4
SKETCH_WORDS = 256
MAX_NEIGHBOURS = 512  # each tensor is compared with this number of others of its type and size, in the store's order
MAX_CACHED_SAMPLES = 512
_STREAM_ENTRY_BYTES = 12  # the format's table has an entry for each stream of each chunk
KEEP_FACTOR = 0.995  # a new option must be smaller than this share of the present size: estimates err by as much
WHOLE_FACTOR = 0.98  # of the size of an encoding in planes: only then one that is read as a whole is considered
RAW = (0, None, None)
_TINY_WORDS = 1024  # for smaller tensors, raw storage is considered as well

Pair: TypeAlias = tuple[str, str]  # base and target, in the order of declaration
ReadWords: TypeAlias = Callable[[str, int, int], Words]


class StorageOption(NamedTuple):
    """A way to store a tensor: encoding, base, and the number of planes that stay here (None: all)."""

    encoding: int
    base: str | None
    planes: int | None = None


@dataclass(frozen=True)
class Matrix:
    """A tensor and how it is stored now. A tensor with a part at the remote is not changed."""

    id: str
    dtype: DType
    count: int  # words
    option: StorageOption
    stored: int
    remote: int = 0

    @property
    def fixed(self) -> bool:
        return self.remote > 0 or self.count == 0

    @property
    def kind(self) -> tuple[str, int]:
        """The type and size that a base must share."""
        return self.dtype.name, self.count


def lineage(
    versions: Mapping[str, Sequence[str]], parents: Mapping[str, Iterable[str]] | None = None
) -> dict[str, list[str]]:
    """The snapshots that each may be a delta to, from {version: its snapshots} and {version: its parents}.

    Within a version each snapshot may use the previous one. The first and the last snapshot of a version may use the
    last ones of its parents.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for version, snapshots in versions.items():
        for before, snapshot in pairwise(snapshots):
            found[snapshot].append(before)
        for parent in (parents or {}).get(version, ()):
            if parent not in versions:
                raise UsageError(
                    f"Version {version!r} has the parent {parent!r}, which is not among the versions.",
                    candidates=nearest(parent, versions),
                )
            for snapshot in dict.fromkeys([*snapshots[:1], *snapshots[-1:]]):
                found[snapshot].extend(versions[parent][-1:])
    return dict(found)


def declared_pairs(
    matrices: Mapping[str, Matrix], manifests: Mapping[str, Manifest], bases: Mapping[str, Iterable[str]]
) -> list[Pair]:
    """Pairs of tensors with the same name, type and size in snapshots that are declared as base and delta."""
    found: dict[Pair, None] = {}
    for snapshot, befores in bases.items():
        for before in befores:
            known = manifests[before].tensors
            for name, member in manifests[snapshot].tensors.items():
                if name in known and _can_be_delta(matrices, known[name].id, member.id):
                    found[known[name].id, member.id] = None
    return list(found)


def _can_be_delta(matrices: Mapping[str, Matrix], base: str, target: str) -> bool:
    if base == target or base not in matrices or target not in matrices:
        return False
    one, other = matrices[base], matrices[target]
    return one.kind == other.kind and not (one.fixed or other.fixed)


class Samples:
    """Samples of the words of tensors: blocks spread over each, at the same places in all tensors of a size."""

    def __init__(self, matrices: Mapping[str, Matrix], read: ReadWords) -> None:
        self.matrices = matrices
        self.of = lru_cache(MAX_CACHED_SAMPLES)(self._sample)
        self._read = read

    def _sample(self, tensor: str) -> Words:
        count = self.matrices[tensor].count
        if count <= SAMPLE_WORDS:
            return self._read(tensor, 0, count)
        length = SAMPLE_WORDS // SAMPLE_BLOCKS
        starts = [round(block * (count - length) / (SAMPLE_BLOCKS - 1)) for block in range(SAMPLE_BLOCKS)]
        return np.concatenate([self._read(tensor, start, start + length) for start in starts])

    def sketch(self, tensor: str) -> NDArray[np.float64]:
        """A few words as numbers; for 64 bits the upper half, which is the most significant."""
        words = self.of(tensor)
        chosen = words[np.linspace(0, len(words) - 1, min(SKETCH_WORDS, len(words))).astype(np.int64)]
        if chosen.dtype.itemsize == 8:
            chosen = chosen >> np.uint64(32)
        return chosen.astype(np.float64)


def near_pairs(matrices: Mapping[str, Matrix], samples: Samples, known: Collection[Pair]) -> list[Pair]:
    """For each tensor the nearest other one, unless a known pair is about as near."""
    partners: dict[str, set[str]] = defaultdict(set)
    for base, target in known:
        partners[base].add(target)
        partners[target].add(base)
    groups: dict[tuple[str, int], list[str]] = defaultdict(list)  # of tensors that could be deltas to one another
    for matrix in matrices.values():
        if matrix.count >= SKETCH_WORDS and not matrix.fixed:
            groups[matrix.kind].append(matrix.id)
    found: dict[Pair, None] = {}
    for ids in groups.values():
        if len(ids) == 1:
            continue
        for target, base in _nearest(ids, np.stack([samples.sketch(one) for one in ids]), partners):
            if (target, base) not in found:
                found[base, target] = None
    return list(found)


def _nearest(
    ids: Sequence[str], sketches: NDArray[np.float64], partners: Mapping[str, set[str]]
) -> Iterator[tuple[str, str]]:
    """Each tensor with its nearest neighbour, if that is half a bit nearer than its known partners."""
    place = {one: number for number, one in enumerate(ids)}
    for number, one in enumerate(ids):
        low = max(0, min(number - MAX_NEIGHBOURS // 2, len(ids) - MAX_NEIGHBOURS))
        # The mean number of bits of a difference: up to a constant, the size of a delta.
        gaps = np.log2(1 + np.abs(sketches[low : low + MAX_NEIGHBOURS] - sketches[number])).mean(axis=1)
        gaps[number - low] = np.inf
        own = [place[other] - low for other in partners.get(one, ()) if low <= place[other] < low + len(gaps)]
        nearest = int(gaps.argmin())
        if not own or gaps[nearest] < gaps[own].min() - 0.5:
            yield one, ids[low + nearest]


class EdgeEstimates:
    """Estimates the costs of storage options from samples."""

    def __init__(self, matrices: Mapping[str, Matrix], samples: Samples, speeds: Speeds) -> None:
        self.matrices, self.samples, self.speeds = matrices, samples, speeds

    def streams(self, encoding: Encoding, target: str, base: str | None) -> list[float]:
        """The bytes of each stream, including the format's overhead per chunk."""
        matrix = self.matrices[target]
        words = self.samples.of(target)
        against = None if base is None else self.samples.of(base)
        scale, entries = matrix.count / len(words), -(-matrix.count // CHUNK_WORDS) * _STREAM_ENTRY_BYTES
        return [len(stream) * scale + entries for stream in encoding.encode(words, matrix.dtype, against)]

    def edge(self, target: str, option: StorageOption, streams: Sequence[float]) -> StorageEdge:
        """The edge of a storage option; planes at the remote cost time, but no space here."""
        matrix, stored = self.matrices[target], sum(streams)
        remote = 0.0 if option.planes is None else sum(streams[option.planes :])
        recreation = self.speeds.recreation(option.encoding, matrix.dtype, matrix.count, stored, remote)
        return StorageEdge(option.base, target, stored - remote, recreation, option)


@dataclass(frozen=True)
class EncodingChoice:
    """The encodings to plan with, and the number of leading planes that stay here if the rest moves to the remote."""

    encodings: Collection[Encoding]
    remote_planes: int | None = None

    def options(self, encoding: Encoding, dtype: DType, base: str | None) -> list[StorageOption]:
        near = StorageOption(encoding.id, base)
        if self.remote_planes is None or not encoding.progressive or self.remote_planes >= encoding.streams(dtype):
            return [near]
        return [near, near._replace(planes=self.remote_planes)]


def candidate_edges(
    matrices: Mapping[str, Matrix], pairs: Iterable[Pair], estimates: EdgeEstimates, choice: EncodingChoice
) -> list[StorageEdge]:
    """All useful options to store each tensor, and the present one, which it may keep."""
    whole = {one.id: _direct_edges(one, estimates, choice) for one in matrices.values() if not one.fixed}
    kept = {one.id: _current_edge(one, estimates) for one in matrices.values()}
    deltas = [encoding for encoding in choice.encodings if encoding.needs_base]
    edges = [edge for edges in whole.values() for edge in edges]
    for base, target in pairs:
        sizes = {encoding: estimates.streams(encoding, target, base) for encoding in deltas}
        for source, child in ((base, target), (target, base)):
            options = [
                estimates.edge(child, option, streams)
                for encoding, streams in sizes.items()
                for option in choice.options(encoding, matrices[child].dtype, source)
            ]
            least = min(edge.storage for edge in whole[child])
            edges.extend(edge for edge in _undominated(options) if edge.storage < least)
    return [edge for edge in edges if edge.option != matrices[str(edge.target)].option] + list(kept.values())


def _direct_edges(matrix: Matrix, estimates: EdgeEstimates, choice: EncodingChoice) -> list[StorageEdge]:
    """Edges without a base; raw storage only if the other encodings gain almost nothing.

    An encoding whose leading planes cannot be read alone must be clearly smaller than one where they can.
    """
    edges = [
        estimates.edge(matrix.id, option, estimates.streams(encoding, matrix.id, None))
        for encoding in choice.encodings
        if not encoding.needs_base
        for option in choice.options(encoding, matrix.dtype, None)
    ]
    raw = [edge for edge in edges if edge.option == RAW]
    others = [edge for edge in edges if edge.option != RAW]
    by_planes = min((edge.storage for edge in others if _is_progressive(edge)), default=math.inf)
    others = [edge for edge in others if _is_progressive(edge) or edge.storage < WHOLE_FACTOR * by_planes]
    least = min((edge.storage for edge in others), default=math.inf)
    return _undominated(others + [edge for edge in raw if edge.storage <= least or matrix.count < _TINY_WORDS])


def _is_progressive(edge: StorageEdge) -> bool:
    return isinstance(edge.option, StorageOption) and ENCODINGS[edge.option.encoding].progressive


def _current_edge(matrix: Matrix, estimates: EdgeEstimates) -> StorageEdge:
    streams = ENCODINGS[matrix.option.encoding].streams(matrix.dtype)
    stored = matrix.stored + streams * -(-matrix.count // CHUNK_WORDS) * _STREAM_ENTRY_BYTES
    recreation = estimates.speeds.recreation(matrix.option.encoding, matrix.dtype, matrix.count, stored, matrix.remote)
    return StorageEdge(matrix.option.base, matrix.id, (stored - matrix.remote) * KEEP_FACTOR, recreation, matrix.option)


def _undominated(edges: Iterable[StorageEdge]) -> list[StorageEdge]:
    """The edges between two nodes that no other beats in both costs."""
    found: list[StorageEdge] = []
    for edge in sorted(edges, key=lambda edge: (edge.storage, edge.recreation)):
        if not found or edge.recreation < found[-1].recreation:
            found.append(edge)
    return found
