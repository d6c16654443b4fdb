"""Actors of a real Ray cluster of several nodes keep the contract of a pool, and lose as little as can be."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ray_cluster import RayNodes, wide_fn, wide_loss

from regatta.cluster import Cluster
from regatta.engine.messages import (
    DiskFull,
    Event,
    StateDurable,
    StateLost,
    TaskDone,
    TaskReturned,
    WorkerLost,
    WorkerReady,
    WorkerSetup,
)
from regatta.engine.workers import open_pool
from regatta.engine.workers.base import WorkerPool
from regatta.engine.workers.ray.pool import RayPool
from regatta.errors import RegattaError, UsageError
from regatta.testing.workers import Harness, WorkerPoolContract, write_setup

pytest.importorskip("ray")


@pytest.fixture(autouse=True)
def _connected(nodes: RayNodes) -> None:
    """Pools find the cluster to which this process is connected."""


class TestRayPool(WorkerPoolContract):
    @classmethod
    def open_pool(cls, setup: WorkerSetup, workers: int) -> WorkerPool:
        return open_pool(Cluster.ray(workers, cpus=0.4).sized(3), setup)


class Gated(Harness):
    """Workers whose storage can be shut, so that states stay as they were made."""

    pool: RayPool

    def __init__(self, folder: Path) -> None:
        setup = write_setup(folder)
        setup = replace(setup, recipe_or_pickle=replace(setup.recipe, model_fn=wide_fn, loss_fn=wide_loss))
        self.folder = folder
        storage = f"gated://{folder}/far"
        super().__init__(RayPool(Cluster.ray(2, storage=storage, cpus=0.6).sized(3), setup), setup, folder)

    def shut(self) -> None:
        (self.folder / "shut").touch()

    def open(self) -> None:
        (self.folder / "shut").unlink(missing_ok=True)

    def hear(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        heard: list[Event] = []
        while not enough(heard):
            heard += self.events()
        return heard

    def far(self, state: Path) -> Path:
        return self.folder / "far" / self.folder.name / state.relative_to(self.folder)

    def node(self, worker: str) -> str:
        return str(self.ready[worker].info["node"])


@pytest.fixture(scope="module")
def gated(ray_nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    harness = Gated(tmp_path_factory.mktemp("gated"))
    yield harness
    harness.open()
    harness.pool.close()


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


def test_states_travel_between_nodes_and_never_to_the_controller(gated: Gated) -> None:
    import ray
    from ray.experimental import get_object_locations

    gated.shut()
    first = gated.train(gated.values(), 0)
    assert first.state_out is not None
    gated.pool.submit("w0", first)
    gated.hear(lambda heard: TaskDone in kinds(heard))
    made = gated.pool._states.get(first.state_out)
    assert made is not None
    assert not gated.far(first.state_out).exists(), "the state should not be durable yet"

    second = gated.train(first.values, 1, after=first)
    gated.pool.submit("w1", second)
    (done,) = gated.hear(lambda heard: TaskDone in kinds(heard))
    assert isinstance(done, TaskDone)
    assert done.hop_bytes > 1_000_000
    (found,) = get_object_locations([made.reference]).values()
    assert found["object_size"] >= done.hop_bytes
    assert set(found["node_ids"]) == {gated.node("w0"), gated.node("w1")}
    assert ray.get_runtime_context().get_node_id() not in found["node_ids"]

    gated.open()
    durable = gated.hear(lambda heard: len(heard) == 2)
    assert kinds(durable) == [StateDurable, StateDurable]
    assert gated.far(first.state_out).stat().st_size == done.hop_bytes
    gated.pool.forget(first.state_out)
    assert not gated.far(first.state_out).exists()


def test_a_state_outlives_the_worker_that_made_it(gated: Gated) -> None:
    """Another one makes it durable, from the object that the dead one's node still has."""
    gated.shut()
    task = gated.train(gated.values(), 0)
    gated.pool.submit("w0", task)
    gated.hear(lambda heard: TaskDone in kinds(heard))
    os.kill(gated.ready["w0"].info["pid"], signal.SIGKILL)
    heard = gated.hear(lambda heard: WorkerLost in kinds(heard))
    gated.open()
    heard += gated.hear(lambda more: {StateDurable, WorkerReady} <= set(kinds(heard + more)))
    (durable,) = [event for event in heard if isinstance(event, StateDurable)]
    assert (durable.worker, durable.path) == ("w1", task.state_out)
    assert heard[0] == WorkerLost("w0", "died: Worker unexpectedly exits with a connection error code 2")
    (gated.ready["w0"],) = [event for event in heard if isinstance(event, WorkerReady)]


def test_a_full_storage_is_retried_until_it_takes_the_state(gated: Gated) -> None:
    """Also by a worker that persists the state in place of one that died meanwhile."""
    full = gated.folder / "full"
    full.touch()
    task = gated.train(gated.values(), 0)
    assert task.state_out is not None
    gated.pool.submit("w0", task)
    heard = gated.hear(lambda heard: kinds(heard).count(DiskFull) == 2)
    assert kinds(heard) == [TaskDone, DiskFull, DiskFull]
    assert isinstance(heard[1], DiskFull)
    assert heard[1].worker == "w0"
    assert "The state cannot be written: [Errno 28] No space left on device" in heard[1].error

    os.kill(gated.ready["w0"].info["pid"], signal.SIGKILL)
    heard = gated.hear(lambda heard: any(isinstance(event, DiskFull) and event.worker == "w1" for event in heard))
    assert WorkerLost in kinds(heard)
    full.unlink()
    heard += gated.hear(lambda more: {StateDurable, WorkerReady} <= set(kinds(heard + more)))
    (durable,) = [event for event in heard if isinstance(event, StateDurable)]
    assert (durable.worker, durable.path) == ("w1", task.state_out)
    assert gated.far(task.state_out).exists()
    (gated.ready["w0"],) = [event for event in heard if isinstance(event, WorkerReady)]


def test_a_state_that_is_lost_with_its_node_is_reported(gated: Gated, nodes: RayNodes) -> None:
    gated.shut()
    task = gated.train(gated.values(), 0)
    assert task.state_out is not None
    gated.pool.submit("w0", task)
    gated.hear(lambda heard: TaskDone in kinds(heard))
    after = gated.train(task.values, 1, after=task)
    nodes.remove(gated.node("w0"))
    gated.pool.submit("w1", after)
    heard = gated.hear(lambda heard: StateLost in kinds(heard))
    assert heard[-2:] == [TaskReturned("w1", after), StateLost("w0", task.state_out)]
    assert heard[0] == WorkerLost("w0", "was lost with its node", for_good=True)

    gated.open()
    gated.do({"w1": task})
    gated.do({"w1": after})
    assert after.state_out is not None
    assert gated.far(after.state_out).exists()
    nodes.add()
    (back,) = gated.hear(lambda heard: WorkerReady in kinds(heard))
    assert isinstance(back, WorkerReady)
    assert back.worker == "w0"


def test_an_ended_worker_is_lost_for_the_given_reason(gated: Gated) -> None:
    gated.pool.submit("w1", gated.train(gated.values(sleeps=60.0), 0))
    gated.pool.end("w1", "was ended: too long")
    heard = gated.hear(lambda heard: WorkerReady in kinds(heard))
    assert heard[0] == WorkerLost("w1", "was ended: too long")


def test_a_worker_that_cannot_start_reports_why(tmp_path: Path) -> None:
    """The functions are in a module that the actors do not find."""
    (tmp_path / "vanishing_on_ray.py").write_text("def model_fn(config):\n    return {}\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import vanishing_on_ray  # type: ignore[import-not-found]

        setup = write_setup(tmp_path)
        setup = replace(setup, recipe_or_pickle=replace(setup.recipe, model_fn=vanishing_on_ray.model_fn))
        pool = open_pool(Cluster.ray(1, cpus=0.4).sized(1), setup)
    finally:
        sys.path.remove(str(tmp_path))
    with pytest.raises(RegattaError, match="before it could take work, again and again") as caught:
        pool.start()
        while True:
            assert set(kinds(pool.events())) == {WorkerLost}
    pool.close()
    assert "No module named 'vanishing_on_ray'" in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_missing_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match=f"There is no Ray cluster at {address}: .*refused"):
        open_pool(Cluster.ray(address=address), write_setup(tmp_path))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"Cluster\.ray needs the package 'ray'") as caught:
        open_pool(Cluster.ray(), write_setup(tmp_path))
    assert "pip install '.[ray]'" in str(caught.value)
