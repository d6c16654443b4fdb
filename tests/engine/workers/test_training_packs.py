"""Models that are trained side by side end with the bits that they have alone, whatever happens to the others."""

from __future__ import annotations

import itertools
import math
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes import WIDTH, small_data
from recipes import model_fn as kinds_fn
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, open_run, search
from regatta.engine.profiling import packs
from regatta.engine.replay import replay
from regatta.errors import UsageError
from regatta.journal.journal_file import read_journal
from regatta.search.base import Action, Goal, Report, Stop, Train

pytestmark = pytest.mark.usefixtures("one_thread")
INLINE = Cluster(workers=1, kind="inline")
RATES = [0.1, 0.05, 0.02, 0.01]


def model_fn(config: dict[str, Any]) -> Any:
    """Two layers without buffers, which packs can stack; `act` and `kind` say what is between and behind them."""
    if "kind" in config:
        return kinds_fn(config)
    if config.get("fails") == "build":
        raise ValueError("no such model")
    act = nn.Tanh() if config.get("act") == "tanh" else nn.ReLU()
    net = nn.Sequential(nn.Linear(WIDTH, 8), act, nn.Dropout(config.get("drop", 0.0)), nn.Linear(8, 3))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model: nn.Module, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    if config.get("fails") == "loss":
        raise ValueError("no such loss")
    if config.get("fails") == "exit":
        sys.exit("no more")
    time.sleep(config.get("sleeps", 0.0) + config.get("train_sleeps" if model.training else "eval_sleeps", 0.0))
    return loss * float("nan") if config.get("fails") == "nan" else loss


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """One partition: the order of visits is the same in every run."""
    return small_data(tmp_path_factory.mktemp("data"), rows=150, proportions=(1,))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("parts"), rows=150)


def launched(data: Dataset, space: Any, repo: Path, pack: bool | None, **options: Any) -> Run:
    options = {"epochs": 3, "cluster": INLINE, **options}
    sweep = Sweep(data, space, model_fn, loss_fn=loss_fn, repo=repo, pack=pack, **options)
    return sweep.launch(progress=False, resume=False)


def hashes(run: Run) -> dict[tuple[str, int, int], str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


def packed(run: Run) -> set[str | None]:
    return {unit.pack for unit in run.record.units if unit.kind == "train"}


KINDS = ["adam", "momentum", "dropout", "norm", "schedule per epoch", "schedule per step"]
SPACES = {
    "one build": search.grid(lr=RATES, batch_size=[7]),
    "two activations": search.grid(lr=RATES[:2], act=["relu", "tanh"], batch_size=[7]),
    "dropout": search.grid(lr=RATES, drop=[0.3], batch_size=[7]),
    "two batch sizes": search.grid(lr=RATES[:2], batch_size=[7, 16]),
    "all kinds": search.grid(kind=KINDS, lr=[0.01, 0.02], batch_size=[7]),
}


@pytest.mark.parametrize("name", SPACES)
def test_a_packed_run_has_the_bits_of_an_unpacked_one(whole: Dataset, tmp_path: Path, name: str) -> None:
    alone = launched(whole, SPACES[name], tmp_path, False)
    together = launched(whole, SPACES[name], tmp_path, True)
    assert packed(alone) == {None}
    assert packed(together) != {None}
    assert hashes(together) == hashes(alone)
    for config in alone.record.configs.values():
        assert together.record.configs[config.id].reports == config.reports
    assert together.record.status == "done"


def test_packs_hop_between_workers_and_are_replayed(parts: Dataset, tmp_path: Path) -> None:
    run = launched(parts, search.grid(lr=RATES, batch_size=[7]), tmp_path, True, cluster=Cluster.local(2, threads=1))
    assert packed(run) == {"pack-1", "pack-2"}  # one for each worker
    assert replay(run.sweep(), run.record).ok
    units = [unit for unit in run.record.units if unit.kind == "train"]
    assert len(units) == 4 * 3 * len(parts.train)
    assert set(Counter((u.config, u.epoch, u.partition) for u in units).values()) == {1}
    for worker in {unit.worker for unit in units}:  # each member has its share of the time, and no more
        spans = sorted((u.start, u.end) for u in run.record.units if u.worker == worker)
        assert all(after[0] >= before[1] - 1e-4 for before, after in itertools.pairwise(spans))


def test_a_member_that_diverges_does_not_disturb_others(whole: Dataset, tmp_path: Path) -> None:
    good = [{"lr": lr, "batch_size": 7} for lr in RATES]
    bad = {"lr": 0.1, "batch_size": 7, "fails": "nan"}
    alone = launched(whole, search.configs(good), tmp_path, False)
    run = launched(whole, search.configs([*good, bad]), tmp_path, True)
    assert {key: digest for key, digest in hashes(run).items() if key in hashes(alone)} == hashes(alone)
    assert run.find(bad).status == "done"
    assert any("nan" in text for level, text in run.record.notes if level == "warning")


def test_a_member_that_raises_fails_alone(whole: Dataset, tmp_path: Path) -> None:
    good = [{"lr": lr, "batch_size": 7} for lr in RATES]
    bad = [{"lr": 0.1, "batch_size": 7, "fails": how} for how in ("build", "loss")]
    alone = launched(whole, search.configs(good), tmp_path, False)
    run = launched(whole, search.configs([*good, *bad]), tmp_path, True)
    assert hashes(run) == hashes(alone)
    assert [run.find(config).error for config in bad] == ["ValueError: no such model", "ValueError: no such loss"]


def spoiling_fn(data: Any, model: nn.Module, config: dict[str, Any]) -> dict[str, float]:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return {"nothing": 0.0}


def test_an_eval_fn_that_changes_its_model_does_not_disturb_training(whole: Dataset, tmp_path: Path) -> None:
    space = search.grid(lr=RATES, batch_size=[7])
    alone = launched(whole, space, tmp_path, False, eval_fn=spoiling_fn)
    together = launched(whole, space, tmp_path, True, eval_fn=spoiling_fn)
    assert hashes(together) == hashes(alone)


class LateFailure(nn.Module):
    """Raises in the second epoch, which no pilot reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += 1
            if int(self.seen) > 20:
                raise RuntimeError("worn out")
        return self.layer(x)


def wearing_fn(config: dict[str, Any]) -> Any:
    net: nn.Module = LateFailure() if config.get("wears") else nn.Sequential(nn.Linear(WIDTH, 3))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def test_a_member_that_raises_in_the_middle_fails_alone(whole: Dataset, tmp_path: Path) -> None:
    configs = [{"lr": 0.1, "batch_size": 7, "wears": True}, *({"lr": lr, "batch_size": 7} for lr in RATES)]
    found = {}
    for pack in (False, True):
        sweep = Sweep(
            whole, search.configs(configs), wearing_fn, loss_fn=loss_fn, epochs=3, cluster=INLINE, repo=tmp_path,
            pack=pack,
        )  # fmt: skip
        found[pack] = sweep.launch(progress=False, resume=False)
        assert found[pack].find(configs[0]).error == "RuntimeError: worn out"
    assert packed(found[True]) != {None}
    assert hashes(found[True]) == hashes(found[False])


class Culling:
    """Stops all but the two of the least learning rate after the first epoch, and asks for two more of those."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "culling"}

    def start(self, goal: Goal) -> list[Action]:
        return [Train({"lr": lr, "batch_size": 7}, 2) for lr in RATES]

    def hear(self, report: Report) -> list[Action]:
        if report.epoch == 1 and float(report.values["lr"]) > 0.03:  # type: ignore[arg-type]
            return [Stop(report.config)]
        if report.epoch == 2:
            return [Train(dict(report.values), 4)]
        return []


@pytest.mark.parametrize("space", ["culling", "hyperband", "pbt"])
def test_searches_decide_the_same_without_packs(whole: Dataset, tmp_path: Path, space: str) -> None:
    made = {
        "culling": Culling,
        "hyperband": lambda: search.hyperband(lr=search.loguniform(1e-3, 1e-1), batch_size=[7], R=9, eta=3),
        "pbt": lambda: search.pbt(
            lr=search.loguniform(1e-3, 1e-1), batch_size=[7], population=4, every=2, mutate={"lr": search.factor(2.0)}
        ),
    }[space]
    options = {"epochs": 9 if space == "hyperband" else 4}
    alone = launched(whole, made(), tmp_path, False, **options)
    together = launched(whole, made(), tmp_path, True, **options)
    assert packed(together) != {None}
    assert hashes(together) == hashes(alone)
    for config in alone.record.configs.values():
        again = together.record.configs[config.id]
        assert (again.epochs, again.status, again.parent) == (config.epochs, config.status, config.parent)


def test_a_worker_that_dies_with_a_pack_changes_nothing(whole: Dataset, tmp_path: Path) -> None:
    space = search.configs([{"lr": lr, "batch_size": 7, "sleeps": 0.01} for lr in RATES])
    alone = launched(whole, space, tmp_path, False)
    sweep = Sweep(
        whole, space, model_fn, loss_fn=loss_fn, epochs=3, cluster=Cluster.local(1, threads=1), repo=tmp_path, pack=True
    )
    run = sweep.launch(progress=False, wait=False, resume=False)
    _kill_one_under_a_pack(run)
    run.result(timeout=300)
    assert hashes(run) == hashes(alone)
    units = Counter((u.config, u.kind, u.epoch, u.partition) for u in run.record.units if u.kind != "pilot")
    assert set(units.values()) == {1}
    assert None not in packed(run), "no member is to blame for a worker that was killed from outside"


def _kill_one_under_a_pack(run: Run) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        begun = any(unit.pack is not None for unit in run.record.units)
        for worker in list(run.record.workers.values()):
            if begun and worker.running is not None and worker.running[0] == "train":
                os.kill(worker.info["pid"], signal.SIGKILL)
                return
        time.sleep(0.005)
    raise AssertionError("no pack was ever trained")


@pytest.mark.slow
def test_a_run_with_packs_is_resumed(whole: Dataset, tmp_path: Path) -> None:
    space = search.configs([{"lr": lr, "batch_size": 7, "sleeps": 0.01} for lr in RATES])
    alone = launched(whole, space, tmp_path, False)
    sweep = Sweep(
        whole, space, model_fn, loss_fn=loss_fn, epochs=3, cluster=Cluster.local(1, threads=1), repo=tmp_path,
        pack=True, name="halted",
    )  # fmt: skip
    run = sweep.launch(progress=False, wait=False)
    end = time.monotonic() + 300
    while not any(unit.pack for unit in run.record.units) and time.monotonic() < end:
        time.sleep(0.005)
    run.halt()
    assert run.record.status == "interrupted"
    again = sweep.launch(progress=False)
    assert again.name == run.name
    assert hashes(again) == hashes(alone)
    names = {line["pack"] for line in read_journal(again.folder / "journal.jsonl") if line.get("pack")}
    assert len(names) > 1


def test_tiny_models_are_packed_where_it_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_STEP_SECONDS", "MAX_COST_SHARE"):  # a busy machine takes long for a step
        monkeypatch.setattr(packs, limit, math.inf)
    data = small_data(tmp_path / "data", rows=3000, proportions=(1,))
    space = search.grid(lr=[0.1 / (i + 1) for i in range(12)], batch_size=[8])
    run = launched(data, space, tmp_path, None)
    measured = [line for line in read_journal(run.folder / "journal.jsonl") if line["event"] == "packs"]
    assert len(measured) == 1
    assert (packed(run) != {None}) == (measured[0]["gain"] > 1.5) or 1.0 < measured[0]["gain"] < 2.0
    assert launched(data, search.grid(lr=[0.1], batch_size=[8]), tmp_path, None).record.status == "done"


def test_pack_is_true_false_or_none(whole: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pack is 'yes'"):
        launched(whole, search.grid(lr=[0.1], batch_size=[7]), tmp_path, "yes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not trained on Ray"):
        launched(whole, search.grid(lr=[0.1], batch_size=[7]), tmp_path, True, cluster=Cluster.ray(1))
    with pytest.raises(UsageError, match="not trained by groups"):
        launched(whole, search.grid(lr=[0.1], batch_size=[7]), tmp_path, True, cluster=Cluster.local(2, group=2))


def test_a_member_that_exits_fails_alone(whole: Dataset, tmp_path: Path) -> None:
    good = [{"lr": lr, "batch_size": 7} for lr in RATES]
    bad = {"lr": 0.3, "batch_size": 7, "fails": "exit"}
    alone = launched(whole, search.configs(good), tmp_path, False)
    run = launched(whole, search.configs([*good, bad]), tmp_path, True)
    assert run.find(bad).error == "SystemExit: no more"
    assert hashes(run) == hashes(alone)


def test_a_worker_dies_that_evaluates_a_pack_which_trains_elsewhere(whole: Dataset, tmp_path: Path) -> None:
    epochs = 6  # in one of the first, an evaluation runs beside the next epoch of its pack
    slow = {"batch_size": 7, "train_sleeps": 0.01, "eval_sleeps": 0.025}
    space = search.configs([{"lr": lr, **slow} for lr in RATES])
    sweep = Sweep(
        whole, space, model_fn, loss_fn=loss_fn, epochs=epochs, cluster=Cluster.local(2, threads=1),
        repo=tmp_path, pack=True,
    )  # fmt: skip
    run = sweep.launch(progress=False, wait=False, resume=False)
    _kill_an_evaluating_worker(run)
    run.result(timeout=300)
    assert run.record.status == "done"
    units = Counter((u.config, u.kind, u.epoch, u.partition) for u in run.record.units if u.kind != "pilot")
    assert len(units) == 4 * epochs * (len(whole.train) + len(whole.eval))
    assert set(units.values()) == {1}
    assert all(sorted(config.reports) == list(range(1, epochs + 1)) for config in run.record.configs.values())


def _kill_an_evaluating_worker(run: Run) -> None:
    """Kill the worker of an evaluation while the next epoch of the same pack trains."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        running = [(worker, worker.running) for worker in list(run.record.workers.values()) if worker.running]
        trained = {unit[1] for _, unit in running if unit[0] == "train"}
        for worker, unit in running:
            if unit[0] == "eval" and unit[1] in trained:
                os.kill(worker.info["pid"], signal.SIGKILL)
                return
        time.sleep(0.002)
    raise AssertionError("no pack was evaluated while it was trained")


def test_a_resumed_run_has_a_pack_for_each_worker(whole: Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"repo": tmp_path, "pack": True, "epochs": 1, "cluster": Cluster.local(2, threads=1)}
    space = search.grid(lr=RATES, batch_size=[7])
    run = Sweep(whole, space, model_fn, loss_fn=loss_fn, name="longer", **options).launch(progress=False)
    for config in run.record.configs:
        run.extend(config, 2)
    open_run("longer", tmp_path).go_on(progress=False)
    lines = list(read_journal(run.folder / "journal.jsonl"))
    before = next(number for number, line in enumerate(lines) if line["event"] == "resume")
    assert len({line["pack"] for line in lines[before:] if line.get("pack")}) == 2
