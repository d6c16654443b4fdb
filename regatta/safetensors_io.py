"""The header of safetensors files, read and written.

    u64 length, little-endian | that many bytes of JSON, padded with spaces | the bytes of the tensors

The library reads tensors by copying them and does not give the header back as it was written; partitions are mapped
into memory, and states are archived byte for byte. Nothing in a header is trusted: its length is checked before it is
read, each number before it is used. HeaderError says what is wrong; callers say in which file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_HEADER_VALUES = 5_000_000  # each takes far more memory than its text; a tensor has about ten
LENGTH_BYTES = 8
METADATA = "__metadata__"


class HeaderError(ValueError):
    """What is wrong with a header, or with a file that does not fit its header."""


class TensorEntry(NamedTuple):
    """A tensor as the header describes it; its bytes are counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Header(NamedTuple):
    """A header that was read: the JSON as it was written, and what it says. Its entries are checked by `tensors`."""

    text: bytes
    content: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes before the first tensor."""
        return LENGTH_BYTES + len(self.text)

    @property
    def metadata(self) -> Any:
        """The texts beside the tensors, as far as they are texts."""
        return self.content.get(METADATA, {})

    def tensors(self) -> list[TensorEntry]:
        """All tensors, in the order of their bytes."""
        entries = [_parse_entry(name, entry) for name, entry in self.content.items() if name != METADATA]
        return sorted(entries, key=lambda entry: (entry.start, entry.stop))

    def check_coverage(self, file_size: int) -> None:
        """The tensors must follow each other without gaps or overlaps and end where the file ends."""
        position = self.size
        for entry in self.tensors():
            if self.size + entry.start != position:
                raise HeaderError(f"{entry.name!r:.100} starts at byte {self.size + entry.start} instead of {position}")
            position = self.size + entry.stop
        if file_size != position:
            state = "it is cut off" if file_size < position else "something follows the data"
            raise HeaderError(f"its header describes {position} bytes, but the file has {file_size}: {state}")


def read_header(path: Path) -> Header:
    """The header of a file; no more than that is read."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = _header_length(file.read(LENGTH_BYTES), size)
        return parse_header(file.read(length))


def split_header(content: memoryview) -> Header:
    """The header of a file whose content is in memory, or mapped into it."""
    length = _header_length(content[:LENGTH_BYTES], len(content))
    return parse_header(bytes(content[LENGTH_BYTES : LENGTH_BYTES + length]))


def parse_header(text: bytes) -> Header:
    values = sum(text.count(sign) for sign in (b",", b"[", b"{"))
    if values > MAX_HEADER_VALUES:
        raise HeaderError(f"its header has {values:,} values, more than the {MAX_HEADER_VALUES:,} allowed")
    try:
        content = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"its header is not JSON ({error!s:.200})") from error
    if not isinstance(content, dict):
        raise HeaderError("its header is not a JSON object")
    return Header(text, content)


def encode_header(content: Mapping[str, Any]) -> bytes:
    """What stands before the tensors in a file with this header."""
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def tensor_entry(dtype: str, shape: tuple[int, ...], start: int, stop: int) -> dict[str, Any]:
    """A tensor in the content of a header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def _header_length(prefix: bytes | memoryview, file_size: int) -> int:
    length = int.from_bytes(prefix, "little")
    if file_size < LENGTH_BYTES or length > file_size - LENGTH_BYTES:
        raise HeaderError(f"its header should have {length} bytes, but the whole file has {file_size}: it is cut off")
    if length > MAX_HEADER_BYTES:
        raise HeaderError(f"its header claims {length} bytes, more than the {MAX_HEADER_BYTES} allowed")
    return length


def _parse_entry(name: str, entry: Any) -> TensorEntry:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise HeaderError(f"the entry of {name!r:.100} is not that of a tensor") from error
    if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
        raise HeaderError(f"the entry of {name!r:.100} has a length or offset that is not a whole number")
    if not isinstance(dtype, str):
        raise HeaderError(f"the entry of {name!r:.100} has the type {dtype!r:.100}, which is not a text")
    return TensorEntry(name, dtype, shape, start, stop)
