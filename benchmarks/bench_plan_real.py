"""Six sweeps of different character on two cores: every way to train each of them, and the one that the plan takes.

    python benchmarks/bench_plan_real.py [--rounds 5] [--only 4] [--forced] [--quick]

Two worker processes with a thread each train real networks on scikit-learn's digits. A sweep is launched once in each
way that is possible (by hops, as packs, with shared preprocessing, by a group of two workers, and what of it goes
together), and once with nothing said, so that its plan decides. Ways take turns, in reversed order every other round; a
way that took more than twice as long as the fastest of the first round is not measured again. Ratios are taken within
a round, the table has their medians. Times are from the start of the first unit to the end of the last, which is what a
plan estimates; whole launches stand beside them. An estimate is that of the launch's own first plan, whatever units
have taught it since; a way that is forced has one too. Groups round otherwise than one worker, and are measured where
the sweep allows that; sweeps of tiny networks, which take several times as long in groups, do not.

`--forced` leaves the plan out, `--only` takes one sweep, `--quick` is one round of short ones, whose figures say
little; none of them leaves results behind.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Bar, print_table, report
from scipy import ndimage
from torch import nn

from regatta import Cluster, Dataset, Sweep, search
from regatta.engine import archiver
from regatta.journal.journal_file import read_lines
from regatta.paths import JOURNAL

WORKERS, SIDE = 2, 16
HOPELESS = 2.0  # times the fastest of the first round: measured once
FASTEST, ESTIMATED = 1.10, 1.20
COLUMNS = [
    "sweep", "way", "times", "units, s", "launch, s", "estimated, s", "actual / estimated", "/ fastest",
]  # fmt: skip
PLANNED = "planned"


@dataclass(frozen=True)
class Way:
    """What is forced; the names are those of the table."""

    pack: bool = False
    share: bool = False
    group: int = 1

    @property
    def name(self) -> str:
        parts = [word for word, on in (("pack", self.pack), ("group", self.group > 1), ("share", self.share)) if on]
        return " + ".join(parts) or "hop"

    def options(self) -> dict[str, Any]:
        cluster = Cluster.local(WORKERS, threads=1, group=self.group)
        return {"pack": self.pack, "share": self.share, "cluster": cluster}


@dataclass(frozen=True)
class Case:
    """A sweep: how many rows of digits, and of what networks."""

    number: int
    name: str
    configs: list[dict[str, Any]]
    rows: int
    epochs: int
    transform: Callable[[Any, int], Any] | None = None
    numerics: str = "exact"

    def ways(self) -> list[Way]:
        shares = (False,) if self.transform is None else (False, True)
        packs = (False, True) if self.alike() else (False,)
        groups = (WORKERS,) if self.numerics == "fast" else ()
        alone = [Way(pack, share) for share in shares for pack in packs]
        return [*alone, *(Way(share=share, group=width) for share in shares for width in groups)]

    def alike(self) -> bool:
        """Whether some differ by their rates alone, and can be in a pack."""
        builds = {tuple(value for name, value in config.items() if name != "lr") for config in self.configs}
        return len(builds) < len(self.configs)

    def impossible(self) -> Iterable[str]:
        if self.transform is None:
            yield "share: nothing is preprocessed"
        if not self.alike():
            yield "pack: no two models of one build"
        exact = self.numerics == "exact"
        yield "group: rounds otherwise" if exact else "pack + group: packs are not trained by groups"

    def shortened(self) -> Case:
        return replace(self, rows=self.rows // 4, epochs=2)


@dataclass(frozen=True)
class Took:
    """One launch: seconds of its units and of all of it, and the plans that it made, the first with its estimate."""

    units: float
    launch: float
    plans: tuple[str, ...] = ()
    estimated: float = float("nan")


# -- networks and data -----------------------------------------------------------------------------------------


def model_fn(config: dict[str, Any]) -> Any:
    net = _convolutions(config["width"]) if config["net"] == "cnn" else _layers(config["width"], config["depth"])
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def _layers(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(SIDE * SIDE, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def _convolutions(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE)), nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(2 * width * (SIDE // 4) ** 2, 10),
    )  # fmt: skip


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def augmented(batch: Any, seed: int) -> Any:
    """Pictures turned, stretched and smoothed, one by one."""
    x, y = batch
    rng = np.random.default_rng(seed)
    for row in range(len(x)):
        turned = ndimage.rotate(x[row], rng.uniform(-20, 20), reshape=False, order=3)
        stretched = ndimage.zoom(turned, rng.uniform(1.0, 1.2), order=3)[:SIDE, :SIDE]
        x[row] = ndimage.gaussian_filter(stretched, rng.uniform(0.1, 0.6))
    return x, y


def pictures(rows: int, folder: Path) -> Dataset:
    """A number of scikit-learn's digits, of 16 by 16 pixels, each with noise of its own."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    chosen = np.arange(rows) % len(x)
    large = x.reshape(-1, 8, 8).repeat(2, axis=1).repeat(2, axis=2)[chosen] / 16
    noisy = (large + np.random.default_rng(0).normal(scale=0.05, size=large.shape)).astype(np.float32)
    return Dataset.from_arrays(
        noisy, y[chosen], partitions=WORKERS, eval_fraction=0.1, directory=folder, name=f"digits-{rows}"
    )


def mlps(count: int, width: int, batch: int, depth: int = 1) -> list[dict[str, Any]]:
    """As many of one build, with rates of their own."""
    fixed = {"net": "mlp", "width": width, "depth": depth, "batch_size": batch}
    return [{**fixed, "lr": 0.01 * 0.9**k} for k in range(count)]


def cnns(widths: Iterable[int], batch: int, rates: Iterable[float] = (0.001,)) -> list[dict[str, Any]]:
    fixed = {"net": "cnn", "batch_size": batch}
    return [{**fixed, "width": width, "lr": rate} for width in widths for rate in rates]


CASES = (
    Case(1, "32 tiny of one build", mlps(32, 16, 16), rows=8000, epochs=9),
    Case(
        2, "8 medium, mixed", cnns((8, 12, 16), 64, (0.003, 0.001)) + mlps(2, 512, 64, depth=3),
        rows=4000, epochs=6, numerics="fast",
    ),
    Case(
        3, "4 with dear preprocessing", [config for width in (64, 96, 128, 160) for config in mlps(1, width, 50)],
        rows=6000, epochs=10, numerics="fast", transform=augmented,
    ),
    Case(4, "1 large", cnns((32,), 128), rows=6000, epochs=16, numerics="fast"),
    Case(5, "12 tiny with dear preprocessing", mlps(12, 16, 16), rows=4000, epochs=14, transform=augmented),
    Case(6, "24 tiny and 2 large", mlps(24, 16, 16) + cnns((16, 24), 64), rows=4000, epochs=6),
)  # fmt: skip


# -- measuring --------------------------------------------------------------------------------------------------


def launched(case: Case, data: Dataset, options: Mapping[str, Any]) -> Took:
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        sweep = Sweep(
            data, search.configs(case.configs), model_fn, loss_fn=loss_fn, transform_fn=case.transform,
            epochs=case.epochs, repo=Path(folder) / ".regatta", **options,
        )  # fmt: skip
        start = time.perf_counter()
        run = sweep.launch(progress=False)
        whole = time.perf_counter() - start
        plans = [line["plan"] for line, _ in read_lines(run.folder / JOURNAL) if line["event"] == "plan"]
    units = [unit for unit in run.record.units if unit.kind != "pilot"]
    trained = sum(unit.kind == "train" for unit in units)
    assert run.record.status == "done" and trained == WORKERS * case.epochs * len(case.configs), run.record.error
    span = max(unit.end for unit in units) - min(unit.start for unit in units)
    names = tuple(name for name, _ in groupby(plan["name"] for plan in plans))
    return Took(span, whole, names, plans[0]["root"]["estimate"]["seconds"] if plans else float("nan"))


def measured(case: Case, data: Dataset, rounds: int, forced: bool) -> dict[str, list[Took]]:
    """By way, what each round took; a way that is hopeless has one."""
    ways = {way.name: way.options() for way in case.ways()}
    if not forced:
        ways[PLANNED] = {"cluster": Cluster.local(WORKERS, threads=1), "numerics": case.numerics}
    found: dict[str, list[Took]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            found[name].append(launched(case, data, ways[name]))
            print(f"{case.number} {name}: {found[name][-1].units:.2f} s of units", flush=True)
        best = min(took[0].units for took in found.values())
        ways = {name: way for name, way in ways.items() if name == PLANNED or found[name][0].units <= HOPELESS * best}
    return found


def rows_of(case: Case, found: Mapping[str, list[Took]]) -> Iterator[list[Any]]:
    fastest = fastest_of(found)
    for name, took in found.items():
        plans = dict.fromkeys(" then ".join(each.plans) for each in took)
        title = f"{name}: {', '.join(plans)}" if name == PLANNED else name
        middle = [statistics.median(getattr(each, what) for each in took) for what in ("units", "launch", "estimated")]
        yield [f"{case.number} {case.name}", title, len(took), *middle, strays(took), ratio(took, fastest)]


def fastest_of(found: Mapping[str, list[Took]]) -> list[Took]:
    """Of the ways that were forced."""
    ways = [took for name, took in found.items() if name != PLANNED]
    return min(ways, key=lambda took: statistics.median(each.units for each in took))


def ratio(took: list[Took], fastest: list[Took]) -> float:
    """Within rounds; one that was measured once was measured in the first."""
    return statistics.median(a.units / b.units for a, b in zip(took, fastest, strict=False))


def strays(took: list[Took]) -> float:
    return statistics.median(each.units / each.estimated for each in took)


def bars_of(found: Iterable[Mapping[str, list[Took]]]) -> list[Bar]:
    planned = [(ways[PLANNED], fastest_of(ways)) for ways in found]
    slowest = max(ratio(took, fastest) for took, fastest in planned)
    off = max(max(strays(took), 1 / strays(took)) for took, _ in planned)
    return [
        Bar("the plan's way / the fastest way, the worst of the sweeps", slowest, FASTEST),
        Bar("actual / estimated seconds or its inverse, the worst of the sweeps", off, ESTIMATED),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=int, choices=[case.number for case in CASES])
    parser.add_argument("--forced", action="store_true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    archiver.MAX_START_ATTEMPTS = 0  # states are not archived beside the runs
    cases = [case for case in CASES if args.only in (None, case.number)]
    if args.quick:
        cases = [case.shortened() for case in cases]
    rounds, found = 1 if args.quick else args.rounds, {}
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="digits-") as folder:
            found[case.number] = measured(case, pictures(case.rows, Path(folder)), rounds, args.forced)
    rows = [row for case in cases for row in rows_of(case, found[case.number])]
    if args.quick or args.only or args.forced:
        print_table(COLUMNS, rows)
        return
    notes = {f"{case.number}, not possible": "; ".join(case.impossible()) for case in cases}
    report("plan_real", COLUMNS, rows, bars=bars_of(found.values()), notes={**notes, "rounds": rounds})


if __name__ == "__main__":
    main()
