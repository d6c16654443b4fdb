"""What keeping every epoch costs: disk and time of a sweep with its states left as files, and with the archiver.

    python benchmarks/bench_archiver.py [--repeats 5] [--epochs 50]

Eight small networks with Adam are trained on scikit-learn's digits in four partitions by two worker processes; every
epoch of every model is kept, optimizer included. The archiver moves them into the parameter store beside the run. Runs
without and with it take turns, all models visit the partitions in the same order, and in the end every state that the
store gives back is compared with the hash in the journal.

- makespan: from the start of the first unit to the end of the last; its ratio is the median of those of the pairs of
  runs that follow each other. Units: the mean seconds of one. Beside it the processor time of the archiver, and how
  long it goes on when the run is over.
- bytes: of all files, as the disk counts them (whole blocks); "archived" is after an archive pass over the store, the
  index included.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from report import Bar, report

import regatta
from regatta.engine.archiver import Archiver
from regatta.journal.run_record import RunRecord
from regatta.store.archive.archive import archive
from regatta.store.states.state_archive import RunStates
from regatta.store.store import ParameterStore

LIMIT = 1.03
SPACE = {"hidden": [64, 256], "lr": [1e-2, 1e-3], "batch_size": [16, 32]}


@dataclass(frozen=True)
class Result:
    """One run. The last four say nothing of a run without a archiver."""

    makespan: float
    mean_unit_ms: float
    states_mb: float
    store_mb: float
    archiver_cpu: float = 0.0
    after_end: float = 0.0
    kept_while_running: float = 0.0  # the share of the states
    archived_mb: float = 0.0


def model_fn(config: dict[str, Any]) -> Any:
    hidden = config["hidden"]
    model = torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))
    return model, torch.optim.Adam(model.parameters(), lr=config["lr"])


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


def main() -> None:
    options = _arguments()
    without, kept = [], []
    for number in range(options.repeats):
        for with_archiver in (False, True) if number % 2 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                (kept if with_archiver else without).append(_measure(Path(folder), options.epochs, with_archiver))
    ratios = [one.makespan / other.makespan for one, other in zip(kept, without, strict=True)]
    units = [one.mean_unit_ms / other.mean_unit_ms for one, other in zip(kept, without, strict=True)]
    disk = [one.states_mb + one.store_mb for one in kept]
    report(
        "archiver",
        ["", *(field.name.replace("_", " ") for field in fields(Result))],
        [_medians("files", without), _medians("archiver", kept)],
        bars=[
            Bar("makespan: archiver / files", statistics.median(ratios), LIMIT),
            Bar("mean unit: archiver / files", statistics.median(units), LIMIT),
            Bar("disk: archiver / files", statistics.median(disk) / without[0].states_mb, 0.9),
            Bar("disk after archive: archiver / files", kept[0].archived_mb / without[0].states_mb, 0.7),
        ],
        notes={
            "epochs": options.epochs,
            "ratios": ratios,
            "files": list(map(vars, without)),
            "kept": list(map(vars, kept)),
        },
    )


def _measure(repo: Path, epochs: int, with_archiver: bool) -> Result:
    run = repo / "runs" / "one"
    run.mkdir(parents=True)
    sweep = regatta.Sweep(
        regatta.Dataset.digits(partitions=4), regatta.search.grid(**SPACE), model_fn, loss_fn=loss_fn, epochs=epochs,
        visits="seeded", cluster=regatta.Cluster.local(workers=2), repo=repo,
    )  # fmt: skip
    if not with_archiver:
        record = sweep.execute(run)
        return Result(*_times(record), _megabytes(run / "states"), 0.0)
    archiver = Archiver(run, repo / "store")
    record = sweep.execute(run, listeners=(archiver.on_record,))
    ended, spent = time.perf_counter(), _children_seconds()
    left = sum(1 for _ in run.glob("states/*/*.safetensors"))
    archiver.close(wait=True)
    after, cpu = time.perf_counter() - ended, _children_seconds() - spent
    sizes = _megabytes(run / "states"), _megabytes(repo / "store")
    _check(run, record)
    total = len(record.configs) * epochs
    return Result(*_times(record), *sizes, cpu, after, 1 - left / total, _archived(repo / "store"))


def _times(record: RunRecord) -> tuple[float, float]:
    units = [unit for unit in record.units if unit.kind != "pilot"]
    makespan = max(unit.end for unit in units) - min(unit.start for unit in units)
    return makespan, 1e3 * statistics.mean(unit.seconds for unit in units)


def _check(run: Path, record: RunRecord) -> None:
    """Every state of the end of an epoch comes back with the hash that the journal has."""
    states, partitions = RunStates(run), 4
    for config in record.configs.values():
        trained = [unit for unit in config.units if unit.kind == "train"]
        for unit in trained[partitions - 1 :: partitions]:
            again = states.materialize(config.id, unit.epoch, run / "again.safetensors")
            if blake3(again.read_bytes()).hexdigest() != unit.hash:
                raise SystemExit(f"The state of {config.id} after epoch {unit.epoch} is another.")
    (run / "again.safetensors").unlink()


def _archived(path: Path) -> float:
    with ParameterStore.open(path) as store:
        archive(store)
        store.gc(grace=0.0)
    return _megabytes(path)


def _megabytes(folder: Path) -> float:
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file()) / 1e6


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _medians(name: str, results: Iterable[Result]) -> list[Any]:
    return [name, *(statistics.median(column) for column in zip(*map(astuple, results), strict=True))]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=50)
    return parser.parse_args()


if __name__ == "__main__":
    main()
