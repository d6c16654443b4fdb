"""A sweep of sixteen configurations with each framework, beside the least time that its own units allow.

    python benchmarks/bench_frameworks.py

Sixteen networks (four widths, two learning rates, two batch sizes) are trained on made data in four partitions by two
worker processes, with the same rows and the same shapes in PyTorch, NumPy, Keras (compiled, on TensorFlow) and JAX.
From the trace of each run, evaluation units included and pilots not:

- makespan: from the start of the first unit to the end of the last;
- bound: no schedule of these very units is shorter than the time the busiest worker was at work, nor than the
  training of the longest model one unit after another and its last evaluation;
- mean and longest unit: what compiling costs shows in the longest.

Repeated, the frameworks in turn, medians reported.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections import defaultdict
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from report import Bar, report

import regatta
from regatta.journal.run_record import RunRecord, UnitRecord

LIMIT = 1.10
FRAMEWORKS = ("torch", "numpy", "keras", "jax")
PARTITIONS, WORKERS = 4, 2
FEATURES, CLASSES = 256, 10
SPACE = {"width": [128, 192, 256, 320], "lr": [0.05, 0.01], "batch_size": [32, 64]}


@dataclass(frozen=True)
class Result:
    """One run, in seconds; the idle share is of all that the workers' time was worth."""

    makespan: float
    bound: float
    ratio: float
    mean_unit: float
    longest_unit: float
    idle_share: float
    loss: float


def main() -> None:
    options = _arguments()
    results: dict[str, list[Result]] = {name: [] for name in options.frameworks}
    with tempfile.TemporaryDirectory() as folder:
        data = _dataset(Path(folder), options.rows)
        for repeat in range(options.repeats):
            for name in options.frameworks:
                results[name].append(_measure(data, name, repeat, options.epochs, folder))
    medians = {
        name: [statistics.median(c) for c in zip(*map(astuple, found), strict=True)] for name, found in results.items()
    }
    names = [field.name.replace("_", " ") for field in fields(Result)]
    report(
        "frameworks",
        ["framework", *names],
        [[name, *row] for name, row in medians.items()],
        bars=[Bar(f"{name}: makespan / bound", row[names.index("ratio")], LIMIT) for name, row in medians.items()],
        peers=["keras", "tensorflow_cpu", "jax", "optax"],
        notes={"repeats": options.repeats, "epochs": options.epochs, "rows": options.rows}
        | {name: [vars(result) for result in found] for name, found in results.items()},
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=60_000, help="of the data set, a fifth of them for evaluation")
    parser.add_argument("--frameworks", nargs="+", default=FRAMEWORKS, choices=FRAMEWORKS)
    return parser.parse_args()


def _dataset(folder: Path, rows: int) -> regatta.Dataset:
    generator = np.random.default_rng(0)
    y = generator.integers(0, CLASSES, rows)
    x = (generator.normal(size=(rows, FEATURES)) + 0.15 * generator.normal(size=(CLASSES, FEATURES))[y]).astype(
        np.float32
    )
    return regatta.Dataset.from_arrays(x, y, partitions=PARTITIONS, name="made", directory=folder / "data")


def _measure(data: regatta.Dataset, name: str, seed: int, epochs: int, folder: str) -> Result:
    model_fn, loss_fn = RECIPES[name]
    run = regatta.launch(
        data,
        regatta.search.grid(**SPACE),
        model_fn,
        loss_fn=loss_fn,
        framework=name,
        epochs=epochs,
        seed=seed,
        cluster=regatta.Cluster.local(workers=WORKERS, threads=1, device="cpu"),
        repo=folder,
        progress=False,
    )
    assert run.record.status == "done" and all(c.epoch == epochs for c in run.record.configs.values())
    return _judge(run.record, float(run.best["loss"]))


def _judge(record: RunRecord, loss: float) -> Result:
    units = [unit for unit in record.units if unit.kind != "pilot"]
    busy: defaultdict[str, float] = defaultdict(float)
    for unit in units:
        busy[unit.worker] += unit.seconds
    makespan = max(u.end for u in units) - min(u.start for u in units)
    bound = max(*busy.values(), *map(_serial_seconds, (config.units for config in record.configs.values())))
    trained = [u.seconds for u in units if u.kind == "train"]
    idle = 1 - sum(busy.values()) / (makespan * len(busy))
    return Result(makespan, bound, makespan / bound, statistics.mean(trained), max(trained), idle, loss)


def _serial_seconds(units: list[UnitRecord]) -> float:
    """The training of one model, unit after unit, and its last evaluation, whose parts can run beside each other."""
    last = max(unit.epoch for unit in units)
    judged = [unit.seconds for unit in units if unit.kind == "eval" and unit.epoch == last]
    return sum(unit.seconds for unit in units if unit.kind == "train") + max(judged, default=0.0)


# -- the same network, four times ---------------------------------------------------------------------------


def torch_model(config: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    net = nn.Sequential(
        *(nn.Linear(FEATURES, config["width"]), nn.ReLU()),
        *(nn.Linear(config["width"], config["width"]), nn.ReLU()),
        nn.Linear(config["width"], CLASSES),
    )
    return net, torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)


def torch_loss(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    import torch

    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


def keras_model(config: dict[str, Any]) -> Any:
    import keras
    from keras import layers

    hidden = [layers.Dense(config["width"], activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((FEATURES,)), *hidden, layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(config["lr"], momentum=0.9), loss=loss, metrics=["accuracy"])
    return model


def _weights(config: dict[str, Any]) -> dict[str, Any]:
    sizes = (FEATURES, config["width"], config["width"], CLASSES)
    made: dict[str, Any] = {}
    for number, (above, below) in enumerate(itertools.pairwise(sizes)):
        made[f"w{number}"] = (np.random.normal(size=(above, below)) / above**0.5).astype(np.float32)
        made[f"b{number}"] = np.zeros(below, np.float32)
    return made


def jax_model(config: dict[str, Any]) -> Any:
    import optax

    return _weights(config), optax.sgd(config["lr"], momentum=0.9)


def jax_loss(params: Any, batch: Any, config: dict[str, Any]) -> Any:
    import jax
    import optax

    x, y = batch
    for number in range(2):
        x = jax.nn.relu(x @ params[f"w{number}"] + params[f"b{number}"])
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["w2"] + params["b2"], y).mean()


def numpy_model(config: dict[str, Any]) -> Any:
    from regatta.frameworks.numpy import SGD

    return _weights(config), SGD(config["lr"], momentum=0.9)


def numpy_loss(weights: Any, batch: Any, config: dict[str, Any]) -> Any:
    x, y = batch
    outputs = [x]
    for number in range(2):
        outputs.append(np.maximum(outputs[-1] @ weights[f"w{number}"] + weights[f"b{number}"], 0))
    logits = outputs[-1] @ weights["w2"] + weights["b2"]
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    shares = exponents / exponents.sum(1, keepdims=True)
    loss = -np.log(shares[np.arange(len(y)), y] + 1e-12).mean()
    slope = (shares - np.eye(CLASSES, dtype=np.float32)[y]) / np.float32(len(y))
    gradients = {}
    for number in (2, 1, 0):
        gradients[f"w{number}"], gradients[f"b{number}"] = outputs[number].T @ slope, slope.sum(0)
        slope = (slope @ weights[f"w{number}"].T) * (outputs[number] > 0)
    return loss, gradients


RECIPES: dict[str, tuple[Any, Any]] = {
    "torch": (torch_model, torch_loss),
    "numpy": (numpy_model, numpy_loss),
    "keras": (keras_model, None),
    "jax": (jax_model, jax_loss),
}


if __name__ == "__main__":
    main()
