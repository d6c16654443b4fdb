"""What happens inside a unit: functions of users that fail, change shared things, or need unusual models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import CLASSES, WIDTH, loss_fn, model_fn, plain_fn, plain_loss, small_data, train_fn
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.errors import UsageError

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
