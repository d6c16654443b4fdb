"""Groups of workers on a real Ray cluster train what groups of processes train, to the bit, whatever dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import soon
from ray_cluster import RayNodes
from recipes import loss_fn, model_fn, small_data

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.engine.workers.ray.pool import RayPool
from regatta.errors import UsageError
from regatta.journal.journal_file import read_journal

pytest.importorskip("ray")
KILLED, CUT_OFF = 8, 11  # steps of the second epoch at which a worker waits to be ended
EPOCHS = 2

pytestmark = pytest.mark.usefixtures("one_thread")


def waiting_loss(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    """The first member of all runs that comes to one of these steps stays there, and the other waits for it."""
    step = int(model.steps)
    if model.training and step in (KILLED, CUT_OFF):
        try:
            with Path(config["folder"], f"at-{step}").open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return loss_fn(model, batch, config)
        threading.Event().wait(120)
    return loss_fn(model, batch, config)


@pytest.fixture(scope="module", autouse=True)
def two_nodes_again(ray_nodes: RayNodes) -> Iterator[None]:
    """What comes after finds the nodes as they were."""
    yield
    ray_nodes.resize(2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"), rows=53)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("groups")


def sweep_on(data: Dataset, folder: Path, cluster: Cluster) -> Sweep:
    space = search.grid(kind=["dropout", "norm"], lr=0.01, batch_size=9, folder=str(folder))
    return Sweep(
        data, space, model_fn, loss_fn=waiting_loss, epochs=EPOCHS, seed=11, visits="seeded", pack=False,
        cluster=cluster, repo=folder, framework="torch",
    )  # fmt: skip


@pytest.fixture(scope="module")
def struck(ray_nodes: RayNodes, data: Dataset, folder: Path) -> Run:
    """A group over two nodes loses a member, and then a node; a third node has room."""
    ray_nodes.resize(3)
    run = sweep_on(data, folder, Cluster.ray(2, group=2)).launch(wait=False, progress=False)
    try:
        os.kill(who_waits(run, folder / f"at-{KILLED}"), signal.SIGKILL)
        who_waits(run, folder / f"at-{CUT_OFF}")
        ray_nodes.remove(run.record.workers["g0"].info["node"])
        run.result(timeout=300)
    finally:
        run.halt()
    return run


def who_waits(run: Run, file: Path) -> int:
    """The process that says there that it waits."""
    assert soon(lambda: (file.exists() and file.stat().st_size > 0) or run.done(), 180)
    return int(file.read_text())


@pytest.fixture(scope="module")
def calm(struck: Run, data: Dataset, folder: Path) -> Run:
    """The same on processes, where no worker waits."""
    return sweep_on(data, folder, Cluster.local(2, threads=1, device="cpu", group=2)).launch(progress=False)


def hashes(run: Run) -> dict[str, list[str | None]]:
    assert {unit.width for unit in run.record.units if unit.kind != "pilot"} == {2}
    return {
        config.id: [unit.hash for unit in config.units if unit.kind == "train"]
        for config in run.record.configs.values()
    }


def ups(run: Run) -> list[dict[str, Any]]:
    return [line for line in read_journal(run.folder / "journal.jsonl") if line.get("state") == "up"]


def test_a_group_that_loses_a_member_and_a_node_trains_like_processes(struck: Run, calm: Run) -> None:
    assert struck.record.status == "done"
    assert hashes(struck) == hashes(calm)
    assert all(len(units) == EPOCHS * 4 for units in hashes(struck).values())
    for config in struck.record.configs.values():
        assert config.reports == calm.record.configs[config.id].reports


def test_groups_form_again_where_there_is_room(struck: Run) -> None:
    lines = list(read_journal(struck.folder / "journal.jsonl"))
    killed, cut_off = [line["reason"] for line in lines if line.get("state") == "down"]
    assert killed.startswith(("lost w0, which died", "lost w1, which died"))
    assert cut_off == "lost w0, which was lost with its node"
    began, again, moved = ups(struck)
    assert all(line["width"] == 2 and line["nodes"] == 2 for line in (began, again, moved))
    assert not set(began["members"].values()) & set(again["members"].values())
    assert moved["members"].keys() == {"w0", "w1"}


def test_members_of_a_group_are_on_one_node_where_there_is_room(
    ray_nodes: RayNodes, calm: Run, data: Dataset, folder: Path
) -> None:
    """Two groups on two nodes; each node could also hold one member of each group."""
    ray_nodes.resize(2)
    run = sweep_on(data, folder, Cluster.ray(4, group=2, cpus=0.5)).launch(progress=False)
    assert hashes(run) == hashes(calm)
    places = {line["worker"]: (line["node"], line["nodes"]) for line in ups(run)}
    assert places.keys() == {"g0", "g1"}
    assert [nodes for _, nodes in places.values()] == [1, 1]
    assert run.record.header["cluster"]["group"] == 2
    assert {unit.worker for unit in run.record.units if unit.kind == "train"} == {"g0", "g1"}


def test_an_elastic_pool_starts_full_groups(ray_nodes: RayNodes, data: Dataset, folder: Path) -> None:
    ray_nodes.resize(3)
    cluster = Cluster.ray(group=2).sized(4)
    pool = RayPool(cluster, sweep_on(data, folder, cluster)._setup(folder))
    try:
        assert pool.workers == ("w0", "w1")
    finally:
        pool.close()
    assert Cluster(**cluster.describe()) == cluster


def test_a_number_of_workers_without_full_groups_is_refused() -> None:
    with pytest.raises(UsageError, match="3 workers cannot be divided into groups of 2"):
        Cluster.ray(3, group=2)
