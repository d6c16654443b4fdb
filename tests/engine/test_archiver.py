"""The archiver moves all states into the store, whichever process is killed, and delays no run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from processes import is_running, soon
from safetensors.numpy import save_file

from regatta.engine import archiver as archiver_module
from regatta.engine.archiver import Archiver
from regatta.journal.journal_file import read_journal
from regatta.paths import ARCHIVER_LOG
from regatta.store.states.archive_run import archive_run, finished_states
from regatta.store.states.state_archive import RunStates
from regatta.store.states.state_files import state_metadata
from regatta.store.store import ParameterStore

VISITS = 2


class WrittenRun:
    """A run that consists of a journal and state files; nothing is trained."""

    def __init__(self, tmp_path: Path, size: int = 2000) -> None:
        self.folder, self.store, self.size = tmp_path / "runs" / "one", tmp_path / "store", size
        (self.folder / "states").mkdir(parents=True)
        self.hashes: dict[tuple[str, int], str] = {}
        self.note("run", name="one")

    def note(self, event: str, **fields: Any) -> None:
        with (self.folder / "journal.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, **fields}) + "\n")

    def train(self, config: str, epoch: int, visits: int = VISITS, report: bool = True) -> Path:
        path = self.folder / "states" / config / f"{epoch:04d}-{visits:03d}.safetensors"
        path.parent.mkdir(exist_ok=True)
        rng = np.random.default_rng([epoch, *config.encode()])
        tensors = {"model/w": rng.normal(size=self.size).astype("f4"), "optimizer/step": np.int64(epoch)}
        save_file({name: np.asarray(tensor) for name, tensor in tensors.items()}, path, state_metadata("numpy", {}))
        self.hashes[config, epoch] = blake3(path.read_bytes()).hexdigest()
        state = str(path.relative_to(self.folder))
        self.note("unit", kind="train", config=config, epoch=epoch, state=state, hash=self.hashes[config, epoch])
        if report:
            self.note("report", config=config, epoch=epoch, metrics={})
        return path

    def offer(self, archiver: Archiver, config: str, epoch: int) -> None:
        archiver.offer(self.train(config, epoch), config, epoch, self.hashes[config, epoch])

    def files(self) -> set[tuple[str, int]]:
        found = (self.folder / "states").glob("*/*.safetensors")
        return {(path.parent.name, int(path.name[:4])) for path in found}

    def stored(self) -> set[tuple[str, int]]:
        if not (self.store / "index.sqlite").exists():
            return set()
        with ParameterStore.open(self.store) as store:
            names = (name.split("/") for name in store.references("runs/"))
        return {(config, int(stem[:4])) for _, _, config, stem in names}

    def check(self, tmp_path: Path) -> None:
        """Every state in the journal can be read, bit for bit."""
        states = RunStates(self.folder)
        for (config, epoch), expected in self.hashes.items():
            found = states.materialize(config, epoch, tmp_path / "again")
            assert blake3(found.read_bytes()).hexdigest() == expected


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an archiver that gives way to all others may take minutes, and few bytes are enough here."""
    monkeypatch.setattr(archiver_module, "NICENESS", 0)
    monkeypatch.setattr(archiver_module, "MIN_BYTES", 0)


def test_the_newest_stay_until_the_run_is_done(run: WrittenRun, tmp_path: Path) -> None:
    archiver = Archiver(run.folder, run.store)
    for epoch in (1, 2, 3):
        for config in ("a", "b"):
            run.offer(archiver, config, epoch)
    archiver.close(wait=True)
    assert run.files() == {("a", 3), ("b", 3)}
    assert run.stored() == {(config, epoch) for config in "ab" for epoch in (1, 2)}
    run.note("end", status="done")
    archiver = Archiver(run.folder, run.store)
    run.offer(archiver, "b", 4)
    run.note("end", status="done")
    archiver.close(wait=True)
    assert run.files() == set()
    run.check(tmp_path)
    assert (run.folder / "logs" / ARCHIVER_LOG).read_text() == ""


def test_it_follows_a_run_as_a_listener(run: WrittenRun, tmp_path: Path) -> None:
    archiver = Archiver(run.folder, run.store)
    for epoch in (1, 2):
        run.train("a", epoch, visits=1, report=False)
        run.train("a", epoch)
    for line in read_journal(run.folder / "journal.jsonl"):
        archiver.on_record(None, line)
    archiver.close(wait=True)
    first = run.folder / "states" / "a" / "0001-001.safetensors"
    assert first.exists()  # the runner drops states within epochs by itself
    first.unlink()
    assert run.files() == {("a", 2)}
    run.check(tmp_path)


def test_states_outside_the_run_are_left_alone(run: WrittenRun, tmp_path: Path) -> None:
    archiver = Archiver(run.folder, run.store)
    for epoch in (1, 2, 3):
        archiver.offer(tmp_path / "elsewhere" / f"{epoch}.safetensors", "a", epoch, "0" * 64)
        archiver.offer(run.folder / "states" / "b" / f"{epoch:04d}-002.safetensors", "b", epoch, "0" * 64)
    archiver.close(wait=True)
    assert (run.folder / "logs" / ARCHIVER_LOG).read_text() == ""


def test_few_bytes_are_left_to_an_archive_pass(
    run: WrittenRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(archiver_module, "MIN_BYTES", 30_000)  # three states have less, four have more
    archiver = Archiver(run.folder, run.store)
    for epoch in (1, 2, 3):
        run.offer(archiver, "a", epoch)
    run.note("end", status="done")
    archiver.close(wait=True)
    assert not run.store.exists() and len(run.files()) == 3
    archiver = Archiver(run.folder, run.store)
    for epoch in (4, 5, 6, 7):
        run.offer(archiver, "a", epoch)
    archiver.close(wait=True)
    assert run.files() == {("a", 7)}
    run.note("end", status="done")
    assert archive_run(run.folder, run.store) == 1
    run.check(tmp_path)


def test_batches_are_moved_during_the_run(run: WrittenRun, tmp_path: Path) -> None:
    run.size = 10**6  # eight of them are a batch
    archiver = Archiver(run.folder, run.store)
    for epoch in range(1, 11):
        run.offer(archiver, "a", epoch)
    assert soon(lambda: len(run.files()) < 4)
    assert ("a", 10) in run.files()
    archiver.close(wait=True)
    run.check(tmp_path)


def test_a_state_that_is_not_evaluated_stays(run: WrittenRun) -> None:
    for epoch in (1, 2):
        run.train("a", epoch, report=False)
    run.train("b", 1)
    run.train("b", 2, visits=1, report=False)
    assert finished_states(run.folder) == []
    run.note("report", config="a", epoch=1, metrics={})
    run.note("report", config="a", epoch=2, metrics={})
    assert [state.path.name for state in finished_states(run.folder)] == ["0001-002.safetensors"]
    run.note("end", status="interrupted")
    assert len(finished_states(run.folder)) == 1
    run.note("end", status="done")
    names = [(state.config, state.path.name) for state in finished_states(run.folder)]
    assert names == [("a", "0001-002.safetensors"), ("a", "0002-002.safetensors"), ("b", "0001-002.safetensors")]


def test_an_archive_pass_over_a_past_run(run: WrittenRun, tmp_path: Path) -> None:
    for epoch in (1, 2):
        run.train("a", epoch)
    assert archive_run(run.folder, run.store) == 1
    run.note("end", status="done")
    assert archive_run(run.folder, run.store) == 1
    assert archive_run(run.folder, run.store) == 0
    assert run.files() == set()
    run.check(tmp_path)


def test_an_offer_never_waits_for_an_archiver_that_hangs(run: WrittenRun, tmp_path: Path) -> None:
    archiver = Archiver(run.folder, run.store)
    for epoch in (1, 2):
        run.offer(archiver, "a", epoch)
    process = archiver._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    path = run.train("b", 1)
    for epoch in range(1, 3000):  # more than a pipe holds
        archiver.offer(path, "b", epoch, run.hashes["b", 1])
    os.kill(process.pid, signal.SIGCONT)
    run.note("end", status="done")
    archiver.close(wait=True)
    assert run.files() == set()
    run.check(tmp_path)


def test_an_archiver_that_dies_is_started_again_a_few_times(run: WrittenRun, tmp_path: Path) -> None:
    archiver = Archiver(run.folder, run.store)
    for epoch in range(1, 12):
        run.offer(archiver, "a", epoch)
        if archiver._process is not None:
            os.kill(archiver._process.pid, signal.SIGKILL)
            archiver._process.wait()
    assert archiver._starts == archiver_module.MAX_START_ATTEMPTS
    run.note("end", status="done")
    archiver.close(wait=True)
    run.check(tmp_path)
    archive_run(run.folder, run.store)
    assert run.files() == set()
    run.check(tmp_path)


def test_without_waiting_the_process_works_on(run: WrittenRun, tmp_path: Path) -> None:
    archiver = Archiver(run.folder, run.store)
    for epoch in range(1, 4):
        run.offer(archiver, "a", epoch)
    run.note("end", status="done")
    archiver.close(wait=0.01)
    run.check(tmp_path)  # wherever each state is right now
    assert soon(lambda: not run.files())
    run.check(tmp_path)


def test_the_later_archiver_wins(run: WrittenRun, tmp_path: Path) -> None:
    earlier = Archiver(run.folder, run.store)
    for epoch in (1, 2):
        run.offer(earlier, "a", epoch)
    process = earlier._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    run.note("end", status="done")  # after this the earlier archiver would move the newest state, too
    earlier.close()
    later = Archiver(run.folder, run.store)
    os.kill(process.pid, signal.SIGCONT)
    assert soon(lambda: not is_running(process.pid))
    assert ("a", 2) in run.files()
    run.offer(later, "a", 3)
    later.close(wait=True)
    run.check(tmp_path)


def test_it_ends_when_the_controller_dies(run: WrittenRun, tmp_path: Path) -> None:
    """The states that models go on from stay for the controller that resumes the run."""
    for epoch in (1, 2, 3):
        run.train("a", epoch)
    program = f"""
import os, signal, sys
from pathlib import Path
from regatta.engine import archiver as module
module.MIN_BYTES = 0
archiver = module.Archiver(Path({str(run.folder)!r}), Path({str(run.store)!r}))
for epoch in (1, 2):
    path = Path({str(run.folder)!r}) / "states" / "a" / f"{{epoch:04d}}-002.safetensors"
    archiver.offer(path, "a", epoch, {run.hashes!r}["a", epoch])
print(archiver._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    assert soon(lambda: not is_running(int(done.stdout)))
    assert run.files() == {("a", 3)}
    run.check(tmp_path)


def test_it_ends_quietly_when_the_run_is_deleted(run: WrittenRun) -> None:
    archiver = Archiver(run.folder, run.store)
    for epoch in (1, 2):
        run.offer(archiver, "a", epoch)
    process = archiver._process
    assert process is not None
    subprocess.run(["rm", "-rf", str(run.folder.parent.parent)], check=True)
    archiver.close(wait=True)
    assert process.returncode == 0


def test_a_damaged_state_stays_and_is_logged(run: WrittenRun) -> None:
    archiver = Archiver(run.folder, run.store)
    damaged = run.train("a", 1)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    archiver.offer(damaged, "a", 1, run.hashes["a", 1])
    for epoch in (2, 3):
        run.offer(archiver, "a", epoch)
    run.note("end", status="done")
    archiver.close(wait=True)
    assert run.files() == {("a", 1)}
    assert "0001-002.safetensors stays as it is" in (run.folder / "logs" / ARCHIVER_LOG).read_text()


def test_killed_at_any_moment_nothing_is_lost(tmp_path: Path) -> None:
    """SIGKILL at random moments; tests/store/states/archive_crash_points.py has every single step."""
    run, rng, deaths = WrittenRun(tmp_path, size=100_000), random.Random(5), 0
    for epoch in range(1, 9):
        for config in "abcd":
            run.train(config, epoch)
        archiver = Archiver(run.folder, run.store)
        archiver._start()
        process = archiver._process
        assert process is not None
        time.sleep(rng.uniform(0.0, 0.5))
        deaths += process.poll() is None
        process.kill()
        archiver.close(wait=True)
        run.check(tmp_path)
    assert deaths > 0
    run.note("end", status="done")
    archive_run(run.folder, run.store)
    assert run.files() == set()
    assert run.stored() == set(run.hashes)
    run.check(tmp_path)
    with ParameterStore.open(run.store) as store:
        assert store.fsck("deep").problems == ()


def test_it_has_the_lowest_priority(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiver_module, "NICENESS", 19)
    archiver = Archiver(run.folder, run.store)
    archiver._start()
    process = archiver._process
    assert process is not None
    assert soon(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == 19)
    process.kill()
    archiver.close(wait=True)


def test_it_needs_no_framework() -> None:
    program = """
import sys
import regatta.engine.archiver, regatta.store.states.state_archive
print([name for name in ("torch", "keras", "jax") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert done.stdout.strip() == b"[]"
