"""A reader of packs written from FORMAT.md alone, without any code of the store.

It is slow and checks little; it shows what the page says.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from blake3 import blake3
from pcodec import wrapped
from xxhash import xxh3_64_intdigest

CHUNK, RUN = 2**18, 64
# width in bytes, what kind of number, bits of the exponent, words of an element
TYPES = {
    "F64": (8, "f", 11, 1), "F32": (4, "f", 8, 1), "F16": (2, "f", 5, 1), "BF16": (2, "f", 8, 1),
    "F8_E4M3": (1, "f", 4, 1), "F8_E5M2": (1, "f", 5, 1), "C64": (4, "f", 8, 2), "C128": (8, "f", 11, 2),
    "I64": (8, "i", 0, 1), "I32": (4, "i", 0, 1), "I16": (2, "i", 0, 1), "I8": (1, "i", 0, 1),
    "U64": (8, "u", 0, 1), "U32": (4, "u", 0, 1), "U16": (2, "u", 0, 1), "U8": (1, "u", 0, 1), "BOOL": (1, "u", 0, 1),
}  # fmt: skip
NAMES = {"f2": "f16", "f4": "f32", "f8": "f64"} | {f"{k}{w}": f"{k}{8 * w}" for k in "iu" for w in (1, 2, 4, 8)}


class Packs:
    """All packs of a folder: `tensors` by id, `manifests` by snapshot."""

    def __init__(self, folder: Path) -> None:
        self.tensors: dict[str, list[dict[str, Any]]] = {}
        self.manifests: dict[str, Any] = {}
        for path in sorted(folder.glob("*.pack")):
            data = path.read_bytes()
            assert blake3(data).hexdigest() == path.stem
            self._read(data)

    def _read(self, data: bytes) -> None:
        magic, version, zero = struct.unpack("<8sII", data[:16])
        offset, length, check, count, _, again = struct.unpack("<QQQII8s", data[-40:])
        assert (magic, version, zero, again) == (bytes.fromhex("89524754504b0d0a"), 1, 0, magic)
        footer = data[offset : offset + length]
        assert xxh3_64_intdigest(footer) == check
        at = 0
        for _ in range(count):
            (size,) = struct.unpack_from("<I", footer, at)
            self._record(footer[at + 4 : at + 4 + size], data)
            at += 4 + size

    def _record(self, record: bytes, data: bytes) -> None:
        if record[0] == 2:
            _, snapshot, offset, length, check = struct.unpack("<B32sQIQ", record)
            frame = data[offset : offset + length]
            assert xxh3_64_intdigest(frame) == check
            text = zstandard.ZstdDecompressor().decompress(frame)
            assert blake3(b"regatta snapshot 1\n" + text).digest() == snapshot
            self.manifests[snapshot.hex()] = json.loads(text)
            return
        fixed = struct.Struct("<B32s32sH8sBBBIQ")
        _, tensor, base, encoding, dtype, dimensions, first, count, chunks, offset = fixed.unpack_from(record)
        shape = struct.unpack_from(f"<{dimensions}Q", record, fixed.size)
        rows = struct.iter_unpack("<IQ", record[fixed.size + 8 * dimensions :])
        streams: list[list[bytes]] = [[] for _ in range(count)]
        for number, (length, check) in enumerate(rows):
            stream = data[offset : offset + length]
            assert xxh3_64_intdigest(stream) == check
            streams[number // chunks].append(stream)
            offset += length
        self.tensors.setdefault(tensor.hex(), []).append({
            "base": base.hex() if any(base) else None, "encoding": encoding, "type": dtype.rstrip(b"\0").decode(),
            "shape": shape, "first": first, "chunks": chunks, "streams": streams,
        })  # fmt: skip

    def words(self, tensor: str) -> Any:
        """Decode a tensor from each encoding in the packs; all must agree."""
        ways: dict[tuple[int, str | None], dict[int, dict[str, Any]]] = {}
        for part in self.tensors[tensor]:
            ways.setdefault((part["encoding"], part["base"]), {})[part["first"]] = part
        found = [self._words(tensor, [way[first] for first in sorted(way)]) for way in ways.values()]
        assert all(np.array_equal(found[0], other) for other in found)
        return found[0]

    def _words(self, tensor: str, parts: list[dict[str, Any]]) -> Any:
        head, streams = parts[0], [stream for part in parts for stream in part["streams"]]
        width, _, _, lanes = TYPES[head["type"]]
        total = int(np.prod(head["shape"], dtype=np.int64)) * lanes
        base = self.words(head["base"]) if head["base"] else None
        words = np.empty(total, f"<u{width}")
        for chunk in range(head["chunks"]):
            at = slice(chunk * CHUNK, min(total, (chunk + 1) * CHUNK))
            one = Chunk(head["type"], at.stop - at.start, None if base is None else base[at])
            words[at] = one.decode(head["encoding"], [stream[chunk] for stream in streams])
        header = f"regatta tensor 1 {head['type']} {','.join(map(str, head['shape']))}\n".encode()
        assert blake3(header + words.tobytes()).hexdigest() == tensor
        return words


def numbers(stream: bytes, n: int, kind: str) -> Any:
    """A stream of n numbers of that NumPy type."""
    w = int(kind[1:])
    if len(stream) == n * w:
        return np.frombuffer(stream, f"<{kind}")
    if len(stream) == w:
        return np.repeat(np.frombuffer(stream, f"<{kind}"), n)
    return {1: _zstd, 2: _pairs, 3: _pcodec, 4: _narrow}[stream[0]](stream[1:], n, kind)


def _zstd(stream: bytes, n: int, kind: str) -> Any:
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(stream), "u1")


def _pairs(stream: bytes, n: int, kind: str) -> Any:
    lowest, length = struct.unpack_from("<BI", stream)
    pairs = numbers(stream[5 : 5 + length], -(-n // 2), "u1")
    codes = np.stack([pairs & 15, pairs >> 4], axis=1).ravel()[:n]
    values = (codes.astype(int) + lowest).astype("u1")
    values[codes == 8] = numbers(stream[5 + length :], int((codes == 8).sum()), "u1")
    return values


def _pcodec(stream: bytes, n: int, kind: str) -> Any:
    header, length = stream[:2], int.from_bytes(stream[2:6], "little")
    file, _ = wrapped.FileDecompressor.new(header)
    chunk, _ = file.chunk_decompressor(stream[6 : 6 + length], NAMES[kind])
    values = np.empty(n, f"<{kind}")
    chunk.read_page_into(stream[6 + length :], n, values)
    return values


def _narrow(stream: bytes, n: int, kind: str) -> Any:
    length = int.from_bytes(stream[:4], "little")
    narrow = numbers(stream[4 : 4 + length], n, "u1")
    values = (narrow.astype(int) - 128).astype(f"<{kind}")
    values[narrow == 255] = numbers(stream[4 + length :], int((narrow == 255).sum()), kind)
    return values


def bfloat16(words: Any) -> Any:
    return (words.view("<u2").astype("<u4") << np.uint32(16)).view("<f4")


def parts_of(bundle: bytes) -> list[bytes]:
    parts = []
    while bundle:
        length = int.from_bytes(bundle[:4], "little")
        parts.append(bundle[4 : 4 + length])
        bundle = bundle[4 + length :]
    return parts


class Chunk:
    """n words of a type, and those of the base."""

    def __init__(self, dtype: str, n: int, base: Any) -> None:
        self.n, self.base, self.dtype = n, base, dtype
        self.width, self.kind, self.exponent, _ = TYPES[dtype]
        self.bits, self.word = 8 * self.width, f"<u{self.width}"
        self.rotated = self.kind == "f" and self.width > 1
        self.number = f"{self.kind if self.width > 1 or self.kind != 'f' else 'u'}{self.width}"

    def decode(self, encoding: int, streams: list[bytes]) -> Any:
        ways: dict[int, Callable[[list[bytes]], Any]] = {
            0: lambda s: np.frombuffer(s[0], self.word), 1: self.planes, 2: self.runs,
            3: lambda s: self.planes(s) ^ self.base, 4: lambda s: self.differences(s[0], self.n) + self.base,
            5: self.grouped, 6: self.grouped_planes,
            16: lambda s: self.rounded(numbers(s[0], self.n, "f2")),
            17: lambda s: self.rounded(bfloat16(numbers(s[0], self.n, "f2"))),
        }  # fmt: skip
        if encoding in ways:
            return ways[encoding](streams)
        return self.fixed(streams[0]) if encoding < 64 else self.table(streams[0])

    def planes(self, streams: list[bytes]) -> Any:
        return self.from_planes([numbers(stream, self.n, "u1") for stream in streams])

    def from_planes(self, planes: list[Any]) -> Any:
        ordered = np.zeros(self.n, self.word)
        for plane in planes:
            ordered = (ordered << np.array(8, self.word) if self.width > 1 else ordered * 0) | plane.astype(self.word)
        if not self.rotated:
            return ordered
        wide = [int(word) for word in ordered]
        mantissa = self.bits - 1 - self.exponent
        sign = [word >> mantissa & 1 for word in wide]
        low = [word & ((1 << mantissa) - 1) for word in wide]
        both = zip(wide, sign, low, strict=True)
        return np.array(
            [s << (self.bits - 1) | (word >> (mantissa + 1)) << mantissa | m for word, s, m in both], self.word
        )

    def runs(self, streams: list[bytes]) -> Any:
        if streams[0][0] == 0:
            return numbers(streams[0][1:], self.n, self.number).view(self.word)
        zeros, *groups = parts_of(streams[0][1:])
        z = numbers(zeros, -(-self.n // RUN), "u1")
        table = np.empty((len(z), RUN), self.word)
        for final, group in zip(np.unique(z).tolist(), groups, strict=True):
            rows = np.flatnonzero(z == final)
            if final == 0:
                found = numbers(group, len(rows) * RUN, self.number).view(self.word)
            else:
                width = next(w for w in (1, 2, 4, 8) if max(1, self.bits - final) <= 8 * w)
                short = numbers(group, len(rows) * RUN, f"u{width}").astype(self.word)
                found = short << np.array(min(final, self.bits - 1), self.word)
            table[rows] = found.reshape(-1, RUN)
        return table.ravel()[: self.n]

    def differences(self, stream: bytes, n: int) -> Any:
        return numbers(stream, n, f"i{self.width}").view(self.word)

    def order(self, scales: bytes, sizes: list[int]) -> Any:
        if len(sizes) == 1:
            return np.arange(self.n)
        exponents = np.zeros(self.n, int)
        if self.kind == "f":
            kept = min(self.exponent, 8)
            exponents = (self.base.astype("u8") >> np.uint64(self.bits - 1 - kept)).astype(int) & ((1 << kept) - 1)
        keys = np.minimum(63, max(1, exponents.max()) - np.maximum(1, exponents))
        if scales:
            keys = keys + np.repeat(numbers(scales, -(-self.n // RUN), "u1"), RUN)[: self.n]
        return keys.argsort(kind="stable")

    def grouped(self, streams: list[bytes]) -> Any:
        scales, packed, *groups = parts_of(streams[0])
        sizes = np.frombuffer(packed, "<u4").tolist()
        words = np.empty(self.n, self.word)
        gaps = [self.differences(group, size) for group, size in zip(groups, sizes, strict=True)]
        words[self.order(scales, sizes)] = np.concatenate(gaps)
        return words + self.base

    def grouped_planes(self, streams: list[bytes]) -> Any:
        scales, packed, *first = parts_of(streams[0])
        sizes = np.frombuffer(packed, "<u4").tolist()
        order, planes = self.order(scales, sizes), []
        of_base = self.to_planes(self.base)
        for groups, base in zip([first, *map(parts_of, streams[1:])], of_base, strict=True):
            gaps = np.empty(self.n, "u1")
            gaps[order] = np.concatenate([numbers(g, size, "u1") for g, size in zip(groups, sizes, strict=True)])
            planes.append((gaps ^ np.uint8(128)) + base)
        return self.from_planes(planes)

    def to_planes(self, words: Any) -> list[Any]:
        wide, mantissa = [int(word) for word in words], self.bits - 1 - self.exponent
        if self.rotated:
            exponent = (1 << self.exponent) - 1
            wide = [
                (w >> mantissa & exponent) << (mantissa + 1)
                | (w >> (self.bits - 1)) << mantissa
                | w & ((1 << mantissa) - 1)
                for w in wide
            ]
        return [np.array([w >> 8 * k & 255 for w in wide], "u1") for k in reversed(range(self.width))]

    def rounded(self, values: Any) -> Any:
        return values.astype(f"<f{self.width}").view(self.word)

    def fixed(self, stream: bytes) -> Any:
        (e,) = struct.unpack_from("<h", stream)
        return self.rounded(np.ldexp(numbers(stream[2:], self.n, "i4").astype(float), e))

    def table(self, stream: bytes) -> Any:
        table, codes = parts_of(stream)
        return np.frombuffer(table, self.word)[numbers(codes, self.n, "u1")]
