"""Packs in the engine: a sweep that packs by itself, against the same sweep without packs, bit for bit.

    python benchmarks/bench_pack_engine.py [--device cuda] [--repeats 3]

On the processor: 32 networks of 64-32-10 on the digits of scikit-learn, batches of 16, two worker processes. On a GPU:
32 networks of 3072-512-512-512-10, batches of 64, one worker. Each way takes its turn; the time is from the start of
the first unit to the end of the last one, evaluations, saving and hops included, and beside it the whole launch. One
partition, so that every model sees the same rows in the same order both ways, and must come to the same bits.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Bar, report
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.engine import archiver

WAYS: dict[str, bool | None] = {"unpacked": False, "as it decides": None}
LIMIT = 2.0


def tiny_fn(config: dict[str, Any]) -> Any:
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def large_fn(config: dict[str, Any]) -> Any:
    layers = [nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(512, 10))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model: nn.Module, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    archiver.MAX_START_ATTEMPTS = 0  # both ways keep their states as files: no archiver runs beside them
    rows, ratios, differ = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            found = {way: _measured(args.device, pack, Path(folder)) for way, pack in WAYS.items()}
            (alone, *_), (together, *_) = found.values()
            differ += sum(alone[key] != together[key] for key in alone | together)
            for way, (_, span, whole, packs) in found.items():
                rows.append([repeat, way, span, whole, packs])
            ratios.append(found["unpacked"][1] / found["as it decides"][1])
    bars = [
        Bar("unpacked / packed, median", statistics.median(ratios), LIMIT, "at least"),
        Bar("states that differ", differ, 0),
    ]
    name = "pack_engine" if args.device == "cpu" else "pack_engine_gpu"
    report(name, ["repeat", "sweep", "units, s", "launch, s", "packs"], rows, bars=bars)


def _measured(device: str, pack: bool | None, folder: Path) -> tuple[dict[Any, Any], float, float, int]:
    start = time.perf_counter()
    run = _sweep(device, pack, folder).launch(progress=False, resume=False)
    whole = time.perf_counter() - start
    assert run.record.status == "done", run.record.error
    units = [unit for unit in run.record.units if unit.kind != "pilot"]
    span = max(unit.end for unit in units) - min(unit.start for unit in units)
    return _hashes(run), span, whole, len({unit.pack for unit in units if unit.pack})


def _sweep(device: str, pack: bool | None, folder: Path) -> Sweep:
    rates = [0.01 * 0.9**k for k in range(32)]
    if device == "cpu":
        data = Dataset.digits(partitions=1, directory=folder / "digits")
        space, cluster, model_fn = search.grid(lr=rates, batch_size=[16]), Cluster.local(2, threads=1), tiny_fn
    else:
        draw = np.random.default_rng(0)
        x, y = draw.normal(size=(12_800, 3072)).astype(np.float32), draw.integers(0, 10, 12_800)
        data = Dataset.from_arrays(x, y, partitions=1, directory=folder / "pictures", name="pictures")
        space, cluster = search.grid(lr=[rate / 10 for rate in rates], batch_size=[64]), Cluster.local(1, device=device)
        model_fn = large_fn
    return Sweep(data, space, model_fn, loss_fn=loss_fn, epochs=3, cluster=cluster, repo=folder, pack=pack)


def _hashes(run: Run) -> dict[Any, Any]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


if __name__ == "__main__":
    main()
