"""How long local workers take to start: from `launch()` to the first unit of a PyTorch sweep.

    python benchmarks/bench_worker_start.py [--checkout FOLDER]

Each way has a program of its own that imports PyTorch, makes a data set and launches the same small sweep several
times, each time into a new repository: two worker processes with one thread each, two small networks, whose profiling
is part of the time. The clock starts when `launch` is called and stops at the first `start` record of the journal.

- `forked`: workers are forked from a process that has imported PyTorch, which the first launch starts;
- `fresh`: each worker is a fresh interpreter that imports PyTorch itself;
- `checkout`: the same program with the code of another checkout, for instance of a version before the fork server.

The first launch of a program and the later ones, as in a notebook or a loop of sweeps, are different things. Before the
first, PyTorch has to be imported once more, by the process that forks workers. It starts when the program first uses
`regatta.Dataset` or `regatta.Cluster`, and so imports while the digits are read. `at once` is a program whose arrays
are there already: its first launch has to wait for that import, as with fresh interpreters.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import Bar, print_table, report

LIMIT_S = 1.2
LAUNCHES = 5
ROOT = Path(__file__).resolve().parents[1]


def child(way: str) -> None:
    import torch
    from torch import nn

    import regatta

    def model_fn(config: dict[str, Any]) -> Any:
        net = nn.Sequential(nn.Linear(64, config["width"]), nn.ReLU(), nn.Linear(config["width"], 10))
        return net, torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> Any:
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)

    if way == "fresh":
        from regatta.engine.workers import fork_client

        fork_client.is_supported = lambda: False
    cluster = regatta.Cluster.local(workers=2, threads=1, device="cpu")
    space = regatta.search.grid(width=[16, 32], batch_size=[32])
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        if way == "at once":
            x, y = torch.zeros(1000, 64).numpy(), torch.zeros(1000, dtype=torch.long).numpy()
            data = regatta.Dataset.from_arrays(x, y, partitions=2, directory=Path(folder) / "data")
        else:
            data = regatta.Dataset.digits(partitions=2, directory=Path(folder) / "data")
        for number in range(1 if way == "at once" else LAUNCHES):
            repo = Path(folder) / f"repo{number}"
            sweep = regatta.Sweep(data, space, model_fn, loss_fn=loss_fn, cluster=cluster, repo=repo, name="start")
            begin = time.time()
            run = sweep.launch(progress=False)
            seconds.append(_first_unit(run.folder) - begin)
    print(json.dumps(seconds))


def _first_unit(folder: Path) -> float:
    with (folder / "journal.jsonl").open() as journal:
        return next(float(line["time"]) for line in map(json.loads, journal) if line["event"] == "start")


def measured(way: str, folder: Path) -> list[float]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, __file__, "--child", way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--checkout", type=Path, help="the code of another version, as another peer")
    parser.add_argument("--rounds", type=int, default=3, help="programs of each way")
    parser.add_argument("--only", action="store_true", help="print the table and keep nothing")
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    ways = {"forked": ROOT, "at once": ROOT, "fresh": ROOT}
    if options.checkout:
        ways["checkout"] = options.checkout.resolve()
    runs = {way: [measured(way, folder) for _ in range(options.rounds)] for way, folder in ways.items()}
    rows = []
    for way, found in runs.items():
        later = [seconds for program in found for seconds in program[1:]]
        rows.append([way, "first", statistics.median(program[0] for program in found), *_range(found, first=True)])
        if later:
            rows.append([way, "later", statistics.median(later), *_range(found, first=False)])
    columns = ["workers", "launch", "median s", "least s", "most s"]
    if options.only:
        print_table(columns, rows)
        return
    median = {(row[0], row[1]): row[2] for row in rows}
    bars = [
        Bar("forked, first launch: seconds to the first unit", median["forked", "first"], LIMIT_S),
        Bar("forked, later launches: seconds to the first unit", median["forked", "later"], LIMIT_S),
    ]
    notes = {"runs": runs, "load": os.getloadavg()[0]}
    report("worker_start", columns, rows, bars=bars, notes=notes)


def _range(found: list[list[float]], first: bool) -> tuple[float, float]:
    chosen = [seconds for program in found for seconds in (program[:1] if first else program[1:])]
    return min(chosen), max(chosen)


if __name__ == "__main__":
    main()
