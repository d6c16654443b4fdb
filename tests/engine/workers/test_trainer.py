"""What happens inside a unit: functions of users that fail, change shared things, or need unusual models."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import CLASSES, WIDTH, loss_fn, model_fn, plain_fn, plain_loss, small_data, train_fn
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.data import read_partition
from regatta.errors import UsageError
from regatta.frameworks.torch.framework import seeded
from regatta.seeds import initial_seed

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = {"batch_size": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def launched(data: Dataset, configs: list[dict[str, Any]], repo: Path, **options: Any) -> Run:
    functions = {} if "train_fn" in options else {"loss_fn": loss_fn}
    options = {"cluster": Cluster.inline(2), "repo": repo, **functions, **options}
    return Sweep(data, search.configs(configs), options.pop("model_fn", model_fn), **options).launch(progress=False)


class ErrorWithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


class NotAnException(BaseException):
    pass


def raising_loss(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    how = config.get("how")
    if how is not None:
        raise {"mute": ErrorWithoutText(), "unusual": NotAnException("x"), "huge": ValueError("x" * 5_000_000)}[how]
    return loss_fn(model, batch, config)


def test_any_exception_fails_only_its_configuration(data: Dataset, tmp_path: Path) -> None:
    hows = ["mute", "unusual", "huge"]
    run = launched(data, [SIZE, *({**SIZE, "how": how} for how in hows)], tmp_path, loss_fn=raising_loss)
    assert run.record.status == "done"
    assert run.find(SIZE).status == "done"
    errors = [run.find({**SIZE, "how": how}).error or "" for how in hows]
    assert [error.split(" ")[0] for error in errors] == ["ErrorWithoutText:", "NotAnException:", "ValueError:"]
    assert "<except" in errors[0]
    assert (run.folder / "journal.jsonl").stat().st_size < 500_000


def f64_model(config: dict[str, Any]) -> Any:
    if config["wide"]:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
    return model_fn(config)


def own_type_loss(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x.to(model.layers[0].weight.dtype)), y)


def test_process_settings_are_reset_after_a_unit(data: Dataset, tmp_path: Path) -> None:
    configs = [{**SIZE, "wide": True}, {**SIZE, "wide": False}]
    run = launched(data, configs, tmp_path, model_fn=f64_model, loss_fn=own_type_loss, epochs=2)
    assert [run.weights(config)["layers.0.weight"].dtype for config in configs] == [np.float64, np.float32]
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, 1)


def counting_rows(data: Any, model: Any, optimizer: Any, config: dict[str, Any]) -> dict[str, float]:
    assert optimizer is None
    return {"loss": 1.0}


def test_a_train_fn_alone_needs_neither_batch_size_nor_optimizer(data: Dataset, tmp_path: Path) -> None:
    for function, model in ((train_fn, model_fn), (counting_rows, lambda config: nn.Linear(WIDTH, CLASSES))):
        run = launched(data, [{"lr": 0.1}], tmp_path, train_fn=function, model_fn=model, metric="train_loss")
        assert [row["status"] for row in run.table()] == ["done"]


def either_model(config: dict[str, Any]) -> Any:
    return plain_fn(config) if config["plain"] else model_fn(config)


def either_loss(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    return plain_loss(model, batch, config) if config["plain"] else loss_fn(model, batch, config)


def test_models_of_two_frameworks_in_one_sweep(data: Dataset, tmp_path: Path) -> None:
    configs = [{**SIZE, "lr": 0.1, "plain": plain} for plain in (True, False)]
    run = launched(data, configs, tmp_path, model_fn=either_model, loss_fn=either_loss, cluster=Cluster.inline(1))
    assert [row["status"] for row in run.table()] == ["done", "done"]


def changing_train(data: Any, model: Any, optimizer: Any, config: dict[str, Any]) -> dict[str, float]:
    x, _ = data
    if config["changes"]:
        x.mul_(1.5)
    return {"loss": float(x.sum())}


def test_shared_data_cannot_be_changed(data: Dataset, tmp_path: Path) -> None:
    configs = [{"changes": True}, {"changes": False}, {"changes": False, "again": True}]
    run = launched(data, configs, tmp_path, train_fn=changing_train, metric="train_loss", cluster=Cluster.inline(1))
    changing, first, second = (run.find(config) for config in configs)
    assert "changed its data in place" in (changing.error or "") and "Traceback" not in (changing.traceback or "")
    assert first.reports == second.reports
    alone = launched(data, configs[1:2], tmp_path, train_fn=changing_train, metric="train_loss")
    assert alone.find(configs[1]).reports == first.reports


def lazy_model(config: dict[str, Any]) -> Any:
    net = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(CLASSES))
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def test_lazy_modules_hop(data: Dataset, tmp_path: Path) -> None:
    run = launched(data, [SIZE], tmp_path, model_fn=lazy_model, epochs=2)
    assert run.find(SIZE).status == "done"
    assert run.weights(SIZE)["1.num_batches_tracked"] == 2 * sum(-(-(p.rows or 0) // 5) for p in data.train)


def model_with_a_foreign_parameter(config: dict[str, Any]) -> Any:
    net = nn.Linear(WIDTH, CLASSES)
    return net, torch.optim.SGD([*net.parameters(), nn.Parameter(torch.zeros(2))], lr=0.1)


def test_an_optimizer_must_not_hold_parameters_of_no_module(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"an optimizer of 3 parameters, .* lacks 1 of them, which would be lost"):
        launched(data, [SIZE], tmp_path, model_fn=model_with_a_foreign_parameter)


class Counting(nn.Module):
    """Keeps a number and a generator where no state_dict looks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.calls = 0
        self.constant = 3
        self.noise = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x + torch.rand(x.shape, generator=self.noise))


def counting_model(config: dict[str, Any]) -> Any:
    net = Counting()
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def test_unsaved_attributes_are_warned_of_once(data: Dataset, tmp_path: Path) -> None:
    configs = [SIZE, {**SIZE, "lr": 0.1}]  # of one kind
    notes = launched(data, configs, tmp_path, model_fn=counting_model).record.notes
    assert len(notes) == 1 and "training changes calls, noise, which no state_dict holds" in notes[0][1]
    assert not launched(data, configs, tmp_path).record.notes


def step_schedule_fn(config: dict[str, Any]) -> Any:
    net, optimizer = model_fn({**config, "kind": "momentum"})
    schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3)
    return net, optimizer, {"step": schedule, "epoch": torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5)}


def idle_train_fn(data: Any, model: Any, optimizer: Any, config: dict[str, Any]) -> dict[str, float]:
    return train_fn(data, model, optimizer, config)


def advancing_train_fn(
    data: Any, model: Any, optimizer: Any, config: dict[str, Any], schedule: Any
) -> dict[str, float]:
    x, y = data
    for rows in torch.arange(len(x)).split(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return {"rate": optimizer.param_groups[0]["lr"]}


def accuracy(data: Any, model: Any, config: dict[str, Any]) -> dict[str, float]:
    x, y = data
    return {"accuracy": float((model(x).argmax(1) == y).float().mean())}


def warnings_of(run: Run) -> list[str]:
    return [text for level, text in run.record.notes if level == "warning"]


def test_a_train_fn_advances_the_schedule_of_steps(data: Dataset, tmp_path: Path) -> None:
    configs = [{"lr": 0.1}, {"lr": 0.2}]
    functions = {"model_fn": step_schedule_fn, "train_fn": advancing_train_fn, "eval_fn": accuracy}
    run = launched(data, configs, tmp_path, **functions, metric="accuracy", epochs=2)
    assert not warnings_of(run)
    units = [unit for unit in run.find(configs[0]).units if unit.kind == "train"]
    with seeded(initial_seed(0, configs[0])):
        net, optimizer, schedules = step_schedule_fn(configs[0])
    for number, unit in enumerate(units):
        part = tuple(map(torch.from_numpy, read_partition(data.train[unit.partition].path)))
        found = advancing_train_fn(part, net.train(), optimizer, configs[0], schedules["step"])
        assert unit.metrics["train_rate"] == found["rate"]
        if number % len(data.train) == len(data.train) - 1:
            schedules["epoch"].step()
    weights = run.weights(configs[0])
    assert all(np.array_equal(weights[name], value.numpy()) for name, value in net.state_dict().items())


def test_a_schedule_of_steps_that_stands_still_is_noted_once(data: Dataset, tmp_path: Path) -> None:
    functions = {"model_fn": step_schedule_fn, "train_fn": idle_train_fn, "eval_fn": accuracy, "metric": "accuracy"}
    run = launched(data, [{"lr": 0.1}, {"lr": 0.2}], tmp_path / "idle", **functions, epochs=2)
    (warning,) = warnings_of(run)
    assert "does not advance the schedule" in warning
    assert "argument `schedule`" in warning
    others = {**functions, "model_fn": lambda config: model_fn({**config, "kind": "schedule per epoch"})}
    assert not warnings_of(launched(data, [{"lr": 0.1}], tmp_path / "per epoch", **others, epochs=2))


def test_a_train_fn_without_a_schedule_of_steps_gets_none(data: Dataset, tmp_path: Path) -> None:
    functions = {"train_fn": advancing_train_fn, "eval_fn": accuracy, "metric": "accuracy"}
    run = launched(data, [{"lr": 0.1}], tmp_path, **functions)
    assert run.record.status == "done"
    assert not warnings_of(run)


def test_every_worker_reads_the_same_rows_of_a_random_input_fn(data: Dataset, tmp_path: Path) -> None:
    def input_fn(path: Path) -> Any:
        x, y = read_partition(path)
        rows = np.random.permutation(len(x))[: len(x) // 2]
        return x[rows] + np.float32(torch.rand(()).item() + random.random()), y[rows]

    ends = []
    for attempt in range(2):
        random.seed(attempt)
        np.random.seed(attempt)
        torch.manual_seed(attempt)
        run = launched(data, [SIZE], tmp_path / str(attempt), input_fn=input_fn, visits="seeded")
        ends.append([unit.hash for unit in run.record.units])
    assert ends[0] == ends[1]


def test_settings_of_a_model_do_not_reach_data_that_others_use(data: Dataset, tmp_path: Path) -> None:
    def input_fn(path: Path) -> Any:
        x, y = read_partition(path)
        torch.set_flush_denormal(True)
        return torch.tensor(x.tolist()).numpy(), y  # of the default type

    def first_fn(config: dict[str, Any]) -> Any:
        if config["wide"]:
            torch.set_default_dtype(torch.float64)
        return model_fn(config)

    def checking_loss(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
        assert batch[0].dtype == torch.float32
        assert sys.float_info.min * 0.5 > 0.0
        return own_type_loss(model, batch, config)

    configs = [{**SIZE, "wide": wide} for wide in (True, False)]
    options = {"model_fn": first_fn, "loss_fn": checking_loss, "input_fn": input_fn}
    run = launched(data, configs, tmp_path, cluster=Cluster.inline(1), **options)
    assert [config.error for config in run.record.configs.values()] == [None, None]
