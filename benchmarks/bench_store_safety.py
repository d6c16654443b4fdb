"""What a partial read costs, and what 300 kills do to a store: nothing.

    python benchmarks/bench_store_safety.py [--kills 300] [--series A D MiniLM]

Planes: one snapshot of each series, stored as at a commit; how many of its stored bytes (all files but the index,
manifest and records included) are read for its first k planes, here and over a remote, where each request is counted.
The bounds that they give are compared with every weight. "Least" is the share that no coder of these planes, byte by
byte, goes below: their entropy. Where a model's last bits are zeros, as in MiniLM, which was made of float16, the
leading planes are a larger share of what is stored, and 40% is out of reach.

Kills: the drill of tests/helpers/kill_drill.py. Four processes write. One archives, re-encodes tensors as random deltas
and runs gc. It and one to four writers get SIGKILL at random moments. Then fsck recreates every tensor, and every
snapshot that was acknowledged is compared bit for bit, while the survivors continue.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import store_corpus
from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem
from report import Bar, print_table, report

from regatta.store.format.dtypes import CHUNK_WORDS, DTYPES
from regatta.store.format.planes import bounds, split
from regatta.store.format.tensor_id import as_tensor
from regatta.store.store import ParameterStore

PLANES = (1, 2, 3, 4)
KILL_DRILL = Path(__file__).parent.parent / "tests" / "helpers" / "kill_drill.py"


class CountedFileSystem(LocalFileSystem):
    """A folder behind fsspec that counts what is asked of it."""

    protocol = "counted"
    requests = 0
    bytes = 0

    def cat_ranges(self, paths: Any, starts: Any, ends: Any, **options: Any) -> Any:
        CountedFileSystem.requests += len(starts)
        CountedFileSystem.bytes += sum(end - start for start, end in zip(starts, ends, strict=True))
        return super().cat_ranges(paths, starts, ends, **options)


register_implementation("counted", CountedFileSystem)


def planes_read(name: str, folder: Path) -> Iterator[list[Any]]:
    """A row for each number of planes."""
    snapshot = store_corpus.series(name)[-1]
    with ParameterStore.open(folder / "here", remote=f"counted://{folder}/there") as store:
        stored = store.put(snapshot, reference=name)
        files = sum(path.stat().st_size for path in store.folder.packs.iterdir())
        local = {planes: read(store, stored, planes) for planes in PLANES}
        found = {planes: store.get(stored, planes=planes) for planes in PLANES}
        widths = {planes: widest(snapshot, found[planes]) for planes in PLANES}
        remote, least = read_remotely(store, stored), entropy_shares(snapshot)
        raw = sum(words.nbytes for _, _, words in snapshot.values())
        for planes in PLANES:
            requests, size = remote[planes]
            shares = local[planes] / files, size / files, least[planes]
            yield [name, planes, raw, files, *shares, requests, widths[planes]]


def entropy_shares(snapshot: store_corpus.Snapshot) -> dict[int, float]:
    """The entropy of the leading planes' bytes, chunk by chunk, as a share of that of all planes."""
    bits = np.zeros(max(PLANES))
    for dtype, _, words in snapshot.values():
        for at in range(0, len(words), CHUNK_WORDS) if DTYPES[dtype].planes == len(bits) else ():
            for number, plane in enumerate(split(words[at : at + CHUNK_WORDS], DTYPES[dtype])):
                counts = np.bincount(plane)
                counts = counts[counts > 0]
                bits[number] -= (counts * np.log2(counts / counts.sum())).sum()
    return {planes: float(bits[:planes].sum() / bits.sum()) for planes in PLANES}


def read(store: ParameterStore, snapshot: str, planes: int) -> int:
    before = sum(store.source.bytes_read.values())
    store.get(snapshot, planes=planes)
    return sum(store.source.bytes_read.values()) - before


def read_remotely(store: ParameterStore, snapshot: str) -> dict[int, tuple[int, int]]:
    """Requests and bytes for each number of planes, when nothing is here but the index."""
    store.push()
    packs = list(store.index.packs())
    with store.index.transaction():
        for pack in packs:
            store.index.move_pack(pack, 2)
    found = {}
    for planes in PLANES:
        CountedFileSystem.requests = CountedFileSystem.bytes = 0
        store.get(snapshot, planes=planes)
        found[planes] = CountedFileSystem.requests, CountedFileSystem.bytes
    return found


def widest(snapshot: store_corpus.Snapshot, found: dict[str, Any]) -> float:
    """The widest bound relative to the largest weight; checks that each weight is within its own."""
    width = 0.0
    for name, given in snapshot.items():
        tensor = as_tensor(name, given)
        exact, _ = bounds(tensor.words, tensor.dtype.planes, tensor.dtype)
        lower, upper = (side.reshape(-1) for side in found[name].bounds)
        if not ((lower <= exact) & (exact <= upper)).all():
            raise SystemExit(f"A weight of {name} is outside of its bounds.")
        largest = float(np.abs(exact).max(initial=0.0))
        width = max(width, float((upper - lower).max(initial=0.0)) / largest if largest else 0.0)
    return width


def drill(kills: int, folder: Path) -> dict[str, Any]:
    result = folder / "result.json"
    command = [sys.executable, str(KILL_DRILL), str(folder), str(kills), "6", str(result)]
    subprocess.run(command, check=True)
    tally: dict[str, Any] = json.loads(result.read_text())
    return tally


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--series", nargs="*", default=["A", "D", "MiniLM"])
    options = parser.parse_args()
    rows = []
    for name in options.series:
        with tempfile.TemporaryDirectory() as folder:
            rows += list(planes_read(name, Path(folder)))
    with tempfile.TemporaryDirectory() as folder:
        tally = drill(options.kills, Path(folder))
    print_table(list(tally), [[len(v) if isinstance(v, list) else v for v in tally.values()]])
    print("\n".join(tally["problems"]), end="\n\n")
    bars = [Bar(f"{row[0]}: bytes read for two planes", row[4], 0.40) for row in rows if row[1] == 2]
    bars += [Bar(f"{row[0]}: the same from a remote", row[5], 0.40) for row in rows if row[1] == 2]
    bars += [
        Bar("kills", tally["kills"], 300, "at least"),
        Bar("problems after kills", len(tally["problems"]), 0),
        Bar("kills in the middle of an archive pass", tally["in_archive"] / tally["kills"], 0.2, "at least"),
        Bar("kills in the middle of random deltas", tally["in_reencode"] / tally["kills"], 0.05, "at least"),
        Bar("kills in the middle of gc", tally["in_gc"] / tally["kills"], 0.02, "at least"),
    ]
    columns = ["series", "planes", "raw", "stored", "read", "read remotely", "least", "requests", "widest bound"]
    report("store_safety", columns, rows, bars=bars, notes=tally)


if __name__ == "__main__":
    main()
