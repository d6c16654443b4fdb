"""Streams to words: decodes the chunks of tensors over their chains of bases, in parallel.

Only the required parts are read: the streams of the leading planes, or all streams; of these, the chunks that hold the
requested words; and the same of every base. Decoded bases stay in a cache, which snapshots share.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from xxhash import xxh3_64_intdigest

from regatta.errors import CorruptError, RegattaError
from regatta.store.format.dtypes import DType, Words
from regatta.store.format.encodings import CHUNK_WORDS, ENCODINGS, Encoding
from regatta.store.format.tensor_id import word_count
from regatta.store.index import LOCAL, LocatedSegment, StoredTensor

if TYPE_CHECKING:
    from regatta.store.remote import PackSource

Range: TypeAlias = tuple[int, int]  # offset and length
Key: TypeAlias = tuple[str, int, int | None]
_MIN_PARALLEL_WORDS = CHUNK_WORDS // 4  # fewer words are decoded before another thread wakes up
_PHYSICAL_MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ReadRequest:
    """Words `start` to `stop` of the first tensor of a chain, with all planes or the leading ones."""

    chain: Sequence[StoredTensor]
    start: int
    stop: int
    planes: int | None = None


class ChunkCache:
    """Decoded chunks of tensors that others are deltas to; the least recently used are dropped first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._chunks: OrderedDict[Key, Words] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Words | None:
        with self._lock:
            if key in self._chunks:
                self._chunks.move_to_end(key)
            return self._chunks.get(key)

    def put(self, key: Key, words: Words) -> None:
        with self._lock:
            if key in self._chunks or words.nbytes > self.limit:
                return
            self._chunks[key] = words
            self.bytes += words.nbytes
            while self.bytes > self.limit:
                self.bytes -= self._chunks.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        with self._lock:
            self._chunks.clear()
            self.bytes = 0


class TensorReader:
    """Reads words from a source, in parallel if there is a pool of threads."""

    def __init__(self, source: PackSource, pool: Executor | None, cache: ChunkCache) -> None:
        self.source = source
        self.cache = cache
        self._map: Callable[..., Any] = map if pool is None else pool.map

    def read(self, requests: Sequence[ReadRequest]) -> list[Words]:
        """The words of each request, in new arrays."""
        parts = (part for request in requests for stored in request.chain for part in stored.segments)
        fetch = map if all(part.place & LOCAL for part in parts) else self._map  # in parallel if the remote is needed
        prepared = list(fetch(lambda request: _PendingRead(request, self.source, self.cache), requests))
        tasks = list(_tasks(prepared))
        for _ in (self._map if len(tasks) > 1 else map)(_read_chunks, tasks):
            pass
        return [reading.words for reading in prepared]


def _tasks(readings: Sequence[_PendingRead]) -> Iterator[list[tuple[_PendingRead, int]]]:
    """The chunks to read, in groups that are worth another thread."""
    group: list[tuple[_PendingRead, int]] = []
    words = 0
    for reading in readings:
        for chunk in reading.chunks:
            group.append((reading, chunk))
            words += min(CHUNK_WORDS, len(reading.words))
            if words >= _MIN_PARALLEL_WORDS:
                yield group
                group, words = [], 0
    if group:
        yield group


def _read_chunks(chunks: Sequence[tuple[_PendingRead, int]]) -> None:
    for reading, chunk in chunks:
        reading.read_chunk(chunk)


class _PendingRead:
    def __init__(self, request: ReadRequest, source: PackSource, cache: ChunkCache) -> None:
        self.start, self.stop = request.start, request.stop
        head = request.chain[0]
        self.dtype, self.total = head.dtype, word_count(head.dtype, head.shape)
        self.chunks = range(0)
        if request.stop > request.start:
            self.chunks = range(request.start // CHUNK_WORDS, -(-request.stop // CHUNK_WORDS))
        self.cache = cache
        self.words = _allocate_words(request.stop - request.start, self.dtype, head.tensor)
        self.cached: dict[int, Words] = {}
        # The tensors from the head of the chain to the first whose chunks are all in the cache.
        self.links: list[_ChainLink] = []
        planes = None if request.planes is None or request.planes >= self.dtype.planes else request.planes
        for stored in request.chain if self.chunks else ():
            encoding = check_stored(stored, head)
            planes = planes if encoding.progressive else None
            if self.links and self._take_cached(stored.tensor, planes):
                break
            self.links.append(_ChainLink(stored, encoding, planes, self.chunks, source))

    def read_chunk(self, chunk: int) -> None:
        """Decode one chunk, from the end of the chain to its head, and keep the requested words."""
        at, words = chunk * CHUNK_WORDS, self.cached.get(chunk)
        count = min(CHUNK_WORDS, self.total - at)
        low, high = max(self.start, at), min(self.stop, at + count)
        room = self.words[low - self.start : high - self.start]
        if len(self.links) == 1 and not self.cached and len(room) == count:
            self.links[0].decode(chunk, count, None, room)  # directly into the result: no other tensor needs it
            return
        for link in reversed(self.links):
            words = link.decode(chunk, count, words)
            if len(self.links) > 1 or self.cached:
                self.cache.put((link.stored.tensor, chunk, link.planes), words)
        if words is None:
            raise ValueError("A chain without tensors holds nothing.")
        room[:] = words[low - at : high - at]

    def _take_cached(self, tensor: str, planes: int | None) -> bool:
        found = {chunk: self.cache.get((tensor, chunk, planes)) for chunk in self.chunks}
        if any(words is None for words in found.values()):
            return False
        self.cached = {chunk: words for chunk, words in found.items() if words is not None}
        return True


@dataclass(frozen=True)
class _StreamColumn:
    """One stream of a tensor, over the chunks that are read."""

    view: memoryview
    ends: list[int]
    checks: list[int]
    located: LocatedSegment


class _ChainLink:
    """One tensor of a chain: the bytes of its streams, and their decoding."""

    def __init__(
        self, stored: StoredTensor, encoding: Encoding, planes: int | None, chunks: range, source: PackSource
    ) -> None:
        self.stored, self.encoding, self.planes, self.source = stored, encoding, planes, source
        self.first_chunk = chunks.start
        wanted = encoding.streams(stored.dtype) if planes is None else planes
        self.columns = [column for part in stored.segments for column in self._columns(part, wanted, chunks)]

    def decode(self, chunk: int, count: int, base: Words | None, out: Words | None = None) -> Words:
        streams = [self._stream(column, chunk - self.first_chunk) for column in self.columns]
        dtype = self.stored.dtype
        try:
            if self.planes is None:
                return self.encoding.decode(streams, count, dtype, base, out)
            return self.encoding.decode_planes(streams, self.planes, count, dtype, base, out)
        except CorruptError as error:
            raise self._broken(f"chunk {chunk}: {error.message.rstrip('.')}", self.columns[0].located) from error

    def _columns(self, located: LocatedSegment, wanted: int, chunks: range) -> list[_StreamColumn]:
        segment = located.segment
        rows, across = segment.table.tolist(), segment.chunks
        numbers = range(min(segment.count, wanted - segment.first))
        ends = list(accumulate((length for length, _ in rows), initial=segment.offset))
        ranges, tables = [], []
        for at in range(chunks.start, chunks.start + across * len(numbers), across):
            part = slice(at, at + len(chunks))
            start = ends[at]
            ranges.append((start, ends[at + len(chunks)] - start))
            tables.append(([end - start for end in ends[at + 1 : part.stop + 1]], [check for _, check in rows[part]]))
        views = self.source.read(located.pack, located.place, ranges) if ranges else []
        return [_StreamColumn(view, *table, located) for view, table in zip(views, tables, strict=True)]

    def _stream(self, column: _StreamColumn, row: int) -> memoryview:
        stream = column.view[column.ends[row - 1] if row else 0 : column.ends[row]]
        if xxh3_64_intdigest(stream) != column.checks[row]:
            what = f"a stream of chunk {row + self.first_chunk} does not match its checksum"
            raise self._broken(what, column.located)
        return stream

    def _broken(self, what: str, located: LocatedSegment) -> CorruptError:
        return CorruptError(
            f"Tensor {self.stored.tensor}, {what}.",
            place=self.source.where(located),
            hint="Run fsck with repair: it moves bad data aside and fetches it again from the remote, if there is one.",
        )


def check_stored(stored: StoredTensor, head: StoredTensor) -> Encoding:
    """The encoding of a tensor in the chain of `head`; CorruptError unless its records are consistent and fit."""
    encoding, name = ENCODINGS.get(stored.encoding), f"Tensor {stored.tensor}"
    if encoding is None:
        raise CorruptError(f"{name} has the encoding {stored.encoding}, which this version does not know.")
    if encoding.needs_base != (stored.base is not None):
        raise CorruptError(f"{name} is encoded as {encoding.name} and has {'no' if encoding.needs_base else 'a'} base.")
    at = 0
    for located in stored.segments:
        segment = located.segment
        if (segment.encoding, segment.base, segment.first) != (stored.encoding, stored.base, at):
            raise CorruptError(f"{name} has segments that do not belong together.")
        if (segment.dtype, segment.shape) != (stored.dtype, stored.shape):
            raise CorruptError(f"{name} has segments of several types or shapes.")
        at += segment.count
    if at != encoding.streams(stored.dtype):
        raise CorruptError(f"{name} has {at} streams; {encoding.name} has {encoding.streams(stored.dtype)}.")
    if stored.dtype != head.dtype or word_count(stored.dtype, stored.shape) != word_count(head.dtype, head.shape):
        raise CorruptError(f"Tensor {head.tensor} is a delta to {stored.tensor}, which has another type or size.")
    return encoding


def _allocate_words(count: int, dtype: DType, tensor: str) -> Words:
    """Memory for words; an error if a hostile record claims more than this machine has."""
    try:
        if count * dtype.width_bytes < _PHYSICAL_MEMORY_BYTES:
            return np.empty(count, dtype.word)
    except MemoryError:
        pass
    raise RegattaError(
        f"{count * dtype.width_bytes} bytes of tensor {tensor} do not fit into memory.", hint="Read it in slices."
    )
