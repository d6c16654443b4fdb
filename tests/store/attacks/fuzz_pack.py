"""A fuzzer for everything that reads untrusted bytes: packs, records, manifests, streams.

    make fuzz                                               a minute of it
    python tests/store/attacks/fuzz_pack.py -max_total_time=600 corpus/

For any bytes, a reader returns their content or raises CorruptError. Any other exception, a hang or unbounded memory is
a bug. Checksums are corrected before a pack is read, because otherwise they would stop every mutation.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from blake3 import blake3
from hostile import ATTACKS
from xxhash import xxh3_64_intdigest

from regatta.errors import CorruptError, RegattaError
from regatta.store.folder import PackFolder
from regatta.store.format.dtypes import DTYPES
from regatta.store.format.encodings import ENCODINGS
from regatta.store.format.manifest import parse_manifest
from regatta.store.format.pack_file import TRAILER, Segment, read_records
from regatta.store.format.tensor_id import as_tensor, word_count
from regatta.store.index import LOCAL, LocatedSegment, StoredTensor
from regatta.store.reader import ChunkCache, ReadRequest, TensorReader
from regatta.store.writer import TensorEncoder, unpack_manifest

MOST = 2**22  # words; more than this is not asked for


class Bytes:
    """A pack in memory, as the reader's source."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, pack: str, place: int, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return [self.part(at, length) for at, length in ranges]

    def part(self, at: int, length: int) -> memoryview:
        if at + length > len(self.data):
            raise CorruptError(f"{length} bytes at {at} are not in {len(self.data)}.")
        return memoryview(self.data)[at : at + length]

    def where(self, located: LocatedSegment) -> str:
        return "memory"


def read_pack(data: bytes) -> int:
    """Read all that a pack offers; how many tensors that gave."""
    source = Bytes(with_right_checksums(data))
    records = read_records(source.part, len(source.data), "memory")
    segments = [record for record in records if isinstance(record, Segment)]
    tensors = {
        one.tensor: StoredTensor(one.tensor, one.encoding, one.base, (LocatedSegment(one, "pack", LOCAL),))
        for one in segments
    }
    found = 0
    for tensor in tensors:
        try:
            found += read_tensor(source, tensors, tensor)
        except CorruptError:
            continue
    return found


def read_tensor(source: Bytes, tensors: dict[str, StoredTensor], tensor: str) -> bool:
    chain = [tensors[tensor]]
    while (base := chain[-1].base) is not None:
        if base not in tensors or len(chain) > 8:
            return False
        chain.append(tensors[base])
    words = word_count(chain[0].dtype, chain[0].shape)
    reader = TensorReader(source, None, ChunkCache(0))
    whole, part = reader.read(
        [ReadRequest(chain, 0, min(words, MOST)), ReadRequest(chain, 0, min(words, MOST), planes=1)]
    )
    assert len(whole) == len(part) == min(words, MOST)
    return True


def with_right_checksums(data: bytes) -> bytes:
    """The same pack with its checksums recomputed, as far as it has a shape."""
    if len(data) < TRAILER.size:
        return data
    at, length, _, records, zero, magic = TRAILER.unpack(data[-TRAILER.size :])
    if at + length + TRAILER.size != len(data):
        return data
    changed = bytearray(data)
    try:
        found = read_records(lambda o, n: _with_trailer(data)[o : o + n], len(data), "memory")
    except (CorruptError, struct.error):
        found = []
    footer = at
    for record in found:
        row = footer + 4 + len(record.pack())
        footer = row
        if isinstance(record, Segment):
            row -= 12 * len(record.table)
            start = record.offset
            for size in record.table["length"].tolist():
                check = xxh3_64_intdigest(data[start : start + size])
                changed[row + 4 : row + 12] = check.to_bytes(8, "little")
                row, start = row + 12, start + size
    check = xxh3_64_intdigest(bytes(changed[at : at + length]))
    changed[-TRAILER.size :] = TRAILER.pack(at, length, check, records, zero, magic)
    return bytes(changed)


def _with_trailer(data: bytes) -> bytes:
    at, length, _, records, zero, magic = TRAILER.unpack(data[-TRAILER.size :])
    check = xxh3_64_intdigest(data[at : at + length])
    return data[: -TRAILER.size] + TRAILER.pack(at, length, check, records, zero, magic)


def read_streams(data: bytes) -> None:
    """Decode streams of any encoding and type, with a base and without."""
    if len(data) < 6:
        return
    kinds, types = list(ENCODINGS.values()), list(DTYPES.values())
    encoding, dtype = kinds[data[0] % len(kinds)], types[data[1] % len(types)]
    count, body = int.from_bytes(data[2:4], "little") % 3000, data[6:]
    cuts = [len(body) * (data[4] + i) // (256 + i) for i in range(encoding.streams(dtype) - 1)]
    ends = [*sorted(cuts), len(body)]
    streams = [memoryview(body)[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    base = np.arange(count, dtype=dtype.word) * data[5] if encoding.needs_base else None
    assert len(encoding.decode(streams, count, dtype, base)) == count


def read_manifest(data: bytes) -> None:
    snapshot = blake3(b"regatta snapshot 1\n" + data).hexdigest()
    parse_manifest(data, snapshot, "memory")


def read_packed_manifest(data: bytes) -> None:
    unpack_manifest(memoryview(data), "ab" * 32, "memory")


TARGETS = (read_pack, read_streams, read_manifest, read_packed_manifest)


def one_input(data: bytes) -> None:
    """What the fuzzer calls: the first byte says what the others are read as."""
    if not data:
        return
    try:
        TARGETS[data[0] % len(TARGETS)](data[1:])
    except CorruptError:
        pass


def seeds() -> list[bytes]:
    """Packs of every encoding, the hostile ones, and streams as they should be."""
    made = [bytes([0]) + attack.data for attack in ATTACKS.values() if len(attack.data) < 5000]
    rng = np.random.default_rng(0)
    values = [as_tensor("w", rng.normal(size=900).astype(np.float32)) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        packs = PackFolder(Path(folder))
        packs.create()
        for number, encoding in enumerate(ENCODINGS.values()):
            try:
                encoded = TensorEncoder(None).encode(
                    values[1], values[1].id, encoding, (values[0].id, values[0].words) if encoding.needs_base else None
                )
            except RegattaError:
                continue  # not for this type
            with packs.packing() as packing:
                TensorEncoder(None).encode(values[0], values[0].id, ENCODINGS[1]).write(packing)
                encoded.write(packing)
                made.append(bytes([0]) + packing.seal()[0].path.read_bytes())
            head = bytes([1, number, 1]) + (900).to_bytes(2, "little") + b"\0\1"
            made.append(head + b"".join(c for s in encoded.streams for c in s))
    made.append(bytes([2]) + b'{"format":1,"metadata":{},"tensors":{"w":{"dtype":"F32","id":"00","shape":[3]}}}')
    return made


def main() -> None:
    import atheris  # not a requirement: `make fuzz` installs it

    for data in seeds():  # every one of them must pass as it is
        one_input(data)
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(seeds()):
            (Path(folder) / str(number)).write_bytes(data)
        atheris.instrument_all()
        atheris.Setup([*sys.argv, "-max_len=20000", "-rss_limit_mb=2048", "-timeout=20", folder], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
