"""The contract of a pool of workers: inherit `WorkerPoolContract` and define how a pool is opened.

class TestMine(WorkerPoolContract):
    @classmethod
    def open_pool(cls, setup: WorkerSetup, workers: int) -> WorkerPool:
        return MyPool(setup, workers)

The models use NumPy, so that the suite can compute the expected result of each task.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from numpy.typing import NDArray

from regatta.configuration import Scalar, config_id
from regatta.data.order import batch_order
from regatta.engine.messages import (
    Event,
    Recipe,
    StateDurable,
    Task,
    TaskBegun,
    TaskDone,
    TaskFailed,
    WorkerReady,
    WorkerSetup,
)
from regatta.engine.workers.base import WorkerPool
from regatta.frameworks import numpy as reference
from regatta.paths import LOGS, STATES
from regatta.seeds import initial_seed, unit_seed
from regatta.store.states.state_files import StateFolder, read_weights

SEED = 5
ROWS = (12, 7, 9)  # of the partitions
MISSING_PARTITION = 2  # of those to evaluate on
EVENT_TIMEOUT_S = 60.0
Arrays = dict[str, NDArray[Any]]


def model_fn(config: Mapping[str, Any]) -> Any:
    if config.get("ends") == "build":
        raise LookupError("no such layer")
    return {"w": np.random.normal(size=3)}, reference.SGD(lr=config["lr"], momentum=0.9)


def loss_fn(weights: Arrays, batch: Any, config: Mapping[str, Any]) -> Any:
    how = config.get("ends")
    if how == "raise":
        raise ZeroDivisionError("bad luck")
    if how == "exit":
        sys.exit("enough of this")
    if how == "die":
        os._exit(7)
    time.sleep(config.get("sleeps", 0.0))
    x, y = batch
    error = x @ weights["w"] - y + np.random.normal(scale=0.1, size=len(y))
    return float((error**2).mean()), {"w": 2 * x.T @ error / len(y)}


def eval_fn(data: Any, weights: Arrays, config: Mapping[str, Any]) -> dict[str, float]:
    x, y = data
    return {"worst": float(abs(x @ weights["w"] - y).max())}


def input_fn(path: Path) -> Any:
    """Reads a partition, and logs which process and thread did."""
    with (path.parent / "reads").open("a") as log:
        log.write(f"{os.getpid()} {threading.get_ident()} {path.name}\n")
    with np.load(path) as file:
        return file["x"], file["y"]


def write_setup(folder: Path) -> WorkerSetup:
    """Three partitions to train on, two to evaluate on and one that is missing, and the functions above."""
    generator = np.random.default_rng(0)
    paths = []
    for number, rows in enumerate((*ROWS, 6, 4)):
        paths.append(folder / f"part-{number}.npz")
        np.savez(paths[-1], x=generator.normal(size=(rows, 3)), y=generator.normal(size=rows))
    recipe = Recipe(model_fn, loss_fn, None, input_fn, eval_fn, "numpy")
    held_out = (*paths[3:], folder / "missing.npz")
    return WorkerSetup(recipe, SEED, tuple(paths[:3]), held_out, folder / LOGS)


class Harness:
    """A started pool, tasks for it, and their expected results."""

    def __init__(self, pool: WorkerPool, setup: WorkerSetup, folder: Path) -> None:
        self.pool = pool
        self.setup = setup
        self.states = StateFolder(folder / STATES)
        self._number = 0
        self.ready: dict[str, WorkerReady] = {}
        self.begun: list[str] = []  # workers whose units have begun
        pool.start()
        while len(self.ready) < len(pool.workers):
            for event in self.events():
                assert isinstance(event, WorkerReady), event
                self.ready[event.worker] = event

    def values(self, **more: Scalar) -> dict[str, Scalar]:
        self._number += 1
        return {"batch_size": 4, "lr": 0.05, "number": self._number, **more}

    def train(self, values: Mapping[str, Scalar], partition: int, after: Task | None = None) -> Task:
        visits = 1 if after is None else int(after.state_out.stem[-3:]) + 1 if after.state_out else 0
        name = config_id(values)
        state = None if after is None else after.state_out
        return Task("train", name, values, 1, partition, state, self.states.path(name, 1, visits), visits == 3)

    def events(self) -> list[Event]:
        """The next events; those that say that a unit begins are put aside in `begun`."""
        while True:
            alarm = threading.Timer(EVENT_TIMEOUT_S, self.pool.wake)
            alarm.start()
            try:
                found = self.pool.events()
            finally:
                alarm.cancel()
            if not found:
                pytest.fail(f"The pool returned no event for {EVENT_TIMEOUT_S} seconds.")
            self.begun += [event.worker for event in found if isinstance(event, TaskBegun)]
            others: list[Event] = [event for event in found if not isinstance(event, TaskBegun)]
            if others:
                return others

    def do(self, tasks: Mapping[str, Task]) -> list[Event]:
        """Give each worker its task, and wait until all have ended and their states are durable."""
        for worker, task in tasks.items():
            self.pool.submit(worker, task)
        received: list[Event] = []
        unfinished = len(tasks)
        while unfinished:
            for event in self.events():
                received.append(event)
                if isinstance(event, TaskDone) and event.task.kind == "train":
                    continue  # its state is not durable yet
                unfinished -= 1
        return received

    def wait_for(self, task: Task) -> None:
        """Wait until the state of a submitted task is durable."""
        while not any(isinstance(event, StateDurable) and event.path == task.state_out for event in self.events()):
            pass

    def done(self, worker: str, task: Task) -> TaskDone:
        """Run one task, which must succeed."""
        found = self.do({worker: task})[0]
        assert isinstance(found, TaskDone), found
        return found

    def expected(self, values: Mapping[str, Any], partitions: list[int]) -> reference.NumpyTrainee:
        """The model after a plain loop over the partitions."""
        with reference.seeded(initial_seed(SEED, values)):
            trainee = reference.assemble(model_fn(values), "cpu")
        for partition in partitions:
            seed = unit_seed(SEED, values, 1, partition)
            with np.load(self.setup.train[partition]) as file, reference.seeded(seed):
                batches = batch_order(ROWS[partition], values["batch_size"], seed)
                reference.train(trainee, (file["x"], file["y"]), batches, loss_fn, values)
        return trainee

    def check_state(self, task: Task, partitions: list[int]) -> None:
        """Check that the state of the task is exactly that of a plain loop over these partitions."""
        assert task.state_out is not None
        expected = task.state_out.with_name("expected")
        reference.save(self.expected(task.values, partitions), expected)
        assert task.state_out.read_bytes() == expected.read_bytes()


class WorkerPoolContract:
    """Everything that the controller relies on."""

    @classmethod
    def open_pool(cls, setup: WorkerSetup, workers: int) -> WorkerPool:
        raise NotImplementedError("define how a pool is opened")

    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        """One pool of two workers for all tests of the suite, because a start may take seconds."""
        folder = tmp_path_factory.mktemp("pool")
        setup = write_setup(folder)
        pool = cls.open_pool(setup, 2)
        try:
            yield Harness(pool, setup, folder)
        finally:
            pool.close()

    @pytest.fixture
    def workers(self, harness: Harness) -> tuple[str, ...]:
        return harness.pool.workers

    def test_ready_workers_report_process_and_device(self, harness: Harness, workers: tuple[str, ...]) -> None:
        assert tuple(sorted(harness.ready)) == tuple(sorted(workers))
        assert len(workers) == 2
        for ready in harness.ready.values():
            os.kill(ready.info["pid"], 0)
            assert isinstance(ready.info["device"], str)
            assert ready.info["threads"] >= 1
            assert ready.info.get("memory", 1) > 0

    def test_a_unit_gives_the_state_of_a_plain_loop(self, harness: Harness, workers: tuple[str, ...]) -> None:
        task = harness.train(harness.values(), 1)
        before = time.time()
        done, durable = harness.do({workers[0]: task})
        assert isinstance(done, TaskDone)
        assert (done.worker, done.task, done.rows) == (workers[0], task, ROWS[1])
        assert before <= done.start <= done.end <= time.time()
        assert set(done.metrics) == {"train_loss"}
        assert (done.hop_bytes, done.hop_seconds) == (0, 0.0)
        assert isinstance(durable, StateDurable)
        assert (durable.worker, durable.path) == (workers[0], task.state_out)
        assert durable.hash == blake3(durable.path.read_bytes()).hexdigest()
        assert durable.bytes == durable.path.stat().st_size
        harness.check_state(task, [1])

    def test_a_unit_begins_when_it_has_its_data(self, harness: Harness, workers: tuple[str, ...]) -> None:
        """From there on its model is to blame; an error before is one of the data."""
        values = harness.values(sleeps=0.3)
        harness.begun.clear()
        harness.done(workers[0], harness.train(values, 1))
        assert set(harness.begun) == {workers[0]}
        harness.begun.clear()
        (failed,) = harness.do({workers[0]: Task("eval", config_id(values), values, 1, MISSING_PARTITION)})
        assert isinstance(failed, TaskFailed)
        assert (failed.cause, harness.begun) == ("data", [])

    def test_a_model_hops_from_worker_to_worker(self, harness: Harness, workers: tuple[str, ...]) -> None:
        values = harness.values()
        task: Task | None = None
        for visit, (worker, partition) in enumerate(((workers[0], 2), (workers[1], 0), (workers[0], 1))):
            task = harness.train(values, partition, after=task)
            done = harness.done(worker, task)
            carried = task.state_in.stat().st_size if task.state_in else 0
            assert done.hop_bytes == carried
            assert (done.hop_seconds > 0) == (visit > 0)
        assert task is not None
        harness.check_state(task, [2, 0, 1])

    def test_two_workers_train_two_models(self, harness: Harness, workers: tuple[str, ...]) -> None:
        tasks = {worker: harness.train(harness.values(), 0) for worker in workers}
        harness.do(tasks)
        for task in tasks.values():
            harness.check_state(task, [0])

    def test_evaluation_gives_metrics_and_writes_nothing(self, harness: Harness, workers: tuple[str, ...]) -> None:
        trained = harness.train(harness.values(), 0)
        harness.done(workers[0], trained)
        assert trained.state_out is not None
        folder = trained.state_out.parent
        before = {path: path.read_bytes() for path in folder.iterdir()}
        task = Task("eval", trained.config, trained.values, 1, 1, trained.state_out)
        done = [harness.done(worker, task) for worker in workers]
        assert {path: path.read_bytes() for path in folder.iterdir()} == before
        assert done[0].metrics == done[1].metrics
        with np.load(harness.setup.eval[1]) as file:
            worst = eval_fn((file["x"], file["y"]), read_weights(trained.state_out), {})["worst"]
        assert set(done[0].metrics) == {"loss", "worst"}
        assert done[0].metrics["worst"] == worst
        assert done[0].rows == 4

    def test_profiling_measures_a_model_and_writes_nothing(self, harness: Harness, workers: tuple[str, ...]) -> None:
        values = harness.values()
        task = Task("pilot", config_id(values), values, 0, 0, eval_partition=0)
        pilot = harness.done(workers[0], task).profile
        assert pilot is not None
        assert pilot.train_seconds_per_row > 0
        assert pilot.eval_seconds_per_row > 0
        assert pilot.fixed_seconds > 0
        assert pilot.peak_bytes >= 0
        assert (pilot.train_rows, pilot.eval_rows) == (ROWS[0], 6)
        assert set(pilot.metrics) == {"train_loss", "loss", "worst"}
        assert not (harness.states.folder / config_id(values)).exists()
        trained = harness.train(values, 0)
        harness.done(workers[0], trained)
        harness.check_state(trained, [0])
        assert trained.state_out is not None
        assert pilot.state_bytes == pytest.approx(trained.state_out.stat().st_size, abs=64)

    @pytest.mark.parametrize(
        ("ends", "error", "where"),
        [
            ("build", "LookupError: no such layer", "in model_fn"),
            ("raise", "ZeroDivisionError: bad luck", "in loss_fn"),
            ("exit", "SystemExit: enough of this", "in loss_fn"),
        ],
    )
    def test_an_exception_of_user_code_is_a_failure_of_the_task(
        self, harness: Harness, workers: tuple[str, ...], ends: str, error: str, where: str
    ) -> None:
        task = harness.train(harness.values(ends=ends), 0)
        (failed,) = harness.do({workers[1]: task})
        assert isinstance(failed, TaskFailed)
        assert (failed.worker, failed.task, failed.error) == (workers[1], task, error)
        assert failed.start <= failed.end
        assert where in failed.traceback
        assert failed.traceback.rstrip().endswith(error)
        assert task.state_out is not None
        assert not task.state_out.exists()
        after = harness.train(harness.values(), 0)
        harness.done(workers[1], after)
        harness.check_state(after, [0])

    def test_a_missing_state_fails_the_task(self, harness: Harness, workers: tuple[str, ...]) -> None:
        task = replace(harness.train(harness.values(), 0), state_in=harness.states.path("none", 1, 1))
        (failed,) = harness.do({workers[0]: task})
        assert isinstance(failed, TaskFailed)
        assert "The state is not there" in failed.error

    @pytest.mark.parametrize("hint", ["right", "wrong", "missing", "damaged"])
    def test_prefetching_does_not_change_results(self, harness: Harness, workers: tuple[str, ...], hint: str) -> None:
        first = harness.train(harness.values(), 0)
        other = harness.train(harness.values(), 1)
        harness.do(dict(zip(workers, (first, other), strict=True)))
        assert first.state_out is not None
        assert other.state_out is not None
        damaged = first.state_out.with_name("damaged")
        damaged.write_bytes(first.state_out.read_bytes()[:-1])
        hints = {"right": first.state_out, "wrong": other.state_out, "missing": Path("nowhere"), "damaged": damaged}
        busy = harness.train(harness.values(sleeps=0.02), 0)
        harness.pool.submit(workers[0], busy)
        harness.pool.prefetch(workers[0], hints[hint])
        harness.wait_for(busy)
        second = harness.train(first.values, 2, after=first)
        done = harness.done(workers[0], second)
        assert done.hop_bytes == first.state_out.stat().st_size
        harness.check_state(second, [0, 2])

    def test_waking_ends_the_wait(self, harness: Harness) -> None:
        waking = threading.Timer(0.05, harness.pool.wake)
        waking.start()
        assert harness.pool.events() == []
        waking.join()

    def test_a_worker_reads_each_partition_once(self, harness: Harness, workers: tuple[str, ...]) -> None:
        for partition in (0, 1, 0):
            harness.do({worker: harness.train(harness.values(), partition) for worker in workers})
        lines = (harness.setup.train[0].parent / "reads").read_text().splitlines()
        reads = [(line.split()[0], line.split()[2]) for line in lines]
        per_process = len(workers) // len({ready.info["pid"] for ready in harness.ready.values()})
        for pid, name in set(reads):
            assert reads.count((pid, name)) <= per_process
        assert {name for _, name in reads} >= {"part-0.npz", "part-1.npz"}

    def test_closing_leaves_no_process_behind(self, tmp_path: Path) -> None:
        setup = write_setup(tmp_path)
        pool = self.open_pool(setup, 1)
        harness = Harness(pool, setup, tmp_path)
        pool.submit(pool.workers[0], harness.train(harness.values(sleeps=20.0), 0))
        pool.close()
        others = {ready.info["pid"] for ready in harness.ready.values()} - {os.getpid()}
        for pid in others:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
