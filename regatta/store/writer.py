"""Words to streams: encodes tensors chunk by chunk, in parallel, and lays them out plane by plane in a pack file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from xxhash import xxh3_64_intdigest

from regatta.errors import CorruptError
from regatta.store.folder import PackBatch
from regatta.store.format.dtypes import DType, Words
from regatta.store.format.encodings import CHUNK_WORDS, Encoding
from regatta.store.format.manifest import MAX_MANIFEST_BYTES, Manifest
from regatta.store.format.pack_file import ManifestRecord, Segment, stream_table
from regatta.store.format.tensor_id import RawTensor


@dataclass(frozen=True)
class EncodedTensor:
    """The streams of a tensor, each a list of its chunks."""

    segment: Segment
    streams: Sequence[Sequence[bytes]]

    def write(self, packing: PackBatch) -> None:
        packing.add(self.segment, (chunk for stream in self.streams for chunk in stream))


class TensorEncoder:
    """Encodes tensors, in parallel if there is a pool of threads."""

    def __init__(self, pool: Executor | None) -> None:
        self._map: Callable[..., Any] = map if pool is None else pool.map

    def encode(
        self,
        tensor: RawTensor,
        name: str,
        encoding: Encoding,
        base: tuple[str, Words] | None = None,
        verify: bool = False,
    ) -> EncodedTensor:
        """The streams of a tensor; `verify` decodes each chunk again and compares."""

        def encode_at(at: int) -> list[bytes]:
            words = tensor.words[at : at + CHUNK_WORDS]
            against = None if base is None else base[1][at : at + CHUNK_WORDS]
            streams = encoding.encode(words, tensor.dtype, against)
            if verify and not np.array_equal(_decode(encoding, streams, len(words), tensor.dtype, against), words):
                raise CorruptError(f"Tensor {name} does not survive the encoding {encoding.name}.")
            return streams

        starts = range(0, len(tensor.words), CHUNK_WORDS)
        chunks = list((self._map if len(starts) > 1 else map)(encode_at, starts))
        return _encoded(tensor, name, encoding, None if base is None else base[0], chunks)

    def lossy(self, tensor: RawTensor, encoding: Encoding) -> tuple[RawTensor, EncodedTensor]:
        """A tensor after a lossy scheme, and its streams."""
        pieces = [tensor.words[at : at + CHUNK_WORDS] for at in range(0, len(tensor.words), CHUNK_WORDS)]
        chunks = list(self._map(lambda words: encoding.encode(words, tensor.dtype, None), pieces))
        kept = [
            _decode(encoding, chunk, len(words), tensor.dtype, None)
            for chunk, words in zip(chunks, pieces, strict=True)
        ]
        left = RawTensor(tensor.dtype, tensor.shape, np.concatenate(kept) if kept else tensor.words)
        return left, _encoded(left, left.id, encoding, None, chunks)


def write_manifest(packing: PackBatch, manifest: Manifest) -> None:
    data = zstandard.ZstdCompressor(level=9).compress(manifest.text())
    packing.add(ManifestRecord(manifest.id, 0, len(data), xxh3_64_intdigest(data)), [data])


def unpack_manifest(data: memoryview, snapshot: str, place: str) -> bytes:
    """The text of a manifest from its compressed form in a pack file."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if not 0 < size <= MAX_MANIFEST_BYTES:
            raise CorruptError(f"The manifest of {snapshot} claims {size} bytes.", place=place)
        return zstandard.ZstdDecompressor(max_window_size=2**27).decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise CorruptError(f"The manifest of {snapshot} cannot be decoded: {error}.", place=place) from error


def _encoded(
    tensor: RawTensor, name: str, encoding: Encoding, base: str | None, chunks: Sequence[Sequence[bytes]]
) -> EncodedTensor:
    streams = [[chunk[number] for chunk in chunks] for number in range(encoding.streams(tensor.dtype))]
    table, count = stream_table(streams), len(streams)
    return EncodedTensor(Segment(name, base, encoding.id, tensor.dtype, tensor.shape, 0, count, 0, table), streams)


def _decode(encoding: Encoding, streams: Sequence[bytes], count: int, dtype: DType, base: Words | None) -> Words:
    return encoding.decode([memoryview(stream) for stream in streams], count, dtype, base)
