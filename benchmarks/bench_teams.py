"""One long model beside short ones on four workers: groups of different widths against one width for all, in real runs.

Two cores cannot train four models at once, so a device is a wait here: each row of a batch takes as long as the
configuration says, and everything else is real (processes, gradients exchanged through gloo, states, journal). Each way
is forced but the last; seconds are those from the first unit to the last.

    nice python benchmarks/bench_teams.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch
from report import Bar, report
from torch import nn

from regatta import Cluster, Dataset, Sweep, search

WORKERS, EPOCHS = 4, 5
LONG = {"lr": 0.1, "batch_size": 64, "row": 2e-3}
SHORT = [{"lr": rate, "batch_size": 16, "row": 1e-4} for rate in (0.01, 0.02, 0.03, 0.04)]
WAYS: dict[str, int | None] = {"hop": 1, "groups of 2": 2, "groups of 4": 4, "planned": None}


def model_fn(config: dict[str, Any]) -> Any:
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return net, torch.optim.SGD(net.parameters(), lr=config["lr"])


def loss_fn(model: nn.Module, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    time.sleep(config["row"] * len(batch[0]))  # the device
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def trained(data: Dataset, group: int | None) -> tuple[str, float, float]:
    """The plan's name, and seconds: estimated, actual."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster.local(WORKERS, threads=1, device="cpu", group=group)
        sweep = Sweep(
            data, search.configs([LONG, *SHORT]), model_fn, loss_fn=loss_fn, epochs=EPOCHS, cluster=cluster,
            numerics="fast", pack=False, repo=folder,
        )  # fmt: skip
        found = sweep.launch(progress=False, resume=False).analyze()
        whole = found.rows[0]
        assert whole.estimated is not None and whole.actual is not None
        return found.plan.name, whole.estimated, whole.actual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    data = Dataset.digits(partitions=WORKERS)
    found = [{way: trained(data, group) for way, group in WAYS.items()} for _ in range(rounds)]
    rows = []
    for way in WAYS:
        names = {name for name, _, _ in (each[way] for each in found)}
        estimated, actual = (statistics.median(each[way][place] for each in found) for place in (1, 2))
        rows.append([way, ", ".join(sorted(names)), estimated, actual, actual / estimated])
    best = min(row[3] for row in rows[:-1])
    bars = [Bar("planned, over the best that has one width", rows[-1][3] / best, 0.95)]
    report("teams", ["way", "plan", "estimated, s", "actual, s", "actual / estimated"], rows, bars=bars)


if __name__ == "__main__":
    main()
