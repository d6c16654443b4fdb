"""Pack files as FORMAT.md defines them, and hostile variants of them.

They are made without the store's own writer, from the page alone.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from blake3 import blake3
from xxhash import xxh3_64_intdigest

MAGIC = bytes.fromhex("89524754504b0d0a")
RAW, ZSTD_PLANES, XOR = 0, 1, 3


@dataclass(frozen=True)
class Pack:
    """A file, and the text that an error about it has to contain; None where there is nothing wrong with it."""

    data: bytes
    named: str | None = None

    @property
    def id(self) -> str:
        return blake3(self.data).hexdigest()


Piece = tuple[bytes, bytes]  # a record without its offset filled in, and its bytes


def tensor_id(data: bytes, dtype: str = "F32", shape: tuple[int, ...] | None = None) -> bytes:
    sizes = (len(data) // 4,) if shape is None else shape
    return blake3(f"regatta tensor 1 {dtype} {','.join(map(str, sizes))}\n".encode() + data).digest()


def tensor(
    streams: list[list[bytes]],
    *,
    tensor: bytes,
    base: bytes = bytes(32),
    encoding: int = RAW,
    dtype: bytes = b"F32",
    shape: tuple[int, ...] = (3,),
    **lies: Any,
) -> Callable[[int], Piece]:
    """A tensor's record and bytes, once it is known where they go."""

    def at(offset: int) -> Piece:
        fixed = struct.pack(
            "<B32s32sH8sBBBIQ",
            lies.get("kind", 1),
            tensor,
            base,
            encoding,
            dtype,
            lies.get("dimensions", len(shape)),
            lies.get("first", 0),
            lies.get("count", len(streams)),
            lies.get("chunks", len(streams[0]) if streams else 0),
            lies.get("offset", offset),
        )
        sizes = struct.pack(f"<{len(shape)}Q", *shape)
        rows = [struct.pack("<IQ", lies.get("length", len(c)), xxh3_64_intdigest(c)) for s in streams for c in s]
        return fixed + sizes + b"".join(rows) + lies.get("tail", b""), b"".join(c for s in streams for c in s)

    return at


def manifest(text: bytes, **lies: Any) -> Callable[[int], Piece]:
    snapshot = blake3(b"regatta snapshot 1\n" + text).digest()
    body = lies.get("body", zstandard.ZstdCompressor().compress(text))

    def at(offset: int) -> Piece:
        length = lies.get("length", len(body))
        return struct.pack("<B32sQIQ", 2, snapshot, lies.get("offset", offset), length, xxh3_64_intdigest(body)), body

    return at


def pack(*pieces: Callable[[int], Piece], named: str | None = None, **lies: Any) -> Pack:
    data = bytearray(struct.pack("<8sII", lies.get("magic", MAGIC), lies.get("version", 1), 0))
    footer = b""
    for piece in pieces:
        record, body = piece(len(data))
        footer += struct.pack("<I", lies.get("record_length", len(record))) + record
        data += body
    at = len(data)
    data += footer
    check = lies.get("check", xxh3_64_intdigest(footer))
    lengths = lies.get("footer_offset", at), lies.get("footer_length", len(footer))
    data += struct.pack("<QQQII", *lengths, check, lies.get("records", len(pieces)), 0) + lies.get("magic", MAGIC)
    return Pack(bytes(data), named)


def snapshot_text(members: dict[str, bytes], dtype: str = "F32", shape: str = "[3]") -> bytes:
    listed = [
        f'"{name}":{{"dtype":"{dtype}","id":"{found.hex()}","shape":{shape}}}'.encode()
        for name, found in sorted(members.items())
    ]
    return b'{"format":1,"metadata":{},"tensors":{' + b",".join(listed) + b"}}"


VALUE = np.arange(3, dtype="<f4").tobytes()
GOOD = tensor_id(VALUE)
A, B = b"A" * 32, b"B" * 32
BIG = 2**18


def plain(**lies: Any) -> Callable[[int], Piece]:
    return tensor([[VALUE]], **{"tensor": GOOD, **lies})


def bomb(chunks: int) -> Callable[[int], Piece]:
    """Chunks of zeros: one byte per plane is a legal encoding of 2^18 of them."""
    return tensor([[b"\0"] * chunks] * 4, tensor=A, encoding=ZSTD_PLANES, shape=(chunks * BIG,))


def chain(length: int) -> list[Callable[[int], Piece]]:
    ids = [number.to_bytes(32, "big") for number in range(1, length + 1)]
    deltas = [tensor([[b"\0\0\0"]] * 4, tensor=one, base=base, encoding=XOR) for base, one in itertools.pairwise(ids)]
    return [plain(tensor=ids[0]), *deltas]


def huge_frame() -> bytes:
    """A zstd frame that claims 2^60 bytes."""
    return bytes.fromhex("28b52ffd") + bytes([0b11100000]) + (2**60).to_bytes(8, "little") + b"\x01\x00\x00"


ATTACKS: dict[str, Pack] = {
    "good": pack(plain(), manifest(snapshot_text({"w": GOOD}))),
    "no bytes": Pack(b"", ""),
    "text": Pack(b"this is not a pack" * 50, ""),
    "a newer version": pack(plain(), version=2, named="version 2"),
    "footer beyond the end": pack(plain(), footer_length=2**40, named="footer"),
    "footer before the start": pack(plain(), footer_offset=2**64 - 100, named="footer"),
    "footer of no length": pack(plain(), footer_length=0, named="footer"),
    "footer with a wrong checksum": pack(plain(), check=7, named="checksum"),
    "four billion records": pack(plain(), records=2**32 - 1, named="4294967295"),
    "no records": pack(plain(), records=0, named="after its last record"),
    "a record beyond the footer": pack(plain(), record_length=2**32 - 1, named="4294967295"),
    "a record of nothing": pack(plain(), record_length=0, named="kind 0"),
    "a record of another kind": pack(plain(kind=9), named="kind 9"),
    "a record that overlaps": pack(plain(), plain(tensor=A, offset=16), named="starts at byte 16"),
    "a record far away": pack(plain(offset=2**63), named="starts at byte"),
    "a stream of four billion bytes": pack(plain(length=2**32 - 1), named="footer starts elsewhere"),
    "four billion chunks": pack(plain(chunks=2**32 - 1), named="4294967295 chunks"),
    "no chunks": pack(plain(chunks=0), named="0 chunks"),
    "no streams": pack(plain(count=0), named="0 streams"),
    "255 streams": pack(plain(count=255), named="255 streams"),
    "more in the record": pack(plain(tail=b"more"), named="streams of 1 chunks"),
    "255 dimensions": pack(plain(dimensions=255), named="255 dimensions"),
    "a size of 2^63": pack(plain(shape=(2**63,)), named="2\\^44"),
    "sizes whose product overflows": pack(plain(shape=(2**33, 2**33)), named="2\\^44"),
    "an unknown type": pack(plain(dtype=b"F99"), named="F99"),
    "a type that is not a text": pack(plain(dtype=b"\xff\xfe"), named="element type"),
    "an unknown encoding": pack(plain(encoding=60_000), named="holds tensor"),
    "the second stream only": pack(plain(first=1), named="holds tensor"),
    "a raw stream that is too short": pack(tensor([[b"12"]], tensor=A), named="41414141"),
    "another tensor": pack(plain(tensor=A), named="41414141"),
    "a circle of deltas": pack(
        tensor([[b"\0\0\0"]] * 4, tensor=A, base=B, encoding=XOR),
        tensor([[b"\0\0\0"]] * 4, tensor=B, base=A, encoding=XOR),
        manifest(snapshot_text({"w": A})),
        named="41414141",
    ),
    "a delta to itself": pack(
        tensor([[b"\0\0\0"]] * 4, tensor=A, base=A, encoding=XOR), manifest(snapshot_text({"w": A})), named="41414141"
    ),
    "a delta to nothing": pack(
        tensor([[b"\0\0\0"]] * 4, tensor=A, base=B, encoding=XOR), manifest(snapshot_text({"w": A})), named="41414141"
    ),
    "a delta without a base": pack(
        tensor([[b"\0\0\0"]] * 4, tensor=A, encoding=XOR), manifest(snapshot_text({"w": A})), named="41414141"
    ),
    "a delta to something longer": pack(
        plain(),
        tensor([[b"\0\0"]] * 4, tensor=A, base=GOOD, encoding=XOR, shape=(2,)),
        manifest(snapshot_text({"w": A}, shape="[2]")),
        named="41414141",
    ),
    "a chain without end": pack(*chain(500), named="holds tensor"),
    "garbage for zstd": pack(
        tensor([[b"\x01garbage"]] * 4, tensor=A, encoding=ZSTD_PLANES, shape=(100,)), named="41414141"
    ),
    "a stream that claims 2^60 bytes": pack(
        tensor([[b"\x01" + huge_frame()]] * 4, tensor=A, encoding=ZSTD_PLANES, shape=(100,)), named="41414141"
    ),
    "gigabytes of zeros": pack(bomb(4000), manifest(snapshot_text({"w": A}, shape=f"[{4000 * BIG}]")), named="4141"),
    "a manifest that claims 2^60 bytes": pack(manifest(b"x", body=huge_frame()), named="claims"),
    "a manifest that is not zstd": pack(manifest(b"x", body=b"garbage"), named="decoded"),
    "a manifest of another snapshot": pack(
        manifest(b"x", body=zstandard.ZstdCompressor().compress(b"y")), named="not the one that its id names"
    ),
    "a manifest of four billion bytes": pack(manifest(b"x", length=2**32 - 1), named="footer starts elsewhere"),
    "a name that climbs": pack(plain(), manifest(snapshot_text({"../../w": GOOD})), named="\\.\\./\\.\\./w"),
    "a name from the root": pack(plain(), manifest(snapshot_text({"/etc/passwd": GOOD})), named="/etc/passwd"),
    "a name of nothing": pack(plain(), manifest(snapshot_text({"": GOOD})), named="non-empty"),
    "a manifest nested without end": pack(manifest(b"[" * 100_000), named="JSON"),
    "a manifest of another type": pack(
        plain(), manifest(snapshot_text({"w": GOOD}, dtype="I32")), named="another type"
    ),
}
for _code in range(2, 8):
    ATTACKS[f"garbage for encoding {_code}"] = pack(
        plain(tensor=B, shape=(3,)),
        *[
            tensor([[bytes(range(n, n + 40))]] * count, tensor=bytes([n]) * 32, base=base, encoding=_code, shape=(3,))
            for n, (count, base) in enumerate([(1, B), (1, bytes(32)), (4, B), (4, bytes(32)), (2, B)], 1)
        ],
    )
