"""States go into the store beside a run: all of them, whoever is killed, and nobody waits for it."""

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

from regatta.engine import archiver as keeper_module
from regatta.engine.archiver import Archiver
from regatta.journal.journal import read_journal
from regatta.store.states.archive_run import archive_run, finished_states
from regatta.store.states.state_archive import RunStates
from regatta.store.states.state_files import state_metadata
from regatta.store.store import ParameterStore

VISITS = 2


class Written:
    """A run as its journal and its files tell it; nothing is trained."""

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

    def offer(self, keeper: Archiver, config: str, epoch: int) -> None:
        keeper.offer(self.train(config, epoch), config, epoch, self.hashes[config, epoch])

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
        """Every state that was ever counted can be had, bit for bit."""
        states = RunStates(self.folder)
        for (config, epoch), expected in self.hashes.items():
            found = states.materialize(config, epoch, tmp_path / "again")
            assert blake3(found.read_bytes()).hexdigest() == expected


@pytest.fixture
def run(tmp_path: Path) -> Written:
    return Written(tmp_path)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a keeper that gives way to everybody may take minutes; and few bytes are enough here."""
    monkeypatch.setattr(keeper_module, "NICENESS", 0)
    monkeypatch.setattr(keeper_module, "LEAST", 0)


def test_the_newest_stay_until_the_run_is_done(run: Written, tmp_path: Path) -> None:
    keeper = Archiver(run.folder, run.store)
    for epoch in (1, 2, 3):
        for config in ("a", "b"):
            run.offer(keeper, config, epoch)
    keeper.close(wait=True)
    assert run.files() == {("a", 3), ("b", 3)}
    assert run.stored() == {(config, epoch) for config in "ab" for epoch in (1, 2)}
    run.note("end", status="done")
    keeper = Archiver(run.folder, run.store)
    run.offer(keeper, "b", 4)
    run.note("end", status="done")
    keeper.close(wait=True)
    assert run.files() == set()
    run.check(tmp_path)
    assert (run.folder / "logs" / "keeper.log").read_text() == ""


def test_it_follows_a_run_as_a_listener(run: Written, tmp_path: Path) -> None:
    keeper = Archiver(run.folder, run.store)
    for epoch in (1, 2):
        run.train("a", epoch, visits=1, report=False)
        run.train("a", epoch)
    for line in read_journal(run.folder / "journal.jsonl"):
        keeper.on_record(None, line)
    keeper.close(wait=True)
    first = run.folder / "states" / "a" / "0001-001.safetensors"
    assert first.exists()  # the runner drops states within epochs by itself
    first.unlink()
    assert run.files() == {("a", 2)}
    run.check(tmp_path)


def test_states_that_are_elsewhere_are_let_be(run: Written, tmp_path: Path) -> None:
    keeper = Archiver(run.folder, run.store)
    for epoch in (1, 2, 3):
        keeper.offer(tmp_path / "elsewhere" / f"{epoch}.safetensors", "a", epoch, "0" * 64)
        keeper.offer(run.folder / "states" / "b" / f"{epoch:04d}-002.safetensors", "b", epoch, "0" * 64)
    keeper.close(wait=True)
    assert (run.folder / "logs" / "keeper.log").read_text() == ""


def test_little_is_left_to_a_pass(run: Written, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(keeper_module, "LEAST", 30_000)  # three states have less, four have more
    keeper = Archiver(run.folder, run.store)
    for epoch in (1, 2, 3):
        run.offer(keeper, "a", epoch)
    run.note("end", status="done")
    keeper.close(wait=True)
    assert not run.store.exists() and len(run.files()) == 3
    keeper = Archiver(run.folder, run.store)
    for epoch in (4, 5, 6, 7):
        run.offer(keeper, "a", epoch)
    keeper.close(wait=True)
    assert run.files() == {("a", 7)}
    run.note("end", status="done")
    assert archive_run(run.folder, run.store) == 1
    run.check(tmp_path)


def test_batches_go_while_the_run_goes_on(run: Written, tmp_path: Path) -> None:
    run.size = 10**6  # eight of them are a batch
    keeper = Archiver(run.folder, run.store)
    for epoch in range(1, 11):
        run.offer(keeper, "a", epoch)
    assert soon(lambda: len(run.files()) < 4, 60)
    assert ("a", 10) in run.files()
    keeper.close(wait=True)
    run.check(tmp_path)


def test_a_state_that_is_not_evaluated_stays(run: Written) -> None:
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


def test_a_pass_over_a_run_of_the_past(run: Written, tmp_path: Path) -> None:
    for epoch in (1, 2):
        run.train("a", epoch)
    assert archive_run(run.folder, run.store) == 1
    run.note("end", status="done")
    assert archive_run(run.folder, run.store) == 1
    assert archive_run(run.folder, run.store) == 0
    assert run.files() == set()
    run.check(tmp_path)


def test_an_offer_never_waits_for_a_keeper_that_hangs(run: Written, tmp_path: Path) -> None:
    keeper = Archiver(run.folder, run.store)
    for epoch in (1, 2):
        run.offer(keeper, "a", epoch)
    process = keeper._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    path = run.train("b", 1)
    for epoch in range(1, 3000):  # more than a pipe holds
        keeper.offer(path, "b", epoch, run.hashes["b", 1])
    os.kill(process.pid, signal.SIGCONT)
    run.note("end", status="done")
    keeper.close(wait=True)
    assert run.files() == set()
    run.check(tmp_path)


def test_a_keeper_that_dies_is_started_again_and_not_for_ever(run: Written, tmp_path: Path) -> None:
    keeper = Archiver(run.folder, run.store)
    for epoch in range(1, 12):
        run.offer(keeper, "a", epoch)
        if keeper._process is not None:
            os.kill(keeper._process.pid, signal.SIGKILL)
            keeper._process.wait()
    assert keeper._starts == keeper_module.MAX_START_ATTEMPTS
    run.note("end", status="done")
    keeper.close(wait=True)
    run.check(tmp_path)
    archive_run(run.folder, run.store)
    assert run.files() == set()
    run.check(tmp_path)


def test_without_waiting_it_goes_on_by_itself(run: Written, tmp_path: Path) -> None:
    keeper = Archiver(run.folder, run.store)
    for epoch in range(1, 4):
        run.offer(keeper, "a", epoch)
    run.note("end", status="done")
    keeper.close(wait=0.01)
    run.check(tmp_path)  # wherever each is right now
    assert soon(lambda: not run.files(), 60)
    run.check(tmp_path)


def test_the_later_keeper_has_the_say(run: Written, tmp_path: Path) -> None:
    earlier = Archiver(run.folder, run.store)
    for epoch in (1, 2):
        run.offer(earlier, "a", epoch)
    process = earlier._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    run.note("end", status="done")  # with which the earlier one would take the newest as well
    earlier.close()
    later = Archiver(run.folder, run.store)
    os.kill(process.pid, signal.SIGCONT)
    assert soon(lambda: not is_running(process.pid), 60)
    assert ("a", 2) in run.files()
    run.offer(later, "a", 3)
    later.close(wait=True)
    run.check(tmp_path)


def test_the_death_of_the_controller_ends_it(run: Written, tmp_path: Path) -> None:
    """The states that models go on from are left to whoever resumes the run."""
    for epoch in (1, 2, 3):
        run.train("a", epoch)
    program = f"""
import os, signal, sys
from pathlib import Path
from regatta.engine import archiver as module
module.LEAST = 0
keeper = module.Archiver(Path({str(run.folder)!r}), Path({str(run.store)!r}))
for epoch in (1, 2):
    path = Path({str(run.folder)!r}) / "states" / "a" / f"{{epoch:04d}}-002.safetensors"
    keeper.offer(path, "a", epoch, {run.hashes!r}["a", epoch])
print(keeper._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    assert soon(lambda: not is_running(int(done.stdout)), 60)
    assert run.files() == {("a", 3)}
    run.check(tmp_path)


def test_a_folder_that_is_deleted_under_it_ends_it_quietly(run: Written) -> None:
    keeper = Archiver(run.folder, run.store)
    for epoch in (1, 2):
        run.offer(keeper, "a", epoch)
    process = keeper._process
    assert process is not None
    subprocess.run(["rm", "-rf", str(run.folder.parent.parent)], check=True)
    keeper.close(wait=True)
    assert process.returncode == 0


def test_a_damaged_state_stays_and_is_told_of(run: Written) -> None:
    keeper = Archiver(run.folder, run.store)
    damaged = run.train("a", 1)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    keeper.offer(damaged, "a", 1, run.hashes["a", 1])
    for epoch in (2, 3):
        run.offer(keeper, "a", epoch)
    run.note("end", status="done")
    keeper.close(wait=True)
    assert run.files() == {("a", 1)}
    assert "0001-002.safetensors stays as it is" in (run.folder / "logs" / "keeper.log").read_text()


def test_killed_at_any_moment_nothing_is_lost(tmp_path: Path) -> None:
    """SIGKILL at random moments; tests/store/states/archive_crash_points.py has every single step."""
    run, rng, deaths = Written(tmp_path, size=100_000), random.Random(5), 0
    for epoch in range(1, 9):
        for config in "abcd":
            run.train(config, epoch)
        keeper = Archiver(run.folder, run.store)
        keeper._start()
        process = keeper._process
        assert process is not None
        time.sleep(rng.uniform(0.0, 0.5))
        deaths += process.poll() is None
        process.kill()
        keeper.close(wait=True)
        run.check(tmp_path)
    assert deaths > 0
    run.note("end", status="done")
    archive_run(run.folder, run.store)
    assert run.files() == set()
    assert run.stored() == set(run.hashes)
    run.check(tmp_path)
    with ParameterStore.open(run.store) as store:
        assert store.fsck("deep").problems == ()


def test_it_gives_way_to_everybody(run: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "NICENESS", 19)
    keeper = Archiver(run.folder, run.store)
    keeper._start()
    process = keeper._process
    assert process is not None
    assert soon(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == 19, 60)
    process.kill()
    keeper.close(wait=True)


def test_it_needs_no_framework() -> None:
    program = """
import sys
import regatta.engine.archiver, regatta.store.states.state_archive
print([name for name in ("torch", "keras", "jax") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert done.stdout.strip() == b"[]"
