"""What a repository takes of the disk, of time and of memory, where the weights themselves are small or many.

    python benchmarks/bench_store_disk.py [--quick]

    single models     a network on scikit-learn's digits, of 1.2 and of 5.7 MB, and the ONNX networks of the package
                      rapidocr-onnxruntime: `du` of the repository over the plain file, at commit, and after an archive
                      pass and gc. ZipNN, where it is installed, gets its stream alone
    epochs            300 epochs of a small network by budget: bytes of the pack files, and the time to read a snapshot
    tensors           50,000 small tensors, committed and loaded, beside safetensors
    planes            two planes of four beside all: as committed, after an archive pass, after a progressive one
    memory            a model of 600 MB as .pt: the growth of memory over the model while it is checked out and added

Times are of the processor, for reads the best of several.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Bar, report
from safetensors.numpy import load_file, save_file
from sklearn.datasets import load_digits

from regatta import Repo
from regatta.paths import bytes_on_disk
from regatta.store.archive.archive import DEFAULT_BUDGET, archive
from regatta.store.store import ParameterStore

WIDTHS = {"1.2 MB": 512, "5.7 MB": 1150}
MEMORY = """
import sys, threading, time
from pathlib import Path
import regatta.frameworks.torch.files
from regatta import Repo
from regatta.repo.intake import staging
def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(sys.argv[3])) * 1024
def watch():
    while not done:
        most[0] = max(most[0], resident())
        time.sleep(0.002)
done, most, before = False, [0], resident()
thread = threading.Thread(target=watch)
thread.start()
with Repo.init(sys.argv[1]) as repo:
    if sys.argv[2].endswith("out.pt"):
        repo.checkout("large", sys.argv[2])
    else:
        staging.add(repo, [sys.argv[2]])
        staging.commit_staged(repo, "large")
done = True
thread.join()
print(most[0] - before)
"""


def main() -> None:
    options = _arguments()
    rows: list[list[Any]] = []
    bars: list[Bar] = []
    for part in (_single, _epochs, _tensors, _planes, _memory):
        for row, bar in part(options.quick):
            print(*row, flush=True)
            rows.append(row)
            if bar is not None:
                bars.append(bar)
    peers = ("safetensors", *(["zipnn"] if importlib.util.find_spec("zipnn") else []))
    report(
        "store_disk",
        ["what", "measured", "value"],
        rows,
        bars=bars,
        peers=peers,
        notes={"quick": options.quick, "zipnn": "zipnn" in peers or "not installed"},
    )


Measured = Iterator[tuple[list[Any], Bar | None]]


def _single(quick: bool) -> Measured:
    for label, width in WIDTHS.items():
        (state,) = _digits(width, 8)
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "plain.safetensors"
            save_file(state, plain)
            before, after = _disk(Path(folder) / "repo", lambda repo, state=state: repo.commit("m", state, git=False))
            size = plain.stat().st_size
        limit = {"1.2 MB": 0.91, "5.7 MB": 0.85}[label]
        yield [f"single model, {label}", "disk at commit / file", before / size], None
        yield (
            [f"single model, {label}", "disk archived / file", after / size],
            Bar(f"{label}: disk archived / file", after / size, limit),
        )
        if importlib.util.find_spec("zipnn"):
            import store_peers

            from regatta.store.format.dtypes import DTYPES

            codec = store_peers.zipnn()
            stored = sum(
                codec.size(codec.encode(value.reshape(-1).view(np.uint32), DTYPES["F32"], None))
                for value in state.values()
            )
            yield [f"single model, {label}", "ZipNN's stream / file", stored / size], None
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    for path in sorted(Path(str(spec.origin)).parent.rglob("*.onnx")) if spec is not None and spec.origin else ():
        with tempfile.TemporaryDirectory() as folder:
            from regatta.repo.intake import staging

            def commit(repo: Repo, path: Path = path) -> None:
                staging.add(repo, [path])
                staging.commit_staged(repo, "network")

            before, after = _disk(Path(folder) / "repo", commit)
        name = path.name.removesuffix("_infer.onnx")
        yield (
            [name, "disk archived / at commit", after / before],
            Bar(f"{name}: disk archived / at commit", after / before, 1.0),
        )


def _disk(folder: Path, fill: Callable[[Repo], Any]) -> tuple[int, int]:
    """The disk space of a repository, filled, and after an archive pass and gc."""
    with Repo.init(folder) as repo:
        fill(repo)
    before = bytes_on_disk(folder)
    with Repo.open(folder) as repo:
        repo.archive()
        repo.gc(grace=0.0)
    return before, bytes_on_disk(folder)


def _epochs(quick: bool) -> Measured:
    states = _digits(256, 60 if quick else 300, every=True)
    found = {}
    for budget in (3.0, None, 6.0, math.inf):
        with tempfile.TemporaryDirectory() as folder, ParameterStore.open(folder, threads=1, cache_bytes=0) as store:
            ids = [store.put(state, reference=f"{n:06d}") for n, state in enumerate(states)]
            committed, quickest = _packs(store), _median_read(store, ids)
            archive(store, budget=budget)
            store.gc(grace=0.0)
            found[budget] = _packs(store) / committed, _median_read(store, ids) / quickest
        name = f"{len(states)} epochs, budget {DEFAULT_BUDGET:g} (default)" if budget is None else f"budget {budget:g}"
        yield [name, "packs / at commit", found[budget][0]], None
        yield [name, "read / at commit", found[budget][1]], None
    yield (
        ["default budget", "bytes / least bytes", found[None][0] / found[math.inf][0]],
        Bar("default budget: bytes / least bytes", found[None][0] / found[math.inf][0], 1.15),
    )
    yield (
        ["default budget", "read / at commit", found[None][1]],
        Bar("default budget: time to read / at commit", found[None][1], 4.0),
    )


def _packs(store: ParameterStore) -> int:
    return sum(path.stat().st_size for path in store.folder.packs.iterdir())


def _median_read(store: ParameterStore, ids: list[str]) -> float:
    return float(np.median([_best(lambda one=one: store.get(one), 3) for one in ids[:: max(1, len(ids) // 15)]]))


def _tensors(quick: bool) -> Measured:
    rng, count = np.random.default_rng(0), 5_000 if quick else 50_000
    tensors = {
        f"layer{n // 10}.{n % 10}.weight": rng.normal(size=(16, 8) if n % 3 else 64).astype("f4") for n in range(count)
    }
    with tempfile.TemporaryDirectory() as folder, ParameterStore.open(Path(folder) / "store") as store:
        theirs = Path(folder) / "plain.safetensors"
        peer = _best(lambda: save_file(tensors, theirs), 1) + _best(lambda: load_file(theirs), 1)
        put = _best(lambda: store.put(tensors, reference="many"), 1)
        get = _best(lambda: store.get(store.references()["many"]), 1)
    yield [f"{count} tensors", "commit, s", put], None
    yield [f"{count} tensors", "load, s", get], None
    yield [f"{count} tensors", "safetensors both, s", peer], None
    each = 1e6 * (put + get) / count
    yield [f"{count} tensors", "both, us for each", each], Bar("many tensors: us to commit and load each", each, 150.0)


def _planes(quick: bool) -> Measured:
    rng, epochs = np.random.default_rng(0), []
    weights = {f"l{n}": rng.normal(0, 0.05, 500_000).astype("f4") for n in range(4)}
    for _ in range(4):
        epochs.append(weights)
        weights = {k: (v + rng.normal(0, 1e-3, v.size)).astype("f4") for k, v in weights.items()}
    for name, kept, options in (
        ("as committed", epochs[:1], None),
        ("archived alone", epochs[:1], {}),
        ("archived as deltas", epochs, {}),
        ("archived, progressive", epochs, {"progressive": True}),
    ):
        with tempfile.TemporaryDirectory() as folder, ParameterStore.open(folder, threads=1, cache_bytes=0) as store:
            ids = [store.put(state, reference=str(n)) for n, state in enumerate(kept)]
            if options is not None:
                archive(store, budget=math.inf, **options)
            two, whole = (sum(_best(lambda i=i, p=p: store.get(i, planes=p), 7) for i in ids) for p in (2, None))
        yield (
            [f"two planes, {name}", "time / of all planes", two / whole],
            None if name == "archived as deltas" else Bar(f"two planes / all, {name}", two / whole, 0.92),
        )


def _memory(quick: bool) -> Measured:
    megabytes = 120 if quick else 600
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.pt", Path(folder) / "out.pt"
        torch.save({f"l{n}": torch.randn(megabytes * 2**18 // 24) for n in range(24)}, source)
        for name, path, kind in (("add", source, "RssAnon"), ("checkout", target, "VmRSS")):
            command = [sys.executable, "-c", MEMORY, str(Path(folder) / "repo"), str(path), kind]
            grown = int(subprocess.check_output(command, text=True)) / (megabytes * 2**20)
            what = "anonymous memory" if kind == "RssAnon" else "memory"
            yield (
                [f"{name} of a .pt of {megabytes} MB", f"{what} / model", grown],
                Bar(f"{name} .pt: {what}", grown, 0.4),
            )


def _digits(width: int, epochs: int, every: bool = False) -> list[dict[str, np.ndarray]]:
    """The weights of a network on digits: after its training, or after every epoch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    layers = [torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))
    optimizer, states = torch.optim.Adam(net.parameters(), 1e-3), []
    for epoch in range(epochs):
        for at in range(0, len(x), 128):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[at : at + 128]), y[at : at + 128]).backward()
            optimizer.step()
        if every or epoch == epochs - 1:
            states.append({name: value.numpy().copy() for name, value in net.state_dict().items()})
    return states


def _best(work: Callable[[], Any], times: int) -> float:
    best = math.inf
    for _ in range(times):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer epochs and tensors, and a smaller model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
