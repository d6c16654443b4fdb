"""Estimates of units by profiling against their real times: sweeps of different character on two worker processes.

    nice python benchmarks/bench_profiling.py [--only NAME ...] [--rounds 3]

For every training and evaluation unit: (estimated seconds) / (real seconds), with the estimate made before any unit
ran. A partition whose transform_fn is not shared also costs the preprocessing of its rows. The medians are compared
with 1, both ways. `unrest` is what no estimate can know: the median deviation of units from the median of their
configuration and kind. `profiling` is its share of the time for which workers were busy.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Bar, report
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.engine.profiling.models import models_from_journal
from regatta.journal.journal_file import read_journal
from regatta.plan.schedule.units import Unit

LIMIT = 1.1
FEATURES, SIDE, CLASSES = 64, 16, 10


@dataclass(frozen=True)
class Case:
    """A sweep of one character."""

    configs: list[dict[str, Any]]
    rows: int
    image: bool = False
    epochs: int = 3
    functions: Mapping[str, Any] = field(default_factory=dict)


def tiny_fn(config: dict[str, Any]) -> Any:
    hidden = config["hidden"]
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
    net(torch.zeros(1, SIDE * SIDE if config.get("image") else FEATURES))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def cnn_fn(config: dict[str, Any]) -> Any:
    wide = config["channels"]
    net = nn.Sequential(
        nn.Unflatten(1, (1, SIDE)), nn.Conv2d(1, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(wide, 2 * wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * wide * (SIDE // 4) ** 2, CLASSES),
    )  # fmt: skip
    return net, torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def turned(batch: Any, seed: int) -> Any:
    from scipy import ndimage

    x, y = batch
    rng = np.random.default_rng(seed)
    return np.stack([ndimage.rotate(row, rng.uniform(-20, 20), reshape=False, order=1) for row in x]), y


def accuracy_fn(data: Any, model: Any, config: dict[str, Any]) -> dict[str, float]:
    x, y = data
    found = torch.cat([model(x[k : k + 256]).argmax(1) for k in range(0, len(x), 256)])
    return {"accuracy": float((found == y).float().mean())}


def opaque_fn(data: Any, model: Any, optimizer: Any, config: dict[str, Any]) -> dict[str, float]:
    x, y = data
    size, total = config["batch_size"], 0.0
    for k in range(0, len(x), size):
        optimizer.zero_grad()
        loss = loss_fn(model, (x[k : k + size], y[k : k + size]), config)
        loss.backward()
        optimizer.step()
        total += float(loss)
    return {"loss": total}


def keras_fn(config: dict[str, Any]) -> Any:
    import keras

    layers = [keras.layers.Dense(config["hidden"], activation="relu"), keras.layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(config["lr"]), loss=loss)
    return model


def _grid(**lists: Any) -> list[dict[str, Any]]:
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def cases() -> dict[str, Case]:
    tiny = _grid(hidden=[16, 64], lr=[0.01, 0.001], batch_size=[16, 32])
    cnn = _grid(channels=[8, 16], lr=[0.1, 0.01], batch_size=[32])
    step = {"model_fn": tiny_fn, "loss_fn": loss_fn}
    images = [{**config, "image": True} for config in tiny[:4]]
    return {
        "tiny": Case(tiny, 6000, functions=step),
        "cnn": Case(cnn, 6000, image=True, epochs=2, functions={"model_fn": cnn_fn, "loss_fn": loss_fn}),
        "transform_fn": Case(images, 4000, image=True, functions={**step, "transform_fn": turned, "share": False}),
        "eval_fn": Case(tiny[:4], 12000, functions={**step, "eval_fn": accuracy_fn}),
        "train_fn": Case(
            tiny[:4], 6000,
            functions={"model_fn": tiny_fn, "train_fn": opaque_fn, "eval_fn": accuracy_fn, "metric": "accuracy"},
        ),
        "wide": Case(_grid(hidden=[2048], lr=[0.01, 0.001], batch_size=[64]), 8000, functions=step),
        "keras": Case(
            _grid(hidden=[32, 64], lr=[0.01, 0.001], batch_size=[16]), 6000,
            functions={"model_fn": keras_fn, "framework": "keras"},
        ),
    }  # fmt: skip


def data_of(case: Case, folder: Path) -> Dataset:
    rng = np.random.default_rng(1)
    y = rng.integers(0, CLASSES, case.rows)
    shape = (SIDE, SIDE) if case.image else (FEATURES,)
    x = (rng.normal(size=(case.rows, *shape)) + y.reshape(-1, *(1 for _ in shape))).astype(np.float32)
    return Dataset.from_arrays(x, y, partitions=4, eval_fraction=0.2, directory=folder, name="made")


@dataclass(frozen=True)
class ComparedUnit:
    """A unit: what was said of it, and what it took."""

    kind: str
    config: str
    estimated: float
    actual: float

    @property
    def ratio(self) -> float:
        return self.estimated / self.actual


def compared(run: Run, data: Dataset) -> Iterator[ComparedUnit]:
    lines = read_journal(run.folder / "journal.jsonl")
    known = models_from_journal(data, [line for line in lines if line["event"] == "pilot"])
    for unit in run.record.units:
        if unit.kind == "pilot" or unit.config not in known.profiles:
            continue
        seconds = known.estimates.seconds(Unit(unit.kind, unit.config, unit.epoch, unit.partition), unit.worker)
        yield ComparedUnit(unit.kind, unit.config, seconds, unit.seconds)


def measure(case: Case) -> tuple[list[ComparedUnit], float]:
    """The units of one launch, and the share of profiling."""
    with tempfile.TemporaryDirectory(prefix="profiling-") as folder:
        data = data_of(case, Path(folder) / "data")
        cluster = Cluster.local(workers=2, threads=1)
        options = {"epochs": case.epochs, "repo": Path(folder) / ".regatta", "cluster": cluster, "pack": False}
        run = Sweep(data, search.configs(case.configs), **options, **case.functions).launch(progress=False)
        used = run.record.resources()
        return list(compared(run, data)), used.pilot / (used.train + used.eval + used.pilot)


def unrest(units: list[ComparedUnit]) -> float:
    """How far units are from the median of their like, in the middle."""
    alike: dict[str, list[float]] = {}
    for unit in units:
        alike.setdefault(unit.config, []).append(unit.actual)
    return statistics.median(
        abs(seconds / statistics.median(group) - 1) for group in alike.values() for seconds in group
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    rows, bars = [], []
    for name, case in cases().items():
        if wanted.only and name not in wanted.only:
            continue
        rounds = [measure(case) for _ in range(wanted.rounds)]
        profiling = statistics.median(share for _, share in rounds)
        for kind in ("train", "eval"):
            parts = [[unit for unit in units if unit.kind == kind] for units, _ in rounds]
            found = [unit for part in parts for unit in part]
            ratios = [unit.ratio for unit in found]
            middle, low, high = (float(np.quantile(ratios, share)) for share in (0.5, 0.1, 0.9))
            by_round = " ".join(f"{statistics.median(unit.ratio for unit in part):.2f}" for part in parts)
            seconds = statistics.median(unit.actual for unit in found)
            calm = statistics.median(map(unrest, parts))
            rows.append([name, kind, len(found), seconds * 1e3, middle, low, high, by_round, calm, profiling])
            if kind == "train":
                bars.append(Bar(f"{name}: estimated over actual, or reversed", max(middle, 1 / middle), LIMIT))
    columns = ["sweep", "units", "", "ms each", "estimated/actual", "10%", "90%", "by round", "unrest", "profiling"]
    report("profiling", columns, rows, bars=bars, notes={"workers": 2, "threads": 1, "rounds": wanted.rounds})


if __name__ == "__main__":
    main()
