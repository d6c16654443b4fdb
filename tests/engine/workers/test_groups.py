"""Groups of workers train one model together: to the gradients of the whole batch, and to the same bits every time."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pools import next_event
from processes import is_running, soon
from recipes import model_fn, plain_fn, small_data, train_fn
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.engine.messages import Task, TaskDone, WorkerLost, WorkerReady, WorkerSetup
from regatta.engine.workers import groups, open_pool
from regatta.engine.workers.base import WorkerPool
from regatta.engine.workers.groups import GroupPool
from regatta.engine.workers.process import ProcessPool
from regatta.errors import UsageError
from regatta.journal.journal_file import read_journal
from regatta.testing.workers import WorkerPoolContract

EPOCHS, SEED = 3, 11
PAIR = Cluster.local(2, threads=1, device="cpu", group=2)
KINDS = ["adam", "momentum", "schedule per epoch", "schedule per step", "closure", "unused", "tiny batches"]
DRAWING = ["dropout", "norm"]  # what members draw, or see, by themselves
SIZES = {"tiny batches": 1, "norm": 9}  # one member has no rows; the last batch has three, and BatchNorm needs two

pytestmark = pytest.mark.usefixtures("one_thread")


class TestGroupsOfOne(WorkerPoolContract):
    """The models of the suite are NumPy's, which only groups of one can train."""

    @classmethod
    def open_pool(cls, setup: WorkerSetup, workers: int) -> WorkerPool:
        pool = ProcessPool(Cluster.local(workers, threads=1).sized(3), setup)
        return GroupPool(pool, 1, setup.logs / "meetings")


class Unused(nn.Module):
    """A part that never has a gradient; weight decay would change it if it had one of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class Descent(torch.optim.SGD):
    """Asks for its loss and gradients by itself, twice a step."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        closure()
        loss = closure()
        super().step()
        return loss


class Breaking(torch.optim.SGD):
    """Fails in the second member alone, after gradients were exchanged."""

    def step(self, closure: Any = None) -> Any:
        if rank() == 1:
            raise ArithmeticError("no step for me")
        return super().step(closure)


def rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def build(config: dict[str, Any]) -> Any:
    """In double precision, so that other sums of the same gradients are close."""
    kind, fails = config["kind"], config.get("fails")
    if kind == "numpy":
        return plain_fn({"lr": 0.1})
    if fails == f"build in rank {rank()}":
        raise LookupError("no such layer here")
    if kind == "closure":
        net: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        return net, Descent(net.parameters(), lr=0.1)
    if kind == "unused":
        net = Unused().double()
        return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    net, optimizer, *schedule = model_fn(config)
    net.double()
    if fails == "step":
        optimizer = Breaking(net.parameters(), lr=0.1)
    if fails == "other weights":
        net.layers[0].bias.data += rank()
    return (net, optimizer, *schedule)


def loss(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    x, y = batch
    if config.get("fails") == f"loss in rank {rank()}" and model.training:
        raise ValueError("cannot train here")
    if "waits" in config and model.training and int(model.steps) == 14:
        wait_once(Path(config["waits"]))
    return nn.functional.cross_entropy(
        model(x.double()), y, reduction="sum" if config.get("fails") == "sum" else "mean"
    )


def wait_once(folder: Path) -> None:
    """The first to come says so, and stays until it is killed."""
    with contextlib.suppress(FileExistsError):
        (folder / "waits").touch(exist_ok=False)
        threading.Event().wait(120)


def accuracy(data: Any, model: Any, config: dict[str, Any]) -> dict[str, float]:
    x, y = data
    return {"accuracy": float((model(x.double()).argmax(1) == y).float().mean())}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """In batches of seven the last of a partition is short, and one partition is smaller than a batch."""
    return small_data(tmp_path_factory.mktemp("data"), rows=53)


def sweep_on(data: Dataset, cluster: Cluster, repo: Path, configs: Any = None, **options: Any) -> Sweep:
    usual = [{"kind": kind, "batch_size": SIZES.get(kind, 7)} for kind in (*KINDS, *DRAWING)]
    options = {"loss_fn": loss, "eval_fn": accuracy, "epochs": EPOCHS, "seed": SEED, "visits": "seeded", **options}
    return Sweep(data, search.configs(configs or usual), build, cluster=cluster, repo=repo, pack=False, **options)


@pytest.fixture(scope="module")
def pair(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return sweep_on(data, PAIR, tmp_path_factory.mktemp("pair")).launch(progress=False)


@pytest.fixture(scope="module")
def alone(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return sweep_on(data, Cluster.inline(1), tmp_path_factory.mktemp("alone")).launch(progress=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_trains_like_one_worker(pair: Run, alone: Run, kind: str) -> None:
    config = next(config for config in pair.record.configs.values() if config.values["kind"] == kind)
    assert config.status == "done"
    here, there = pair.weights(config.id), alone.weights(config.id)
    assert here.keys() == there.keys()
    for name in here:
        np.testing.assert_allclose(here[name], there[name], rtol=1e-9, atol=1e-12)
    assert any(here[name].tobytes() != pair.weights(config.id, 1)[name].tobytes() for name in here)
    for epoch, metrics in config.reports.items():
        assert metrics == pytest.approx(alone.record.configs[config.id].reports[epoch], rel=1e-9)


@pytest.mark.parametrize("kind", DRAWING)
def test_members_have_their_own_random_numbers_and_rows(pair: Run, alone: Run, kind: str) -> None:
    """Dropout of the second member is not that of one worker alone; statistics of both are in the state."""
    config = pair.find({"kind": kind, "batch_size": SIZES.get(kind, 7)})
    assert config.status == "done"
    here, there = pair.weights(config.id), alone.weights(config.id)
    assert any(not np.allclose(here[name], there[name], rtol=1e-9) for name in here)
    assert here["steps"] == there["steps"]  # though the second member saw no row of some batches


def test_batch_statistics_are_means_over_rows(pair: Run, alone: Run) -> None:
    """Means of the members' means: close to those of whole batches, whatever the weights have become."""
    here, there = (run.weights({"kind": "norm", "batch_size": 9}, 1) for run in (pair, alone))
    means = [name for name in here if name.endswith("running_mean")]
    assert means
    for name in means:
        np.testing.assert_allclose(here[name], there[name], rtol=0.5, atol=0.3)


def test_the_same_group_gives_the_same_bits(pair: Run) -> None:
    report = pair.replay()
    assert (report.units, report.equal, report.left_out) == (len(KINDS + DRAWING) * EPOCHS * 4,) * 2 + (0,)


def test_the_journal_records_groups(pair: Run) -> None:
    lines = read_journal(pair.folder / "journal.jsonl")
    worker = next(line for line in lines if line["event"] == "worker")
    assert (worker["worker"], worker["width"], sorted(worker["members"])) == ("g0", 2, ["w0", "w1"])
    assert worker["pid"] == worker["members"]["w0"]
    units = [unit for unit in pair.record.units if unit.kind != "pilot"]
    assert {unit.width for unit in units} == {2}
    assert all(0 < unit.sync_seconds < unit.seconds for unit in units)
    assert pair.record.device_seconds == pytest.approx(2 * sum(unit.seconds for unit in units))
    assert pair.record.header["cluster"]["group"] == 2


def test_no_process_is_left_behind(pair: Run) -> None:
    pids = pair.record.workers["g0"].info["members"].values()
    assert soon(lambda: not any(map(is_running, pids)))
    assert not (pair.folder / "logs" / "meetings").exists()


def test_a_model_goes_on_after_its_group_lost_a_member(data: Dataset, tmp_path: Path) -> None:
    """It goes on from its last state, with the bits of an undisturbed run; later with one worker."""
    config = {"kind": "dropout", "batch_size": 7, "waits": str(tmp_path)}
    run = sweep_on(data, PAIR, tmp_path, [config], epochs=2).launch(wait=False, progress=False)
    assert soon(lambda: (tmp_path / "waits").exists() or run.done())
    before = run.record.workers["g0"].info["members"]
    os.kill(before["w1"], signal.SIGKILL)  # it waits for the other's gradients
    run.result(timeout=300)
    down = [line for line in read_journal(run.folder / "journal.jsonl") if line.get("state") == "down"]
    assert [line["reason"] for line in down] == ["lost w1, which was killed by SIGKILL"]
    after = run.record.workers["g0"].info["members"]
    assert not set(before.values()) & set(after.values())
    assert soon(lambda: not any(map(is_running, [*before.values(), *after.values()])))
    run.extend(config, 1)
    run.go_on(sweep_on(data, Cluster.inline(1), tmp_path, [config], epochs=2), progress=False)
    widths = {(unit.epoch, unit.width) for unit in run.record.units if unit.kind == "train"}
    assert sorted(widths) == [(1, 2), (2, 2), (3, 1)]
    report = run.replay()  # the file exists, so no worker waits or dies
    assert (report.units, report.equal, report.left_out) == (12, 12, 0)


FAILURES = {
    "loss in rank 1": "ValueError: cannot train here",
    "build in rank 1": "LookupError: no such layer here",
    "sum": "loss_fn gives",
    "other weights": "model_fn gave the workers of a group different models",
    "step": "ArithmeticError: no step for me",
    "numpy": "A group of 2 workers cannot train a model of numpy",
}


def test_a_failure_in_one_member_is_a_failure_of_the_configuration(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four models that can be trained, on two groups, beside some that cannot."""
    monkeypatch.setattr(groups, "GROUP_ANSWER_TIMEOUT_S", 2.0)
    good = [{"kind": kind, "batch_size": SIZES.get(kind, 7)} for kind in ("adam", "momentum", "norm", "dropout")]
    bad = [{"kind": "numpy" if fails == "numpy" else "adam", "batch_size": 7, "fails": fails} for fails in FAILURES]
    cluster = Cluster.local(4, threads=1, device="cpu", group=2)
    run = sweep_on(data, cluster, tmp_path, [*good, *bad], epochs=2).launch(progress=False)
    assert run.record.status == "done"
    for config in good:
        assert run.find(config).status == "done"
    for config in bad:
        assert FAILURES[str(config["fails"])] in (run.find(config).error or "")
    assert {unit.worker for unit in run.record.units if unit.kind == "train"} == {"g0", "g1"}


def test_a_task_may_need_fewer_members_and_a_group_is_ended_whole(data: Dataset, tmp_path: Path) -> None:
    width = 2
    pool = open_pool(PAIR, sweep_on(data, PAIR, tmp_path)._setup(tmp_path), lambda task: width)
    values = {"kind": "adam", "batch_size": 7, "waits": str(tmp_path)}
    task = Task("train", "c", values, 1, 0, None, tmp_path / "state")
    try:
        pool.start()
        members = next_event(pool, WorkerReady).info["members"]
        for width in (1, 2, 1, 2):
            pool.submit("g0", task)
            assert next_event(pool, TaskDone).width == width
        pool.submit("g0", replace(task, values={**values, "batch_size": 1}))
        assert soon((tmp_path / "waits").exists)
        pool.end("g0", "took too long")
        assert next_event(pool, WorkerLost) == WorkerLost("g0", "lost w0, which took too long")
        assert soon(lambda: not any(map(is_running, members.values())))
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"group": 0}, "group is 0; it must be a whole number from 1"),
        ({"group": True}, "group is True"),
        ({"workers": 3, "group": 2}, "3 workers cannot be divided into groups of 2"),
    ],
)
def test_wrong_groups_are_refused(options: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Cluster.local(**options)


def test_inline_workers_cannot_form_groups() -> None:
    with pytest.raises(UsageError, match="group=2 on inline workers, which take turns"):
        Cluster("inline", 2, group=2)


def test_groups_are_sized_by_cores_and_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    sized = Cluster.local(device="cpu", group=2).sized(3)
    assert (sized.workers, sized.threads, sized.group) == (6, 1, 2)
    assert Cluster.local(device="cpu", group=3).sized(9).workers == 6
    assert Cluster.local(device="cpu", group=16).sized(9).workers == 16
    assert Cluster(**sized.describe()) == sized


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"train_fn": train_fn, "loss_fn": None}, "cannot divide the work of train_fn among them"),
        ({"framework": "numpy"}, "cannot train a model of numpy"),
    ],
)
def test_recipes_that_groups_cannot_train_are_refused_at_once(
    data: Dataset, tmp_path: Path, options: Any, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        sweep_on(data, PAIR, tmp_path, **options).launch(progress=False)
