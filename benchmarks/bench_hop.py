"""How long a state of 40 MB takes from one worker process to another, with the controller in between.

    python benchmarks/bench_hop.py

A hop begins when the optimizer's last step on one worker ends, and is over when the next worker calls the loss
function with the model that has the state: save, report to the controller, decision, journal, dispatch, restore.
Building the model is not counted, and shown apart. Two cases:

- one model, which two workers pass to and fro: the receiver waits, nothing can be fetched ahead. The bar is for this;
- four models: the receiver is busy until it takes the model and may already be fetching the state. The time
  that the model waits for its worker is no part of the hop.

Beside them, what copying as many bytes costs here: on a virtual machine, memory that was not in use yet may cost
several times as much as memory that was, for a hop as for any copy.

All moments are of the clock that the processes of a machine share.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from report import Bar, report

import regatta
from regatta.engine import workers
from regatta.engine.messages import Task
from regatta.engine.workers.process import ProcessPool
from regatta.journal.run_record import RunRecord, UnitRecord

MEGABYTES = 40
LIMIT_MS, LIMIT_COPIES = 60.0, 5.0
WIDTH = 1824  # a square layer of that size, with both moments of Adam, is 40 MB
ROWS, BATCH = 256, 32
COPIES = 15


@dataclass(frozen=True)
class Hop:
    """Where the milliseconds of one hop went; `total` is all of them but `build`."""

    total: float
    save: float  # write the state and give it its name
    dispatch: float  # worker to controller, decision, journal, controller to worker
    restore: float  # map the state, or take what was fetched ahead, and copy it into the model
    rest: float  # random states, the order of the batches, the first batch
    build: float


class WatchedPool(ProcessPool):
    """Notes which tasks find their state fetched ahead: those whose state was the last hint that the worker got."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.hints: dict[str, Path] = {}
        self.found: list[bool] = []

    def prefetch(self, worker: str, state: Path) -> None:
        self.hints[worker] = state
        super().prefetch(worker, state)

    def submit(self, worker: str, task: Task) -> None:
        if task.state_in is not None:
            self.found.append(self.hints.pop(worker, None) == task.state_in)
        super().submit(worker, task)


def main() -> None:
    wanted = _arguments().hops
    with tempfile.TemporaryDirectory() as folder:
        data = _dataset(Path(folder))
        cases = {models: _measure(data, models, wanted, Path(folder) / str(models)) for models in (1, 4)}
        size = next(Path(folder).glob("1/states/*/*.safetensors")).stat().st_size
        copies = _copies(size, Path(folder))
    assert abs(size / 1e6 / MEGABYTES - 1) < 0.01, size
    names = {1: "1 model, the receiver waits", 4: "4 models, the receiver is busy"}
    rows = [[names[m], len(hops), ahead, *_medians(hops)] for m, (hops, ahead) in cases.items()]
    rows += [[f"a plain copy {how}", "-", "-", ms, *["-"] * 5] for how, ms in copies.items()]
    waiting, limit = cases[1][0], max(LIMIT_MS, LIMIT_COPIES * copies["into memory in use"])
    report(
        "hop",
        [f"ms for {size / 1e6:.1f} MB (medians)", "hops", "fetched ahead", *(field.name for field in fields(Hop))],
        rows,
        bars=[Bar(f"hop of {MEGABYTES} MB while the receiver waits, ms", rows[0][3], limit)],
        notes={"state_bytes": size, "slowest_ms": max(hop.total for hop in waiting), "hops": list(map(vars, waiting))},
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hops", type=int, default=20, help="the least number to measure in either case")
    return parser.parse_args()


def _medians(hops: list[Hop]) -> list[float]:
    return [statistics.median(column) for column in zip(*map(astuple, hops), strict=True)]


def _dataset(folder: Path) -> regatta.Dataset:
    noise = np.random.default_rng(0)
    x, y = noise.standard_normal((2 * ROWS, WIDTH), dtype=np.float32), noise.integers(0, 2, 2 * ROWS)
    return regatta.Dataset.from_arrays(x, y, partitions=2, eval_fraction=0.0, directory=folder / "data")


def _measure(data: regatta.Dataset, models: int, wanted: int, folder: Path) -> tuple[list[Hop], str]:
    """The hops between workers in a run of this many models, and how many states were fetched ahead."""
    folder.mkdir()
    log = str(folder / "moments")
    sweep = regatta.Sweep(
        data,
        regatta.search.configs([{"batch_size": BATCH, "lr": 1e-4 * (1 + i)} for i in range(models)]),
        functools.partial(model_fn, log=log),
        loss_fn=functools.partial(loss_fn, log=log),
        epochs=2 + wanted // models,
        metric="train_loss",
        cluster=regatta.Cluster.local(workers=2, threads=1, device="cpu"),
        repo=folder,
    )
    with _watched() as pools:
        record = sweep.execute(folder)
    moments = _moments(Path(log))
    hops = [_hop(record, before, after, moments) for before, after in _between_workers(record)]
    assert len(hops) >= wanted, f"{len(hops)} hops between workers, {wanted} wanted"
    return hops, f"{sum(pools[0].found)} of {len(pools[0].found)}"


@contextmanager
def _watched() -> Iterator[list[WatchedPool]]:
    """While in here, the pools that runs open are watched ones."""
    opened: list[WatchedPool] = []
    ordinary = workers.open_pool

    def open_watched(*args: Any) -> WatchedPool:
        opened.append(WatchedPool(*args))
        return opened[-1]

    workers.open_pool = open_watched
    try:
        yield opened
    finally:
        workers.open_pool = ordinary


def model_fn(config: dict[str, Any], log: str) -> Any:
    import torch

    _note("build", log)
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
    optimizer.register_step_post_hook(lambda *_: _note("step", log))
    _note("built", log)
    return net, optimizer


def loss_fn(model: Any, batch: Any, config: dict[str, Any], log: str) -> Any:
    import torch

    _note("loss", log)
    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


def _note(kind: str, log: str) -> None:
    """One short write to a file opened for appending: lines of several processes do not mix."""
    line = f"{os.getpid()} {kind} {time.time()!r}\n".encode()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, line)
    os.close(file)


Moments = list[tuple[int, str, float]]


def _moments(log: Path) -> Moments:
    lines = (line.split() for line in log.read_text().splitlines())
    return [(int(pid), kind, float(moment)) for pid, kind, moment in lines]


def _between_workers(record: RunRecord) -> list[tuple[UnitRecord, UnitRecord]]:
    pairs = []
    for config in record.configs.values():
        pairs += [
            pair for pair in zip(config.units, config.units[1:], strict=False) if pair[0].worker != pair[1].worker
        ]
    return pairs


def _hop(record: RunRecord, before: UnitRecord, after: UnitRecord, moments: Moments) -> Hop:
    """What a model's way from one unit to the next cost, without its wait for a busy worker."""
    left, came = _within(record, before, moments), _within(record, after, moments)
    freed = max((u.end for u in record.units if u.worker == after.worker and u.end <= after.start), default=0.0)
    dispatch = after.start - max(before.end, freed)
    build = came["built"][0] - came["build"][0]
    giving, taking = before.end - left["step"][-1], came["loss"][0] - after.start
    total = giving + dispatch + taking - build
    rest = total - before.save_seconds - dispatch - after.hop_seconds
    parts = (total, before.save_seconds, dispatch, after.hop_seconds, rest, build)
    return Hop(*(1e3 * part for part in parts))


def _within(record: RunRecord, unit: UnitRecord, moments: Moments) -> dict[str, list[float]]:
    """The moments of a unit by kind, in order."""
    pid = record.workers[unit.worker].info["pid"]
    found: dict[str, list[float]] = {}
    for process, kind, moment in moments:
        if process == pid and unit.start <= moment <= unit.end:
            found.setdefault(kind, []).append(moment)
    return found


def _copies(size: int, folder: Path) -> dict[str, float]:
    """Milliseconds of plain copies. New memory and new files are kept, as states are: none gets what another left."""
    source = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    target = source.copy()
    kept: list[Any] = []
    ways = {
        "into memory in use": lambda: np.copyto(target, source),
        "into new memory": lambda: kept.append(source.copy()),
        "into a new file": lambda: source.tofile(folder / f"copy-{time.monotonic_ns()}"),
    }
    return {name: 1e3 * statistics.median(_seconds(way) for _ in range(COPIES)) for name, way in ways.items()}


def _seconds(action: Any) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
