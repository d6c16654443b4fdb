"""A real run beside the least time that its own units allow, and beside the rule of the Cerebro paper.

    REGATTA_BENCH_DATA=folder/with/mnist.npz python benchmarks/bench_real_run.py

Sixteen models of very different cost (two kinds of network, four sizes, two batch sizes) are trained on MNIST in four
partitions by two worker processes, with units of about half a second. From the trace of each run:

- makespan: from the start of the first unit to the end of the last, evaluation units included, pilots not;
- bound: no schedule of these very units is shorter than the time the busiest worker was at work, nor than the
  training of the longest model one unit after another and its last evaluation. Units include hops, saves and loads;
- where the workers' time went: hops, saves, loads, idle; and what the controller costs: the median time from the end
  of a unit to the start of the worker's next.

Repeated, the rules in turn, medians reported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from report import Bar, report

import regatta
from regatta.journal.run_record import RunRecord, UnitRecord

LIMIT = 1.05
RULES = ("auto", "randomized")
PARTITIONS, WORKERS = 4, 2
SPACE = {"kind": ["mlp", "cnn"], "size": [1, 2, 3, 4], "batch_size": [32, 128]}
WIDTHS = {"mlp": (128, 256, 384, 512), "cnn": (4, 6, 8, 12)}


@dataclass(frozen=True)
class Result:
    """One run, in seconds; the shares are of all that the workers' time was worth."""

    makespan: float
    bound: float
    ratio: float
    mean_unit: float
    longest_unit: float
    hop_share: float
    save_share: float
    load_share: float
    idle_share: float
    controller_ms: float


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        data = _dataset(Path(folder), options.rows)
        results: dict[str, list[Result]] = {rule: [] for rule in RULES}
        for repeat in range(options.repeats):
            for rule in RULES:
                results[rule].append(_measure(data, rule, repeat, options.epochs, folder))
    names = [field.name.replace("_", " ") for field in fields(Result)]
    rows = [
        [rule, *(statistics.median(c) for c in zip(*map(astuple, found), strict=True))]
        for rule, found in results.items()
    ]
    report(
        "real_run",
        ["rule", *names],
        rows,
        bars=[Bar(f"{RULES[0]}: makespan / bound", statistics.median(r.ratio for r in results[RULES[0]]), LIMIT)],
        notes={"data": data.name, "repeats": options.repeats, "epochs": options.epochs, "rows": options.rows}
        | {rule: [vars(result) for result in found] for rule, found in results.items()},
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=50_000, help="of the data set, a fifth of them for evaluation")
    return parser.parse_args()


def _dataset(folder: Path, rows: int) -> regatta.Dataset:
    home = os.environ.get("REGATTA_BENCH_DATA")
    if home is None:
        print("REGATTA_BENCH_DATA is not set: made images of the shape of MNIST are used instead of MNIST.\n")
        noise = np.random.default_rng(0)
        x, y = noise.integers(0, 256, (rows, 28, 28), dtype=np.uint8), noise.integers(0, 10, rows)
        name = "made"
    else:
        with np.load(Path(home) / "mnist.npz") as mnist:
            x, y, name = mnist["x_train"][:rows], mnist["y_train"][:rows].astype(np.int64), "mnist"
    return regatta.Dataset.from_arrays(x, y, partitions=PARTITIONS, name=name, directory=folder / "data")


def _measure(data: regatta.Dataset, rule: str, seed: int, epochs: int, folder: str) -> Result:
    run = regatta.launch(
        data,
        regatta.search.grid(**SPACE),
        model_fn,
        loss_fn=loss_fn,
        epochs=epochs,
        seed=seed,
        rule=rule,
        cluster=regatta.Cluster.local(workers=WORKERS, threads=1, device="cpu"),
        repo=folder,
        progress=False,
    )
    assert run.record.status == "done" and all(c.epoch == epochs for c in run.record.configs.values())
    return _judge(run.record)


def model_fn(config: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    width = WIDTHS[config["kind"]][config["size"] - 1]
    if config["kind"] == "mlp":
        layers = [
            nn.Flatten(),
            nn.Linear(784, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        ]
    else:
        layers = [
            *(nn.Conv2d(1, width, 5, stride=2, padding=2), nn.ReLU()),
            *(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(2 * width * 49, 10)),
        ]
    net = nn.Sequential(*layers)
    return net, torch.optim.Adam(net.parameters(), lr=1e-3)


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    import torch

    x, y = batch
    return torch.nn.functional.cross_entropy(model(x.float().div_(255).unsqueeze(1)), y)


def _judge(record: RunRecord) -> Result:
    units = [unit for unit in record.units if unit.kind != "pilot"]
    busy: defaultdict[str, float] = defaultdict(float)
    for unit in units:
        busy[unit.worker] += unit.seconds
    makespan = max(u.end for u in units) - min(u.start for u in units)
    bound = max(*busy.values(), *map(_serial_seconds, (config.units for config in record.configs.values())))
    worth = makespan * len(busy)
    sums = [sum(getattr(u, f"{part}_seconds") for u in units) for part in ("hop", "save", "load")]
    shares = [part / worth for part in (*sums, worth - sum(busy.values()))]
    trained = [u.seconds for u in units if u.kind == "train"]
    pause = statistics.median(_pauses(units))
    return Result(makespan, bound, makespan / bound, statistics.mean(trained), max(trained), *shares, 1e3 * pause)


def _serial_seconds(units: list[UnitRecord]) -> float:
    """The training of one model, unit after unit, and its last evaluation, whose parts can run beside each other."""
    last = max(unit.epoch for unit in units)
    judged = [unit.seconds for unit in units if unit.kind == "eval" and unit.epoch == last]
    return sum(unit.seconds for unit in units if unit.kind == "train") + max(judged, default=0.0)


def _pauses(units: list[UnitRecord]) -> Iterator[float]:
    """How long each worker paused from one unit to the next."""
    ended: dict[str, float] = {}
    for unit in sorted(units, key=lambda u: u.start):
        if unit.worker in ended:
            yield unit.start - ended[unit.worker]
        ended[unit.worker] = unit.end


if __name__ == "__main__":
    main()
