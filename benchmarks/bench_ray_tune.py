"""The same sweep of 32 small models on two cores, by Regatta and by Ray Tune.

    python benchmarks/bench_ray_tune.py        (Ray comes with: pip install regatta[bench])

Both train the same 32 configurations of a small network on scikit-learn's digits for the same epochs: the same rows in
batches of the same sizes, one thread per model, two models at a time, the loss on the same held-out rows after every
epoch, and a checkpoint (weights and optimizer) of every epoch. Regatta also makes every state durable and trains by
hops over two partitions; Ray Tune's checkpoints are left to the page cache. A second row shows Ray Tune without any.

Ray Tune as its documentation advises for short trials: actors are reused, data in the object store, one CPU per trial,
two at a time, loggers and console off. `ray.init` is not counted for it; for Regatta everything is counted from the
call of `launch`: starting the worker processes, pilots, training, ending. Either time is also shown from the moment
when the first model begins to train, which leaves the start of processes and imports out on both sides.

Every measurement is a process of its own; they take turns, and medians are reported.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import Bar, report

import regatta

LIMIT = 2.0
SAME_LOSS = 0.05  # relative, of the mean over all models; they start from other random weights
SPACE = {"hidden": [32, 64, 128, 256], "lr": [1e-2, 3e-3, 1e-3, 3e-4], "batch_size": [32, 64]}
EPOCHS = 5
WORKERS = 2
WAYS = {
    "regatta": "Regatta",
    "ray": "Ray Tune, checkpoint per epoch",
    "ray-bare": "Ray Tune, no checkpoints",
}


def main() -> None:
    options = _arguments()
    if options.measure:
        print(json.dumps(_measure(options.measure)))
        return
    if importlib.util.find_spec("ray") is None:
        sys.exit("Ray is not installed here; this comparison needs it: pip install 'regatta[bench]'")
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way in WAYS:
            found[way].append(_in_a_process(way))
    medians = {
        way: {name: statistics.median(one[name] for one in each) for name in each[0]} for way, each in found.items()
    }
    ours = medians["regatta"]
    report(
        "ray_tune",
        [
            "sweep of 32 models",
            "seconds",
            "of Regatta's",
            "until first training",
            "after that",
            "mean loss",
            "best loss",
        ],
        [
            [
                title,
                m["seconds"],
                m["seconds"] / ours["seconds"],
                m["start"],
                m["seconds"] - m["start"],
                m["mean"],
                m["best"],
            ]
            for title, m in ((WAYS[way], medians[way]) for way in WAYS)
        ],
        bars=[
            Bar("Ray Tune / Regatta, seconds", medians["ray"]["seconds"] / ours["seconds"], LIMIT, "at least"),
            Bar("mean loss, relative difference", abs(ours["mean"] / medians["ray"]["mean"] - 1), SAME_LOSS),
        ],
        peers=("ray",),
        notes={"space": SPACE, "epochs": EPOCHS, "repeats": options.repeats, "all": found},
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", choices=WAYS, help="measure one of them once, in this process")
    return parser.parse_args()


def _in_a_process(way: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--measure", way], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{WAYS[way]} failed:\n{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _measure(way: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        data = regatta.Dataset.digits(partitions=WORKERS, directory=f"{folder}/data")
        return _regatta(data, folder) if way == "regatta" else _ray_tune(data, folder, way == "ray")


# -- Regatta ------------------------------------------------------------------------------------------


def model_fn(config: dict[str, Any]) -> Any:
    import torch

    hidden = config["hidden"]
    net = torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    import torch

    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


def _regatta(data: regatta.Dataset, folder: str) -> dict[str, float]:
    import torch  # noqa: F401 (the other side's driver has imported it too)

    start = time.time()
    run = regatta.launch(
        data,
        regatta.search.grid(**SPACE),
        model_fn,
        loss_fn=loss_fn,
        epochs=EPOCHS,
        cluster=regatta.Cluster.local(workers=WORKERS, threads=1, device="cpu"),
        repo=folder,
        progress=False,
    )
    end = time.time()
    first = min(row["start"] for row in run.trace() if row["kind"] == "train")
    return _summary(end - start, first - start, [config.series("loss")[-1] for config in run.record.configs.values()])


# -- Ray Tune -----------------------------------------------------------------------------------------


def _ray_tune(data: regatta.Dataset, folder: str, checkpoints: bool) -> dict[str, float]:
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    import ray
    import torch  # noqa: F401 (its driver imports what trials need)
    from ray import tune

    parts = [_arrays(part.path) for part in data.train]
    held_out = [_arrays(part.path) for part in data.eval]
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    trainable = tune.with_parameters(trial, parts=parts, held_out=held_out, checkpoints=checkpoints)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={name: tune.grid_search(values) for name, values in SPACE.items()},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=WORKERS, reuse_actors=True),
        run_config=tune.RunConfig(name="sweep", storage_path=f"{folder}/ray", verbose=0),
    )
    start = time.time()
    results = tuner.fit()
    end = time.time()
    assert len(results) == len(_configs()) and results.num_errors == 0, results.errors
    first = min(result.metrics["began"] for result in results)
    ray.shutdown()
    return _summary(end - start, first - start, [result.metrics["loss"] for result in results])


def trial(config: dict[str, Any], parts: list[Any], held_out: list[Any], checkpoints: bool) -> None:
    """The plain loop that a user of Ray Tune writes, over the same partitions in batches of the same sizes."""
    import torch
    from ray import tune

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, optimizer = model_fn(config)
    began = time.time()
    for _ in range(EPOCHS):
        for part in parts:
            x, y = map(torch.as_tensor, part)
            for rows in torch.randperm(len(x)).split(config["batch_size"]):
                optimizer.zero_grad()
                loss_fn(model, (x[rows], y[rows]), config).backward()
                optimizer.step()
        metrics = {"loss": _evaluate(model, held_out, config), "began": began}
        if not checkpoints:
            tune.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/state.pt")
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def _evaluate(model: Any, held_out: list[Any], config: dict[str, Any]) -> float:
    import torch

    total = seen = 0.0
    with torch.no_grad():
        for part in held_out:
            x, y = map(torch.as_tensor, part)
            for rows in torch.arange(len(x)).split(config["batch_size"]):
                total += loss_fn(model, (x[rows], y[rows]), config).item() * len(rows)
                seen += len(rows)
    return total / seen


def _arrays(path: Path) -> tuple[np.ndarray, ...]:
    return tuple(np.array(column) for column in regatta.data.read_partition(path))


def _configs() -> list[tuple[Any, ...]]:
    return list(itertools.product(*SPACE.values()))


def _summary(seconds: float, start: float, losses: list[float]) -> dict[str, float]:
    return {"seconds": seconds, "start": start, "mean": statistics.mean(losses), "best": min(losses)}


if __name__ == "__main__":
    main()
