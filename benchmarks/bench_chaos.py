"""Kills at random moments, of workers and of the controller: what a run loses by them.

    python benchmarks/bench_chaos.py [--kills 200] [--seed 1]

A program trains small PyTorch networks with Adam and dropout on process workers, with a fixed order of visits. While it
does, SIGKILL goes to one of its processes, again and again; where the controller was hit, the program is started again
and goes on with the run. Runs follow each other until there were as many kills as asked for. Each must end, with
every state of the undisturbed run, bit for bit, no unit counted twice, and no more units begun again than were
under way when something was killed: at most one for each worker that was hit; for each controller, what its workers
ran, and what they had just finished and not yet made durable.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from report import Bar, report

from regatta import Run, open_run
from regatta.journal.journal_file import read_journal

WORKERS = 3
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
import torch
from torch import nn
from regatta import Cluster, Dataset, Sweep, search

def model_fn(config):
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.BatchNorm1d(64), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

def loss_fn(model, batch, config):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def eval_fn(data, model, config):
    return {"accuracy": float((model(data[0]).argmax(1) == data[1]).float().mean())}

if __name__ == "__main__":
    folder, name = Path(sys.argv[1]), sys.argv[2]
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 4000)
    x = (rng.normal(size=(4000, 16)) + y[:, None]).astype("float32")
    data = Dataset.from_arrays(x, y, partitions=4, eval_fraction=0.1, directory=folder / "data", name="d")
    space = search.hyperband(lr=search.loguniform(1e-4, 1e-1), batch_size=[8], R=4, eta=2)
    Sweep(data, space, model_fn, loss_fn=loss_fn, eval_fn=eval_fn, epochs=4, metric="accuracy", visits="seeded",
          cluster=Cluster.local(int(sys.argv[3]), threads=1), repo=folder, name=name).launch(progress=False)
"""


@dataclass
class Toll:
    """What one run went through."""

    workers: int = 0
    controllers: int = 0
    redone: int = 0
    problems: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    luck = random.Random(options.seed)
    with tempfile.TemporaryDirectory(dir=os.environ.get("REGATTA_BENCH_SCRATCH")) as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        _started(folder, "undisturbed").wait()
        calm = open_run("undisturbed", folder)
        tolls: list[Toll] = []
        while sum(toll.workers + toll.controllers for toll in tolls) < options.kills:
            tolls.append(_battered(folder, f"battered-{len(tolls)}", calm, luck))
            print(f"run {len(tolls)}: {tolls[-1]}", flush=True)
    _report(tolls, calm)


def _report(tolls: list[Toll], calm: Run) -> None:
    units = sum(unit.kind != "pilot" for unit in calm.record.units)
    rows = [
        [number, units, toll.workers, toll.controllers, toll.redone, len(toll.problems)]
        for number, toll in enumerate(tolls, 1)
    ]
    kills = sum(toll.workers + toll.controllers for toll in tolls)
    problems = [problem for toll in tolls for problem in toll.problems]
    bars = [Bar("kills", kills, 200, "at least"), Bar("problems", len(problems), 0)]
    columns = ["run", "units", "workers killed", "controllers killed", "units begun again", "problems"]
    report("chaos", columns, rows, bars=bars, notes={"workers": WORKERS, "problems": problems[:20]})


def _started(folder: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(folder / "program.py"), str(folder), name, str(WORKERS)]
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _battered(folder: Path, name: str, calm: Run, luck: random.Random) -> Toll:
    """One run under fire until it has ended."""
    toll = Toll()
    process = _started(folder, name)
    journal = folder / "runs" / name / "journal.jsonl"
    while True:
        _let_it_work(process, journal, luck)
        if process.poll() is not None:
            if process.returncode == 0 or _is_over(journal):  # it may have been hit after its last record
                break
            process = _started(folder, name)  # the same sweep again: it goes on
            continue
        if not journal.exists() or not journal.stat().st_size:
            continue
        if luck.random() < 0.25:
            process.kill()
            process.wait()
            toll.controllers += 1
        else:
            toll.workers += _kill_one(_children(process.pid), luck)
    _examine(folder, name, calm, toll)
    return toll


def _let_it_work(process: subprocess.Popen[bytes], journal: Path, luck: random.Random) -> None:
    """For a few units and a moment, whatever the machine's pace; one time in six only for the moment."""
    wanted = 0 if luck.random() < 1 / 6 else luck.randint(1, 8)
    before = _counted(journal)
    while process.poll() is None and _counted(journal) < before + wanted:
        time.sleep(0.01)
    time.sleep(luck.uniform(0.0, 0.3))


def _counted(journal: Path) -> int:
    return journal.read_bytes().count(b'"event":"unit"') if journal.exists() else 0


def _is_over(journal: Path) -> bool:
    last = journal.read_bytes().splitlines()[-1:] if journal.exists() else []
    return bool(last) and b'"event":"end"' in last[0] and b'"status":"done"' in last[0]


def _kill_one(pids: list[int], luck: random.Random) -> int:
    if not pids:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(luck.choice(pids), signal.SIGKILL)
        return 1
    return 0


def _children(pid: int) -> list[int]:
    """The workers of a controller and the process that forks them, but not the archiver."""
    servers = [child for child in _direct_children(pid) if b"fork_server import main" in _command(child)]
    return [*servers, *(worker for server in servers for worker in _direct_children(server))]


def _direct_children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) if entry.name.isdigit() else 0
            if parent == pid:
                found.append(int(entry.name))
    return found


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _examine(folder: Path, name: str, calm: Run, toll: Toll) -> None:
    run = open_run(name, folder)
    say = toll.problems.append
    if run.record.status != "done":
        say(f"{name} ended as {run.record.status}: {run.record.error}")
    counted = Counter((u.kind, u.config, u.epoch, u.partition) for u in run.record.units if u.kind != "pilot")
    if set(counted.values()) != {1}:
        say(f"{name}: counted twice: {[unit for unit, times in counted.items() if times > 1][:5]}")
    theirs, ours = _hashes(calm), _hashes(run)
    if ours != theirs:
        say(f"{name}: {sum(ours.get(unit) != digest for unit, digest in theirs.items())} states differ")
    for config in calm.record.configs.values():
        if run.record.configs[config.id].reports != config.reports:
            say(f"{name}: {config.id} reported something else")
    starts = sum(line["event"] == "start" for line in read_journal(run.folder / "journal.jsonl"))
    toll.redone = starts - sum(counted.values())
    if toll.redone > toll.workers + toll.controllers * 2 * WORKERS:
        say(f"{name}: {toll.redone} units were begun again")


def _hashes(run: Run) -> dict[tuple[str, int, int], str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


if __name__ == "__main__":
    main()
