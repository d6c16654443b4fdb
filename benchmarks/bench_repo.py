"""What a repository of 10,000 versions costs: listing, describing, lineage, searching and finding the best.

    python benchmarks/bench_repo.py [--versions 10000] [--megabytes 100]

The versions are made by one transaction of the catalog, with real rows: a sweep of 50 configurations after the other,
each with a network of 24 nodes, 6 hyperparameters, 2 metrics over 20 epochs, 2 files, 20 snapshots of weights that are
in the store, and a parent for each but the first of a line. Times are the median of several calls in this process,
with the repository opened anew before the first of them, which is told apart.

Commit: a model of 100 MB of floats, random and so the hardest to compress, against writing it with safetensors and
fsync; and 50 small versions against MLflow's tracking on SQLite, which logs the same parameters and metrics and keeps
the weights as a safetensors artifact, on the same disk.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from report import Bar, report
from safetensors.numpy import save_file

from regatta.repo import Repo
from regatta.repo.catalog import NewVersion
from regatta.repo.networks import network_rows
from regatta.repo.records import Link, SnapshotRecord

SWEEP, EPOCHS, NODES = 50, 20, 24
KINDS = ("CONV", "NORM", "RELU", "POOL", "FULL")


def network(width: int) -> dict[str, Any]:
    nodes = [
        {
            "id": f"n{i}",
            "kind": KINDS[i % len(KINDS)],
            "name": f"layers.{i}",
            "attributes": {"width": width, "index": i},
        }
        for i in range(NODES)
    ]
    return {"nodes": nodes, "edges": [[f"n{i}", f"n{i + 1}"] for i in range(NODES - 1)]}


def new_versions(repo: Repo, count: int) -> Iterator[NewVersion]:
    rng = random.Random(0)
    networks = [network_rows(network(width)) for width in (16, 32, 64, 128, 256)]
    weights = {"w": np.random.default_rng(0).normal(size=(16, 16)).astype("f4")}
    stored = [repo.store.put({**weights, "n": np.array(i)}, reference=f"bench/{i}") for i in range(EPOCHS)]
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
            snapshots=snapshots,
            files=files,
            parents=[Link(ids[-2], "", "child", EPOCHS, "")] if number % 40 else [],
            parameters=257,
            bytes=1032,
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
        "desc": lambda repo: repo.describe(f"{middle}/07@1"),
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


def commit_against_safetensors(folder: Path, megabytes: int) -> tuple[float, float]:
    """Medians of committing a model and of writing it as a file, in turns."""
    count = megabytes * 250_000 // 10
    models = [
        {f"layer{i}": np.random.default_rng([n, i]).normal(size=count).astype("f4") for i in range(10)}
        for n in range(5)
    ]
    ours, theirs = [], []
    with Repo.init(folder) as repo:
        repo.commit("warm up", {"w": np.zeros(3)})
        for number, model in enumerate(models):
            theirs.append(seconds(lambda m=model, n=number: write(m, folder / f"{n}.safetensors")))  # type: ignore[misc]
            ours.append(seconds(lambda m=model: repo.commit("large", m)))  # type: ignore[misc]
    return statistics.median(ours), statistics.median(theirs)


def write(model: dict[str, Any], path: Path) -> None:
    save_file(model, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def fifty(number: int) -> tuple[dict[str, Any], dict[str, Any], list[float]]:
    """Weights, hyperparameters and losses of a small model that is trained on: most tensors stay as they were."""
    base = {f"layer{i}": np.random.default_rng(i).normal(size=20_000).astype("f4") for i in range(10)}
    moved = {**base, "layer9": base["layer9"] + np.float32(0.01 * number)}
    return moved, {"lr": 0.1 / (number + 1), "hidden": 64 + number}, [1.0 / (step + number + 1) for step in range(10)]


def ours_fifty(folder: Path) -> list[float]:
    with Repo.init(folder) as repo:
        logged = seconds(
            lambda: [
                repo.commit("model", weights, hyperparameters=values, metrics={"loss": losses})
                for weights, values, losses in map(fifty, range(50))
            ]
        )
        listed, best = seconds(lambda: repo.versions().rows()), seconds(lambda: repo.best("loss"))
    return [logged, 1e3 * listed, 1e3 * best, size_of(folder) / 1e6]


def mlflow_fifty(folder: Path) -> list[float]:
    from mlflow import MlflowClient

    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    folder.mkdir()
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.create_experiment("model", artifact_location=str(folder / "artifacts"))

    def log(number: int) -> None:
        from mlflow.entities import Metric, Param

        weights, values, losses = fifty(number)
        run = client.create_run(experiment)
        params = [Param(name, str(value)) for name, value in values.items()]
        client.log_batch(run.info.run_id, [Metric("loss", v, 0, step) for step, v in enumerate(losses)], params)
        write(weights, folder / "weights.safetensors")
        client.log_artifact(run.info.run_id, str(folder / "weights.safetensors"))
        client.set_terminated(run.info.run_id)

    logged = seconds(lambda: [log(number) for number in range(50)])
    listed = seconds(lambda: client.search_runs([experiment], max_results=1000))
    best = seconds(lambda: client.search_runs([experiment], order_by=["metrics.loss ASC"], max_results=1))
    (folder / "weights.safetensors").unlink()
    return [logged, 1e3 * listed, 1e3 * best, size_of(folder) / 1e6]


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
        bars = [Bar(f"{name}: ms", median, 150.0) for name, _, median in rows[:-2] if "parsed" not in name]
        ours, theirs = commit_against_safetensors(folder / "large", options.megabytes)
        rows.append([f"commit {options.megabytes} MB; the file beside it", 1e3 * ours, 1e3 * theirs])
        bars.append(Bar("commit against safetensors and fsync", ours / theirs, 1.3))
        mine, others = ours_fifty(folder / "ours"), mlflow_fifty(folder / "mlflow")
        for name, ours_is, theirs_is in zip(("log: s", "list: ms", "best: ms", "disk: MB"), mine, others, strict=True):
            rows.append([f"50 versions, {name}; MLflow beside it", ours_is, theirs_is])
            bars.append(Bar(f"50 versions against MLflow, {name}", ours_is / theirs_is, 1.0))
    notes = {"catalog_bytes": size, "versions": options.versions, "columns": "first call with opening, then the median"}
    columns, peers = ["what", "first / ours", "median / theirs"], ["mlflow-skinny", "safetensors"]
    report("repo", columns, rows, bars=bars, peers=peers, notes=notes)


if __name__ == "__main__":
    main()
