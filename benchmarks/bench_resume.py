"""How long until a resumed run trains again, and what a durable record costs.

    python benchmarks/bench_resume.py

A run of 1,000 finished units is cut off (its controller is killed); then it goes on in a new process: the clock runs
from the call of `go_on` to the start of the first new unit, the workers' own start among it. Beside it: the time of one
durable append to the journal, on top of the disk's own fsync of as many bytes, in turns, in the same folder.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from report import Bar, report

from regatta import open_run
from regatta.journal.journal_file import Journal, read_journal

UNITS = 1_000
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
import torch
from regatta import Cluster, Dataset, Sweep, search

def model_fn(config):
    net = torch.nn.Linear(8, 3)
    return net, torch.optim.SGD(net.parameters(), lr=config["lr"])

def loss_fn(model, batch, config):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
x, y = rng.normal(size=(400, 8)).astype("float32"), rng.integers(0, 3, 400)
data = Dataset.from_arrays(x, y, partitions=4, eval_fraction=0.1, directory=folder / "data", name="small")
sweep = Sweep(data, search.grid(lr=[0.01 * i for i in range(1, 11)], batch_size=[50]), model_fn, loss_fn=loss_fn,
              epochs=1000, cluster=Cluster.local(2, threads=1), repo=folder, name="cut")
sweep.launch(progress=False)
"""


def main() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("REGATTA_BENCH_SCRATCH")) as folder:
        seconds, units = _resume(Path(folder))
        append, disk = _append(Path(folder))
    rows = [
        ["finished units", units],
        ["seconds until the first new unit starts", seconds],
        ["a durable append, median ms", append * 1e3],
        ["the disk's own write and fsync, median ms", disk * 1e3],
    ]
    bars = [
        Bar("seconds until the first new unit", seconds, 2.0),
        Bar("durable append beyond the disk's fsync, ms", (append - disk) * 1e3, 1.0),
    ]
    report("resume", ["what", "measured"], rows, bars=bars)


def _resume(folder: Path) -> tuple[float, int]:
    (folder / "program.py").write_text(PROGRAM)
    process = subprocess.Popen([sys.executable, str(folder / "program.py"), str(folder)], stderr=subprocess.DEVNULL)
    journal = folder / "runs" / "cut" / "journal.jsonl"
    while not journal.exists() or journal.read_bytes().count(b'"event":"unit",') < 2 * UNITS:
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run = open_run("cut", folder)
    units = sum(unit.kind == "train" for unit in run.record.units)
    before = journal.stat().st_size
    begun = time.time()
    run.go_on(wait=False, progress=False)
    while True:
        with journal.open("rb") as file:
            file.seek(before)
            if b'"event":"start"' in file.read():
                break
        time.sleep(0.002)
    run.halt()
    starts = [line["time"] for line in read_journal(journal) if line["event"] == "start" and line["time"] > begun]
    return starts[0] - begun, units


def _append(folder: Path, times: int = 200) -> tuple[float, float]:
    ours, theirs = [], []
    line = b"x" * 400
    plain = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with Journal(folder / "journal.jsonl") as journal:
        for _ in range(times):
            durable = threading.Event()
            start = time.perf_counter()
            journal.append("note", durable.set, text="x" * 340)
            durable.wait()
            ours.append(time.perf_counter() - start)
            start = time.perf_counter()
            os.write(plain, line)
            os.fsync(plain)
            theirs.append(time.perf_counter() - start)
    os.close(plain)
    return statistics.median(ours), statistics.median(theirs)


if __name__ == "__main__":
    main()
