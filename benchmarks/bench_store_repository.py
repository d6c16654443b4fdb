"""Whole repositories in the store, archived, beside ZipNN, the ModelHub paper's scheme, git, DVC and Git LFS.

    python benchmarks/bench_store_repository.py [--quick]

    LeNet       A, its fine-tune B and the unrelated C: 25 snapshots (store_corpus.py)
    11M fp32    the transformer D and its fine-tune: 6 snapshots
    11M bf16    the same, cast

Ours is everything in the packs: streams, tables, names, manifests; at commit, and after an archive pass without a
budget, within 4 times the cheapest recreation, and with leading planes that can be read alone. Peers get their streams
counted alone. "Best of XOR" takes, for each tensor, the smaller of itself and its XOR with the same tensor of a
declared base. What DVC and Git LFS keep is each different file once, as it is; git gets loose objects packed by
`git gc --aggressive`. Everything is decoded again and compared bit for bit; bars are the peer's bytes divided by ours.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import store_peers as peers
from report import Bar, report
from store_corpus import Snapshot, series
from store_peers import Codec

from regatta.store.archive.archive import archive
from regatta.store.archive.candidates import lineage
from regatta.store.format.dtypes import DTYPES
from regatta.store.store import ParameterStore

GIT_SNAPSHOTS = 10


@dataclass(frozen=True)
class Repository:
    """Snapshots by version, oldest first, and the versions that each version was tuned from."""

    name: str
    versions: Mapping[str, Sequence[Snapshot]]
    parents: Mapping[str, Sequence[str]]

    @property
    def snapshots(self) -> list[Snapshot]:
        return [snapshot for snapshots in self.versions.values() for snapshot in snapshots]

    @property
    def raw(self) -> int:
        return sum(words.nbytes for snapshot in self.snapshots for _, _, words in snapshot.values())

    def with_bases(self) -> Iterator[tuple[Snapshot, list[Snapshot]]]:
        """Each snapshot with those that it may be a delta to."""
        numbered = {f"{v} {n}": one for v, kept in self.versions.items() for n, one in enumerate(kept)}
        names = {version: [name for name in numbered if name.split()[0] == version] for version in self.versions}
        bases = lineage(names, self.parents)
        for name, snapshot in numbered.items():
            yield snapshot, [numbered[base] for base in bases.get(name, ())]


def repositories(quick: bool) -> list[Repository]:
    lenet = Repository("LeNet", {name: series(name) for name in "ABC"}, {"B": ["A"]})
    if quick:
        return [Repository("LeNet", {name: kept[-3:] for name, kept in lenet.versions.items()}, lenet.parents)]
    full = Repository("11M fp32", {name: series(name) for name in ("D", "DFT")}, {"DFT": ["D"]})
    half = Repository("11M bf16", {name: series(f"{name}BF") for name in ("D", "DFT")}, {"DFT": ["D"]})
    return [lenet, full, half]


def main() -> None:
    options = _arguments()
    rows: list[list[Any]] = []
    ratios: dict[tuple[str, str], float] = {}
    seconds: dict[str, float] = {}
    for repository in repositories(options.quick):
        started = time.perf_counter()
        sizes = _measure(repository)
        seconds[repository.name] = time.perf_counter() - started
        ours = sizes["ours, archived"]
        for system, size in sizes.items():
            ratios[repository.name, system] = size / ours
            rows.append([repository.name, system, size / 1e6, repository.raw / size, size / ours])
    rows.extend(_git_rows(options.quick))
    report(
        "store_repository",
        ["repository", "system", "MB", "raw / it", "it / ours"],
        rows,
        bars=_bars(ratios),
        peers=("zipnn", "pcodec", "zstandard"),
        notes={
            "quick": options.quick,
            "git": subprocess.check_output(["git", "--version"], text=True).strip(),
            "seconds": seconds,
        },
    )


def _bars(ratios: Mapping[tuple[str, str], float]) -> list[Bar]:
    bars = [
        Bar(f"{name}: ZipNN / ours", ratios[name, "ZipNN"], limit, "at least")
        for name, limit in (("LeNet", 1.15), ("11M fp32", 1.22), ("11M bf16", 1.88))
        if (name, "ZipNN") in ratios
    ]
    paper = ratios["LeNet", "planes+zlib (paper), best of XOR"]
    return [*bars, Bar("LeNet: the paper's planes + zlib, best of XOR / ours", paper, 1.05, "at least")]


def _measure(repository: Repository) -> dict[str, int]:
    """The stored bytes of each system."""
    sizes: dict[str, int] = {"raw": repository.raw, "DVC, Git LFS (whole files)": whole_files(repository.snapshots)}
    works: dict[str, Callable[[], int]] = {
        "zstd-3": lambda: _each(repository, peers.raw_zstd()),
        "ZipNN": lambda: _each(repository, peers.zipnn()),
        "ZipNN, best of XOR": lambda: _best(repository, peers.zipnn()),
        "planes+zlib (paper)": lambda: _each(repository, peers.paper()),
        "planes+zlib (paper), best of XOR": lambda: _best(repository, peers.paper()),
        "ours, at commit": lambda: _ours(repository, None),
        "ours, archived": lambda: _ours(repository, {}),
        "ours, archived, budget 4x": lambda: _ours(repository, {"budget": 4.0}),
        "ours, archived, progressive": lambda: _ours(repository, {"progressive": True}),
    }
    for system, work in works.items():
        sizes[system] = work()
        print(f"{repository.name}: {system} {sizes[system] / 1e6:.2f} MB", flush=True)
    return sizes


def _each(repository: Repository, codec: Codec) -> int:
    return sum(_size(codec, tensor, None) for snapshot in repository.snapshots for tensor in snapshot.values())


def _best(repository: Repository, codec: Codec) -> int:
    """Each tensor as it is or as XOR with a base of the same name and size, whatever is smaller."""
    total = 0
    for snapshot, bases in repository.with_bases():
        for name, tensor in snapshot.items():
            sizes = [_size(codec, tensor, None)]
            for base in bases:
                if name in base and base[name][:2] == tensor[:2]:
                    sizes.append(_size(peers.xor(codec), tensor, base[name][2]))
            total += min(sizes)
    return total


def _size(codec: Codec, tensor: tuple[str, tuple[int, ...], Any], base: Any) -> int:
    """The bytes that a codec takes for a tensor; small ones count as they are."""
    dtype, _, words = tensor
    if len(words) < peers.SMALL:
        return int(words.nbytes)
    stored = codec.encode(words, DTYPES[dtype], base)
    if not np.array_equal(codec.decode(stored, DTYPES[dtype], base), words):
        raise SystemExit(f"{codec.name} does not give back what it was given.")
    return codec.size(stored)


def _ours(repository: Repository, options: Mapping[str, Any] | None) -> int:
    """The bytes of all packs after commits and, with options, an archive pass."""
    with tempfile.TemporaryDirectory() as folder, ParameterStore.open(folder) as store:
        ids: dict[str, list[str]] = {}
        for version, snapshots in repository.versions.items():
            ids[version] = [store.put(one, reference=f"{version}/{n}") for n, one in enumerate(snapshots)]
        if options is not None:
            archive(store, lineage(ids, repository.parents), **options)
            store.gc(grace=0.0)
        _check(store, repository, ids)
        return sum(pack.stat().st_size for pack in (Path(folder) / "packs").iterdir())


def _check(store: ParameterStore, repository: Repository, ids: Mapping[str, Sequence[str]]) -> None:
    for version, snapshots in repository.versions.items():
        for snapshot, found in zip(snapshots, ids[version], strict=True):
            for name, member in store.manifest(found).tensors.items():
                dtype, shape, words = snapshot[name]
                if (member.dtype, member.shape) != (dtype, shape) or not np.array_equal(store.words(member.id), words):
                    raise SystemExit(f"The store does not give back {name} of {version}.")


def whole_files(snapshots: Sequence[Snapshot]) -> int:
    """The bytes of all different safetensors files: what content-addressed copies of files come to."""
    files = {hashlib.sha256(data).digest(): len(data) for data in map(_as_file, snapshots)}
    return sum(files.values())


def _as_file(snapshot: Snapshot) -> bytes:
    """A safetensors file."""
    header, end = {}, 0
    for name, (dtype, shape, words) in snapshot.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + words.nbytes]}
        end += words.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(words.tobytes() for _, _, words in snapshot.values())])


def _git_rows(quick: bool) -> list[list[Any]]:
    """git on the first 10 snapshots of LeNet, and the same snapshots in everything that is whole files, and here."""
    snapshots = series("A")[: 3 if quick else GIT_SNAPSHOTS]
    part = Repository("A", {"A": snapshots}, {})
    sizes = {
        "git gc --aggressive": _git(snapshots),
        "DVC, Git LFS (whole files)": whole_files(snapshots),
        "ours, archived": _ours(part, {}),
    }
    label, ours = f"LeNet A, {len(snapshots)} snapshots", sizes["ours, archived"]
    return [[label, system, size / 1e6, part.raw / size, size / ours] for system, size in sizes.items()]


def _git(snapshots: Sequence[Snapshot]) -> int:
    """The packs of a repository in which each snapshot replaced the one before; every version is read back."""
    with tempfile.TemporaryDirectory() as folder:

        def git(*words: str) -> bytes:
            who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0")
            return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True).stdout

        git("init", "-q")
        contents = [_as_file(snapshot) for snapshot in snapshots]
        for number, content in enumerate(contents):
            (Path(folder) / "model.safetensors").write_bytes(content)
            git("add", "model.safetensors")
            git("commit", "-q", "-m", f"snapshot {number}")
        git("gc", "--aggressive", "--prune=now", "-q")
        for age, content in enumerate(reversed(contents)):
            if git("show", f"HEAD~{age}:model.safetensors") != content:
                raise SystemExit("git does not give back what it was given.")
        return sum(pack.stat().st_size for pack in (Path(folder) / ".git/objects/pack").iterdir())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the last snapshots of LeNet alone")
    return parser.parse_args()


if __name__ == "__main__":
    main()
