"""How fast the store's encodings are, beside ZipNN, in one thread and in two.

    python benchmarks/bench_store_speed.py [--quick]

A pass encodes or decodes all tensors of a snapshot; megabytes are raw ones, seconds are of the processor in one thread
and of the clock in two. Ours and the peer take turns, the best pass of each counts, and what a pass gives is compared
bit for bit. A delta's hop is what stands between a base that is there and the snapshot: the peer's is XOR after ZipNN.

Bars are our speed divided by the peer's. "Archived" is pcodec, "fast hop" is subtract, "grouped hop" is
subtract-grouped. The bars for decoding hold for float32 and for deltas in bfloat16; archived bfloat16 is in the table.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import store_peers as peers
from report import Bar, report
from store_corpus import Snapshot, pairs, series
from store_peers import Codec, Stored, Words

from regatta.store.dtypes import DType
from regatta.store.encodings import CHUNK

DIRECT = ("zstd-planes", "pcodec")
DELTA = ("xor", "subtract", "subtract-grouped", "subtract-planes")

Task = tuple[DType, Words, Words | None]


@dataclass(frozen=True)
class Speed:
    """Raw megabytes a second."""

    encode: float
    decode: float
    decode_by_two: float  # of the clock, two threads
    decode_by_one: float  # of the clock, one thread


def main() -> None:
    options = _arguments()
    passes = 3 if options.quick else 9
    found = {}
    for name, (snapshot, base) in _corpora(options.quick).items():
        tasks = peers.tensors(snapshot, base)
        codecs = _codecs(base is not None)
        found[name] = dict(zip([codec.name for codec in codecs], _speeds(codecs, tasks, passes), strict=True))
    report(
        "store_speed",
        ["corpus", "codec", "encode MB/s", "decode MB/s", "two threads / one"],
        [
            [corpus, codec, speed.encode, speed.decode, speed.decode_by_two / speed.decode_by_one]
            for corpus, speeds in found.items()
            for codec, speed in speeds.items()
        ],
        bars=_bars(found),
        peers=("zipnn", "pcodec", "zstandard"),
        notes={"quick": options.quick, "passes": passes},
    )


def _corpora(quick: bool) -> dict[str, tuple[Snapshot, Snapshot | None]]:
    """The transformer, its bfloat16 cast, the real weights; deltas of the first two."""
    found: dict[str, tuple[Snapshot, Snapshot | None]] = {
        "D snapshot": (series("D")[-1], None),
        "DBF snapshot": (series("DBF")[-1], None),
        "D delta": pairs("D")[-1],
        "DBF delta": pairs("DBF")[-1],
    }
    if not quick:
        found["MiniLM snapshot"] = (series("MiniLM")[-1], None)
        found["DFT delta"], found["DFTBF delta"] = pairs("DFT")[-1], pairs("DFTBF")[-1]
    return found


def _codecs(delta: bool) -> list[Codec]:
    peer = peers.xor(peers.zipnn()) if delta else peers.zipnn()
    return [peer, *map(peers.ours, DELTA if delta else DIRECT)]


def _speeds(codecs: Sequence[Codec], tasks: Sequence[Task], passes: int) -> list[Speed]:
    megabytes = sum(words.nbytes for _, words, _ in tasks) / 1e6
    stored = [[codec.encode(words, dtype, base) for dtype, words, base in tasks] for codec in codecs]
    for codec, kept in zip(codecs, stored, strict=True):
        _check(codec, kept, tasks)
    encoded = _turns([lambda codec=codec: _encode_all(codec, tasks) for codec in codecs], passes, time.process_time)
    decoders = [
        lambda codec=codec, kept=kept: _decode_all(codec, kept, tasks)
        for codec, kept in zip(codecs, stored, strict=True)
    ]
    decoded = _turns(decoders, passes, time.process_time)
    one, two = (_clocked(codecs, stored, tasks, passes, threads) for threads in (1, 2))
    figures = zip(encoded, decoded, two, one, strict=True)
    return [Speed(*(megabytes / seconds for seconds in each)) for each in figures]


def _encode_all(codec: Codec, tasks: Sequence[Task]) -> None:
    for dtype, words, base in tasks:
        codec.encode(words, dtype, base)


def _decode_all(codec: Codec, stored: Sequence[Stored], tasks: Sequence[Task]) -> None:
    for kept, (dtype, _, base) in zip(stored, tasks, strict=True):
        codec.decode(kept, dtype, base)


def _check(codec: Codec, stored: Sequence[Stored], tasks: Sequence[Task]) -> None:
    for kept, (dtype, words, base) in zip(stored, tasks, strict=True):
        if not np.array_equal(codec.decode(kept, dtype, base), words):
            raise SystemExit(f"{codec.name} does not give back what it was given.")


def _turns(works: Sequence[Callable[[], None]], passes: int, clock: Callable[[], float]) -> list[float]:
    """The shortest time of each, all of them tried in turn."""
    best = [float("inf")] * len(works)
    for _, (number, work) in itertools.product(range(passes), enumerate(works)):
        started = clock()
        work()
        best[number] = min(best[number], clock() - started)
    return best


def _clocked(
    codecs: Sequence[Codec], stored: Sequence[list[Stored]], tasks: Sequence[Task], passes: int, threads: int
) -> list[float]:
    """The shortest time by the clock of decoding with so many threads, a chunk at a time; nothing for the peer."""
    with ThreadPoolExecutor(threads) as pool:

        def decode(codec: Codec, kept: list[Stored]) -> None:
            jobs = [job for tensor, task in zip(kept, tasks, strict=True) for job in _chunk_jobs(codec, tensor, task)]
            for _ in pool.map(lambda job: job(), jobs):
                pass

        works = [lambda codec=codec, kept=kept: decode(codec, kept) for codec, kept in zip(codecs, stored, strict=True)]
        return _turns(works, passes, time.perf_counter)


def _chunk_jobs(codec: Codec, tensor: Stored, task: Task) -> list[Callable[[], Any]]:
    dtype, _, base = task
    if codec.name.endswith("ZipNN"):
        return [lambda: codec.decode(tensor, dtype, base)]
    starts = range(0, CHUNK * len(tensor), CHUNK)
    return [
        lambda chunk=chunk, start=start: codec.decode(
            [chunk], dtype, None if base is None else base[start : start + chunk[0]]
        )
        for chunk, start in zip(tensor, starts, strict=True)
    ]


def _bars(found: dict[str, dict[str, Speed]]) -> list[Bar]:
    def bar(name: str, corpora: str, codec: str, verb: str, limit: float) -> Bar:
        chosen = [speeds for corpus, speeds in found.items() if corpus in corpora.split(", ") and corpus in found]
        ratios = [getattr(speeds[codec], verb) / getattr(next(iter(speeds.values())), verb) for speeds in chosen]
        return Bar(name, min(ratios), limit, "at least")

    fp32, bf16 = "D snapshot, MiniLM snapshot", "DBF snapshot"
    deltas = "D delta, DFT delta, DBF delta, DFTBF delta"
    scaling = [
        min(
            speeds[codec].decode_by_two / speeds[codec].decode_by_one
            for corpus, speeds in found.items()
            if codec in speeds
        )
        for codec in ("pcodec", "subtract", "subtract-grouped")
    ]
    return [
        bar("encode at commit, fp32: ours / ZipNN", fp32, "zstd-planes", "encode", 0.9),
        bar("encode at commit, bf16: ours / ZipNN", bf16, "zstd-planes", "encode", 0.45),
        bar("decode archived, fp32: ours / ZipNN", fp32, "pcodec", "decode", 0.75),
        bar("fast hop: ours / XOR+ZipNN", deltas, "subtract", "decode", 0.75),
        bar("grouped hop: ours / XOR+ZipNN", deltas, "subtract-grouped", "decode", 0.2),
        Bar("two threads / one, worst of archived, fast and grouped", min(scaling), 1.3, "at least"),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer corpora and passes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
