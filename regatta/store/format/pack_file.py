"""Pack files: the streams of many tensors and the manifests of snapshots, written once and named by their content.

    header    MAGIC, u32 version, u32 zero
    body      streams and manifests, one after the other
    footer    a record for each, preceded by its u32 length
    trailer   u64 footer's offset, u64 its length, u64 its xxh3, u32 records, u32 zero, MAGIC

All numbers are little-endian. A record of a tensor holds some of its streams, usually all: stream by stream, and in
each stream chunk by chunk. The leading planes of a tensor are therefore one range of bytes. FORMAT.md has the details.

Files are not trusted: every number in one is checked before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from regatta.errors import CorruptError
from regatta.store.format.dtypes import DTYPES, DType
from regatta.store.format.encodings import CHUNK_WORDS
from regatta.store.format.tensor_id import why_not_shape, word_count

MAGIC = b"\x89RGTPK\r\n"
VERSION = 1
HEADER = struct.Struct("<8sII")
TRAILER = struct.Struct("<QQQII8s")
EMPTY_BYTES = HEADER.size + TRAILER.size  # of a pack file without records
MAX_FOOTER_BYTES = 2**30
TENSOR, MANIFEST = 1, 2

_LENGTH = struct.Struct("<I")
_TENSOR = struct.Struct("<B32s32sH8sBBBIQ")
_MANIFEST = struct.Struct("<B32sQIQ")
_STREAM = np.dtype([("length", "<u4"), ("check", "<u8")])
_NO_BASE = bytes(32)


@dataclass(frozen=True)
class Segment:
    """Streams `first` to `first + count` of a tensor, contiguous in a pack file from `offset` on.

    `table` has a row of length and checksum for each chunk of each stream, in the order of the bytes.
    """

    tensor: str
    base: str | None
    encoding: int
    dtype: DType
    shape: tuple[int, ...]
    first: int
    count: int
    offset: int
    table: NDArray[np.void]

    @property
    def chunks(self) -> int:
        return chunk_count(self.dtype, self.shape)

    @property
    def size(self) -> int:
        """Its bytes in the pack file."""
        return int(self.table["length"].sum(dtype=np.int64))

    def moved(self, offset: int) -> Segment:
        return replace(self, offset=offset)

    def part(self, first: int, count: int) -> Segment:
        """Some of its streams, as a segment at the same place."""
        rows = slice((first - self.first) * self.chunks, (first - self.first + count) * self.chunks)
        skipped = int(self.table["length"][: rows.start].sum(dtype=np.int64))
        return replace(self, first=first, count=count, offset=self.offset + skipped, table=self.table[rows])

    def pack(self) -> bytes:
        fixed = _TENSOR.pack(
            TENSOR,
            bytes.fromhex(self.tensor),
            bytes.fromhex(self.base) if self.base is not None else _NO_BASE,
            self.encoding,
            self.dtype.name.encode(),
            len(self.shape),
            self.first,
            self.count,
            self.chunks,
            self.offset,
        )
        return fixed + struct.pack(f"<{len(self.shape)}Q", *self.shape) + self.table.tobytes()


@dataclass(frozen=True)
class ManifestRecord:
    """Where the compressed manifest of a snapshot lies."""

    snapshot: str
    offset: int
    length: int
    check: int

    @property
    def size(self) -> int:
        return self.length

    def moved(self, offset: int) -> ManifestRecord:
        return replace(self, offset=offset)

    def pack(self) -> bytes:
        return _MANIFEST.pack(MANIFEST, bytes.fromhex(self.snapshot), self.offset, self.length, self.check)


Record: TypeAlias = Segment | ManifestRecord


def chunk_count(dtype: DType, shape: tuple[int, ...]) -> int:
    """The number of chunks of a tensor; an empty tensor has none."""
    return -(-word_count(dtype, shape) // CHUNK_WORDS)


def stream_table(streams: Sequence[Sequence[bytes]]) -> NDArray[np.void]:
    """The table of these streams, each a list of its chunks."""
    rows = [(len(chunk), xxh3_64_intdigest(chunk)) for stream in streams for chunk in stream]
    return np.array(rows, _STREAM) if rows else np.empty(0, _STREAM)


def parse_record(data: memoryview | bytes, place: str) -> Record:
    """A record, complete and consistent in itself."""
    kind = data[0] if len(data) else 0
    if kind == TENSOR:
        return _parse_tensor(memoryview(data), place)
    if kind == MANIFEST:
        if len(data) != _MANIFEST.size:
            raise CorruptError(f"A manifest's record has {len(data)} bytes, not {_MANIFEST.size}.", place=place)
        _, snapshot, offset, length, check = _MANIFEST.unpack(data)
        return ManifestRecord(snapshot.hex(), offset, length, check)
    message = f"A record of {len(data)} bytes is of kind {kind}, which this version does not know."
    raise CorruptError(message, place=place)


def _parse_tensor(data: memoryview, place: str) -> Segment:
    if len(data) < _TENSOR.size:
        raise CorruptError(f"A tensor's record of {len(data)} bytes is cut off.", place=place)
    _, tensor, base, encoding, dtype_name, dimensions, first, count, chunks, offset = _TENSOR.unpack_from(data)
    name = f"The record of tensor {tensor.hex()}"
    dtype = DTYPES.get(dtype_name.rstrip(b"\0").decode("ascii", "replace"))
    if dtype is None:
        raise CorruptError(f"{name} has the unknown element type {dtype_name!r}.", place=place)
    table_at = _TENSOR.size + 8 * dimensions
    if len(data) < table_at:
        raise CorruptError(f"{name} claims {dimensions} dimensions in {len(data)} bytes.", place=place)
    shape = struct.unpack_from(f"<{dimensions}Q", data, _TENSOR.size)
    if (reason := why_not_shape(shape)) is not None:
        raise CorruptError(f"{name} has no possible shape: {reason}.", place=place)
    if chunks != chunk_count(dtype, shape):
        raise CorruptError(f"{name} claims {chunks} chunks for the shape {list(shape)} of {dtype.name}.", place=place)
    if count == 0 or len(data) - table_at != count * chunks * _STREAM.itemsize:
        raise CorruptError(f"{name} claims {count} streams of {chunks} chunks in {len(data)} bytes.", place=place)
    table = np.frombuffer(data, _STREAM, offset=table_at)
    named_base = None if base == _NO_BASE else base.hex()
    return Segment(tensor.hex(), named_base, encoding, dtype, shape, first, count, offset, table)


Reads: TypeAlias = Callable[[int, int], "memoryview | bytes"]


def read_records(read: Reads, size: int, place: str) -> list[Record]:
    """All records of a pack file of this size; `read(offset, length)` returns its bytes."""
    footer, records = _read_footer(read, size, place)
    found: list[Record] = []
    at, end = 0, HEADER.size
    for number in range(records):
        if at + _LENGTH.size > len(footer):
            raise CorruptError(f"The footer ends before record {number} of {records}.", place=place)
        (length,) = _LENGTH.unpack_from(footer, at)
        at += _LENGTH.size
        if at + length > len(footer):
            raise CorruptError(f"Record {number} claims {length} bytes, more than the footer has.", place=place)
        found.append(parse_record(footer[at : at + length], place))
        at += length
    if at != len(footer):
        raise CorruptError(f"The footer has {len(footer) - at} bytes after its last record.", place=place)
    for record in found:
        if record.offset != end:
            raise CorruptError(f"A record starts at byte {record.offset}; the one before ends at {end}.", place=place)
        end += record.size
    if end != size - TRAILER.size - len(footer):
        raise CorruptError(f"The records end at byte {end}, the footer starts elsewhere.", place=place)
    return found


def _read_footer(read: Reads, size: int, place: str) -> tuple[memoryview, int]:
    if size < HEADER.size + TRAILER.size:
        raise CorruptError(f"A pack has at least {HEADER.size + TRAILER.size} bytes, this one {size}.", place=place)
    magic, version, zero = HEADER.unpack(read(0, HEADER.size))
    if magic != MAGIC:
        raise CorruptError(f"The file starts with {magic!r}: it is not a pack.", place=place)
    if version != VERSION or zero:
        raise CorruptError(f"The pack has version {version}; this version reads {VERSION}.", place=place)
    offset, length, check, records, zero, magic = TRAILER.unpack(read(size - TRAILER.size, TRAILER.size))
    if magic != MAGIC or zero:
        raise CorruptError(f"The file ends with {magic!r}: the pack is cut off.", place=place)
    if length > MAX_FOOTER_BYTES or offset + length + TRAILER.size != size:
        raise CorruptError(f"A footer of {length} bytes at {offset} is not in a file of {size}.", place=place)
    footer = memoryview(read(offset, length))
    if xxh3_64_intdigest(footer) != check:
        raise CorruptError("The footer does not match its checksum.", place=place)
    return footer, records


def footer_of(records: Sequence[Record], offset: int) -> bytes:
    """The footer and the trailer of a pack file whose body ends at `offset`."""
    packed = [record.pack() for record in records]
    footer = b"".join(_LENGTH.pack(len(record)) + record for record in packed)
    return footer + TRAILER.pack(offset, len(footer), xxh3_64_intdigest(footer), len(records), 0, MAGIC)
