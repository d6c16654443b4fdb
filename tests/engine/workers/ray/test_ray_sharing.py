"""Preprocessing shared by models on Ray: the same bits as without, made once, whatever dies, and let go of."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transforms
from processes import is_running, soon
from ray_cluster import RayNodes
from recipes import small_data
from transforms import linear_fn, logged_lines, noisy, squares

from regatta import Cluster, Dataset, Run, Sweep, open_run, search
from regatta.data.sharing import Sharing
from regatta.engine.controller import faults
from regatta.engine.messages import Recipe, SharingPlan, WorkerSetup
from regatta.engine.sharing.block_reader import BlockReader
from regatta.engine.sharing.ledger import BlockKey
from regatta.engine.sharing.preprocess import ROWS_PER_CALL, Preprocessor
from regatta.engine.workers.ray.preprocess_worker import open_ray_sharing
from regatta.engine.workers.ray.session import RaySession
from regatta.engine.workers.ray.shared_blocks import BrokerChannel
from regatta.errors import PausedError
from regatta.seeds import derive_seed

pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("one_thread", "nodes")
RAY = Cluster.ray(2, cpus=0.4)
CONFIGS = [{"lr": rate, "batch_size": 20} for rate in (0.1, 0.03, 0.01)]
EPOCHS, TIMES = 2, 100
KEYS = [BlockKey("train", partition, epoch) for epoch in (1, 2, 3) for partition in (0, 1)]
BLOCK = 300 * 6 * 4 * TIMES  # bytes, and some for the labels: too much to travel with a message


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two partitions, each of more than one piece."""
    return small_data(tmp_path_factory.mktemp("data"), rows=800, proportions=(1, 1), eval_partitions=1)


def sweep(data: Dataset, folder: Path, transform: Any, cluster: Cluster = RAY, **more: Any) -> Sweep:
    options = {"visits": "seeded", "epochs": EPOCHS, "pack": False, "share": True, **more}
    return Sweep(
        data, search.configs(CONFIGS), linear_fn, loss_fn=squares, transform_fn=transform, cluster=cluster,
        repo=folder, **options,
    )  # fmt: skip


def hashes(run: Run) -> dict[Any, Any]:
    return {(unit.config, unit.epoch, unit.partition): unit.hash for unit in run.record.units if unit.kind == "train"}


def seeds(data: Dataset, epochs: range) -> list[str]:
    pieces = [(j, start) for j, part in enumerate(data.train) for start in range(0, part.rows or 0, ROWS_PER_CALL)]
    return [str(derive_seed(0, "transform", epoch, *piece)) for epoch in epochs for piece in pieces]


# -- whole runs ----------------------------------------------------------------------------------------------


def test_shared_on_ray_or_not_the_bits_are_the_same(data: Dataset, tmp_path: Path) -> None:
    log, reads = tmp_path / "made", tmp_path / "read"
    read = partial(transforms.read_noted, log=reads)
    run = sweep(data, tmp_path / "ray", partial(noisy, log=log), input_fn=read).launch(progress=False)
    alone = sweep(data, tmp_path / "inline", noisy, Cluster.inline(), share=False).launch(progress=False)
    assert hashes(run) == hashes(alone) and len(set(hashes(run).values())) == len(CONFIGS) * EPOCHS * 2

    made = Counter(seed for _, seed in logged_lines(log))
    assert {made[seed] for seed in seeds(data, range(1, EPOCHS + 1))} == {1}
    assert Counter(name for _, name in logged_lines(reads)) == {part.path.name: 1 for part in (*data.train, *data.eval)}
    workers = {worker.info["pid"] for worker in run.record.workers.values()}
    preprocessing = {int(pid) for pid, seed in logged_lines(log) if seed in seeds(data, range(1, EPOCHS + 1))}
    assert preprocessing.isdisjoint(workers)
    assert soon(lambda: not any(map(is_running, preprocessing | workers)))


def test_a_transform_that_raises_pauses_the_run_with_its_traceback(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "DELAYS_S", (0.01, 0.02))
    raises = partial(transforms.fails_for, seeds={int(seed) for seed in seeds(data, range(2, 3))})
    with pytest.raises(PausedError, match="ValueError: cannot augment") as caught:
        sweep(data, tmp_path, raises, name="raises").launch(progress=False)
    assert "in fails_for" in str(caught.value) and "regatta/engine" not in str(caught.value)
    run = open_run("raises", tmp_path)
    assert (run.record.status, {config.error for config in run.record.configs.values()}) == ("interrupted", {None})
    assert {unit.epoch for unit in run.record.units if unit.kind == "train"} == {1}


# -- blocks --------------------------------------------------------------------------------------------------


def wide(batch: Any, seed: int, then: Callable[..., Any] = noisy) -> Any:
    """Rows that are long enough to go through the object store."""
    x, y = then(batch, seed)
    return np.repeat(x, TIMES, axis=1), y


def wide_read(path: Path, log: Path) -> Any:
    import ray

    log.with_suffix(".node").write_text(ray.get_runtime_context().get_node_id())
    x, y = transforms.read_noted(path, log)
    return np.repeat(x, TIMES, axis=1), y


def probe() -> type:
    """Within a function, so that it travels as it is: actors do not find this module."""

    class Probe:
        """A reader in an actor, without a worker around it."""

        def __init__(self, private: bool) -> None:
            self.line = BrokerChannel()
            self.line.copy_blocks = private
            self.reader = BlockReader(self.line)
            self.found: Any = None

        def ask(self) -> Any:
            return self.line.take_sent()

        def answer(self, message: Any, reference: Any) -> None:
            self.line.deliver(message, reference)

        def get(self, key: BlockKey, models: list[str]) -> Any:
            """What is found, a copy of it, and whether it can be written to."""
            self.found = self.reader.get(key, models)
            return None if self.found is None else ([part.copy() for part in self.found], self.found[0].flags.writeable)

        def write(self) -> None:
            self.found[0][:] = 0

        def release(self, key: BlockKey) -> None:
            self.found = None
            self.reader.release(key)

    return Probe


class Harness:
    """A broker on Ray with probes as its readers."""

    def __init__(self, data: Dataset, folder: Path, transform: Any, settings: Sharing, input_fn: Any) -> None:
        made = Recipe(linear_fn, squares, transform_fn=transform, input_fn=input_fn)
        plan = SharingPlan(settings, len(CONFIGS), EPOCHS, input_fn is not None, True)
        train, held = (tuple(part.path for part in kind) for kind in (data.train, data.eval))
        self.setup = WorkerSetup(made, 0, train, held, folder / "logs", plan)
        cluster = RAY.sized(2)
        self.session = RaySession(cluster)
        found = open_ray_sharing(self.session, cluster, self.setup)
        assert found is not None
        self.blocks, self.broker = found, found.broker
        self.actors: list[Any] = []

    def reader(self, name: str, node: str | None = None, private: bool = False) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = node or self.nodes()[0]
        groups = {"ask": 1, "answer": 1, "read": 1}
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        kind = ray.remote(concurrency_groups=groups)(probe()).options(num_cpus=0, scheduling_strategy=where)
        self.actors.append(kind.remote(private))
        self.blocks.add_reader(name, self.actors[-1])
        self.blocks.on_worker_up(name, node)
        return self.actors[-1]

    def nodes(self) -> list[str]:
        return [node for node, cores in self.session.cores().items() if cores]

    def right(self, key: BlockKey) -> Any:
        preprocessor = Preprocessor(self.setup)
        return preprocessor.transform(preprocessor.read("train", key.partition), key.partition, key.epoch or 0)

    def close(self) -> None:
        self.broker.close()
        for actor in self.actors:
            self.session.kill(actor)


def call(actor: Any, name: str, *arguments: Any) -> Any:
    import ray

    return ray.get(getattr(actor, name).options(concurrency_group="read").remote(*arguments), timeout=300)


def equal(found: Any, wanted: Any) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.fixture
def opened(data: Dataset, tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    harnesses: list[Harness] = []

    def opened(transform: Any = wide, input_fn: Any = None, **settings: Any) -> Harness:
        bounds = Sharing(**{"memory": 10**8, "disk": 0, **settings})
        harnesses.append(Harness(data, tmp_path, transform, bounds, input_fn))
        return harnesses[-1]

    yield opened
    for harness in harnesses:
        harness.close()


def test_readers_share_one_block_and_release_it(opened: Any) -> None:
    """There is room for two blocks: released blocks are dropped, and free their part of the store."""
    import ray

    harness = opened(memory=int(2.5 * BLOCK))
    free = ray.available_resources()["object_store_memory"]
    own, other = harness.nodes()
    readers = [harness.reader("r0", own), harness.reader("r1", other), harness.reader("r2", own, private=True)]
    for key in (*KEYS, KEYS[0]):
        for reader, private in zip(readers, (False, False, True), strict=True):
            found, writable = call(reader, "get", key, ["m0", "m1"])
            assert equal(found, harness.right(key)) and writable == private
        call(readers[2], "write")  # that is for itself alone
        assert equal(call(readers[0], "get", key, ["m0"])[0], harness.right(key))
        for reader in readers:
            call(reader, "release", key)
    assert len(harness.broker.preprocess_workers()) == 1
    assert 1 <= len(harness.broker._blocks) <= 2
    assert soon(lambda: ray.available_resources()["object_store_memory"] < free)
    harness.close()
    assert soon(lambda: ray.available_resources()["object_store_memory"] >= free)


def test_a_killed_preprocess_worker_is_replaced_and_its_block_made_again(opened: Any, tmp_path: Path) -> None:
    harness = opened(partial(wide, then=partial(transforms.dies_once, mark=tmp_path / "died")))
    reader = harness.reader("r0")
    found, _ = call(reader, "get", KEYS[0], ["m0"])
    assert (tmp_path / "died").exists() and equal(found, harness.right(KEYS[0]))
    for idle in harness.broker.preprocess_workers():
        os.kill(idle, signal.SIGKILL)
    assert equal(call(reader, "get", KEYS[5], ["m0"])[0], harness.right(KEYS[5]))


@pytest.mark.slow
def test_blocks_lost_with_their_node_are_made_again(opened: Any, nodes: RayNodes, tmp_path: Path) -> None:
    """One that is transformed, and the one that it was made from."""
    log, reads = tmp_path / "made", tmp_path / "read"

    def made_at(goes: str) -> Harness | None:
        """A harness whose preprocess worker is on that node: Ray may choose another while nodes are new."""
        log.write_text("")
        reads.write_text("")
        harness: Harness = opened(partial(noisy, log=log), input_fn=partial(wide_read, log=reads))
        for worker in ("busy", "also busy"):
            harness.blocks.on_worker_up(worker, next(node for node in harness.nodes() if node != goes))
        assert call(harness.reader("r0", goes), "get", KEYS[0], ["m0"]) is not None
        if reads.with_suffix(".node").read_text() == goes:
            return harness
        harness.close()
        return None

    stays, goes = [node for node, cores in RaySession(RAY).cores().items() if cores]
    harness = next(filter(None, (made_at(goes) for _ in range(10))))
    nodes.remove(goes)
    found, _ = call(harness.reader("r1", stays), "get", KEYS[0], ["m1"])
    made = Counter(seed for _, seed in logged_lines(log))
    read = Counter(name for _, name in logged_lines(reads))
    assert made[str(derive_seed(0, "transform", 1, 0, 0))] == read[harness.setup.train[0].name] == 2
    assert equal(found, harness.right(KEYS[0]))


def test_workers_preprocess_where_sharing_does_not_pay_or_fit(opened: Any) -> None:
    idle = opened(always=None)
    assert call(idle.reader("r0"), "get", KEYS[0], ["m0"]) is None
    assert idle.broker.preprocess_workers() == []
    small = opened(memory=1000)
    reader = small.reader("r0")
    assert call(reader, "get", KEYS[0], ["m0"]) is None
    small.broker.close()
    assert call(reader, "get", KEYS[1], ["m0"]) is None
