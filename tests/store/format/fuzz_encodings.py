"""A coverage-guided fuzzer over the decoders of chunks; it needs atheris, which the tests do not.

    python tests/store/format/fuzz_encodings.py -max_total_time=300

Each input says which encoding, element type and length to decode, and is the streams itself. Whatever they are, the
decoder gives as many words as were asked for or a CorruptError, soon, and in little memory.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from regatta.errors import CorruptError
from regatta.store.format import codecs
from regatta.store.format.dtypes import DTYPES, DType
from regatta.store.format.encodings import ENCODINGS, Encoding

COUNTS = (0, 1, 63, 64, 100, 1000, 5000)
_HEAD = 3  # bytes: encoding, type, length


def one_input(data: bytes) -> None:
    """Decode what the fuzzer made up."""
    if len(data) < _HEAD:
        return
    encoding, dtype, count = _choices(data)
    base = (np.arange(count) * 2654435761).astype(dtype.word)
    streams = _streams(memoryview(data)[_HEAD:], encoding.streams(dtype))
    try:
        words = encoding.decode(streams, count, dtype, base)
    except CorruptError:
        return
    assert words.dtype == dtype.word and words.shape == (count,)


def _choices(data: bytes) -> tuple[Encoding, DType, int]:
    encodings, dtypes = [*ENCODINGS.values()], [*DTYPES.values()]
    return encodings[data[0] % len(encodings)], dtypes[data[1] % len(dtypes)], COUNTS[data[2] % len(COUNTS)]


def _streams(data: memoryview, count: int) -> list[memoryview]:
    """The parts of a bundle, or where it is none, the whole of it for each stream."""
    try:
        parts = codecs.split_streams(data, count)
    except CorruptError:
        parts = []
    return (parts + [data] * count)[:count]


def seeds() -> list[bytes]:
    """Inputs that decode: what each encoding makes of a chunk of weights."""
    rng = np.random.default_rng(0)
    found = []
    for number, encoding in enumerate(ENCODINGS.values()):
        for kind, dtype in enumerate(DTYPES.values()):
            if encoding.lossy and (dtype.kind != "float" or dtype.planes == 1 or dtype.mantissa_bits < 22):
                continue
            count = COUNTS[-1] if dtype.name in ("F32", "BF16") and not encoding.lossy else 100
            base = (np.arange(count) * 2654435761).astype(dtype.word)
            words = base + rng.integers(0, 50, count).astype(dtype.word)
            if encoding.lossy:
                words = rng.standard_normal(count).astype(f"<f{dtype.width_bytes}").view(dtype.word)
            head = bytes((number, kind, COUNTS.index(count)))
            found.append(head + codecs.join_streams(encoding.encode(words, dtype, base)))
    return found


def main() -> None:
    import atheris

    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds()):
            (Path(folder) / f"{number:04d}").write_bytes(seed)
        atheris.instrument_all()
        atheris.Setup([*sys.argv, folder, "-rss_limit_mb=1024", "-timeout=10", "-max_len=40000"], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
