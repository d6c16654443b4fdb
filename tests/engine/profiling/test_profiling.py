"""Profiling of models: how many batches it takes, and what it measures."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import loss_fn, model_fn, small_data

from regatta import Dataset
from regatta.configuration import config_id
from regatta.engine.messages import ModelProfile, Recipe, Task, TaskDone, WorkerSetup
from regatta.engine.profiling.models import models_from_journal
from regatta.engine.workers.training import profiler, trainer
from regatta.engine.workers.training.profiler import (
    MAX_BATCHES,
    BatchTimes,
    equivalent_batches,
    time_batches,
    trimmed_mean,
)
from regatta.engine.workers.training.trainer import Trainer, memory_of
from regatta.plan.schedule.units import Unit

VALUES = {"batch_size": 4, "epoch_steps": 1000, "fails": "never"}


class Clock:
    """Time that passes only while batches are trained."""

    def __init__(self, seconds: Any) -> None:
        self.now, self.taken, self._seconds = 0.0, list[int](), seconds

    def perf_counter(self) -> float:
        return self.now

    def take(self, batches: Any) -> dict[str, float]:
        for batch in batches:
            self.now += self._seconds(len(self.taken))
            self.taken.append(len(batch))
        return {"loss": 0.0}


def times_of(
    monkeypatch: pytest.MonkeyPatch, seconds: Any, batches: int = 100, last: int = 8, **options: Any
) -> tuple[BatchTimes, Clock]:
    clock = Clock(seconds)
    monkeypatch.setattr(profiler, "time", clock)
    order = [np.arange(8)] * (batches - 1) + [np.arange(last)]
    return time_batches(clock.take, order, **options), clock


def test_short_batches_are_trained_up_to_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    times, clock = times_of(monkeypatch, lambda number: 0.5 if number == 0 else 0.003 if number < 28 else 0.001)
    assert len(clock.taken) == MAX_BATCHES
    assert times.first == pytest.approx(0.5)
    assert times.each == pytest.approx(0.001)  # the last twenty count
    assert times.startup == pytest.approx(0.499)


@pytest.mark.parametrize(("seconds", "most"), [(0.03, 9), (0.15, 3), (5.0, 2)])
def test_long_batches_are_few(monkeypatch: pytest.MonkeyPatch, seconds: float, most: int) -> None:
    times, clock = times_of(monkeypatch, lambda number: seconds)
    assert 2 <= len(clock.taken) <= most
    assert times.each == pytest.approx(seconds)


def test_a_disturbed_batch_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times, _ = times_of(monkeypatch, lambda number: 0.1 if number == 40 else 0.001)
    assert times.each == pytest.approx(0.001)
    assert trimmed_mean([3.0, 1.0, 9.0]) == 3.0


def test_batches_that_are_not_full_are_replaced_by_full_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    _, clock = times_of(monkeypatch, lambda number: 0.0005, batches=3, last=2)
    assert len(clock.taken) == MAX_BATCHES
    assert set(clock.taken) == {8}
    _, clock = times_of(monkeypatch, lambda number: 0.0005, batches=9, max_batches=5)
    assert len(clock.taken) == 5


def test_members_of_a_group_train_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower member decides."""
    asked: list[bool] = []
    answers = iter([True, False, False, True])

    def agree(mine: bool) -> bool:
        asked.append(mine)
        return next(answers)

    _, clock = times_of(monkeypatch, lambda number: 0.001, agree=agree)
    assert asked == [False] * 4
    assert len(clock.taken) == 4


def test_a_short_last_batch_is_a_step_too() -> None:
    assert equivalent_batches(64, 32) == 2
    assert equivalent_batches(80, 32) == 2.75
    assert 1.5 < equivalent_batches(33, 32) < 1.6


def profile_of(folder: Path, recipe: Recipe, values: Any = VALUES, data: Dataset | None = None) -> ModelProfile:
    data = data or small_data(folder / "data")
    paths = [tuple(part.path for part in kind) for kind in (data.train, data.eval)]
    worker = Trainer("w0", WorkerSetup(recipe, 0, paths[0], paths[1], folder / "logs"))
    done = worker.run(Task("pilot", config_id(values), values, 0, 0, eval_partition=0))
    assert isinstance(done, TaskDone), done
    assert done.profile is not None
    return done.profile


def test_every_unit_pays_for_building_and_evaluations_for_eval_fn(tmp_path: Path) -> None:
    def slow_model(config: Any) -> Any:
        time.sleep(0.02)
        return model_fn(config)

    def slow_eval(data: Any, model: Any, config: Any) -> dict[str, float]:
        time.sleep(0.05)
        return {"slow": 1.0}

    found = profile_of(tmp_path, Recipe(slow_model, loss_fn, eval_fn=slow_eval))
    assert found.fixed_seconds > 0.02
    assert found.eval_fixed_seconds is not None
    assert found.eval_fixed_seconds > 0.02
    assert found.eval_seconds_per_row * found.eval_rows > 0.05
    assert set(found.metrics) == {"train_loss", "loss", "slow"}


def test_profiling_takes_no_more_steps_than_a_learning_rate_schedule_has(tmp_path: Path) -> None:
    def scheduled(config: Any) -> Any:
        net = model_fn(config)[0]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return net, optimizer, {"step": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)}

    data = small_data(tmp_path / "data", proportions=(1, 1))
    assert data.train[0].rows in (22, 23)  # six batches of four
    assert profile_of(tmp_path, Recipe(scheduled, loss_fn), data=data).train_seconds_per_row > 0


def test_imports_of_transform_fn_are_not_counted(tmp_path: Path) -> None:
    called: list[int] = []

    def transform(batch: Any, seed: int) -> Any:
        time.sleep(0.0 if called else 0.5)
        called.append(seed)
        return batch

    found = profile_of(tmp_path, Recipe(model_fn, loss_fn, transform_fn=transform))
    assert len(called) > 1
    assert 0 < found.prepare_seconds_per_row * found.train_rows < 0.4


def test_a_train_fn_is_profiled_on_some_rows(tmp_path: Path) -> None:
    seen: list[int] = []

    def train(data: Any, model: Any, optimizer: Any, config: Any) -> dict[str, float]:
        seen.append(len(data[0]))
        return {"loss": 0.5}

    rng = np.random.default_rng(0)
    x = rng.normal(size=(8000, 6)).astype(np.float32)
    data = Dataset.from_arrays(x, x.sum(1), partitions=1, eval_fraction=0.1, directory=tmp_path / "data")
    found = profile_of(tmp_path, Recipe(model_fn, train_fn=train), data=data)
    assert set(seen) == {256, 1536}
    assert found.metrics == ("train_loss",)


def test_evaluations_do_not_pay_for_saving_a_state(tmp_path: Path) -> None:
    data = small_data(tmp_path)
    line = {
        "event": "pilot", "config": "a", "train_seconds_per_row": 0.01, "eval_seconds_per_row": 0.01,
        "train_rows": data.train[0].rows, "eval_rows": data.eval[0].rows, "fixed_seconds": 0.05,
        "eval_fixed_seconds": 0.02, "state_bytes": 9,
    }  # fmt: skip
    estimates = models_from_journal(data, [line]).estimates
    assert estimates.seconds(Unit("train", "a", 1, 0), "w0") == pytest.approx(0.05 + 0.01 * data.train[0].rows)
    assert estimates.seconds(Unit("eval", "a", 1, 0), "w0") == pytest.approx(0.02 + 0.01 * data.eval[0].rows)
    del line["eval_fixed_seconds"]  # as in older journals
    estimates = models_from_journal(data, [line]).estimates
    assert estimates.seconds(Unit("eval", "a", 1, 0), "w0") == pytest.approx(0.05 + 0.01 * data.eval[0].rows)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="only Linux measures it")
def test_the_peak_memory_of_a_model(tmp_path: Path) -> None:
    """Weights, gradients and momentum of 16 MiB each; an earlier, larger model does not count."""

    def large(config: Any) -> Any:
        net = torch.nn.Sequential(torch.nn.Linear(6, config["width"]), torch.nn.Linear(config["width"], 2048))
        return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def mean_loss(model: Any, batch: Any, config: Any) -> Any:
        return model(batch[0]).square().mean()

    data = small_data(tmp_path / "data", proportions=(1, 1))
    recipe = Recipe(large, mean_loss)
    larger, found = (
        profile_of(tmp_path, recipe, {"batch_size": 10, "width": width}, data).peak_bytes / 2**20
        for width in (4096, 2048)
    )
    assert 3 * 16 * 0.9 < found < 6 * 16
    assert 3 * 32 * 0.9 < larger < 6 * 32


def test_memory_is_divided_among_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory_of("cpu", "cpu", 1)
    assert whole > 2**26
    assert memory_of("cpu", "cpu", 4) == whole // 4
    monkeypatch.setattr(
        trainer, "choose_device", lambda wanted, index: f"cpu:{index % 2}"
    )  # as if there were two devices
    assert memory_of("cpu:1", "auto", 3) == whole
    assert memory_of("cpu:0", "auto", 3) == whole // 2
