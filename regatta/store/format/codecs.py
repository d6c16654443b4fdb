"""Entropy coders: values to streams of bytes and back, with guards against hostile streams.

The length of a stream, given the number of values in it, says what it is:

    as long as the values     the values themselves
    as long as one value      that value, repeated
    anything else             a codec's number, then its data

    ZSTD     bytes, in one zstd frame
    PAIRS    bytes that nearly all lie close together: two codes per byte in one stream, the other bytes in another
    PCODEC   integers or floats of 8 to 64 bits, as one chunk of pcodec: header, metadata, page
    NARROW   signed integers that nearly all fit a byte: a stream of those bytes, then a stream of the other integers

A stream is decoded only if the length that it claims is the expected one. Its pcodec metadata must name the mode that
is written here, because other modes could take more memory than the length of the stream justifies.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray
from pcodec import ChunkConfig, DeltaSpec, ModeSpec, PagingSpec, wrapped

from regatta.errors import CorruptError

Bytes: TypeAlias = NDArray[np.uint8]
Values: TypeAlias = NDArray[Any]

ZSTD, PAIRS, PCODEC, NARROW = 1, 2, 3, 4
MIN_CODED_VALUES = 64  # fewer values are stored uncoded

# Weights contain almost no repeated passages. Looking for them costs time, and a short match costs bytes. The longest
# minimal match and the smallest hash table leave the work to zstd's Huffman coder.
_HUFFMAN = zstandard.ZstdCompressionParameters.from_level(
    1, min_match=7, hash_log=6, window_log=18, write_content_size=1, write_checksum=0, write_dict_id=0
)
_MATCHING = zstandard.ZstdCompressionParameters.from_level(
    9, window_log=18, write_content_size=1, write_checksum=0, write_dict_id=0
)
_MAX_WINDOW_BYTES = 1 << 18  # the largest window that a decoder sets up for a stream

_NEAR = 8  # the number of neighbouring byte values that PAIRS codes; one more code means "elsewhere"
_NEAR_SHARE = 0.8
_NARROW_SHARE = 0.9
_SAMPLE_VALUES = 4096
_THOROUGH_FACTOR = 0.99  # pcodec's bytes take three times as long to decode: they must save a hundredth
_PAIRS_HEADER = struct.Struct("<BBI")  # codec, lowest value, length of the stream of pairs
_NARROW_HEADER = struct.Struct("<BI")  # codec, length of the stream of bytes

_PCODEC_HEADER = struct.Struct("<BHI")  # codec, pcodec's format version, length of its metadata
_PCODEC_FORMAT = 4  # the major version; features of minor versions are not used
_PCODEC_NAMES = {"f2": "f16", "f4": "f32", "f8": "f64"} | {f"{k}{w}": f"{k}{8 * w}" for k in "iu" for w in (1, 2, 4, 8)}
# The finest bins that pay: finer ones hardly shrink differences, and the tables of short floats outgrow the cache.
_PCODEC_CONFIGS: dict[int, Any] = {
    level: ChunkConfig(
        compression_level=level,
        enable_8_bit=True,
        mode_spec=ModeSpec.classic(),
        delta_spec=DeltaSpec.no_op(),
        paging_spec=PagingSpec.equal_pages_up_to(1 << 24),
    )
    for level in (8, 9, 10)
}
_PCODEC_LEVELS = {"f4": 10, "f8": 10, "f2": 9, "i1": 8, "u1": 8}


class _Coders(threading.local):
    """zstd's contexts; threads must not share them."""

    def __init__(self) -> None:
        self.huffman = zstandard.ZstdCompressor(compression_params=_HUFFMAN).compress
        self.matching = zstandard.ZstdCompressor(compression_params=_MATCHING).compress
        self.decompress = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompress


_coders = _Coders()

# By default glibc returns freed memory to the system and faults it in again, page by page, for every intermediate array
# of a chunk. That costs three times as much as decoding. Freeing one larger block raises glibc's threshold.
np.empty(1 << 24, np.uint8)


def encode_bytes(values: Bytes, *, matching: bool = False, thorough: bool = False) -> bytes:
    """The stream of these bytes.

    `matching` looks for repeated passages, which integers have and weights do not. `thorough` also tries pcodec's
    coder, which uses fractions of a bit and takes a few times as long.
    """
    plain = _encode_plain(values)
    if plain is not None:
        return plain
    lowest = None if matching else _lowest_of_near_values(values)
    packed = _encode_zstd(values, matching) if lowest is None else _encode_pairs(values, lowest)
    if thorough and len(values) >= 256:
        smaller = _encode_pcodec(values)
        packed = smaller if len(smaller) < _THOROUGH_FACTOR * len(packed) else packed
    return packed if len(packed) < len(values) else values.tobytes()


def decode_bytes(stream: memoryview, count: int) -> Bytes:
    """The bytes of a stream; CorruptError unless it holds exactly `count` of them."""
    plain = _decode_plain(stream, count, np.dtype(np.uint8))
    if plain is not None:
        return plain
    if stream[0] == ZSTD:
        return _decode_zstd(stream[1:], count)
    if stream[0] == PAIRS:
        return _decode_pairs(stream, count)
    values = np.empty(count, np.uint8)
    _decode_pcodec(stream, values)
    return values


def encode_values(values: Values, *, quick: bool = False) -> bytes:
    """The stream of integers or floats, by pcodec, which models magnitudes rather than bytes.

    `quick` accepts a stream that is up to 3% longer if it decodes in half the time.
    """
    packed = _encode_wide(values)
    sample = values[:: max(1, len(values) // _SAMPLE_VALUES)]
    integers = len(values) >= MIN_CODED_VALUES and values.dtype.kind == "i" and values.itemsize > 1
    if integers and bool((np.abs(sample) < 127).mean() >= _NARROW_SHARE):
        narrow = _encode_narrow(values, quick)
        if len(narrow) < min(len(packed) * (1.03 if quick else 1), values.nbytes):
            return narrow
    return packed


def decode_values(stream: memoryview, count: int, dtype: np.dtype[Any]) -> Values:
    """The values of a stream; CorruptError unless it holds exactly `count` of them."""
    plain = _decode_plain(stream, count, dtype)
    if plain is not None:
        return plain
    values = np.empty(count, dtype)
    decode_values_into(stream, values)
    return values


def decode_values_into(stream: memoryview, values: Values) -> None:
    """Decode a stream into a contiguous array that its values fill exactly."""
    plain = _decode_plain(stream, len(values), values.dtype)
    if plain is not None:
        values[:] = plain
    elif stream[0] == NARROW and values.dtype.kind == "i":
        _decode_narrow(stream, values)
    else:
        _decode_pcodec(stream, values)


def _encode_plain(values: Values) -> bytes | None:
    """The stream of values that need no codec, because they are few or equal in every bit; None for others."""
    if len(values) < MIN_CODED_VALUES:
        return values.tobytes()
    words = values.view(f"<u{values.itemsize}")
    if words[0] == words[-1] and bool((words == words[0]).all()):
        return values[:1].tobytes()
    return None


def _decode_plain(stream: memoryview, count: int, dtype: np.dtype[Any]) -> Values | None:
    size = len(stream)
    if size == count * dtype.itemsize:
        return np.frombuffer(stream, dtype)
    if size == dtype.itemsize and count:
        return np.full(count, np.frombuffer(stream, dtype)[0])
    if size == 0 or count == 0:
        raise CorruptError(f"A stream of {size} bytes stands for {count} values.")
    return None


def _encode_zstd(values: Bytes, matching: bool) -> bytes:
    compress = _coders.matching if matching else _coders.huffman
    return bytes((ZSTD,)) + compress(values.data)


def _decode_zstd(frame: memoryview, count: int) -> Bytes:
    try:
        header: Any = zstandard.get_frame_parameters(frame)
        if header.content_size != count:
            raise CorruptError(f"A zstd frame claims {header.content_size} bytes where {count} are expected.")
        values = _coders.decompress(frame, max_output_size=count, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptError(f"A zstd frame of {len(frame)} bytes cannot be decoded: {error}.") from error
    if len(values) != count:
        raise CorruptError(f"A zstd frame holds {len(values)} bytes where {count} are expected.")
    return np.frombuffer(values, np.uint8)


def _lowest_of_near_values(values: Bytes) -> int | None:
    """The lowest of the neighbouring byte values that most bytes have; None if too few bytes have them."""
    sample = values[:: max(1, len(values) // _SAMPLE_VALUES)]
    counts = np.bincount(sample, minlength=256)
    shares = np.convolve(counts, np.ones(_NEAR, np.int64), "valid")
    lowest = int(shares.argmax())
    return lowest if shares[lowest] >= _NEAR_SHARE * len(sample) else None


def _encode_pairs(values: Bytes, lowest: int) -> bytes:
    """Huffman codes have whole bits; coding pairs loses half as much, in half the time."""
    codes = np.clip(values - np.uint8(lowest), np.uint8(0), np.uint8(_NEAR))  # ten times as fast as np.minimum
    elsewhere = values[codes == _NEAR]
    if len(codes) % 2:
        codes = np.append(codes, np.uint8(0))
    twos = codes.view("<u2")
    pairs = (twos | twos >> np.uint16(4)).astype(np.uint8)
    packed = _encode_unpaired(pairs)
    return _PAIRS_HEADER.pack(PAIRS, lowest, len(packed)) + packed + _encode_unpaired(elsewhere)


def _decode_pairs(stream: memoryview, count: int) -> Bytes:
    if len(stream) < _PAIRS_HEADER.size:
        raise CorruptError(f"A stream of pairs is cut off after {len(stream)} bytes.")
    _, lowest, length = _PAIRS_HEADER.unpack(stream[: _PAIRS_HEADER.size])
    packed, rest = stream[_PAIRS_HEADER.size :][:length], stream[_PAIRS_HEADER.size + length :]
    twos = _decode_unpaired(packed, (count + 1) // 2).astype("<u2")
    twos |= twos << np.uint16(4)
    twos &= np.uint16(0x0F0F)
    codes = twos.view(np.uint8)
    if int(codes.max()) > _NEAR or codes[count:].any():
        raise CorruptError(f"A stream of pairs holds a code above {_NEAR}, or more codes than its {count}.")
    elsewhere = np.flatnonzero(codes == _NEAR)
    codes += np.uint8(lowest)
    codes[elsewhere] = _decode_unpaired(rest, len(elsewhere))
    return codes[:count]


def _encode_unpaired(values: Bytes) -> bytes:
    """A stream inside a stream of pairs; it never holds pairs itself, which bounds the nesting."""
    plain = _encode_plain(values)
    if plain is not None:
        return plain
    packed = _encode_zstd(values, matching=False)
    return packed if len(packed) < len(values) else values.tobytes()


def _decode_unpaired(stream: memoryview, count: int) -> Bytes:
    plain = _decode_plain(stream, count, np.dtype(np.uint8))
    if plain is not None:
        return plain
    if stream[0] != ZSTD:
        raise CorruptError(f"A stream inside a stream of pairs has the codec number {stream[0]}, not that of zstd.")
    return _decode_zstd(stream[1:], count)


def _encode_narrow(values: Values, quick: bool) -> bytes:
    """Small integers, where Huffman codes are about as short as pcodec's, or shorter."""
    inside = np.clip(values, values.dtype.type(-128), values.dtype.type(127)).astype(np.int8)
    outside = np.flatnonzero((values > 126) | (values < -128))
    inside[outside] = 127
    shifted = inside.view(np.uint8) ^ np.uint8(128)
    packed = _encode_unpaired(shifted)
    if not quick:
        packed = min(packed, encode_bytes(shifted), key=len)
    return _NARROW_HEADER.pack(NARROW, len(packed)) + packed + _encode_wide(values[outside])


def _decode_narrow(stream: memoryview, values: Values) -> None:
    if len(stream) < _NARROW_HEADER.size:
        raise CorruptError(f"A stream of small integers is cut off after {len(stream)} bytes.")
    _, length = _NARROW_HEADER.unpack(stream[: _NARROW_HEADER.size])
    packed, rest = stream[_NARROW_HEADER.size :][:length], stream[_NARROW_HEADER.size + length :]
    inside = (decode_bytes(packed, len(values)) ^ np.uint8(128)).view(np.int8)
    values[:] = inside
    outside = np.flatnonzero(inside == 127)
    wide = _decode_plain(rest, len(outside), values.dtype)
    if wide is None:  # never NARROW itself
        wide = np.empty(len(outside), values.dtype)
        _decode_pcodec(rest, wide)
    values[outside] = wide


def _encode_wide(values: Values) -> bytes:
    plain = _encode_plain(values)
    if plain is not None:
        return plain
    packed = _encode_pcodec(values)
    return packed if len(packed) < values.nbytes else values.tobytes()


def _encode_pcodec(values: Values) -> bytes:
    file = wrapped.FileCompressor()
    header = file.write_header()
    if header[0] != _PCODEC_FORMAT:
        raise RuntimeError(f"pcodec writes format {header[0]}; the store keeps format {_PCODEC_FORMAT}.")
    level = _PCODEC_LEVELS.get(values.dtype.str[1:], 9)
    chunk = file.chunk_compressor(values, _PCODEC_CONFIGS[level])
    meta = chunk.write_meta()
    ours = _PCODEC_HEADER.pack(PCODEC, int.from_bytes(header, "little"), len(meta))
    return b"".join((ours, meta, chunk.write_page(0)))


def _decode_pcodec(stream: memoryview, values: Values) -> None:
    if stream[0] != PCODEC or len(stream) <= _PCODEC_HEADER.size:
        raise CorruptError(f"A stream of {len(stream)} bytes starts with the codec number {stream[0]}.")
    _, version, length = _PCODEC_HEADER.unpack(stream[: _PCODEC_HEADER.size])
    start = _PCODEC_HEADER.size + length
    meta, page = bytes(stream[_PCODEC_HEADER.size : start]), bytes(stream[start:])
    if version & 255 != _PCODEC_FORMAT or meta[:1] != b"\0":  # mode classic, delta none
        raise CorruptError(f"A pcodec stream has format {version & 255} and mode {meta[:1].hex()}: not ours.")
    try:
        file, _ = wrapped.FileDecompressor.new(version.to_bytes(2, "little"))
        chunk, used = file.chunk_decompressor(meta, _PCODEC_NAMES[values.dtype.str[1:]])
        progress, read = chunk.read_page_into(page, len(values), values)
    except RuntimeError as error:
        raise CorruptError(f"A pcodec stream of {len(stream)} bytes cannot be decoded: {error}.") from error
    if used != len(meta) or read != len(page) or not progress.finished or progress.n_processed != len(values):
        raise CorruptError(f"A pcodec stream of {len(stream)} bytes does not end where its {len(values)} values do.")


_LENGTH = struct.Struct("<I")


def join_streams(streams: Sequence[bytes]) -> bytes:
    """Several streams in one bundle: each after its length."""
    return b"".join(part for stream in streams for part in (_LENGTH.pack(len(stream)), stream))


def split_streams(stream: memoryview, most: int) -> list[memoryview]:
    """The streams of a bundle; CorruptError if there are more than `most`."""
    streams: list[memoryview] = []
    while len(stream):
        if len(stream) < _LENGTH.size or len(streams) == most:
            raise CorruptError(f"A bundle has {len(stream)} stray bytes after {len(streams)} streams.")
        (length,) = _LENGTH.unpack(stream[: _LENGTH.size])
        if length > len(stream) - _LENGTH.size:
            raise CorruptError(f"A bundle has {len(stream) - _LENGTH.size} bytes left for a stream of {length}.")
        streams.append(stream[_LENGTH.size : _LENGTH.size + length])
        stream = stream[_LENGTH.size + length :]
    return streams
