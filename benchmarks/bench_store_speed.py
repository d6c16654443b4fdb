"""How fast the store's encodings are, beside ZipNN, in one thread and in two.

    python benchmarks/bench_store_speed.py [--quick]

A pass encodes or decodes all tensors of a snapshot; megabytes are raw ones, seconds are of the processor in one thread
and of the clock in two. Ours and the peer take turns, the best pass of each counts, and what a pass gives is compared
bit for bit. A delta's hop is what stands between a base that is there and the snapshot: the peer's is XOR after ZipNN.

Bars are the peer's time divided by ours, all corpora of a kind together: float32 snapshots (the table has each), deltas
in float32, deltas in bfloat16. "Archived" is pcodec, "fast hop" is subtract, "grouped hop" is subtract-grouped. Two
threads are measured by the clock: on a machine that is busy with other things, that figure says nothing.
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

from regatta.store.format.dtypes import DType
from regatta.store.format.encodings import CHUNK_WORDS

DIRECT = ("zstd-planes", "pcodec")
DELTA = ("xor", "subtract", "subtract-grouped", "subtract-planes")

Task = tuple[DType, Words, Words | None]


@dataclass(frozen=True)
class Seconds:
    """The best passes over this many raw megabytes."""

    megabytes: float
    encode: float
    decode: float
    decode_by_one: float  # thread, of the clock
    decode_by_two: float

    def figures(self) -> tuple[float, float, float]:
        """Megabytes a second, to and fro, and what a second thread brings."""
        return self.megabytes / self.encode, self.megabytes / self.decode, self.decode_by_one / self.decode_by_two


def main() -> None:
    options = _arguments()
    passes = 3 if options.quick else 9
    found = {}
    for name, (snapshot, base) in _corpora(options.quick).items():
        tasks = peers.tensors(snapshot, base)
        codecs = _codecs(base is not None)
        found[name] = dict(zip([codec.name for codec in codecs], _seconds(codecs, tasks, passes), strict=True))
    report(
        "store_speed",
        ["corpus", "codec", "encode MB/s", "decode MB/s", "two threads / one"],
        [
            [
                corpus,
                codec,
                best.megabytes / best.encode,
                best.megabytes / best.decode,
                best.decode_by_one / best.decode_by_two,
            ]
            for corpus, all_best in found.items()
            for codec, best in all_best.items()
        ],
        bars=_bars(found),
        peers=("zipnn", "pcodec", "zstandard"),
        notes={"quick": options.quick, "passes": passes},
    )


def _corpora(quick: bool) -> dict[str, tuple[Snapshot, Snapshot | None]]:
    """Snapshots and deltas; `quick` leaves out those that resemble others."""
    found: dict[str, tuple[Snapshot, Snapshot | None]] = {
        f"{name} snapshot": (series(name)[-1], None) for name in ("A", "D", "MiniLM", "DBF")
    }
    deltas = ("D", "DBF") if quick else ("A", "D", "DFT", "DBF", "DFTBF")
    return found | {f"{name} delta": pairs(name)[-1] for name in deltas}


def _codecs(delta: bool) -> list[Codec]:
    peer = peers.xor(peers.zipnn()) if delta else peers.zipnn()
    return [peer, *map(peers.ours, DELTA if delta else DIRECT)]


def _seconds(codecs: Sequence[Codec], tasks: Sequence[Task], passes: int) -> list[Seconds]:
    megabytes = sum(words.nbytes for _, words, _ in tasks) / 1e6
    stored = [[codec.encode(words, dtype, base) for dtype, words, base in tasks] for codec in codecs]
    for codec, kept in zip(codecs, stored, strict=True):
        _check(codec, kept, tasks)
    encoded = _turns([lambda codec=codec: _encode_all(codec, tasks) for codec in codecs], passes, time.process_time)
    both = [*zip(codecs, stored, strict=True)]
    decoders = [lambda codec=codec, kept=kept: _decode_all(codec, kept, tasks) for codec, kept in both]
    decoded = _turns(decoders, passes, time.process_time)
    clocked = [_clocked(codecs, stored, tasks, passes, threads) for threads in (1, 2)]
    return [Seconds(megabytes, *each) for each in zip(encoded, decoded, *clocked, strict=True)]


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
    """The shortest time by the clock of decoding with this many threads, a chunk at a time; nothing for the peer."""
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
    starts = range(0, CHUNK_WORDS * len(tensor), CHUNK_WORDS)
    return [
        lambda chunk=chunk, start=start: codec.decode(
            [chunk], dtype, None if base is None else base[start : start + chunk[0]]
        )
        for chunk, start in zip(tensor, starts, strict=True)
    ]


def _bars(found: dict[str, dict[str, Seconds]]) -> list[Bar]:
    def bar(name: str, corpora: Sequence[str], codec: str, verb: str, limit: float) -> Bar:
        chosen = [best for corpus, best in found.items() if corpus in corpora]
        theirs = sum(getattr(next(iter(best.values())), verb) for best in chosen)
        return Bar(name, theirs / sum(getattr(best[codec], verb) for best in chosen), limit, "at least")

    fp32, bf16 = ("A snapshot", "D snapshot", "MiniLM snapshot"), ("DBF snapshot",)
    fp32_deltas, bf16_deltas = ("A delta", "D delta", "DFT delta"), ("DBF delta", "DFTBF delta")
    threads = [(codec, _scaling(found, codec)) for codec in ("pcodec", "subtract", "subtract-grouped")]
    return [
        bar("encode at commit, fp32: ours / ZipNN", fp32, "zstd-planes", "encode", 0.9),
        bar("encode at commit, bf16: ours / ZipNN", bf16, "zstd-planes", "encode", 0.45),
        bar("decode archived, fp32: ours / ZipNN", fp32, "pcodec", "decode", 0.75),
        bar("fast hop, fp32: ours / XOR+ZipNN", fp32_deltas, "subtract", "decode", 0.75),
        bar("fast hop, bf16: ours / XOR+ZipNN", bf16_deltas, "subtract", "decode", 0.75),
        bar("grouped hop, fp32: ours / XOR+ZipNN", fp32_deltas, "subtract-grouped", "decode", 0.2),
        bar("grouped hop, bf16: ours / XOR+ZipNN", bf16_deltas, "subtract-grouped", "decode", 0.2),
        *(Bar(f"{codec}: two threads / one", scaling, 1.3, "at least") for codec, scaling in threads),
    ]


def _scaling(found: dict[str, dict[str, Seconds]], codec: str) -> float:
    measured = [best[codec] for best in found.values() if codec in best]
    return sum(best.decode_by_one for best in measured) / sum(best.decode_by_two for best in measured)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer corpora and passes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
