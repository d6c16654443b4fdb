"""Kills, frozen workers, full disks and torn journals at random moments: what a run loses by them.

    python benchmarks/bench_chaos.py [kills | rounds] [--kills 300] [--rounds 60] [--seed 1]

A program trains small PyTorch networks with Adam and dropout on process workers, with a fixed order of visits. While it
does, trouble comes again and again. SIGKILL goes to one of its processes; where the controller was hit, its journal may
end in half a line, and the program is started again and resumes the run. A process is stopped by a signal for a while,
or for good. The disk, a small file system in memory where that can be mounted, is filled for a while. Runs follow each
other until there were as many kills as asked for. In the other part, a run is extended by an epoch and resumed, again
and again; its states must be those of a run that was trained in one go.

Each run must end, with every state of the undisturbed run, bit for bit, and no failed configuration. No unit may count
twice. No more units may begin again than were under way when something happened: at most one for each worker that was
hit; for each controller, what its workers ran, and what they had just finished and not yet made durable; for each full
disk, what the workers tried to write.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from report import Bar, report

from regatta import Run, open_run
from regatta.journal.journal_file import read_journal

WORKERS = 3
FILE_SYSTEM_BYTES = 192 * 2**20
FUNCTIONS = """
import torch
from torch import nn

def model_fn(config):
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.BatchNorm1d(64), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

def loss_fn(model, batch, config):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def eval_fn(data, model, config):
    return {"accuracy": float((model(data[0]).argmax(1) == data[1]).float().mean())}
"""
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from regatta import Cluster, Dataset, Sweep, search
from regatta.engine.workers import fork_client, process
from functions import eval_fn, loss_fn, model_fn

if __name__ == "__main__":
    process.MAX_STOPPED_S, fork_client.MAX_STOPPED_S = 4.0, 2.0  # not to wait for a minute each time
    folder, name, workers, epochs = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 4000)
    x = (rng.normal(size=(4000, 16)) + y[:, None]).astype("float32")
    data = Dataset.from_arrays(x, y, partitions=4, eval_fraction=0.1, directory=folder / "data", name="d")
    space = search.hyperband(lr=search.loguniform(1e-4, 1e-1), batch_size=[8], R=4, eta=2)
    if name.startswith("in_"):
        space = search.grid(lr=[0.1, 0.05, 0.02, 0.01, 0.005, 0.002], batch_size=[32])
    Sweep(data, space, model_fn, loss_fn=loss_fn, eval_fn=eval_fn, epochs=epochs, metric="accuracy", visits="seeded",
          cluster=Cluster.local(workers, threads=1), repo=folder, name=name, pack=False).launch(progress=False)
"""
ROUND = """
import sys
import regatta

run = regatta.open_run(sys.argv[2], sys.argv[1])
for config in run.record.configs:
    run.extend(config, 1)
regatta.open_run(sys.argv[2], sys.argv[1]).go_on(progress=False)
"""


@dataclass
class Toll:
    """What one run went through."""

    workers: int = 0
    controllers: int = 0
    frozen: int = 0
    full: int = 0
    torn: int = 0
    redone: int = 0
    problems: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=["kills", "rounds"], help="only this part; else both")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    missed = False
    for part in [options.part] if options.part else ["kills", "rounds"]:
        try:
            if part == "kills":
                _report_kills(run_chaos(options.kills, options.seed))
            else:
                _report_rounds(*run_rounds(options.rounds))
        except SystemExit as ended:  # a bar is missed
            missed = missed or bool(ended.code)
    sys.exit(missed)


def run_chaos(kills: int, seed: int) -> list[Toll]:
    """What each run under fire went through."""
    luck = random.Random(seed)
    with _small_file_system() as folder:
        _started(folder, "undisturbed").wait()
        calm = open_run("undisturbed", folder)
        tolls: list[Toll] = []
        while sum(toll.workers + toll.controllers for toll in tolls) < kills:
            tolls.append(_battered(folder, f"battered-{len(tolls)}", calm, luck))
            print(f"run {len(tolls)}: {tolls[-1]}", flush=True)
            if not tolls[-1].problems:
                shutil.rmtree(folder / "runs" / f"battered-{len(tolls) - 1}")
    return tolls


def run_rounds(rounds: int) -> tuple[list[tuple[int, int, float]], list[str]]:
    """Extend a run by one epoch and resume it, each time in a new process: exit code and seconds of each round.

    Also what differs from training in one go.
    """
    rows = []
    with _small_file_system() as folder:
        _started(folder, "in one go", epochs=1 + rounds).wait()
        _started(folder, "in rounds", epochs=1).wait()
        for number in range(1, rounds + 1):
            command, begin = [sys.executable, str(folder / "round.py"), str(folder), "in_rounds"], time.monotonic()
            with (folder / "rounds.log").open("ab") as log:
                code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
            rows.append((number, code, time.monotonic() - begin))
            print(f"round {number}: exit code {code}", flush=True)
        toll = Toll()
        _examine(folder, "in_rounds", open_run("in_one_go", folder), toll)
    return rows, toll.problems


@contextlib.contextmanager
def _small_file_system() -> Iterator[Path]:
    """A folder on a file system of its own, which can be filled; where none can be mounted, a folder."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("REGATTA_BENCH_SCRATCH")) as name:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={FILE_SYSTEM_BYTES}", "tmpfs", name]
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        try:
            for file, text in (("program", PROGRAM), ("functions", FUNCTIONS), ("round", ROUND)):
                Path(name, f"{file}.py").write_text(text)
            yield Path(name)
        finally:
            if mounted:
                subprocess.run(["umount", "-l", name], check=True)


def _report_kills(tolls: list[Toll]) -> None:
    rows = [
        [number, toll.workers, toll.controllers, toll.frozen, toll.full, toll.torn, toll.redone, len(toll.problems)]
        for number, toll in enumerate(tolls, 1)
    ]
    kills = sum(toll.workers + toll.controllers for toll in tolls)
    problems = [problem for toll in tolls for problem in toll.problems]
    bars = [Bar("kills", kills, 300, "at least"), Bar("problems", len(problems), 0)]
    columns = [
        "run", "workers killed", "controllers killed", "workers frozen", "disks filled", "journals torn",
        "units begun again", "problems",
    ]  # fmt: skip
    report("chaos", columns, rows, bars=bars, notes={"workers": WORKERS, "problems": problems[:20]})


def _report_rounds(rows: list[tuple[int, int, float]], problems: list[str]) -> None:
    bars = [
        Bar("rounds of extend and resume", len(rows), 60, "at least"),
        Bar("rounds with another exit code than 0", sum(bool(code) for _, code, _ in rows), 0),
        Bar("problems", len(problems), 0),
    ]
    notes = {"workers": WORKERS, "problems": problems[:20]}
    report("chaos_rounds", ["round", "exit code", "seconds"], rows, bars=bars, notes=notes)


def _started(folder: Path, name: str, epochs: int = 4) -> subprocess.Popen[bytes]:
    name = name.replace(" ", "_")
    command = [sys.executable, str(folder / "program.py"), str(folder), name, str(WORKERS), str(epochs)]
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _battered(folder: Path, name: str, calm: Run, luck: random.Random) -> Toll:
    """One run under fire until it has ended."""
    toll = Toll()
    frozen: list[int] = []
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
        draw = luck.random()
        if draw < 0.25:
            process.kill()
            process.wait()
            toll.controllers += 1
            if luck.random() < 0.5:
                toll.torn += _tear(journal, luck)
        elif draw < 0.35:
            frozen += (one := _freeze_one(_children(process.pid), luck))
            toll.frozen += len(one)
        elif draw < 0.4:
            toll.full += _fill(folder, luck)
        else:
            toll.workers += _kill_one(_children(process.pid), luck)
    for pid in frozen:  # a process that forks workers may stay stopped when its controller is killed
        if b"fork_server import main" in _command(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
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
    lines = journal.read_bytes().splitlines(True) if journal.exists() else []
    last = [line for line in lines if line.endswith(b"\n")][-1:]  # the last one may be torn
    return bool(last) and b'"event":"end"' in last[0] and b'"status":"done"' in last[0]


def _kill_one(pids: list[int], luck: random.Random) -> int:
    if not pids:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(luck.choice(pids), signal.SIGKILL)
        return 1
    return 0


def _freeze_one(pids: list[int], luck: random.Random) -> list[int]:
    """Stop a process by a signal; it goes on after a while, or is killed, or stays so."""
    if not pids:
        return []
    pid = luck.choice(pids)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(luck.uniform(0.2, 3.0))
        after = luck.choice((signal.SIGCONT, signal.SIGKILL, None))
        if after is not None:
            os.kill(pid, after)
        return [pid]
    return []


def _fill(folder: Path, luck: random.Random) -> int:
    """Fill the file system for a while; only where the folder has one of its own."""
    if not os.path.ismount(folder):
        return 0
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))
    time.sleep(luck.uniform(0.5, 3.0))
    filler.unlink()
    return 1


def _tear(journal: Path, luck: random.Random) -> int:
    """Let a journal end in half a line, as a crash of the machine may leave it."""
    content = journal.read_bytes()
    last = content.splitlines(True)[-1]
    if len(last) < 3 or not last.endswith(b"\n"):
        return 0
    if b'"event":"unit"' in last or b'"event":"end"' in last:  # it may be durable: only the next record can be torn
        journal.write_bytes(content + last[: luck.randrange(1, len(last) - 1)])
    else:
        os.truncate(journal, len(content) - luck.randrange(1, len(last)))
    return 1


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
    for config in run.record.configs.values():
        if config.status != calm.record.configs[config.id].status:
            say(f"{name}: {config.id} is {config.status}: {config.error}")
    for config in calm.record.configs.values():
        if run.record.configs[config.id].reports != config.reports:
            say(f"{name}: {config.id} reported something else")
    starts = sum(line["event"] == "start" for line in read_journal(run.folder / "journal.jsonl"))
    toll.redone = starts - sum(counted.values())
    disturbed = toll.workers + toll.frozen + (toll.controllers + 2 * toll.full) * 2 * WORKERS
    if toll.redone > disturbed + toll.torn:
        say(f"{name}: {toll.redone} units were begun again")


def _hashes(run: Run) -> dict[tuple[str, int, int], str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


if __name__ == "__main__":
    main()
