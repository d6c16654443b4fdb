"""How small the store's encodings make weights, beside ZipNN, BitX's scheme and the ModelHub paper's own.

    python benchmarks/bench_store_ratio.py [--quick]

Every snapshot and every delta of the corpus (store_corpus.py) is encoded by everyone, decoded again, and compared bit
for bit. The table has the stored bytes in percent of the raw ones. Bars are the peer's bytes divided by ours, so that
more than 1 is smaller; a bar for several corpora holds for the worst of them. `--quick` takes the last snapshots only.

Of ours, one is for the moment of a commit (zstd-planes), one for the archive (pcodec; for deltas, subtract-grouped),
one for the fastest hop (subtract), and two are for reading the leading planes alone (xor, subtract-planes). The share
that two planes take is a bar for the weights made here; MiniLM's, whose low planes compress because parts of it were
once float16, is in the notes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import store_peers as peers
from report import Bar, report
from store_corpus import Snapshot, pairs, series
from store_peers import Codec

from regatta.store.format.encodings import ENCODINGS

SNAPSHOTS = ("A", "D", "MiniLM", "ABF", "DBF", "MiniLMBF")
DELTAS = ("A", "ASGD", "B", "C", "D", "DFT", "ABF", "BBF", "DBF", "DFTBF")
FP32, BF16 = ("A", "D", "MiniLM"), ("ABF", "DBF", "MiniLMBF")

LOSSY = ("float16", "bfloat16", "fixed-16", "fixed-12", "fixed-8", "uniform-8", "uniform-4", "random-8", "random-4")

Pair = tuple[Snapshot, Snapshot | None]


def main() -> None:
    options = _arguments()
    started = time.perf_counter()
    direct = {name: _sizes(_direct_codecs(), _snapshots(name, options.quick)) for name in SNAPSHOTS}
    delta = {name: _sizes(_delta_codecs(name), _pairs(name, options.quick)) for name in DELTAS}
    shares = {name: _share_of_two_planes(_snapshots(name, options.quick)) for name in FP32}
    report(
        "store_ratio",
        ["corpus", "what", "codec", "% of raw", "ZipNN / it"],
        [*_rows(direct, "snapshot", "ZipNN"), *_rows(delta, "delta", "XOR+ZipNN")],
        bars=_bars(direct, delta, shares),
        peers=("zipnn", "pcodec", "zstandard"),
        notes={
            "quick": options.quick,
            "seconds": time.perf_counter() - started,
            "lossy": _lossy(),
            "two planes": shares,
        },
    )


def _direct_codecs() -> list[Codec]:
    return [
        peers.raw_zstd(),
        peers.paper(),
        peers.planes_zstd(),
        peers.zipnn(),
        *map(peers.ours, ("zstd-planes", "pcodec")),
    ]


def _delta_codecs(name: str) -> list[Codec]:
    theirs = [peers.xor(peers.paper()), peers.xor(peers.planes_zstd()), peers.xor(peers.zipnn())]
    if not name.endswith("BF"):
        theirs.append(peers.float_subtraction(peers.paper()))
    return theirs + [peers.ours(e.name) for e in ENCODINGS.values() if e.needs_base]


def _snapshots(name: str, quick: bool) -> list[Pair]:
    """D's snapshots are alike and large: the last one stands for them."""
    found = series(name)
    return [(snapshot, None) for snapshot in (found[-1:] if quick or name.startswith("D") else found)]


def _pairs(name: str, quick: bool) -> list[Pair]:
    found: list[Pair] = [*pairs(name)]
    return found[-1:] if quick or name.startswith("D") else found


def _sizes(codecs: Sequence[Codec], compared: Iterable[Pair]) -> dict[str, tuple[int, int]]:
    """The raw and the stored bytes by codec."""
    sizes = {codec.name: (0, 0) for codec in codecs}
    for snapshot, base in compared:
        for dtype, words, against in peers.tensors(snapshot, base):
            for codec in codecs:
                stored = codec.encode(words, dtype, against)
                if not np.array_equal(codec.decode(stored, dtype, against), words):
                    raise SystemExit(f"{codec.name} does not give back what it was given.")
                raw, size = sizes[codec.name]
                sizes[codec.name] = raw + words.nbytes, size + codec.size(stored)
    return sizes


def _share_of_two_planes(snapshots: Iterable[Pair]) -> float:
    """Of the bytes that a commit stores, those that a read of two planes needs."""
    leading = whole = 0
    for snapshot, _ in snapshots:
        for dtype, words, _ in peers.tensors(snapshot):
            for _, streams in peers.ours("zstd-planes").encode(words, dtype, None):
                leading += sum(map(len, streams[:2]))
                whole += sum(map(len, streams))
    return leading / whole


def _lossy() -> dict[str, float]:
    """Raw bytes by stored ones of some lossy schemes, on the last snapshot of A."""
    (snapshot,) = series("A")[-1:]
    found = {}
    for name in (
        "float16",
        "bfloat16",
        "fixed-16",
        "fixed-12",
        "fixed-8",
        "uniform-8",
        "uniform-4",
        "random-8",
        "random-4",
    ):
        raw = stored = 0
        for dtype, words, _ in peers.tensors(snapshot):
            raw += words.nbytes
            stored += peers.chunked_size(peers.ours(name).encode(words, dtype, None))
        found[name] = raw / stored
    return found


def _rows(found: dict[str, dict[str, tuple[int, int]]], what: str, peer: str) -> list[list[Any]]:
    return [
        [corpus, what, codec, 100 * size / raw, sizes[peer][1] / size]
        for corpus, sizes in found.items()
        for codec, (raw, size) in sizes.items()
    ]


def _bars(direct: Any, delta: Any, shares: dict[str, float]) -> list[Bar]:
    def worst(found: Any, corpora: Sequence[str], peer: str, codec: str) -> float:
        return min(found[name][peer][1] / found[name][codec][1] for name in corpora)

    def bar(name: str, measured: float, limit: float) -> Bar:
        return Bar(name, measured, limit, "at least")

    grouped = "subtract-grouped"
    return [
        bar("fp32 snapshot, archived: ZipNN / ours", worst(direct, FP32, "ZipNN", "pcodec"), 1.0),
        bar("bf16 snapshot, archived: ZipNN / ours", worst(direct, BF16, "ZipNN", "pcodec"), 1.003),
        bar("fp32 snapshot, at commit: ZipNN / ours", worst(direct, FP32, "ZipNN", "zstd-planes"), 0.99),
        bar("bf16 snapshot, at commit: ZipNN / ours", worst(direct, BF16, "ZipNN", "zstd-planes"), 0.975),
        bar("fp32 delta, LeNet: XOR+ZipNN / ours", worst(delta, ("A",), "XOR+ZipNN", grouped), 1.07),
        bar("fp32 delta, transformer: XOR+ZipNN / ours", worst(delta, ("D", "DFT"), "XOR+ZipNN", grouped), 1.11),
        bar("bf16 delta and fine-tune: XOR+ZipNN / ours", worst(delta, ("DBF", "DFTBF"), "XOR+ZipNN", grouped), 1.75),
        bar("delta by planes: XOR+ZipNN / ours", worst(delta, ("A", "B", "D"), "XOR+ZipNN", "subtract-planes"), 1.03),
        Bar("two planes of a direct fp32 snapshot: share of its bytes", max(shares["A"], shares["D"]), 0.4),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the last snapshots only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
