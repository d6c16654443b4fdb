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
from regatta.data.availability import find_partitions
from regatta.engine.controller.partition_owners import PartitionOwners
from regatta.errors import UsageError

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


def test_a_worker_that_joins_holds_what_it_can_read(tmp_path: Path) -> None:
    owners = PartitionOwners(small_data(tmp_path / "data"), ("w0", "w1"))
    owners.add("w2", {"train": [1, 2], "eval": []})
    assert owners.partitions_of("w2") == ([1, 2], [])
    assert list(owners.hand_over("w0", ["w1", "w2"])) == []
    assert owners.partitions_of("w2") == ([1, 2], []), "0 was held by w0, and w2 cannot read it"
    assert sorted(owners.partitions_of("w1")[0]) == [0, 1, 3]


def test_a_worker_that_joins_leaves_placed_partitions_to_those_that_have_them(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    train, held_out = ([part.path for part in kind] for kind in (data.train, data.eval))
    owners = PartitionOwners(Dataset.from_paths(train, held_out, {path: (0,) for path in train}), ("w0", "w1"))
    assert not owners.are_placed, "anybody may evaluate"
    readable = {"train": [0, 1], "eval": [2]}
    owners.add("w2", readable)
    owners.add("w3", readable, named=True)
    assert (owners.partitions_of("w2"), owners.partitions_of("w3")) == (([], [2]), ([0, 1], [2]))
    list(owners.hand_over("w0", ["w1", "w2", "w3"]))
    assert sorted(owners.partitions_of("w1")[0] + owners.partitions_of("w2")[0]) == [2, 3], "0 and 1 are with w3"
    everywhere = Dataset.from_paths(train, held_out, {path: (0,) for path in train + held_out})
    assert PartitionOwners(everywhere, ("w0",)).are_placed


def test_a_partition_that_a_worker_cannot_read_goes_to_others(tmp_path: Path) -> None:
    owners = PartitionOwners(small_data(tmp_path / "data"), ("w0", "w1"))
    assert owners.partitions_of("w0") == ([0, 2], [0, 2])
    assert owners.withdraw("w0", "train", 2, ["w0", "w1"]) == ["w1"]
    assert owners.partitions_of("w0") == ([0], [0, 2])
    assert owners.withdraw("w1", "train", 2, ["w0", "w1"]) == [], "nobody is left"
    owners.restore("train", 2)
    assert owners.partitions_of("w0")[0] == [0, 2]
    owners.withdraw("w0", "train", 0, ["w0", "w1"])
    owners.add("w0", None)
    assert owners.partitions_of("w0")[0] == [0, 2], "a worker that is started again tries again"


def test_a_partition_that_the_last_of_a_team_could_not_read_is_tried_again(tmp_path: Path) -> None:
    """The worker that could read it has left, and nobody else would ever read it."""
    owners = PartitionOwners(small_data(tmp_path / "data"), ("w0", "w1"))
    assert owners.withdraw("w0", "train", 2, ["w0", "w1"]) == ["w1"]
    assert list(owners.hand_over("w1", ["w0"])) == []
    assert sorted(owners.partitions_of("w0")[0]) == [0, 1, 2, 3]


def test_a_partition_of_a_lost_worker_goes_to_one_that_can_read_it(tmp_path: Path) -> None:
    owners = PartitionOwners(small_data(tmp_path / "data"), ("w0", "w1", "w2"))
    (heir,) = owners.withdraw("w0", "train", 0, ["w0", "w1", "w2"])
    (other,) = {"w1", "w2"} - {heir}
    assert list(owners.hand_over(heir, ["w0", other])) == []
    assert 0 in owners.partitions_of(other)[0]
    assert 0 not in owners.partitions_of("w0")[0], "it holds the partition, and cannot read it"


def test_an_availability_map_names_all_that_can_read_a_partition(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    train, held_out = ([part.path for part in kind] for kind in (data.train, data.eval))
    where = {**dict.fromkeys(train, (0,)), train[1]: (0, 1), **dict.fromkeys(held_out, (1,))}
    owners = PartitionOwners(Dataset.from_paths(train, held_out, where), ("w0", "w1"))
    assert owners.withdraw("w0", "train", 1, ["w0", "w1"]) == ["w1"]
    assert owners.withdraw("w0", "train", 2, ["w0", "w1"]) == [], "w1 does not have it"


def test_partitions_are_found_by_name_or_number(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    train, held_out = ([part.path for part in kind] for kind in (data.train, data.eval))
    wanted = ["2", str(train[0]), "eval-0001.safetensors"]
    assert find_partitions(wanted, train, held_out) == {"train": [2, 0], "eval": [1]}
    assert find_partitions(None, train, held_out) is None
    with pytest.raises(UsageError, match=r"no partition 'train-1.safetensors'"):
        find_partitions(["train-1.safetensors"], train, held_out)
