"""Worker processes keep the contract of a pool, and end with their controller."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import recipes
from processes import children, is_running, soon

from regatta import Sweep, search
from regatta.cluster import Cluster
from regatta.engine.messages import Task, TaskBegun, WorkerLost, WorkerReady, WorkerSetup
from regatta.engine.workers import open_pool, process
from regatta.engine.workers.base import WorkerPool
from regatta.engine.workers.process import ProcessPool
from regatta.errors import RegattaError
from regatta.testing.workers import Harness, WorkerPoolContract, input_fn, loss_fn, write_setup


class TestProcessPool(WorkerPoolContract):
    @classmethod
    def open_pool(cls, setup: WorkerSetup, workers: int) -> WorkerPool:
        return ProcessPool(Cluster.local(workers, threads=1).sized(3), setup)


def sleeper(path: Path, config: Any = None) -> list[int]:
    """A program that user code starts and forgets: its number goes into a file."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    path.write_text(str(process.pid))
    return [process.pid]


def loss_with_a_child(weights: Any, batch: Any, config: Any) -> Any:
    if "child" in config:
        sleeper(Path(config["child"]))
    return loss_fn(weights, batch, config)


def talkative(path: Path) -> Any:
    print("reading", path.name, flush=True)
    return input_fn(path)


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Two workers that will be treated badly."""
    folder = tmp_path_factory.mktemp("rough")
    setup = write_setup(folder)
    setup = replace(setup, recipe_or_pickle=replace(setup.recipe, loss_fn=loss_with_a_child, input_fn=talkative))
    pool = open_pool(Cluster.local(2, threads=1).sized(3), setup)
    harness = Harness(pool, setup, folder)
    yield harness
    pool.close()


def lost_and_back(harness: Harness, count: int) -> dict[str, str]:
    """Why workers were lost, once `count` are ready again."""
    lost: dict[str, str] = {}
    back: set[str] = set()
    while len(back) < count:
        for event in harness.events():
            if isinstance(event, WorkerLost):
                lost[event.worker] = event.reason
            elif isinstance(event, WorkerReady):
                assert event.worker in lost
                assert event.info["pid"] != harness.ready[event.worker].info["pid"]
                harness.ready[event.worker] = event
                back.add(event.worker)
            else:
                raise AssertionError(event)
    return lost


def test_workers_that_die_are_lost_with_a_reason_and_come_back(rough: Harness, tmp_path: Path) -> None:
    first, second = rough.pool.workers
    tasks = [rough.train(rough.values(sleeps=30.0, child=str(tmp_path / "child")), 0)]
    tasks.append(rough.train(rough.values(ends="die"), 1))
    rough.pool.submit(first, tasks[0])
    assert soon(lambda: (tmp_path / "child").exists() and bool((tmp_path / "child").read_text()))
    os.kill(rough.ready[first].info["pid"], signal.SIGKILL)
    rough.pool.submit(second, tasks[1])
    assert lost_and_back(rough, 2) == {first: "was killed by SIGKILL", second: "exited with code 7"}
    child = int((tmp_path / "child").read_text())
    assert soon(lambda: not is_running(child)), "what the dead worker had started goes on"
    for task in tasks:
        assert task.state_out is not None
        assert not task.state_out.exists()
    again = {worker: rough.train(rough.values(), 2) for worker in (first, second)}
    rough.do(again)
    for task in again.values():
        rough.check_state(task, [2])


def test_the_output_of_workers_is_logged(rough: Harness) -> None:
    rough.do({worker: rough.train(rough.values(), 0) for worker in rough.pool.workers})
    for worker in rough.pool.workers:
        assert "reading part-0.npz" in (rough.setup.logs / f"{worker}.log").read_text()


def test_an_interrupt_is_for_the_controller_alone(rough: Harness) -> None:
    worker = rough.pool.workers[0]
    os.kill(rough.ready[worker].info["pid"], signal.SIGINT)
    task = rough.train(rough.values(), 1)
    rough.done(worker, task)
    rough.check_state(task, [1])


def test_a_worker_that_cannot_start_reports_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions are in a module that the worker does not find."""
    (tmp_path / "vanishing.py").write_text("def model_fn(config):\n    return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    vanishing = importlib.import_module("vanishing")
    setup = write_setup(tmp_path)
    before = children(os.getpid())
    pool = open_pool(
        Cluster.local(1).sized(1), replace(setup, recipe_or_pickle=replace(setup.recipe, model_fn=vanishing.model_fn))
    )
    (tmp_path / "vanishing.py").unlink()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    pool.start()
    with pytest.raises(RegattaError, match="exited with code 1 before it could take work, again and again") as caught:
        while True:
            assert all(isinstance(event, WorkerLost) for event in pool.events())
    pool.close()
    assert "ModuleNotFoundError: No module named 'vanishing'" in str(caught.value)
    assert f"All it said is in {setup.logs / 'w0.log'}" in str(caught.value)
    assert soon(lambda: children(os.getpid()) <= before)


def test_a_worker_that_a_signal_stops_is_ended_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for ever, and the run with it. Its death is not the fault of what it trained."""
    monkeypatch.setattr(process, "MAX_STOPPED_S", 0.2)
    setup = write_setup(tmp_path)
    harness = Harness(open_pool(Cluster.local(1, threads=1).sized(3), setup), setup, tmp_path)
    try:
        harness.pool.submit("w0", harness.train(harness.values(sleeps=0.5), 0))
        assert soon(lambda: (tmp_path / "reads").exists())
        os.kill(harness.ready["w0"].info["pid"], signal.SIGSTOP)
        (lost,) = harness.events()
        assert lost == WorkerLost("w0", "was ended, for it was stopped by a signal", killed=True)
        assert isinstance(harness.events()[0], WorkerReady)
    finally:
        harness.pool.close()


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_worker_that_reads_nothing_does_not_hold_up_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """It is stopped before it has read the functions, which are more than its socket holds."""
    setup, start = write_setup(tmp_path), process.start_process
    much = partial(input_with, bytes(10**7))
    setup = replace(setup, recipe_or_pickle=replace(setup.recipe, input_fn=much))
    pids = []

    def start_stopped(*arguments: Any) -> Any:
        started = start(*arguments)
        os.kill(started.pid, signal.SIGSTOP)
        pids.append(started.pid)
        return started

    monkeypatch.setattr(process, "start_process", start_stopped)
    pool = open_pool(Cluster.local(1, threads=1).sized(3), setup)
    starting = threading.Thread(target=pool.start, daemon=True)
    starting.start()
    try:
        assert soon(lambda: not starting.is_alive()), "the pool waits for its worker"
        if goes_on:
            os.kill(pids[-1], signal.SIGCONT)
            assert isinstance(pool.events()[0], WorkerReady)
    finally:
        os.kill(pids[-1], signal.SIGCONT)
        starting.join()
        pool.close()
    assert not any(thread.name.startswith("start w") for thread in threading.enumerate())


def input_with(ballast: bytes, path: Path) -> Any:
    return input_fn(path)


def orphaning_loss(weights: Any, batch: Any, config: dict[str, Any]) -> Any:
    """Dies, and leaves a child that has inherited all open files."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os.kill(os.getpid(), config["signal"])
    raise AssertionError("not reached")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_death_is_noticed_though_a_child_lives_and_the_signal_has_no_name(tmp_path: Path) -> None:
    setup = write_setup(tmp_path)
    setup = replace(setup, recipe_or_pickle=replace(setup.recipe, loss_fn=orphaning_loss))
    pool = open_pool(Cluster.local(1, threads=1, device="cpu"), setup)
    pool.start()
    try:
        pool.events()
        values = {"batch_size": 5, "lr": 0.1, "signal": 40}
        pool.submit("w0", Task("train", "c", values, 1, 0, None, tmp_path / "states/c/1.safetensors"))
        start = time.monotonic()
        assert pool.events() == [TaskBegun("w0")]
        assert pool.events() == [WorkerLost("w0", "was killed by signal 40")]
        assert time.monotonic() - start < 300, "it has not waited for the child"
    finally:
        pool.close()


def test_workers_do_not_import_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("queue", "random", "torch"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not me')\n")
    monkeypatch.chdir(tmp_path)
    config, cluster = {"batch_size": 5}, Cluster.local(1, threads=1, device="cpu")
    data, space = recipes.small_data(tmp_path / "data"), search.configs([config])
    run = Sweep(data, space, recipes.model_fn, loss_fn=recipes.loss_fn, cluster=cluster, repo=tmp_path / "repo")
    assert run.launch(progress=False).find(config).status == "done"
