"""What deciding costs a real run: CPU seconds of the scheduler, the planner and the journal over the run's own time.

    REGATTA_BENCH_DATA=folder/with/mnist.npz python benchmarks/bench_overhead.py

Two worker processes train on two cores; the controller, in a process of its own, is measured from the call of `launch`
to its return:

- `mixed`: the sixteen networks of very different cost of bench_real_run.py on MNIST, units of about half a second, and
  nothing said about how to train them: the bar is for this one;
- `short`: 64 tiny networks on scikit-learn's digits in eight partitions, one by one, units of some milliseconds: the
  worst case;
- `search`: asynchronous successive halving of such networks, where each report brings new work.

Whatever of `regatta.plan` is called from outside of it counts: methods of `Hopper` as scheduling, all else as planning.
Of calls within calls the outermost counts. The journal is what its appending takes of the controller's own thread.
`controller` is all that the process spent, its threads included, PyTorch imported before. Shares are CPU seconds over
the wall-clock time of the run, which is longer on a busy machine: the CPU seconds stand beside them.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import json
import pkgutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from report import Bar, print_table, report

LIMIT = 0.005
WORKERS = 2
BARRED = "mixed"
INNER = (
    "board",
    "places",
    "planned",
    "placement",
    "portfolio",
    "rollout",
    "rules",
    "timetable",
)  # called by Hopper only


class Meter:
    """CPU seconds of the outermost calls, by what they are called for."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._inside = threading.local()

    def watched(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def measured(*args: Any, **options: Any) -> Any:
            if getattr(self._inside, "now", False):
                return function(*args, **options)
            self._inside.now = True
            begin = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                self.seconds[kind] += time.thread_time() - begin
                self.calls[kind] += 1
                self._inside.now = False

        return measured

    def watch_methods(self, kind: str, owner: type) -> None:
        for name, function in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                setattr(owner, name, self.watched(kind, function))

    def watch_plan(self) -> None:
        """Everything public in regatta.plan, before anybody outside of it has taken hold of a function."""
        import regatta.plan

        found = pkgutil.walk_packages(regatta.plan.__path__, "regatta.plan.")
        for module in [importlib.import_module(info.name) for info in found]:
            self._watch_module(module)
        assert not any(name.startswith("regatta.engine") for name in sys.modules), "the engine came first"

    def _watch_module(self, module: ModuleType) -> None:
        for name, value in list(vars(module).items()):
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            if inspect.isfunction(value):
                setattr(module, name, self.watched("planning", value))
            elif inspect.isclass(value) and module.__name__.rpartition(".")[2] not in INNER:
                self.watch_methods("scheduling" if name == "Hopper" else "planning", value)


# -- runs ----------------------------------------------------------------------------------------------------------


Launch = Callable[[], Any]


def mixed(folder: Path, quick: bool) -> Launch:
    import bench_real_run as real

    import regatta

    data = real._dataset(folder, 8_000 if quick else 50_000)
    space = regatta.search.grid(**real.SPACE)
    return _launch(data, space, real.model_fn, real.loss_fn, folder, epochs=1 if quick else 4)


def short(folder: Path, quick: bool) -> Launch:
    import regatta

    data = regatta.Dataset.digits(partitions=8, directory=folder / "data")
    space = regatta.search.grid(width=[16, 32, 48, 64], lr=[1e-2, 3e-3, 1e-3, 3e-4], batch_size=[16, 32, 64, 128])
    return _launch(data, space, tiny_fn, tiny_loss, folder, epochs=1 if quick else 4, pack=False)


def search(folder: Path, quick: bool) -> Launch:
    import regatta

    data = regatta.Dataset.digits(partitions=4, directory=folder / "data")
    rates = regatta.search.loguniform(1e-4, 1e-1)
    space = regatta.search.asha(n=8 if quick else 64, width=[16, 64], lr=rates, batch_size=[8, 32])
    return _launch(data, space, tiny_fn, tiny_loss, folder, epochs=9, pack=False)


def _launch(data: Any, space: Any, model_fn: Any, loss_fn: Any, folder: Path, **options: Any) -> Launch:
    import regatta

    cluster = regatta.Cluster.local(workers=WORKERS, threads=1, device="cpu")
    options |= {"loss_fn": loss_fn, "cluster": cluster, "repo": folder, "progress": False}
    return functools.partial(regatta.launch, data, space, model_fn, **options)


def tiny_fn(config: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(64, config["width"]), nn.ReLU(), nn.Linear(config["width"], 10))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def tiny_loss(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    import torch

    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


RUNS = {run.__name__: run for run in (mixed, short, search)}


# -- measuring -----------------------------------------------------------------------------------------------------


def child(name: str, quick: bool) -> None:
    meter = Meter()
    meter.watch_plan()
    from regatta.journal.journal_file import Journal

    meter.watch_methods("journal", Journal)
    import torch  # noqa: F401  what it costs to import is not the run's

    with tempfile.TemporaryDirectory() as folder:
        launch = RUNS[name](Path(folder), quick)
        begin, before = time.perf_counter(), time.process_time()
        run = launch()
        wall, spent = time.perf_counter() - begin, time.process_time() - before
    assert run.record.status == "done", run.record.status
    units = [unit for unit in run.record.units if unit.kind != "pilot"]
    measurement = {
        "wall": wall,
        "controller": spent,
        "seconds": dict(meter.seconds),
        "calls": dict(meter.calls),
        "units": len(units),
        "unit": statistics.fmean(unit.seconds for unit in units if unit.kind == "train"),
    }
    print(json.dumps(measurement))


def measured(name: str, quick: bool) -> dict[str, Any]:
    words = [sys.executable, __file__, "--child", name, *(["--quick"] if quick else [])]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{name} failed:\n{ended.stderr}")
    measurement: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return measurement


def row(name: str, measurement: dict[str, Any]) -> list[object]:
    wall = measurement["wall"]
    parts = [measurement["seconds"].get(kind, 0.0) for kind in ("scheduling", "planning", "journal")]
    shares = [f"{part / wall:.2%}" for part in (*parts, measurement["controller"])]
    each = 1e3 * measurement["controller"] / measurement["units"]
    return [name, wall, measurement["units"], measurement["unit"], *parts, measurement["controller"], *shares, each]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", choices=RUNS, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=RUNS, help="leaves no results behind")
    parser.add_argument("--quick", action="store_true", help="short runs, whose figures say little")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.quick)
        return
    measurements = {name: measured(name, options.quick) for name in ([options.only] if options.only else RUNS)}
    parts = ("scheduling", "planning", "journal", "controller")
    columns = ["run", "seconds", "units", "unit, s", *(f"{part}, CPU s" for part in parts)]
    columns += [f"{part}, share" for part in parts] + ["controller, ms a unit"]
    rows = [row(name, found) for name, found in measurements.items()]
    if options.only or options.quick:
        print_table(columns, rows)
        return
    seconds = measurements[BARRED]["seconds"]
    share = (seconds["scheduling"] + seconds["planning"]) / measurements[BARRED]["wall"]
    bars = [Bar(f"{BARRED}: scheduling and planning over the run's time", share, LIMIT)]
    report("overhead", columns, rows, bars=bars, notes={"workers": WORKERS, "runs": measurements})


if __name__ == "__main__":
    main()
