"""What moves when models hop: one state per hop, and nothing that grows with the number of mini-batches.

    python benchmarks/bench_bytes.py

The same model is trained for the same epochs with batches of 8 to 256 rows, each batch size in a run of its own on two
worker processes. The hopped bytes are those of the run's trace; what the controller and the workers really read and
wrote, through pipes and files together, is what the kernel counted for their processes (/proc/<pid>/io).
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import Bar, report

import regatta

BATCH_SIZES = (8, 16, 32, 64, 128, 256)
HIDDEN = 256
PARTITIONS = 4
EQUAL = 1.02  # times and counters are written with more or fewer digits
PILOTS = 2  # the first models that a worker builds may not be for units
COLUMNS = (
    "batch size",
    "mini-batches",
    "hops",
    "bytes of a state",
    "bytes per hop",
    "bytes a worker wrote per unit",
    "bytes the controller read and wrote",
)


@dataclass(frozen=True)
class Traffic:
    """What one run moved."""

    batches: int
    hops: int
    state_bytes: int
    hopped_bytes: int
    worker_bytes_per_unit: float
    controller_bytes: int


def main() -> None:
    epochs = _arguments().epochs
    if not Path("/proc/self/io").exists():
        sys.exit("This benchmark reads /proc/<pid>/io, which this system does not have.")
    with tempfile.TemporaryDirectory() as folder:
        data = regatta.Dataset.digits(partitions=PARTITIONS, directory=f"{folder}/data")
        found = {size: _measure(data, size, epochs, Path(folder)) for size in BATCH_SIZES}
    rows = [
        [size, t.batches, t.hops, t.state_bytes, t.hopped_bytes / t.hops, t.worker_bytes_per_unit, t.controller_bytes]
        for size, t in found.items()
    ]
    report("bytes_hopped", COLUMNS, rows, bars=_bars(list(found.values())), notes={"hidden": HIDDEN, "epochs": epochs})


def _bars(found: list[Traffic]) -> list[Bar]:
    grown = max(t.batches for t in found) / min(t.batches for t in found)
    return [
        Bar("bytes per hop / bytes of a state", max(t.hopped_bytes / t.hops / t.state_bytes for t in found), 1.0),
        Bar("hopped bytes, most / least", _spread([t.hopped_bytes for t in found]), 1.0),
        Bar("a worker's bytes per unit, most / least", _spread([t.worker_bytes_per_unit for t in found]), EQUAL),
        Bar("the controller's bytes, most / least", _spread([t.controller_bytes for t in found]), EQUAL),
        Bar("... while mini-batches, most / least", grown, 20.0, "at least"),
    ]


def _spread(values: list[float]) -> float:
    return max(values) / min(values)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    return parser.parse_args()


def _measure(data: regatta.Dataset, batch_size: int, epochs: int, folder: Path) -> Traffic:
    log, home = folder / f"io-{batch_size}", folder / f"run-{batch_size}"
    sweep = regatta.Sweep(
        data,
        regatta.search.configs([{"batch_size": batch_size, "hidden": HIDDEN}]),
        functools.partial(model_fn, log=str(log)),
        loss_fn=loss_fn,
        epochs=epochs,
        cluster=regatta.Cluster.local(workers=2, threads=1, device="cpu"),
        repo=folder,
    )
    home.mkdir()
    moved: dict[str, int] = {}

    def note(record: object, line: Mapping[str, Any]) -> None:
        # Before the end: when a process is waited for, the kernel adds its counts to those of its parent.
        if line["event"] in ("run", "end"):
            moved[line["event"]] = _io("rchar") + _io("wchar")

    record = sweep.execute(home, listeners=(note,))
    trained = [unit for unit in record.units if unit.kind == "train"]
    hops = [unit.hop_bytes for unit in trained if unit.hop_bytes]
    batches = sum(-(-unit.rows // batch_size) for unit in trained)
    state = next(home.glob("states/*/*.safetensors")).stat().st_size
    return Traffic(batches, len(hops), state, sum(hops), _written_per_unit(log), moved["end"] - moved["run"])


def model_fn(config: dict[str, Any], log: str) -> Any:
    """A model per unit, so this is also where a worker notes what it has written up to the unit."""
    import torch

    with open(log, "a") as file:
        file.write(f"{os.getpid()} {_io('wchar')}\n")
    net = torch.nn.Sequential(
        torch.nn.Linear(64, config["hidden"]), torch.nn.ReLU(), torch.nn.Linear(config["hidden"], 10)
    )
    return net, torch.optim.Adam(net.parameters(), lr=1e-3)


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    import torch

    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


def _written_per_unit(log: Path) -> float:
    """The mean of what the workers wrote from one unit, of training or of evaluation, to the next."""
    written = defaultdict(list)
    for line in log.read_text().splitlines():
        pid, count = line.split()
        written[pid].append(int(count))
    return statistics.mean((counts[-1] - counts[PILOTS]) / (len(counts) - 1 - PILOTS) for counts in written.values())


def _io(counter: str) -> int:
    """Of this process; `rchar` and `wchar` count pipes, sockets and cached files alike."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines[counter])


if __name__ == "__main__":
    main()
