"""Hyperband for real: all brackets share the workers at once, against the same brackets one after another.

    python benchmarks/bench_hyperband_real.py [--repeats 5]

Small convolutional networks on the digits of scikit-learn, R=9, eta=3, two partitions on two worker processes. Makespan
is from the start of the first unit to the end of the last, so that the start of workers and the pilots count for
neither; both ways train the same configurations for the same epochs, and take turns. Each repeat has its own seed.

Batch sizes are searched too, so that some units take several times as long as others, as in nearly every search. (Were
all alike, no scheduler could reach 1.2: of 63 epochs of work, one bracket after another leaves a worker idle only
beside the single models of two last rungs, 12 epochs in all: (63 + 12) / 63 = 1.19.)

Both ways must promote the same models, or they do not do the same work. With `visits="seeded"` they do, and end with
the same weights; that is the first row. In the second each model visits the partitions in whichever order is quickest,
as is the default, and models are promoted by a number made of their hyperparameters. `busy` is the time that workers
spent in units: where it is longer at once, the two slowed each other down.
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
from regatta.seeds import derive_seed

R, ETA, WORKERS = 9, 3, 2
LIMIT = 1.2


WAYS = ("seeded", "free")


def space() -> Any:
    return search.hyperband(lr=search.loguniform(1e-4, 1e-2), batch_size=[4, 8, 16, 32], R=R, eta=ETA)


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
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model: nn.Module, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def fixed_score(data: Any, model: nn.Module, config: dict[str, Any]) -> dict[str, float]:
    return {"score": float(derive_seed(0, config["lr"], config["batch_size"]))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    rows: list[list[Any]] = []
    brackets = range(len(hyperband_brackets(R, ETA)))
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(repeats):
            for way in WAYS:
                together = [_trained(space(), Path(folder), seed, way)]
                apart = [_trained(Alone(number), Path(folder), seed, way) for number in brackets]
                spans = [sum(map(_makespan, runs)) for runs in (together, apart)]
                busy = [sum(map(_busy, runs)) / WORKERS for runs in (together, apart)]
                rows.append([way, seed, *spans, *busy, spans[1] / spans[0]])
    seeded, free = (statistics.median(row[-1] for row in rows if row[0] == way) for way in WAYS)
    bars = [Bar("one bracket after another / all at once, seeded visits, median", seeded, LIMIT, "at least")]
    columns = ["visits", "seed", "at once, s", "one by one, s", "busy at once, s", "busy one by one, s", "ratio"]
    report("hyperband_real", columns, rows, bars=bars, notes={"median of the ratios, free visits": free})


def _trained(chosen: Any, folder: Path, seed: int, visits: Any) -> Run:
    judged = {} if visits == "seeded" else {"eval_fn": fixed_score, "metric": "score"}
    return Sweep(
        Dataset.digits(partitions=WORKERS, directory=folder / "data"),
        chosen,
        model_fn,
        loss_fn=loss_fn,
        epochs=R,
        cluster=Cluster.local(WORKERS, threads=1),
        repo=folder,
        seed=seed,
        visits=visits,
        **judged,
    ).launch(progress=False, resume=False)


def _units(run: Run) -> list[Any]:
    return [unit for unit in run.record.units if unit.kind != "pilot"]


def _makespan(run: Run) -> float:
    return max(unit.end for unit in _units(run)) - min(unit.start for unit in _units(run))


def _busy(run: Run) -> float:
    return sum(unit.end - unit.start for unit in _units(run))


if __name__ == "__main__":
    main()
