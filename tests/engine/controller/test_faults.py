"""Killed workers and controllers: the run goes on, or ends with a reason, and leaves no process behind."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from locations import HELPERS
from processes import children, is_running, soon
from recipes import eval_fn, loss_fn, model_fn, small_data

from regatta import Cluster, Run, Sweep, open_run, search
from regatta.configuration import config_id
from regatta.engine.messages import Recipe, WorkerSetup
from regatta.engine.profiling.models import ProfilingHooks, ProfilingRequest, profile_models
from regatta.engine.workers import open_pool
from regatta.errors import RegattaError
from regatta.journal.journal_file import read_journal
from regatta.search.base import Goal

EPOCHS = 2


def values(**more: Any) -> dict[str, Any]:
    return {"batch_size": 5, "epoch_steps": 10, "sleeps": 0.03, **more}


GOOD = [values(lr=0.01), values(lr=0.1), values(kind="dropout")]
DEADLY = values(fails="death")
STALLING = {"batch_size": 5, "epoch_steps": 10, "fails": "stall"}


def kill_a_worker_that_trains(run: Run) -> tuple[str, int]:
    """SIGKILL in the middle of a unit of a good configuration; the worker and its number."""
    good = {config_id(config) for config in GOOD}
    end = time.monotonic() + 300
    while time.monotonic() < end:
        for worker in list(run.record.workers.values()):
            if worker.running is not None and worker.running[0] == "train" and worker.running[1] in good:
                os.kill(worker.info["pid"], signal.SIGKILL)
                return worker.name, worker.info["pid"]
        time.sleep(0.005)
    raise AssertionError("no worker ever trained")


@pytest.fixture(scope="module")
def battered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, str, int]]:
    """A background run whose worker was killed, and one of whose models kills every worker that trains it."""
    folder = tmp_path_factory.mktemp("battered")
    run = Sweep(
        small_data(folder / "data"), search.configs([*GOOD, DEADLY]), model_fn, loss_fn=loss_fn, eval_fn=eval_fn,
        epochs=EPOCHS, cluster=Cluster.local(2, threads=1), repo=folder, name="battered",
    ).launch(wait=False, progress=False)  # fmt: skip
    assert not run.done()
    with pytest.raises(TimeoutError, match=r"battered is not done after 0\.01 seconds"):
        run.result(timeout=0.01)
    worker, pid = kill_a_worker_that_trains(run)
    assert run.result(timeout=300) is run
    assert run.done()
    yield run, worker, pid


def test_every_unit_counts_once(battered: Any) -> None:
    run = battered[0]
    assert run.record.status == "done"
    for config in GOOD:
        found = run.find(config)
        assert found.status == "done"
        counted = Counter((unit.kind, unit.epoch, unit.partition) for unit in found.units)
        assert set(counted.values()) == {1}
        assert len(counted) == EPOCHS * (4 + 3)


def test_a_lost_worker_is_in_the_journal(battered: Any) -> None:
    run, worker, pid = battered
    records = [
        r for r in read_journal(run.folder / "journal.jsonl") if r["event"] == "worker" and r["worker"] == worker
    ]
    states = [(record["state"], record.get("reason")) for record in records]
    assert states[:3] == [("up", None), ("down", "was killed by SIGKILL"), ("up", None)]
    assert records[0]["pid"] == pid != records[2]["pid"]


def test_only_running_units_are_done_again(battered: Any) -> None:
    events = Counter(record["event"] for record in read_journal(battered[0].folder / "journal.jsonl"))
    assert events["start"] - events["unit"] == 1 + 3  # the unit that was killed, and those of the deadly model


def test_weights_are_those_of_an_undisturbed_run(battered: Any) -> None:
    report = battered[0].replay()
    assert report.ok
    assert report.units == len(GOOD) * EPOCHS * 4 + 4  # and the first epoch of the deadly one
    assert report.differing == []


def test_a_model_that_kills_its_workers_fails(battered: Any) -> None:
    run = battered[0]
    deadly = run.find(DEADLY)
    assert deadly.status == "failed"
    assert "took 3 workers with it" in deadly.error
    assert "exited with code 3" in deadly.error
    downs = [r for r in read_journal(run.folder / "journal.jsonl") if r.get("state") == "down"]
    assert Counter(r["reason"] for r in downs) == {"was killed by SIGKILL": 1, "exited with code 3": 3}


def test_no_worker_is_left(battered: Any) -> None:
    pids = [r["pid"] for r in read_journal(battered[0].folder / "journal.jsonl") if r.get("state") == "up"]
    assert len(pids) >= 4  # four deaths, each of a worker that was up
    assert not any(map(is_running, pids))


def setup_of(folder: Path) -> tuple[Any, WorkerSetup]:
    data = small_data(folder / "data")
    paths = [tuple(part.path for part in kind) for kind in (data.train, data.eval)]
    return data, WorkerSetup(Recipe(model_fn, loss_fn), 0, paths[0], paths[1], folder / "logs")


def test_profiling_that_kills_its_worker_does_not_stop_the_others(tmp_path: Path) -> None:
    data, setup = setup_of(tmp_path)
    pool = open_pool(Cluster.local(1, threads=1).sized(4), setup)
    configs = {"deadly": values(fails="death", epoch_steps=0), "good": values()}
    request = ProfilingRequest(data, Goal("loss", "min", 1, 0), configs)
    heard: list[str] = []
    try:
        outcome = profile_models(pool, request, ProfilingHooks(lambda event: heard.append(type(event).__name__)))
    finally:
        pool.close()
    assert set(outcome.profiles) == {"good"}
    assert outcome.failed == {}
    assert set(outcome.ready) == {"w0"}
    assert heard.count("WorkerLost") == 1


def test_profiling_that_kills_every_worker_ends_the_run(tmp_path: Path) -> None:
    data, setup = setup_of(tmp_path)
    pool = open_pool(Cluster.local(1, threads=1).sized(4), setup)
    configs = {"deadly": values(fails="death", epoch_steps=0)}
    try:
        with pytest.raises(RegattaError, match="Workers die while they try the first batches: w0 exited with code 3"):
            profile_models(pool, ProfilingRequest(data, Goal("loss", "min", 1, 0), configs))
    finally:
        pool.close()


def test_workers_that_cannot_start_end_the_run_with_their_output(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "vanished.py").write_text("def model_fn(config):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    vanished = importlib.import_module("vanished")
    space = search.configs([values()])
    sweep = Sweep(
        small_data(tmp_path / "data"), space, vanished.model_fn, loss_fn=loss_fn,
        cluster=Cluster.local(2, threads=1), repo=tmp_path, name="silent",
    )  # fmt: skip
    (tmp_path / "vanished.py").unlink()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    before = children(os.getpid())
    with pytest.raises(RegattaError, match="before it could take work, again and again") as caught:
        sweep.launch(progress=False)
    assert "ModuleNotFoundError: No module named 'vanished'" in str(caught.value)
    assert soon(lambda: children(os.getpid()) <= before)
    assert open_run("silent", tmp_path).record.status == "failed"
    assert list((tmp_path / "runs" / "silent" / "logs").iterdir()), "its hint points there"


PROGRAM = """
import sys
from pathlib import Path
import recipes
from regatta import Cluster, Sweep, search

def model_fn(config):  # in the program itself, as users write it
    return recipes.model_fn(config)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    space = search.grid(batch_size=[5], epoch_steps=[10], fails=[sys.argv[2]])
    Sweep(recipes.small_data(folder / "data"), space, model_fn, loss_fn=recipes.loss_fn, epochs=10_000,
          cluster=Cluster.local(1, threads=1), repo=folder, name="long").launch(progress=False)
"""


class Program:
    """A program that trains for ever, or until its second epoch stalls."""

    def __init__(self, folder: Path, fails: str) -> None:
        self.folder = folder
        self.journal = folder / "runs" / "long" / "journal.jsonl"
        (folder / "program.py").write_text(PROGRAM)
        environment = {**os.environ, "PYTHONPATH": str(HELPERS)}
        command = [sys.executable, str(folder / "program.py"), str(folder), fails]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def wait_for(self, text: str) -> set[int]:
        """Until its journal says this; the processes that it has then."""
        assert soon(lambda: self.journal.exists() and text in self.journal.read_text())
        return children(self.process.pid)


def test_an_interrupted_run_says_so_and_leaves_no_workers(tmp_path: Path) -> None:
    program = Program(tmp_path, "never")
    workers = program.wait_for('"event":"unit"')
    assert workers
    program.process.send_signal(signal.SIGINT)
    _, said = program.process.communicate(timeout=300)
    assert program.process.returncode != 0
    assert "KeyboardInterrupt" in said
    assert not any(map(is_running, workers))
    last = json.loads(program.journal.read_text().splitlines()[-1])
    assert (last["event"], last["status"]) == ("end", "interrupted")
    record = open_run("long", tmp_path).record
    assert record.status == "interrupted"
    assert record.units


def test_a_killed_controller_leaves_a_readable_run_and_no_workers(tmp_path: Path) -> None:
    """Even workers in the middle of a unit that never ends."""
    program = Program(tmp_path, "stall")
    workers = program.wait_for(f'"kind":"train","config":"{config_id(STALLING)}","epoch":2')
    assert workers
    program.process.kill()
    program.process.communicate()
    assert soon(lambda: not any(map(is_running, workers)))
    run = open_run("long", tmp_path)
    assert run.record.status == "interrupted"  # no process wrote its end, and none holds its lock
    last = [unit for unit in run.record.units if unit.kind == "train"][-1]
    assert (run.folder / str(last.state)).exists(), "a unit counts only when its state is on the disk"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_workers_killed_at_random_change_nothing(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    run = Sweep(
        small_data(tmp_path / "data"), search.configs(GOOD), model_fn, loss_fn=loss_fn, eval_fn=eval_fn, epochs=8,
        cluster=Cluster.local(3, threads=1), repo=tmp_path, seed=seed,
    ).launch(wait=False, progress=False)  # fmt: skip
    killed = 0
    while not run.done():
        time.sleep(luck.uniform(0.05, 0.4))  # a worker is back in less
        up = [worker for worker in list(run.record.workers.values()) if worker.up]
        if up and killed < 12 and not run.done():
            with contextlib.suppress(ProcessLookupError):  # it may be dead and not yet mourned
                os.kill(luck.choice(up).info["pid"], signal.SIGKILL)
                killed += 1
    run.result()
    assert killed > 3
    done = [config for config in run.record.configs.values() if config.status == "done"]
    assert done
    for config in run.record.configs.values():
        counted = Counter((unit.kind, unit.epoch, unit.partition) for unit in config.units)
        assert set(counted.values()) == {1}
        assert config.status == "done" or "took 3 workers with it" in str(config.error)
    report = run.replay()
    assert report.ok
    assert report.units >= len(done) * 8 * 4
