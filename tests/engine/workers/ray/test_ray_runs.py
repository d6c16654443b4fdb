"""Sweeps on a real Ray cluster: the same weights as anywhere else, whatever happens to actors and nodes."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from processes import soon
from ray_cluster import RayNodes
from recipes import loss_fn, model_fn, small_data

from regatta import Cluster, Dataset, Run, Sweep, open_run, search
from regatta.errors import NotFoundError
from regatta.journal.journal_file import Record, read_journal
from regatta.journal.run_record import RunRecord

pytest.importorskip("ray")
EPOCHS = 2
Listener = Callable[[RunRecord, Record], None]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def sweep_on(data: Dataset, cluster: Cluster, loss: Any = loss_fn, **options: Any) -> Sweep:
    space = search.grid(kind=["adam", "dropout", "schedule per step"], lr=0.01, batch_size=9, sleeps=0.03)
    options = {"visits": "seeded", "framework": "torch", **options}
    return Sweep(data, space, model_fn, loss_fn=loss, epochs=EPOCHS, cluster=cluster, **options)


def executed(sweep: Sweep, folder: Path, *listeners: Listener) -> RunRecord:
    folder.mkdir()
    return sweep.execute(folder, listeners=listeners)


def hashes(record: RunRecord) -> dict[str, dict[tuple[int, int], str | None]]:
    return {
        config.id: {(unit.epoch, unit.partition): unit.hash for unit in config.units if unit.kind == "train"}
        for config in record.configs.values()
    }


def check(record: RunRecord, calm: Run, folder: Path | None = None) -> None:
    """Every unit counts once, every state is what it would have been, and the last ones are in the folder."""
    assert record.status == "done"
    for config in record.configs.values():
        counted = Counter((unit.kind, unit.epoch, unit.partition) for unit in config.units)
        assert set(counted.values()) == {1}
        assert len(counted) == EPOCHS * (4 + 3)
        last = [unit for unit in config.units if unit.kind == "train"][-1]
        if folder is not None:
            assert blake3((folder / str(last.state)).read_bytes()).hexdigest() == last.hash
        assert config.reports == calm.record.configs[config.id].reports
    assert hashes(record) == hashes(calm.record)


@pytest.fixture(scope="module")
def calm(data: Dataset, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Run:
    repo = tmp_path_factory.mktemp("calm")
    return sweep_on(data, Cluster.inline(2, "cpu"), name="calm", repo=repo).launch(progress=False)


class Mishap:
    """Calls a function once, a moment after a number of training units have begun."""

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


def place(unit: Mapping[str, Any]) -> tuple[Any, ...]:
    return unit["config"], unit["kind"], unit["epoch"], unit["partition"]


def downs(folder: Path) -> list[str]:
    return [line["reason"] for line in read_journal(folder / "journal.jsonl") if line.get("state") == "down"]


def test_the_weights_are_those_of_inline_workers(nodes: RayNodes, data: Dataset, calm: Run, tmp_path: Path) -> None:
    """In a run that is halted and gone on with, whose states are on another file system alone."""
    cluster = Cluster.ray(2, storage=f"dir::file://{tmp_path}/far")
    run = sweep_on(data, cluster, name="ray", repo=tmp_path / "repo").launch(wait=False, progress=False)
    assert soon(lambda: len(run.record.units) > 10, 120)
    run.halt()
    before = open_run("ray", tmp_path / "repo")
    assert before.record.status == "interrupted"
    counted = {place(vars(unit)) for unit in before.record.units}

    run = before.go_on(progress=False)
    check(run.record, calm)
    lines = list(read_journal(run.folder / "journal.jsonl"))
    (resumed,) = [number for number, line in enumerate(lines) if line["event"] == "resume"]
    assert counted.isdisjoint(place(line) for line in lines[resumed:] if line["event"] == "start")
    assert len({worker.info["node"] for worker in run.record.workers.values()}) == 2
    assert downs(run.folder) == []
    assert not list(run.folder.rglob("*.safetensors"))
    for config in run.record.configs:
        for epoch in (1, None):
            found, expected = run.weights(config, epoch), calm.weights(config, epoch)
            assert found.keys() == expected.keys()
            assert all(np.array_equal(found[name], expected[name]) for name in found)
    with pytest.raises(NotFoundError, match=r"has no state of epoch 3 in dir::file://"):
        run.weights(config, 3)


def test_a_killed_actor_loses_only_its_unit(nodes: RayNodes, data: Dataset, calm: Run, tmp_path: Path) -> None:
    mishap = Mishap(5, lambda record, worker: os.kill(record.workers[worker].info["pid"], signal.SIGKILL))
    record = executed(sweep_on(data, Cluster.ray(2, storage=f"file://{tmp_path}/far")), tmp_path / "run", mishap)
    mishap.over()
    check(record, calm, tmp_path / "far" / "run")
    assert len(downs(tmp_path / "run")) == 1
    starts = [line for line in read_journal(tmp_path / "run" / "journal.jsonl") if line["event"] == "start"]
    assert len(starts) <= len(record.units) - 3 + 1, "more than the unit of the actor was done again"


def test_other_nodes_take_over_from_a_lost_node(nodes: RayNodes, data: Dataset, calm: Run, tmp_path: Path) -> None:
    mishap = Mishap(7, lambda record, worker: nodes.remove(record.workers[worker].info["node"]))
    record = executed(sweep_on(data, Cluster.ray(2)), tmp_path / "run", mishap)
    mishap.over()
    check(record, calm, tmp_path / "run")
    assert downs(tmp_path / "run") == ["was lost with its node"]


def gated_loss(model: Any, batch: Any, config: dict[str, Any], gate: Path) -> Any:
    """The same loss, but a model that has seen a few batches waits until the gate is there."""
    if model.training and model.steps > 3:
        assert soon(gate.exists)
    return loss_fn(model, batch, config)


def test_a_new_node_gets_a_worker_and_work(nodes: RayNodes, data: Dataset, calm: Run, tmp_path: Path) -> None:
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


def heavy_fn(config: dict[str, Any]) -> Any:
    """A state of half a megabyte."""
    net, optimizer = model_fn(config)
    net.register_buffer("ballast", torch.zeros(125_000))
    return net, optimizer


@pytest.mark.slow
def test_a_disk_that_fills_up_pauses_the_run(nodes: RayNodes, data: Dataset, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        _check_pause(data, disk)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def _check_pause(data: Dataset, disk: Path) -> None:
    """The disk keeps room for the journal, so that it is the states that it does not take."""
    space = search.grid(kind="adam", lr=0.01, batch_size=9, sleeps=0.03)
    sweep = Sweep(data, space, heavy_fn, loss_fn=loss_fn, epochs=EPOCHS, cluster=Cluster.ray(1), name="full", repo=disk)
    run = sweep.launch(wait=False, progress=False)
    try:
        assert soon(lambda: len(run.record.units) > 0, 120)
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(4096))
        os.truncate(ballast, ballast.stat().st_size - 200_000)
        assert soon(lambda: any("Paused" in text for _, text in run.record.notes))
        (text,) = [text for _, text in run.record.notes if "Paused" in text]
        assert "The state cannot be written: [Errno 28] No space left" in text
        assert not run.done()
        ballast.unlink()
        run.result(timeout=300)
    finally:
        run.halt()
    assert run.record.status == "done"
    assert downs(run.folder) == []
    assert open_run("full", disk).replay().ok
