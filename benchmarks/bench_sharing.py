"""Preprocessing done once for four models against each model doing its own, on the cores of this machine.

Dear: every row is turned, stretched and smoothed by SciPy, as images are augmented, which takes many times as long as
training on it. Free: a row is copied. The same sweep, seeds and order of visits; every state must be the same, bit for
bit. Repeats are interleaved and ratios taken within a round; their medians are held against the bars. Times are from
the start of the first unit to the end of the last one. Where the plan decides, the start of the process that
preprocesses is in it; with share=True it starts beside the workers, as part of the launch. Whole launches stand beside.

What sharing gains depends on the length of the run, for its processes must start: with 1,600 rows and 5 epochs instead
of 3,600 and 8, and on a machine that others kept busy, dear preprocessing was 2.1 and 1.9 times as fast: below the bar.

    nice python benchmarks/bench_sharing.py            --quick for a round of a short one
                                                       --ray for dear preprocessing by actors of a Ray cluster
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Bar, report
from scipy import ndimage

import regatta
from regatta.engine import archiver

SIDE, CLASSES = 24, 5
MODELS = [{"hidden": hidden, "lr": rate, "batch_size": 50} for hidden in (32, 64) for rate in (0.1, 0.01)]


def model_fn(config: dict[str, Any]) -> Any:
    hidden = config["hidden"] * config.get("times", 1)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, CLASSES)
    )
    return net, torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


def augmented(batch: Any, seed: int) -> Any:
    x, y = batch
    rng = np.random.default_rng(seed)
    for row in range(len(x)):
        turned = ndimage.rotate(x[row], rng.uniform(-25, 25), reshape=False, order=3)
        stretched = ndimage.zoom(turned, rng.uniform(1.0, 1.3), order=3)[:SIDE, :SIDE]
        x[row] = ndimage.gaussian_filter(stretched, rng.uniform(0.1, 0.8))
    return x, y


def unchanged(batch: Any, seed: int) -> Any:
    return batch


def images(rows: int, folder: Path) -> regatta.Dataset:
    rng = np.random.default_rng(1)
    y = rng.integers(0, CLASSES, rows)
    x = (rng.normal(size=(rows, SIDE, SIDE)) + y[:, None, None]).astype(np.float32)
    return regatta.Dataset.from_arrays(x, y, partitions=2, eval_fraction=0.1, directory=folder, name="images")


def timed(
    data: regatta.Dataset, models: Any, transform: Any, share: Any, epochs: int, cluster: regatta.Cluster
) -> tuple[float, float, Any]:
    with tempfile.TemporaryDirectory(prefix="sharing-") as folder:
        sweep = regatta.Sweep(
            data, regatta.search.configs(models), model_fn, loss_fn=loss_fn, transform_fn=transform, share=share,
            epochs=epochs, visits="seeded", pack=False, repo=Path(folder) / ".regatta", cluster=cluster,
        )  # fmt: skip
        start = time.perf_counter()
        run = sweep.launch(progress=False)
        whole = time.perf_counter() - start
    units = [unit for unit in run.record.units if unit.kind != "pilot"]
    span = max(unit.end for unit in units) - min(unit.start for unit in units)
    return span, whole, {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


def rounds(count: int, cluster: regatta.Cluster, work: Any, ways: Any) -> Any:
    """Seconds of each way in each round, those of whole launches, and whether all states were the same."""
    data, models, transform, epochs = work
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    launches: dict[str, list[float]] = {name: [] for name in ways}
    states = []
    for number in range(count):
        order = list(ways.items()) if number % 2 == 0 else list(ways.items())[::-1]
        for name, share in order:
            span, whole, state = timed(data, models, transform, share, epochs, cluster)
            seconds[name].append(span)
            launches[name].append(whole)
            states.append(state)
    return seconds, launches, all(state == states[0] for state in states)


def on_ray() -> regatta.Cluster:
    """Two workers of a Ray cluster that is up before anything is timed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return regatta.Cluster.ray(2, threads=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    quick = options.quick
    archiver.MAX_START_ATTEMPTS = 0  # no archiver runs beside the run
    cluster = on_ray() if options.ray else regatta.Cluster.local(workers=2, threads=1)
    ways = {"each its own": False, "shared": True, "where it pays": None}
    rows, bars = [], []
    with tempfile.TemporaryDirectory(prefix="images-") as folder:
        few, many = (images(n, Path(folder) / str(n)) for n in ((600, 4000) if quick else (3600, 12000)))
        wide = [{**model, "times": 16} for model in MODELS]
        for name, work in {
            "dear": (few, MODELS, augmented, 3 if quick else 8),
            **({} if options.ray else {"free": (many, wide, unchanged, 3 if quick else 6)}),
        }.items():
            seconds, launches, same = rounds(1 if quick else 5 if name == "dear" else 9, cluster, work, ways)
            for way in ways:
                ratios = [a / b for a, b in zip(seconds["each its own"], seconds[way], strict=True)]
                middle = [statistics.median(figures) for figures in (seconds[way], launches[way], ratios)]
                rows.append([name, way, *middle, same])
                if way != "each its own" and name == "dear":
                    bars.append(Bar(f"dear, {way}: times as fast", statistics.median(ratios), 2.5, "at least"))
                elif way != "each its own":
                    slower = statistics.median(1 / ratio for ratio in ratios)
                    bars.append(Bar(f"free, {way}: times as slow", slower, 1.05))
            bars.append(Bar(f"{name}: states that differ", 0.0 if same else 1.0, 0.0))
    columns = ["preprocessing", "", "units, s", "launch, s", "times as fast", "all states equal"]
    notes = {"models": len(MODELS), "workers": 2, "quick": quick}
    report("sharing_ray" if options.ray else "sharing", columns, rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
