"""Byte planes as streams: the entropy coders, and what a hostile stream may not do.

A stream tells by its length what it is, given the number of bytes that it stands for:

    as many bytes         the bytes themselves
    one byte              that byte, over and over
    anything else         a codec's number, then its data

Nothing is decoded before the length that it claims is found to be the one expected.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from regatta.errors import CorruptError

Bytes = NDArray[np.uint8]

ZSTD = 1
SMALL = 64  # fewer bytes than this are kept as they are

# Almost no match is ever found in weights, and looking for one costs time and, where a false one is found, bytes. The
# long minimal match and the tiny hash table leave the work to zstd's Huffman coder.
_HUFFMAN = zstandard.ZstdCompressionParameters.from_level(
    1, min_match=7, hash_log=10, window_log=17, write_content_size=1, write_checksum=0, write_dict_id=0
)
_WINDOW = 1 << 20  # the largest window that a decoder will set up for a stream


class _Coders(threading.local):
    """zstd's contexts, which threads may not share."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(compression_params=_HUFFMAN).compress
        self.decompress = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompress


_coders = _Coders()


def encode_bytes(values: Bytes) -> bytes:
    """The shortest stream for these bytes: constant, Huffman-coded by zstd, or as they are."""
    count = len(values)
    if count < SMALL:
        return values.tobytes()
    if values[0] == values[-1] and bool((values == values[0]).all()):
        return values[:1].tobytes()
    packed = _coders.compress(values.data)
    return bytes((ZSTD,)) + packed if len(packed) + 1 < count else values.tobytes()


def decode_bytes(stream: memoryview, count: int) -> Bytes:
    """The bytes of a stream; raises CorruptError where it does not hold exactly `count` of them."""
    size = len(stream)
    if size == count:
        return np.frombuffer(stream, np.uint8)
    if size == 1:
        return np.full(count, stream[0], np.uint8)
    if size == 0:
        raise CorruptError(f"A stream of {count} values is empty.")
    if stream[0] != ZSTD:
        raise CorruptError(f"A stream of {count} bytes starts with the codec number {stream[0]}, which is unknown.")
    return _decode_zstd(stream[1:], count)


def _decode_zstd(frame: memoryview, count: int) -> Bytes:
    try:
        header: Any = zstandard.get_frame_parameters(frame)
        if header.content_size != count:
            raise CorruptError(f"A zstd stream claims {header.content_size} bytes where {count} are expected.")
        values = _coders.decompress(frame, max_output_size=count, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptError(f"A zstd stream of {len(frame)} bytes cannot be decoded: {error}.") from error
    if len(values) != count:
        raise CorruptError(f"A zstd stream holds {len(values)} bytes where {count} are expected.")
    return np.frombuffer(values, np.uint8)
