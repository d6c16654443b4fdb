"""What sinks cost a run: the controller's time per record, and a real run with and without them.

A sink reads the journal on a thread of its own; the controller only wakes it. The first table plays a journal of some
thousand records as fast as it goes, with what a controller does for each: append, fold, tell listeners. The time is
that of the controller's thread on the processor, which other work on the machine hardly changes; waiting for Python's
lock is not in it.

The second trains 16 small networks on two worker processes, in turns with and without all sinks, and compares
makespans. The sinks' threads share Python's lock and the two cores with the run, and units take only milliseconds
here: it is the worst case. "off again" is the run without sinks once more; what it differs by is noise.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from report import Bar, print_table, report

import regatta
from regatta.configuration import config_id
from regatta.journal.journal_file import Journal, Record
from regatta.journal.run_record import RunRecord
from regatta.sinks import following, usable_sinks

SINKS: dict[str, tuple[str, ...]] = {
    "off": (),
    "off again": (),
    "csv": ("csv",),
    "parquet": ("parquet",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "all four": ("csv", "parquet", "tensorboard", "mlflow"),
}
TRAINED = ("off", "off again", "all four")
MICROSECONDS = 20.0  # that all four sinks may add to a record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="of the real runs")
    options = parser.parse_args()
    played = _in_turns(SINKS, options.repeats, _play)
    added = {name: played[name] - played["off"] for name in played}
    rows = [[name, 1e6 * played[name], 1e6 * added[name], played[name] / played["off"]] for name in played]
    with tempfile.TemporaryDirectory() as folder:
        data = regatta.Dataset.digits(partitions=4, directory=Path(folder) / "data")
        trained = _in_turns(TRAINED, options.repeats, lambda sinks: _train(data, sinks, options.epochs, folder))
    print_table(
        ["real run", "makespan", "to off"], [[name, trained[name], trained[name] / trained["off"]] for name in trained]
    )
    print()
    report(
        "sinks",
        ["sinks", "µs per record", "more than off", "to off"],
        rows,
        bars=[
            Bar("all four: more µs per record", 1e6 * added["all four"], MICROSECONDS),
            Bar("off: listeners and threads", _left_over(), 0),
        ],
        peers=["tensorboard", "mlflow-skinny", "pyarrow"],
        notes={"repeats": options.repeats, "epochs": options.epochs, "makespans": trained},
    )


def _in_turns(names: Any, repeats: int, measure: Any) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            found[name].append(measure(SINKS[name]))
    return {name: statistics.median(times) for name, times in found.items()}


def _play(sinks: tuple[str, ...]) -> float:
    """Seconds of the controller's thread per record."""
    records = _records()
    with tempfile.TemporaryDirectory() as folder, following(usable_sinks(sinks), Path(folder)) as listeners:
        record, journal = RunRecord(), Journal(Path(folder) / "journal.jsonl")
        begun = time.thread_time()
        for event, fields in records:
            line = journal.append(event, **fields)
            record.apply(line)
            for listener in listeners:
                listener(record, line)
        spent = time.thread_time() - begun
        journal.close()
    assert not record.notes, record.notes
    return spent / len(records)


def _records(configs: int = 20, epochs: int = 10, partitions: int = 8) -> list[tuple[str, Record]]:
    """A run in short: for each epoch of each configuration its units and a report."""
    goal = {"metric": "loss", "mode": "min", "epochs": epochs, "seed": 0, "rule": "auto"}
    dataset = {"name": "made", "train": [{}] * partitions, "eval": []}
    found: list[tuple[str, Record]] = [("run", {"version": 1, "name": "made", **goal, "dataset": dataset})]
    found.append(("worker", {"worker": "w0", "state": "up"}))
    known = {config_id(values): values for values in ({"lr": 0.1 / (1 + n), "hidden": n} for n in range(configs))}
    found += [("config", {"config": name, "values": values, "epochs": epochs}) for name, values in known.items()]
    for epoch in range(1, epochs + 1):
        for name in known:
            for partition in range(partitions):
                place = {"worker": "w0", "kind": "train", "config": name, "epoch": epoch, "partition": partition}
                found.append(("start", place))
                found.append(("unit", {**place, "start": 1.0, "end": 2.0, "rows": 10, "metrics": {"loss": 1.0}}))
            found.append(("report", {"config": name, "epoch": epoch, "metrics": {"loss": 1 / epoch, "accuracy": 0.5}}))
    return [*found, ("end", {"status": "done"})]


def _train(data: regatta.Dataset, sinks: tuple[str, ...], epochs: int, folder: str) -> float:
    """Seconds from the start of the first unit to the end of the last."""
    run = regatta.launch(
        data,
        regatta.search.grid(hidden=[64, 128, 256, 512], lr=[1e-2, 3e-3, 1e-3, 3e-4], batch_size=32),
        model_fn,
        loss_fn=loss_fn,
        epochs=epochs,
        cluster=regatta.Cluster.local(workers=2, threads=1, device="cpu"),
        repo=folder,
        sinks=sinks,
        progress=False,
    )
    assert run.record.status == "done" and not run.record.notes, run.record.notes
    units = [unit for unit in run.record.units if unit.kind != "pilot"]
    return max(unit.end for unit in units) - min(unit.start for unit in units)


def _left_over() -> int:
    """Without sinks there is nothing for a run to call, and no thread."""
    before = threading.active_count()
    with tempfile.TemporaryDirectory() as folder, following((), Path(folder)) as listeners:
        return len(listeners) + threading.active_count() - before


def model_fn(config: dict[str, Any]) -> Any:
    import torch

    layers = [torch.nn.Linear(64, config["hidden"]), torch.nn.ReLU(), torch.nn.Linear(config["hidden"], 10)]
    net = torch.nn.Sequential(*layers)
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    import torch

    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


if __name__ == "__main__":
    main()
