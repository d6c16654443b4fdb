"""PackTrainer whose members keep more than their state, leave, are judged elsewhere, or lose a worker."""

from __future__ import annotations

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
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, open_run, search
from regatta.engine.controller.scheduled import ScheduledModels
from regatta.engine.controller.trials import Trial
from regatta.engine.workers.training.unsaved_state import unsaved_state
from regatta.journal.journal import read_journal
from regatta.plan.strategy.form_packs import Builds

pytestmark = pytest.mark.usefixtures("one_thread")
INLINE = Cluster(workers=1, kind="inline")
RATES = [0.1, 0.05, 0.02, 0.01]


class Worn(nn.Module):
    """Computes with something beside its state, which grows with every step."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(WIDTH, 3), kind
        self._steps, self.seen, self.mean = 0, [], torch.zeros(3)  # type: ignore[var-annotated]
        hooked = {"steps": 0}

        def hook(module: nn.Module, given: Any, found: torch.Tensor) -> torch.Tensor:
            hooked["steps"] += module.training
            return found * (1 + 0.01 * hooked["steps"])

        if kind == "hook":
            self.layer.register_forward_hook(hook)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        if self.training and self.kind == "private":
            self._steps += 1
        if self.training and self.kind == "list":
            self.seen.append(1)
        if self.training and self.kind == "tensor":
            self.mean = 0.9 * self.mean + 0.1 * found.detach().mean(0)
        return found * (1 + 0.01 * (self._steps + len(self.seen))) + self.mean


def model_fn(config: dict[str, Any]) -> Any:
    kind = config.get("worn")
    net = Worn(kind) if kind else nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 3))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model: nn.Module, batch: Any, config: dict[str, Any], training: bool) -> torch.Tensor:
    time.sleep(config.get("train_sleeps" if training else "eval_sleeps", 0.0))
    if config.get("fails") == "exit":
        sys.exit("no more")
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def launched(data: Dataset, space: Any, repo: Path, pack: bool, **options: Any) -> Run:
    options = {"epochs": 3, "cluster": INLINE, **options}
    sweep = Sweep(data, space, model_fn, loss_fn=loss_fn, repo=repo, pack=pack, **options)
    return sweep.launch(progress=False, resume=False)


def hashes(run: Run) -> dict[tuple[str, int, int], str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"), rows=90, proportions=(1,))


@pytest.mark.parametrize("worn", ["private", "list", "tensor", "hook"])
def test_what_no_state_holds_does_not_go_from_unit_to_unit(whole: Dataset, tmp_path: Path, worn: str) -> None:
    space = search.grid(lr=RATES[:3], batch_size=[7], worn=[worn])
    alone, together = (launched(whole, space, tmp_path, pack, epochs=2) for pack in (False, True))
    assert {unit.pack for unit in together.record.units if unit.kind == "train"} == {"pack-1"}
    assert hashes(together) == hashes(alone)


def test_a_plain_model_changes_in_its_state_only() -> None:
    net, optimizer = model_fn({"lr": 0.1})
    before = unsaved_state(net)
    loss_fn(net, (torch.zeros(4, WIDTH), torch.zeros(4, dtype=torch.int64)), {}, True).backward()
    optimizer.step()
    assert unsaved_state(net) == before
    net.register_buffer("aside", torch.zeros(1), persistent=False)
    with_buffer = unsaved_state(net)
    assert with_buffer != before
    net.aside += 1
    assert unsaved_state(net) not in (before, with_buffer)


def spoiling_fn(data: Any, model: nn.Module, config: dict[str, Any]) -> dict[str, float]:
    for parameter in model.parameters():
        if config["lr"] > 0.03:
            parameter.data.zero_()  # which no version counts
        else:
            parameter.data = parameter.data.clone()  # the same values, but not where they were
    return {"nothing": 0.0}


def test_an_eval_fn_may_change_data_behind_the_back_of_autograd(whole: Dataset, tmp_path: Path) -> None:
    space = search.grid(lr=RATES, batch_size=[7])
    alone, together = (launched(whole, space, tmp_path, pack, eval_fn=spoiling_fn) for pack in (False, True))
    assert hashes(together) == hashes(alone)


def test_one_that_exits_fails_alone(whole: Dataset, tmp_path: Path) -> None:
    good = [{"lr": lr, "batch_size": 7} for lr in RATES]
    bad = {"lr": 0.3, "batch_size": 7, "fails": "exit"}
    alone = launched(whole, search.configs(good), tmp_path, False)
    run = launched(whole, search.configs([*good, bad]), tmp_path, True)
    assert run.find(bad).error == "SystemExit: no more"
    assert hashes(run) == hashes(alone)


def test_a_worker_that_dies_judging_a_pack_that_trains_elsewhere(whole: Dataset, tmp_path: Path) -> None:
    slow = {"batch_size": 7, "train_sleeps": 0.02, "eval_sleeps": 0.05}
    space = search.configs([{"lr": lr, **slow} for lr in RATES])
    sweep = Sweep(
        whole, space, model_fn, loss_fn=loss_fn, epochs=2, cluster=Cluster.local(2, threads=1), repo=tmp_path, pack=True
    )
    run = sweep.launch(progress=False, wait=False, resume=False)
    _kill_a_judge(run)
    run.result(timeout=120)
    assert run.record.status == "done"
    units = Counter((u.config, u.kind, u.epoch, u.partition) for u in run.record.units if u.kind != "pilot")
    assert len(units) == 4 * 2 * (len(whole.train) + len(whole.eval))
    assert set(units.values()) == {1}
    assert all(sorted(config.reports) == [1, 2] for config in run.record.configs.values())


def _kill_a_judge(run: Run) -> None:
    """The worker of an evaluation, while the next epoch of the same pack is under way: its end comes later."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        running = [(worker, worker.running) for worker in list(run.record.workers.values()) if worker.running]
        trained = {unit[1] for _, unit in running if unit[0] == "train"}
        for worker, unit in running:
            if unit[0] == "eval" and unit[1] in trained:
                os.kill(worker.info["pid"], signal.SIGKILL)
                return
        time.sleep(0.002)
    raise AssertionError("no pack was ever judged while it was trained")


def test_who_only_waits_to_be_judged_is_not_forgotten() -> None:
    scheduled = ScheduledModels()
    done, going = (Trial(name, {}, epochs) for name, epochs in (("done", 1), ("going", 2)))
    pack = scheduled.add([done, going], [])
    pack.end_epoch(1, [done, going])
    pack.trials = [going]
    going.failed = True
    scheduled.disband(pack)
    assert scheduled.take_ready(lambda trial: True) == [done]
    pack.end_epoch(2, [done])  # what ran when it was disbanded
    assert done not in pack.all_trials()


def test_a_run_that_is_resumed_has_a_pack_for_each_worker(whole: Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"repo": tmp_path, "pack": True, "epochs": 1, "cluster": Cluster.local(2, threads=1)}
    space = search.grid(lr=RATES, batch_size=[7])
    run = Sweep(whole, space, model_fn, loss_fn=loss_fn, name="longer", **options).launch(progress=False)
    for config in run.record.configs:
        run.extend(config, 2)
    open_run("longer", tmp_path).go_on(progress=False)
    lines = list(read_journal(run.folder / "journal.jsonl"))
    before = next(number for number, line in enumerate(lines) if line["event"] == "resume")
    assert len({line["pack"] for line in lines[before:] if line.get("pack")}) == 2


def test_few_pilots_do_not_make_a_learning_rate_decisive() -> None:
    builds = Builds()
    builds.learn("a", {"lr": 0.1, "batch_size": 8, "hidden": 16}, "small")
    builds.learn("b", {"lr": 0.2, "batch_size": 64, "hidden": 16}, "large")
    assert builds.build_of("c", {"lr": 0.2, "batch_size": 8, "hidden": 16}) == "small"
    assert builds.build_of("d", {"lr": 0.3, "batch_size": 64, "hidden": 16}) == "large"
    assert builds.build_of("e", {"lr": 0.1, "batch_size": 32, "hidden": 16}) == ""
