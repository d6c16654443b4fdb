"""Sweeps on a real Ray cluster: the same weights as anywhere else, whatever happens to actors and nodes."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from processes import soon
from rays import RayNodes
from recipes import loss_fn, model_fn, small_data

from regatta import Cluster, Dataset, Sweep, search
from regatta.engine.journal import Record, read_journal
from regatta.engine.record import RunRecord

pytest.importorskip("ray")
EPOCHS = 2
Listener = Callable[[RunRecord, Record], None]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with RayNodes(2) as found:
        yield found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def sweep_on(data: Dataset, cluster: Cluster, loss: Any = loss_fn) -> Sweep:
    space = search.grid(kind=["adam", "dropout", "schedule per step"], lr=0.01, batch_size=9, sleeps=0.03)
    options: dict[str, Any] = {"visits": "seeded", "framework": "torch"}
    return Sweep(data, space, model_fn, loss_fn=loss, epochs=EPOCHS, cluster=cluster, **options)


def executed(sweep: Sweep, folder: Path, *listeners: Listener) -> RunRecord:
    folder.mkdir()
    return sweep.execute(folder, listeners=listeners)


def hashes(record: RunRecord) -> dict[str, dict[tuple[int, int], str | None]]:
    return {
        config.id: {(unit.epoch, unit.partition): unit.hash for unit in config.units if unit.kind == "train"}
        for config in record.configs.values()
    }


def check(record: RunRecord, calm: RunRecord, folder: Path) -> None:
    """Every unit counts once, every state is what it would have been, and the last ones are in the run's folder."""
    assert record.status == "done"
    for config in record.configs.values():
        counted = Counter((unit.kind, unit.epoch, unit.partition) for unit in config.units)
        assert set(counted.values()) == {1}
        assert len(counted) == EPOCHS * (4 + 3)
        last = [unit for unit in config.units if unit.kind == "train"][-1]
        assert blake3((folder / str(last.state)).read_bytes()).hexdigest() == last.hash
        assert config.reports == calm.configs[config.id].reports
    assert hashes(record) == hashes(calm)


@pytest.fixture(scope="module")
def calm(data: Dataset, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> RunRecord:
    return executed(sweep_on(data, Cluster.inline(2, "cpu")), tmp_path_factory.mktemp("calm") / "run")


class Mishap:
    """Does something beside the run, once, a moment after so many training units have begun."""

    def __init__(self, units: int, strike: Callable[[RunRecord, str], None]) -> None:
        self.left = units
        self.strike = strike
        self.thread: threading.Timer | None = None

    def __call__(self, record: RunRecord, line: Record) -> None:
        if line["event"] == "start" and line["kind"] == "train":
            self.left -= 1
            if self.left == 0:
                self.thread = threading.Timer(0.02, self.strike, (record, line["worker"]))
                self.thread.start()

    def over(self) -> None:
        assert self.thread is not None
        self.thread.join()


def downs(record: RunRecord, folder: Path) -> list[str]:
    return [line["reason"] for line in read_journal(folder / "journal.jsonl") if line.get("state") == "down"]


def test_the_weights_are_those_of_inline_workers(
    nodes: RayNodes, data: Dataset, calm: RunRecord, tmp_path: Path
) -> None:
    record = executed(sweep_on(data, Cluster.ray(2)), tmp_path / "run")
    check(record, calm, tmp_path / "run")
    assert len({worker.info["node"] for worker in record.workers.values()}) == 2
    assert downs(record, tmp_path / "run") == []


def test_an_actor_that_is_killed_costs_its_unit_alone(
    nodes: RayNodes, data: Dataset, calm: RunRecord, tmp_path: Path
) -> None:
    mishap = Mishap(5, lambda record, worker: os.kill(record.workers[worker].info["pid"], signal.SIGKILL))
    record = executed(sweep_on(data, Cluster.ray(2)), tmp_path / "run", mishap)
    mishap.over()
    check(record, calm, tmp_path / "run")
    assert len(downs(record, tmp_path / "run")) == 1
    starts = [line for line in read_journal(tmp_path / "run" / "journal.jsonl") if line["event"] == "start"]
    assert len(starts) <= len(record.units) - 3 + 1, "more than the unit of the actor was done again"


def test_a_whole_node_goes_and_the_others_take_over(
    nodes: RayNodes, data: Dataset, calm: RunRecord, tmp_path: Path
) -> None:
    mishap = Mishap(7, lambda record, worker: nodes.remove(record.workers[worker].info["node"]))
    record = executed(sweep_on(data, Cluster.ray(2)), tmp_path / "run", mishap)
    mishap.over()
    check(record, calm, tmp_path / "run")
    assert downs(record, tmp_path / "run") == ["was lost with its node"]


def gated_loss(model: Any, batch: Any, config: dict[str, Any], gate: Path) -> Any:
    """The same loss, but a model that has seen a few batches waits until the gate is there."""
    if model.training and model.steps > 3:
        assert soon(gate.exists, 60.0)
    return loss_fn(model, batch, config)


def test_a_node_that_comes_gets_a_worker_and_work(
    nodes: RayNodes, data: Dataset, calm: RunRecord, tmp_path: Path
) -> None:
    before = nodes.count()
    newcomer = f"w{before}"

    def listen(record: RunRecord, line: Record) -> None:
        if line["event"] == "start" and nodes.count() == before:
            nodes.add()
        if line["event"] == "worker" and line["worker"] == newcomer:
            (tmp_path / "gate").touch()

    sweep = sweep_on(data, Cluster.ray(), loss=functools.partial(gated_loss, gate=tmp_path / "gate"))
    record = executed(sweep, tmp_path / "run", listen)
    check(record, calm, tmp_path / "run")
    assert len(record.workers) == before + 1
    assert newcomer in {unit.worker for unit in record.units if unit.kind == "train"}
