"""A worker that will not come back: others read its partitions where they can reach them."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from processes import soon
from recipes import loss_fn, model_fn, small_data

from regatta import Cluster, Dataset, Run, Sweep, search

MODULE = """
import time
import torch
from torch import nn

def model_fn(config):
    net = nn.Linear(6, 3)
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])

def loss_fn(model, batch, config):
    time.sleep(0.02)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


def launched(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Run:
    """A run whose functions are in a module that can be taken away, so that no worker can be started again."""
    (folder / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    module = importlib.import_module(name)
    run = Sweep(
        small_data(folder / "data"), search.grid(lr=[0.1, 0.01, 0.02], batch_size=[5]), module.model_fn,
        loss_fn=module.loss_fn, epochs=4, cluster=Cluster.local(2, threads=1), repo=folder,
    ).launch(wait=False, progress=False)  # fmt: skip
    assert soon(lambda: sum(unit.kind == "train" for unit in list(run.record.units)) > 3)
    (folder / f"{name}.py").unlink()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return run


def lose(run: Run, worker: str) -> None:
    os.kill(run.record.workers[worker].info["pid"], signal.SIGKILL)
    assert soon(lambda: "again and again" in str(run.record.workers[worker].info.get("reason")))


def test_other_workers_read_the_partitions_of_a_lost_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = launched(tmp_path, monkeypatch, "taken_away")
    lose(run, "w1")
    run.result(timeout=300)
    assert run.record.status == "done"
    assert {config.status for config in run.record.configs.values()} == {"done"}
    held = {partition for unit in run.record.units if unit.worker == "w0" for partition in [unit.partition]}
    assert held == {0, 1, 2, 3}, "w1 held two of the four"


def test_partitions_that_no_worker_can_read_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = launched(tmp_path, monkeypatch, "out_of_reach")
    dataset: Any = run.sweep().dataset
    held = dataset.holders(("w0", "w1"))[0]
    (alone,) = [j for j in held["w1"] if j not in held["w0"]][:1]
    dataset.train[alone].path.unlink()
    try:
        lose(run, "w1")
        assert soon(lambda: any(f"train partitions [{alone}]" in text for _, text in run.record.notes))

        def what_can_be_done() -> bool:
            units = (unit for unit in run.record.units if unit.worker == "w0" and unit.kind == "train")
            return {unit.partition for unit in units} == {0, 1, 2, 3} - {alone}

        assert soon(what_can_be_done)
        assert soon(lambda: run.record.workers["w0"].running is None), "then it waits"
        assert not run.done()
    finally:
        run.halt()


def test_training_and_evaluation_partitions_may_be_on_different_workers(tmp_path: Path) -> None:
    data, config = small_data(tmp_path / "data"), {"batch_size": 5}
    train, held_out = ([part.path for part in kind] for kind in (data.train, data.eval))
    where = {**dict.fromkeys(train, (0,)), **dict.fromkeys(held_out, (1,))}
    apart = Dataset.from_paths(train, held_out, where)
    sweep = Sweep(apart, search.configs([config]), model_fn, loss_fn=loss_fn, cluster=Cluster.inline(2), repo=tmp_path)
    assert sweep.launch(progress=False).find(config).status == "done"
