"""The same sweep of 32 small models on two cores, by Regatta and by Ray Tune.

    python benchmarks/bench_ray_tune.py        (Ray comes with: pip install '.[bench]')

Both train the same 32 configurations of a small network on scikit-learn's digits for the same epochs: the same rows in
batches of the same sizes, one thread per model, two models at a time, the loss on the same held-out rows after every
epoch, and a checkpoint (weights and optimizer) of every epoch. Regatta also makes every state durable and trains by
hops over two partitions; Ray Tune's checkpoints are left to the page cache. A further row shows Ray Tune without any.

Ray Tune as its documentation advises for short trials: actors are reused, data in the object store, one CPU per trial,
two at a time, loggers and console off. `ray.init` is not counted for it; for Regatta everything is counted from the
call of `launch`: starting the worker processes, pilots, training, ending. Either time is also shown from the moment
when the first model begins to train, which leaves the start of processes and imports out on both sides. No tool can be
faster than the steps alone, which a plain loop in one process takes; half of its time is what two cores need.

Every measurement is a process of its own; they take turns, and medians are reported. Sweeps of one epoch show what
the tools cost, those of more epochs what that matters when there is more to train.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from report import Bar, print_table, report

import regatta
from regatta.data import read_partition
from regatta.journal.run_record import RunRecord

LIMIT = 2.0
SAME_LOSS = 0.05  # relative, of the mean over all models; they start from other random weights
SPACE = {"hidden": [32, 64, 128, 256], "lr": [1e-2, 3e-3, 1e-3, 3e-4], "batch_size": [32, 64]}
CONFIGS = [dict(zip(SPACE, values, strict=True)) for values in itertools.product(*SPACE.values())]
EPOCHS = (1, 5)  # the bar is for the last
WORKERS = 2
WAYS = {
    "regatta": "Regatta",
    "ray": "Ray Tune",
    "ray-bare": "Ray Tune without checkpoints",
    "steps": "the steps alone",
}
COLUMNS = (
    "epochs",
    "sweep of 32 models",
    "seconds",
    "/ Regatta's",
    "until training",
    "after that",
    "mean loss",
    "best",
)
PARTS = ("train_ms", "eval_ms", "restore_ms", "save_ms", "pause_ms")


@dataclass(frozen=True)
class Outcome:
    """One measured sweep. `parts` tell, for Regatta, the mean milliseconds of units and of what they consist of."""

    seconds: float
    start: float
    losses: list[float]
    parts: dict[str, float]


def main() -> None:
    options = _arguments()
    if options.measure:
        print(json.dumps(vars(_measure(options.measure, options.epochs))))
        return
    if importlib.util.find_spec("ray") is None:
        sys.exit("Ray is not installed here; this comparison needs it: pip install '.[bench]'")
    found = {(epochs, way): list[Outcome]() for epochs in EPOCHS for way in WAYS}
    for _ in range(options.repeats):
        for (epochs, way), outcomes in found.items():
            outcomes.append(_in_a_process(way, epochs))
    medians = {key: _median(outcomes) for key, outcomes in found.items()}
    ours, theirs = medians[EPOCHS[-1], "regatta"], medians[EPOCHS[-1], "ray"]
    print_table(["epochs", *PARTS], [[e, *(medians[e, "regatta"].parts[p] for p in PARTS)] for e in EPOCHS])
    print()
    report(
        "ray_tune",
        COLUMNS,
        [_row(epochs, way, medians) for epochs, way in found],
        bars=[
            Bar(f"Ray Tune / Regatta, {EPOCHS[-1]} epochs", theirs.seconds / ours.seconds, LIMIT, "at least"),
            Bar("mean loss, relative difference", abs(_mean(ours) / _mean(theirs) - 1), SAME_LOSS),
        ],
        peers=("ray",),
        notes={"space": SPACE, "repeats": options.repeats}
        | {f"{way}, {epochs} epochs": [[o.seconds, o.start] for o in all_] for (epochs, way), all_ in found.items()},
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=WAYS, help="measure one of them once, in this process")
    parser.add_argument("--epochs", type=int, default=EPOCHS[-1], help="for --measure")
    return parser.parse_args()


def _row(epochs: int, way: str, medians: dict[tuple[int, str], Outcome]) -> list[Any]:
    one, ours = medians[epochs, way], medians[epochs, "regatta"]
    if way == "steps":
        half = one.seconds / WORKERS
        return [epochs, f"{WAYS[way]}, half of them", half, half / ours.seconds, 0.0, half, _mean(one), min(one.losses)]
    times = (one.seconds, one.seconds / ours.seconds, one.start, one.seconds - one.start)
    return [epochs, WAYS[way], *times, _mean(one), min(one.losses)]


def _median(outcomes: list[Outcome]) -> Outcome:
    """Medians of all the times; the losses are those of the first."""
    first = outcomes[0]
    parts = {name: statistics.median(one.parts[name] for one in outcomes) for name in first.parts}
    seconds, start = (statistics.median(getattr(one, name) for one in outcomes) for name in ("seconds", "start"))
    return Outcome(seconds, start, first.losses, parts)


def _mean(one: Outcome) -> float:
    return statistics.mean(one.losses)


def _in_a_process(way: str, epochs: int) -> Outcome:
    command = [sys.executable, __file__, "--measure", way, "--epochs", str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{WAYS[way]} failed:\n{done.stderr}")
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def _measure(way: str, epochs: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        data = regatta.Dataset.digits(partitions=WORKERS, directory=f"{folder}/data")
        if way == "regatta":
            return _regatta(data, folder, epochs)
        parts, held_out = ([_arrays(part.path) for part in kind] for kind in (data.train, data.eval))
        if way == "steps":
            return _steps_alone(parts, held_out, epochs)
        return _ray_tune(parts, held_out, folder, epochs, checkpoints=way == "ray")


def _arrays(path: Path) -> tuple[np.ndarray, ...]:
    return tuple(np.array(column) for column in read_partition(path))


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


def _regatta(data: regatta.Dataset, folder: str, epochs: int) -> Outcome:
    import torch  # noqa: F401 (the other side's driver has imported it too)

    start = time.time()
    run = regatta.launch(
        data,
        regatta.search.grid(**SPACE),
        model_fn,
        loss_fn=loss_fn,
        epochs=epochs,
        cluster=regatta.Cluster.local(workers=WORKERS, threads=1, device="cpu"),
        repo=folder,
        progress=False,
    )
    end = time.time()
    first = min(row["start"] for row in run.trace() if row["kind"] == "train")
    losses = [config.series("loss")[-1] for config in run.record.configs.values()]
    return Outcome(end - start, first - start, losses, _parts(run.record))


def _parts(record: RunRecord) -> dict[str, float]:
    """Where the workers' time went, in mean milliseconds per unit."""
    units = sorted((unit for unit in record.units if unit.kind != "pilot"), key=lambda unit: unit.start)
    trained, judged = ([u for u in units if u.kind == kind] for kind in ("train", "eval"))
    ended: dict[str, float] = {}
    pauses = []
    for unit in units:
        pauses.append(unit.start - ended.get(unit.worker, unit.start))
        ended[unit.worker] = unit.end
    seconds = (
        *(statistics.mean(unit.seconds for unit in kind) for kind in (trained, judged)),
        statistics.mean(unit.hop_seconds for unit in units if unit.hop_bytes),
        statistics.mean(unit.save_seconds for unit in trained),
        statistics.mean(pauses),
    )
    return dict(zip(PARTS, (1e3 * part for part in seconds), strict=True))


# -- Ray Tune -----------------------------------------------------------------------------------------


def _ray_tune(parts: Parts, held_out: Parts, folder: str, epochs: int, checkpoints: bool) -> Outcome:
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    import ray
    import torch  # noqa: F401 (its driver imports what trials need)
    from ray import tune

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    given = {"parts": parts, "held_out": held_out, "epochs": epochs, "checkpoints": checkpoints}
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(trial, **given), {"cpu": 1}),
        param_space={name: tune.grid_search(values) for name, values in SPACE.items()},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=WORKERS, reuse_actors=True),
        run_config=tune.RunConfig(name="sweep", storage_path=f"{folder}/ray", verbose=0),
    )
    start = time.time()
    results = tuner.fit()
    end = time.time()
    assert len(results) == len(CONFIGS) and results.num_errors == 0, results.errors
    first = min(result.metrics["began"] for result in results)
    ray.shutdown()
    return Outcome(end - start, first - start, [result.metrics["loss"] for result in results], {})


def trial(config: dict[str, Any], parts: Parts, held_out: Parts, epochs: int, checkpoints: bool) -> None:
    """What a user of Ray Tune writes."""
    import torch
    from ray import tune

    torch.set_num_threads(1)
    for metrics, model, optimizer in train(config, parts, held_out, epochs):
        if not checkpoints:
            tune.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/state.pt")
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


# -- the plain loop, over the same partitions in batches of the same sizes ------------------------------

Parts: TypeAlias = list[tuple[np.ndarray, ...]]


def train(
    config: dict[str, Any], parts: Parts, held_out: Parts, epochs: int
) -> Iterator[tuple[dict[str, float], Any, Any]]:
    """Train one model; after each epoch, its metrics, the model and the optimizer."""
    import torch

    torch.manual_seed(0)
    model, optimizer = model_fn(config)
    began = time.time()
    for _ in range(epochs):
        for part in parts:
            x, y = map(torch.as_tensor, part)
            for rows in torch.randperm(len(x)).split(config["batch_size"]):
                optimizer.zero_grad()
                loss_fn(model, (x[rows], y[rows]), config).backward()
                optimizer.step()
        yield {"loss": _evaluate(model, held_out, config), "began": began}, model, optimizer


def _evaluate(model: Any, held_out: Parts, config: dict[str, Any]) -> float:
    import torch

    total = seen = 0.0
    with torch.no_grad():
        for part in held_out:
            x, y = map(torch.as_tensor, part)
            for rows in torch.arange(len(x)).split(config["batch_size"]):
                total += loss_fn(model, (x[rows], y[rows]), config).item() * len(rows)
                seen += len(rows)
    return total / seen


def _steps_alone(parts: Parts, held_out: Parts, epochs: int) -> Outcome:
    import torch

    torch.set_num_threads(1)
    list(train(CONFIGS[0], parts, held_out, 1))  # the first optimizer pays for imports
    start = time.time()
    losses = [list(train(config, parts, held_out, epochs))[-1][0]["loss"] for config in CONFIGS]
    return Outcome(time.time() - start, 0.0, losses, {})


if __name__ == "__main__":
    main()
