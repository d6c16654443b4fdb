"""Groups of workers that exchange gradients through NCCL, on one GPU.

NCCL refuses two processes with one GPU unless it takes them to be on two machines, which a name of its own for each
process's machine makes it do; they then exchange through sockets.

Needs PyTorch, NumPy and what regatta imports: `pytest --noconftest -m gpu tests/engine`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pools import next_event
from processes import is_running, soon
from recipes import model_fn, small_data
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.engine import archiver
from regatta.engine.messages import Task, TaskDone, WorkerReady
from regatta.engine.workers import fork_client, open_pool
from regatta.engine.workers.groups import _WorkerGroup
from regatta.journal.journal_file import read_journal

PAIR = Cluster.local(2, threads=1, device="cuda:0", group=2)
VALUES = {"kind": "adam", "batch_size": 7}
APART = "import os; os.environ.update(NCCL_HOSTID=str(os.getpid()), NCCL_SOCKET_IFNAME='lo', NCCL_IB_DISABLE='1')\n"

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NCCL sees it; groups would choose gloo by themselves. Forked workers would all have one name."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(APART)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(fork_client, "is_supported", lambda: False)
    monkeypatch.setattr(_WorkerGroup, "backend", lambda self: "nccl")
    monkeypatch.setattr(archiver, "MAX_START_ATTEMPTS", 0)


def build(config: dict[str, Any]) -> Any:
    net, *others = model_fn(config)
    return (net.double(), *others)


def loss(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    x, y = batch
    if "waits" in config and model.training and int(model.steps) == 14:
        with contextlib.suppress(FileExistsError):  # the first to come stays until it is killed
            Path(config["waits"]).touch(exist_ok=False)
            threading.Event().wait(120)
    if torch.distributed.is_initialized():
        assert torch.distributed.get_backend() == "nccl"
    return nn.functional.cross_entropy(model(x.double()), y)


def sweep_on(data: Dataset, cluster: Cluster, repo: Path, configs: Any, **options: Any) -> Sweep:
    options = {"loss_fn": loss, "epochs": 3, "seed": 11, "visits": "seeded", "pack": False, **options}
    return Sweep(data, search.configs(configs), build, cluster=cluster, repo=repo, **options)


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return small_data(tmp_path / "data", rows=53)


def test_a_group_trains_like_one_worker_with_the_same_bits_twice(data: Dataset, tmp_path: Path) -> None:
    configs = [{"kind": kind, "batch_size": 7} for kind in ("adam", "momentum", "schedule per step")]
    pair = sweep_on(data, PAIR, tmp_path / "pair", configs).launch(progress=False)
    one = Cluster.local(1, threads=1, device="cuda:0")
    alone = sweep_on(data, one, tmp_path / "alone", configs).launch(progress=False)
    assert {unit.width for unit in pair.record.units if unit.kind == "train"} == {2}
    for config in configs:
        here, there = pair.weights(config), alone.weights(config)
        for name in here:
            np.testing.assert_allclose(here[name], there[name], rtol=1e-9, atol=1e-12)
    report = pair.replay()
    assert (report.units, report.equal, report.left_out) == (36, 36, 0)


def test_a_model_goes_on_after_its_group_lost_a_member(data: Dataset, tmp_path: Path) -> None:
    config = {"kind": "dropout", "batch_size": 7, "waits": str(tmp_path / "waits")}
    run: Run = sweep_on(data, PAIR, tmp_path, [config], epochs=2).launch(wait=False, progress=False)
    assert soon(lambda: (tmp_path / "waits").exists() or run.done())
    before = run.record.workers["g0"].info["members"]
    os.kill(before["w1"], signal.SIGKILL)
    run.result(timeout=300)
    down = [line for line in read_journal(run.folder / "journal.jsonl") if line.get("state") == "down"]
    assert [line["reason"] for line in down] == ["lost w1, which was killed by SIGKILL"]
    after = run.record.workers["g0"].info["members"]
    assert soon(lambda: not any(map(is_running, [*before.values(), *after.values()])))
    report = run.replay()
    assert (report.units, report.equal, report.left_out) == (8, 8, 0)


def test_a_task_may_need_fewer_members(data: Dataset, tmp_path: Path) -> None:
    width = 2
    pool = open_pool(PAIR, sweep_on(data, PAIR, tmp_path, [VALUES])._setup(tmp_path), lambda task: width)
    task = Task("train", "c", VALUES, 1, 0, None, tmp_path / "state")
    try:
        pool.start()
        next_event(pool, WorkerReady)
        for width in (2, 1, 2, 2, 1, 2):
            pool.submit("g0", task)
            assert next_event(pool, TaskDone).width == width
    finally:
        pool.close()


MEMBER = """
import sys, time
from pathlib import Path
import torch
from regatta.frameworks.torch import group as torch_group, rendezvous

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
group = torch_group.join(rendezvous.file_store(folder / "first", 2), rank, 2, "nccl", "cuda:0")
numbers = torch.ones(1000, device="cuda:0")
group.all_reduce_sum(numbers)
assert float(numbers.sum()) == 2000
(folder / "first").unlink(missing_ok=True)
if rank == 1:
    time.sleep(100)  # busy with something else
start = time.perf_counter()
torch_group.join(rendezvous.file_store(folder / "second", 1), 0, 1, "nccl", "cuda:0").all_reduce_sum(numbers)
print(time.perf_counter() - start, flush=True)
"""


def test_a_member_goes_to_another_group_while_the_other_is_busy(tmp_path: Path) -> None:
    members = [
        subprocess.Popen([sys.executable, "-c", MEMBER, tmp_path, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        assert members[0].stdout is not None
        assert float(members[0].stdout.readline()) < 20
    finally:
        for member in members:
            member.kill()
            member.communicate()
