"""What a repository of 10,000 versions costs: listing, describing, comparing, lineage, searching, finding the best.

    python benchmarks/bench_repo.py [--versions 10000] [--megabytes 100]

The versions are made by one transaction of the catalog, with real rows: a sweep of 50 configurations after the other,
each with a network of 24 layers, 6 hyperparameters, 2 metrics over 20 epochs, 2 files, 20 snapshots of weights that are
in the store (10 tensors, 400 kB; the last one is another for each of 20 neighbours), and a parent for each but the
first of a line. Times are the median of several calls in this process, with the repository reopened before the first
one, which is reported by itself. `desc` is what the command shows, with the distributions of the weights.

Commit: a model of 100 MB of floats, random and so the hardest to compress, against writing it with safetensors and
fsync. Diff: two such models by their leading planes, and the bytes that were read of all that the store has of them.

Peers: 50 small versions against MLflow (runs with parameters, metrics and the weights as a safetensors artifact, each
registered as a version of a model; SQLite) and against DVC (`dvc add`, a commit and a tag for each; see
dvc_versions.py), all three on the same disk, each in one process through its own API. DVC comes with the extra `bench`;
where it is elsewhere, a `dvc` on the path will do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from report import Bar, report
from safetensors.numpy import save_file

from regatta.network import Edge, Network, Node
from regatta.repo import Repo
from regatta.repo.catalog.catalog import NewVersion
from regatta.repo.catalog.networks import network_rows
from regatta.repo.catalog.records import Link, SnapshotRecord

SWEEP, EPOCHS, NODES = 50, 20, 24
VERSIONS: dict[str, str] = {}  # of peers that may be in another environment
PEER = Path(__file__).with_name("dvc_versions.py")


def network(width: int) -> Network:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("CONV", {"in": width, "out": width, "kernel": (3, 3), "dims": 2}),
        ("NORM", {"function": "batch", "features": width}),
        ("RELU", {}),
        ("POOL", {"function": "max", "kernel": (2, 2), "stride": (2, 2), "dims": 2}),
    ]
    layers = [Node(f"n{i}", kinds[i % 4][0], f"layers.{i}", kinds[i % 4][1]) for i in range(1, NODES - 1)]
    nodes = (Node("n0", "INPUT"), *layers, Node(f"n{NODES - 1}", "OUTPUT"))
    return Network(nodes, tuple(Edge(f"n{i}", f"n{i + 1}") for i in range(NODES - 1)))


def new_versions(repo: Repo, count: int) -> Iterator[NewVersion]:
    rng = random.Random(0)
    networks = [network_rows(network(width)) for width in (16, 32, 64, 128, 256)]
    stored = [repo.store.put(small_model(i, moved=10), reference=f"bench/{i}") for i in range(EPOCHS)]
    snapshots = [SnapshotRecord(i, i + 1, "weights", f"bench/{i}", id) for i, id in enumerate(stored)]
    files = repo.files.put_all({"train.py": b"print('training')\n" * 50, "configs/base.yaml": b"lr: 0.1\n"})
    ids: list[str] = []
    for number in range(count):
        final = rng.lognormvariate(-1.5, 0.5)
        ids.append(f"{rng.getrandbits(128):032x}")
        yield NewVersion(
            id=ids[-1],
            name=f"sweep-{number // SWEEP:03d}/{number % SWEEP:02d}",
            created=1.7e9 + 60 * number,
            message=f"configuration {number % SWEEP} of sweep {number // SWEEP}",
            network=networks[number % len(networks)],
            metadata={"status": "done", "dataset": "digits", "seconds": rng.uniform(10, 100)},
            hyperparameters={
                "lr": 10 ** rng.uniform(-4, -1),
                "batch_size": rng.choice([32, 64, 128]),
                "hidden": rng.choice([64, 128, 256]),
                "optimizer": rng.choice(["adam", "sgd", "adamw"]),
                "dropout": rng.choice([0.0, 0.1, 0.5]),
                "nesterov": rng.random() < 0.5,
            },
            metrics={
                "loss": {epoch: final * (1 + 3 / epoch) for epoch in range(1, EPOCHS + 1)},
                "accuracy": {epoch: 1 / (1 + final / epoch) for epoch in range(1, EPOCHS + 1)},
            },
            snapshots=[replace(snapshots[(i + number) % EPOCHS], position=i) for i in range(EPOCHS)],
            files=files,
            parents=[Link(ids[-2], "", "child", EPOCHS, "")] if number % 40 else [],
            parameters=100_000,
            bytes=400_000,
        )


def fill(repo: Repo, count: int) -> float:
    began = time.perf_counter()
    with repo.catalog.transaction():
        for new in new_versions(repo, count):
            repo.catalog.add(new)
    return time.perf_counter() - began


def questions(count: int) -> dict[str, Callable[[Repo], Any]]:
    middle = f"sweep-{count // SWEEP // 2:03d}"
    return {
        "list: the last 50": lambda repo: repo.versions(limit=50),
        "list: all": lambda repo: repo.versions(),
        "list: all, every value parsed": lambda repo: [v.row() for v in repo.versions()],
        "list: one sweep by pattern": lambda repo: repo.versions(f"{middle}/*"),
        "list: two hyperparameters": lambda repo: repo.versions(
            where={"optimizer": "adam", "batch_size": 64}, limit=50
        ),
        "search: two words": lambda repo: repo.versions(search=f"{middle} adamw"),
        "desc": lambda repo: repo.portrait(f"{middle}/07@1"),
        "desc: what the catalog knows": lambda repo: repo.describe(f"{middle}/07@1"),
        "diff": lambda repo: repo.diff(f"{middle}/07", f"{middle}/08").comparisons[0].parameters,
        "diff of three": lambda repo: repo.diff(f"{middle}/07", f"{middle}/08", f"{middle}/19").comparisons,
        "log": lambda repo: repo.log(f"{middle}/07"),
        "best of all": lambda repo: repo.best("loss"),
        "best ten of those with adam": lambda repo: repo.versions(
            metric="accuracy", mode="max", order="best", where={"optimizer": "adam"}, limit=10
        ),
        "load the weights of one": lambda repo: repo.load(f"{middle}/07"),
    }


def ask(folder: Path, question: Callable[[Repo], Any], times: int = 9) -> tuple[float, float]:
    """Milliseconds of the first call, with opening, and the median of those after it."""
    began = time.perf_counter()
    with Repo.open(folder) as repo:
        answer = question(repo)
        first = time.perf_counter() - began
        assert answer, "a question without an answer would be quick"
        return 1e3 * first, 1e3 * statistics.median(seconds(lambda: question(repo)) for _ in range(times))


def seconds(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def small_model(number: int, moved: int, size: int = 10_000) -> dict[str, Any]:
    """Ten tensors; the last `moved` of them are others for each number."""
    seeds = [(number if i >= 10 - moved else 0, i) for i in range(10)]
    return {f"layer{i}": np.random.default_rng(seed).normal(size=size).astype("f4") for i, seed in enumerate(seeds)}


def commit_against_safetensors(folder: Path, megabytes: int) -> tuple[float, float]:
    """Medians of committing a model and of writing it as a file, in turns."""
    models = [small_model(n, moved=10, size=megabytes * 250_000 // 10) for n in range(5)]
    ours, theirs = [], []
    with Repo.init(folder) as repo:
        repo.commit("warm up", {"w": np.zeros(3)})
        for number, model in enumerate(models):
            theirs.append(seconds(lambda m=model, n=number: write(m, folder / f"{n}.safetensors")))  # type: ignore[misc]
            ours.append(seconds(lambda m=model: repo.commit("large", m)))  # type: ignore[misc]
    return statistics.median(ours), statistics.median(theirs)


def diff_by_planes(folder: Path) -> tuple[float, float, float]:
    """Seconds of comparing two of the large models, and the share of their stored bytes that was read for it; and the
    seconds with all bytes."""
    with Repo.open(folder) as repo:
        one, other = "large@1", "large@2"
        members = [member for ref in (one, other) for member in repo.weights(ref).members.values()]
        stored = sum(repo.store.entry(member.id).stored_bytes for member in members)
        read: list[int] = []
        fetch = repo.store.source.fetch

        def counted(located: Any, ranges: Any) -> Any:
            read.extend(length for _, length in ranges)
            return fetch(located, ranges)

        repo.store.source.fetch = counted  # type: ignore[method-assign]
        rough = seconds(lambda: repo.diff(one, other))
        share = sum(read) / stored
        exact = seconds(lambda: repo.diff(one, other, exact=True))
    return rough, share, exact


def write(model: dict[str, Any], path: Path) -> None:
    save_file(model, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def fifty(number: int, moved: int) -> tuple[dict[str, Any], dict[str, Any], list[float]]:
    """Weights, hyperparameters and losses of a small model that is trained on: some of its ten tensors change."""
    return (
        small_model(number, moved, 20_000),
        {"lr": 0.1 / (number + 1), "hidden": 64 + number},
        [1.0 / (step + number + 1) for step in range(10)],
    )


def ours_fifty(folder: Path, moved: int) -> list[float]:
    with Repo.init(folder) as repo:
        logged = seconds(
            lambda: [
                repo.commit("model", weights, hyperparameters=values, metrics={"loss": losses})
                for weights, values, losses in (fifty(number, moved) for number in range(50))
            ]
        )
        listed, best = seconds(lambda: repo.versions().rows()), seconds(lambda: repo.best("loss"))
    return [logged, 1e3 * listed, 1e3 * best, size_of(folder) / 1e6]


def mlflow_fifty(folder: Path, moved: int) -> list[float]:
    from mlflow import MlflowClient

    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    folder.mkdir()
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.create_experiment("model", artifact_location=str(folder / "artifacts"))

    def log(number: int) -> None:
        from mlflow.entities import Metric, Param

        weights, values, losses = fifty(number, moved)
        run = client.create_run(experiment)
        params = [Param(name, str(value)) for name, value in values.items()]
        client.log_batch(run.info.run_id, [Metric("loss", v, 0, step) for step, v in enumerate(losses)], params)
        write(weights, folder / "weights.safetensors")
        client.log_artifact(run.info.run_id, str(folder / "weights.safetensors"))
        client.set_terminated(run.info.run_id)
        client.create_model_version("model", f"{run.info.artifact_uri}/weights.safetensors", run.info.run_id)

    def listing() -> None:
        """The versions of the model, with the parameters and metrics that their runs have."""
        versions = client.search_model_versions("name = 'model'", max_results=1000)
        runs = {run.info.run_id for run in client.search_runs([experiment], max_results=1000)}
        assert len(versions) == 50 and {version.run_id for version in versions} == runs

    client.create_registered_model("model")
    logged = seconds(lambda: [log(number) for number in range(50)])
    listed = seconds(listing)
    best = seconds(lambda: client.search_runs([experiment], order_by=["metrics.loss ASC"], max_results=1))
    (folder / "weights.safetensors").unlink()
    return [logged, 1e3 * listed, 1e3 * best, size_of(folder) / 1e6]


def dvc_fifty(folder: Path, moved: int) -> list[float] | None:
    """DVC, by the interpreter that has it; None where there is none."""
    program = shutil.which("dvc", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if program is None:
        return None
    given = folder / "given"
    for number in range(50):
        weights, values, losses = fifty(number, moved)
        (given / str(number)).mkdir(parents=True)
        save_file(weights, given / str(number) / "model.safetensors")
        (given / str(number) / "params.json").write_text(json.dumps(values))
        (given / str(number) / "metrics.json").write_text(json.dumps({"loss": losses[-1]}))
    python = Path(program).parent / "python"
    command = [str(python), str(PEER), str(given), str(folder / "work")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    found = json.loads(said)
    VERSIONS["DVC"] = found["version"]
    (folder / "work" / "model.safetensors").unlink()  # the one in the working folder, beside the cache
    return [found["logged"], 1e3 * found["listed"], 1e3 * found["best"], size_of(folder / "work") / 1e6]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with Repo.init(folder) as repo:
            made = fill(repo, options.versions)
            size = (repo.folder / "catalog.sqlite").stat().st_size
        rows = [[name, *ask(folder, question)] for name, question in questions(options.versions).items()]
        rows.append([f"make {options.versions} versions in one transaction", 1e3 * made, 1e3 * made])
        bars = [
            Bar(f"{name}: ms", median, 400.0 if name.startswith("diff") else 150.0)
            for name, _, median in rows[:-2]
            if "parsed" not in name
        ]
        ours, theirs = commit_against_safetensors(folder / "large", options.megabytes)
        rows.append([f"commit {options.megabytes} MB; the file beside it", 1e3 * ours, 1e3 * theirs])
        bars.append(Bar("commit against safetensors and fsync", ours / theirs, 1.3))
        rough, share, exact = diff_by_planes(folder / "large")
        rows.append([f"diff of two of {options.megabytes} MB; by all bytes beside it", 1e3 * rough, 1e3 * exact])
        bars.append(Bar("diff by leading planes: share of the stored bytes read", share, 0.45))
        notes: dict[str, Any] = {"catalog_bytes": size, "versions": options.versions, "share_read": share}
        against(folder, rows, bars, notes)
    notes["columns"] = "first call with opening, then the median; or ours and theirs"
    columns, peers = ["what", "first / ours", "median / theirs"], ["mlflow-skinny", "safetensors"]
    report("repo", columns, rows, bars=bars, peers=peers, notes=notes)


def against(folder: Path, rows: list[list[Any]], bars: list[Bar], notes: dict[str, Any]) -> None:
    """The same 50 versions with each peer: one tensor of ten changes from one to the next, and all of them."""
    names = ("log: s", "list: ms", "best: ms", "disk: MB")
    for moved, said in ((1, "a tenth changes"), (10, "all changes")):
        mine = ours_fifty(folder / f"ours-{moved}", moved)
        others = {
            "MLflow": mlflow_fifty(folder / f"mlflow-{moved}", moved),
            "DVC": dvc_fifty(folder / f"dvc-{moved}", moved),
        }
        for peer, theirs in others.items():
            for name, ours_is, theirs_is in zip(names, mine, theirs or (), strict=theirs is not None):
                rows.append([f"50 versions, {said}, {name}; {peer} beside it", ours_is, theirs_is])
                bars.append(Bar(f"50 versions, {said}, against {peer}, {name}", ours_is / theirs_is, 1.0))
    notes["DVC"] = VERSIONS.get("DVC", "is not installed here")


if __name__ == "__main__":
    main()
