"""Groups of workers: the weights of one worker, the same bits every time, and what exchanging gradients costs.

    python benchmarks/bench_groups.py [--repeats 3] [--device cpu]

First a network in double precision, trained for 3 epochs by a group of 2 and by 1 worker with the same batches, and by
the group once more. Then a small and a larger network on 2 workers, one model and two, by hops and by a group of
two, each way in turn: the time from the start of the first unit to the end of the last, what of it went into exchanges
(waiting for the other included), and beside it what `regatta/plan/strategy/groups_or_hops.py` foresees from that ratio.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Bar, report
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.engine import archiver
from regatta.plan.strategy.groups_or_hops import Communication, round_time

WORKERS, EPOCHS = 2, 3
SHAPES = {"small": (32,), "larger": (1024, 1024, 1024)}
BATCHES = {"small": 32, "larger": 256}
COLUMNS = [
    "repeat", "network", "models", "units by hops, s", "units by a group, s", "group / hops", "foreseen",
    "exchange / compute",
]  # fmt: skip


def model_fn(config: dict[str, Any]) -> Any:
    sizes = (64, *SHAPES[config["network"]], 10)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*layers[:-1])
    if config.get("double"):
        net.double()
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x.to(model[0].weight.dtype)), y)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    archiver.MAX_START_ATTEMPTS = 0  # states are not archived beside the runs
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        apart, differ = _exactness(place, args.device)
        rows = [
            _compared(place, args.device, repeat, network, models)
            for repeat in range(args.repeats)
            for network in SHAPES
            for models in (1, 2)
        ]
    bars = [
        Bar("group of 2 against 1 worker, 3 epochs, float64: largest relative difference", apart, 1e-9),
        Bar("the same group twice: states that differ", differ, 0),
    ]
    cases = [(network, models) for network in SHAPES for models in (1, 2)]
    notes = {
        f"{network}, {models}: group / hops, median": _median(rows, network, models, 5) for network, models in cases
    }
    notes |= {f"{network}: exchange / compute, median": _median(rows, network, 1, 7) for network in SHAPES}
    for name, value in notes.items():
        print(f"{name}: {value:.3f}")
    report("groups" if args.device == "cpu" else "groups_gpu", COLUMNS, rows, bars=bars, notes=notes)


def _median(rows: list[list[Any]], network: str, models: int, column: int) -> float:
    return statistics.median(row[column] for row in rows if row[1:3] == [network, models])


def _exactness(folder: Path, device: str) -> tuple[float, int]:
    """The largest relative difference of a weight, and states that differ between two groups."""
    config = {"network": "small", "double": True, "lr": 0.003, "batch_size": 50}
    alone, pair, again = (
        _launched(folder, Cluster.local(width, threads=1, device=device, group=width), [config]) for width in (1, 2, 2)
    )
    (name,) = alone.record.configs
    here, there = pair.weights(name), alone.weights(name)
    apart = max(float(np.abs(here[key] - there[key]).max() / np.abs(there[key]).max()) for key in there)
    return apart, sum(a != b for a, b in zip(_hashes(pair), _hashes(again), strict=True))


def _hashes(run: Run) -> list[Any]:
    units = [unit for unit in run.record.units if unit.kind == "train"]
    return [unit.hash for unit in sorted(units, key=lambda unit: (unit.config, unit.epoch, unit.partition))]


@dataclass(frozen=True)
class _Way:
    seconds: float
    exchange: float
    compute: float


def _compared(folder: Path, device: str, repeat: int, network: str, models: int) -> list[Any]:
    configs = [{"network": network, "lr": 0.001 * (k + 1), "batch_size": BATCHES[network]} for k in range(models)]
    hops, group = (
        _way(_launched(folder, Cluster.local(WORKERS, threads=1, device=device, group=width), configs))
        for width in (1, WORKERS)
    )
    ratio = group.exchange / group.compute
    link = Communication(ratio)
    foreseen = round_time(models, WORKERS, WORKERS, link) / round_time(models, WORKERS, 1, link)
    return [repeat, network, models, hops.seconds, group.seconds, group.seconds / hops.seconds, foreseen, ratio]


def _way(run: Run) -> _Way:
    units = [unit for unit in run.record.units if unit.kind != "pilot"]
    trained = [unit for unit in units if unit.kind == "train"]
    exchange = sum(unit.sync_seconds for unit in trained)
    besides = sum(unit.hop_seconds + unit.load_seconds + unit.save_seconds for unit in trained)
    span = max(unit.end for unit in units) - min(unit.start for unit in units)
    return _Way(span, exchange, sum(unit.seconds for unit in trained) - exchange - besides)


def _launched(folder: Path, cluster: Cluster, configs: list[dict[str, Any]]) -> Run:
    large = configs[0]["network"] == "larger"
    data = _digits(folder, 3 if large else 1)
    sweep = Sweep(
        data, search.configs(configs), model_fn, loss_fn=loss_fn, epochs=EPOCHS, cluster=cluster, repo=folder,
        visits="seeded", pack=False,
    )  # fmt: skip
    run = sweep.launch(progress=False, resume=False)
    assert run.record.status == "done", run.record.error
    return run


def _digits(folder: Path, times: int) -> Dataset:
    """The digits of scikit-learn in two partitions, repeated."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = np.tile(x.astype(np.float32) / 16, (times, 1)), np.tile(y, times)
    return Dataset.from_arrays(
        x, y, partitions=2, eval_fraction=0.05, directory=folder / f"digits-{times}", name="digits"
    )


if __name__ == "__main__":
    main()
