"""Hyperband for real: all brackets share the workers at once, against the same brackets one after another.

    python benchmarks/bench_hyperband_real.py [--repeats 3]

Small networks on the digits of scikit-learn, R=9, eta=3, two partitions on two worker processes, units of a few tenths
of a second. Makespan is from the start of the first unit to the end of the last, so that the start of workers and the
pilots count for neither; both ways train the same configurations for the same epochs, and take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from report import Bar, report
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.search.base import Action, Goal, Report, Train
from regatta.search.hyperband import Bracket, hyperband_brackets

R, ETA, WORKERS = 9, 3, 2
LIMIT = 1.2


def space() -> Any:
    return search.hyperband(lr=search.loguniform(1e-4, 1e-1), batch_size=[8], R=R, eta=ETA)


class Alone:
    """One bracket as a search of its own."""

    def __init__(self, number: int) -> None:
        self._number = number

    def describe(self) -> dict[str, Any]:
        return {"kind": "bracket", "number": self._number}

    def start(self, goal: Goal) -> list[Action]:
        self._goal = goal
        plan = hyperband_brackets(R, ETA)
        sizes = [rungs[0].size for rungs in plan]
        begin = sum(sizes[: self._number])
        mine = space().start(goal)[begin : begin + sizes[self._number]]
        self._bracket = Bracket(plan[self._number], [action.config for action in mine if isinstance(action, Train)])
        return self._bracket.ask()

    def hear(self, heard: Report) -> list[Action]:
        return self._bracket.hear(heard, self._goal.rank(heard.metrics))


def model_fn(config: dict[str, Any]) -> Any:
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model: nn.Module, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    together, apart = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            together.append(_makespan(_trained(space(), Path(folder))))
            brackets = [_trained(Alone(number), Path(folder)) for number in range(len(hyperband_brackets(R, ETA)))]
            apart.append(sum(map(_makespan, brackets)))
    ratios = [b / a for a, b in zip(together, apart, strict=True)]
    rows = [[number, a, b, b / a] for number, (a, b) in enumerate(zip(together, apart, strict=True), 1)]
    bars = [Bar("one bracket after another / all at once, median", statistics.median(ratios), LIMIT, "at least")]
    report("hyperband_real", ["repeat", "at once, s", "one by one, s", "ratio"], rows, bars=bars)


def _trained(chosen: Any, folder: Path) -> Run:
    data = Dataset.digits(partitions=WORKERS, directory=folder / "data")
    return Sweep(
        data, chosen, model_fn, loss_fn=loss_fn, epochs=R, cluster=Cluster.local(WORKERS, threads=1), repo=folder
    ).launch(progress=False, resume=False)


def _makespan(run: Run) -> float:
    units = [unit for unit in run.record.units if unit.kind != "pilot"]
    return max(unit.end for unit in units) - min(unit.start for unit in units)


if __name__ == "__main__":
    main()
