"""Models that a sweep starts from: networks and weights in files of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regatta.errors import CorruptError, NotFoundError, UsageError
from regatta.network import from_torch
from regatta.network.torch.start_models import (
    LOSSES,
    OPTIMIZERS,
    StartModels,
    accuracy,
    make_optimizer,
    named_loss,
    optimizer_options,
    parameter_names,
    write_model,
)

CONFIG = {"model": "a", "optimizer": "sgd", "base_lr": 0.5, "loss": "cross_entropy", "batch_size": 4}


def small_net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, padding=1),
        nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip


@pytest.fixture
def models(tmp_path: Path) -> StartModels:
    folder = tmp_path / ".regatta" / "runs" / "one" / "models"
    folder.mkdir(parents=True)
    net = small_net()
    network = from_torch(net, torch.zeros(2, 1, 8, 8))
    return StartModels({"a": write_model(folder / "a.safetensors", network, net.state_dict())}, folder=folder)


def test_a_model_has_the_network_and_the_weights_of_its_file(models: StartModels) -> None:
    module, optimizer = models(CONFIG)
    x, net = torch.randn(5, 1, 8, 8), small_net().eval()
    assert torch.equal(module.eval()(x), net(x))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5]
    assert '"kind":"CONV"' in models.network_of(CONFIG)
    with torch.no_grad():
        next(iter(module.parameters())).zero_()
    again, _ = models(CONFIG)
    assert torch.equal(again.eval()(x), net(x))  # nothing is shared with the model before


def test_the_file_is_found_after_the_run_was_renamed_or_moved(
    models: StartModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".regatta" / "runs" / "one").rename(tmp_path / ".regatta" / "runs" / "two")
    assert models.network_of(CONFIG)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".regatta").rename(tmp_path / "elsewhere" / ".regatta")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert models.network_of(CONFIG)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match="is not there"):
        models.network_of(CONFIG)


def test_a_file_that_changed_is_refused(models: StartModels) -> None:
    assert models.folder is not None
    net = small_net()
    with torch.no_grad():
        next(net.parameters()).add_(1)
    write_model(models.folder / "a.safetensors", from_torch(net, torch.zeros(2, 1, 8, 8)), net.state_dict())
    with pytest.raises(CorruptError, match="not the model that the run started from"):
        models(CONFIG)
    with pytest.raises(UsageError, match="no model 'b'"):
        models({**CONFIG, "model": "b"})


def test_layers_with_a_rate_of_their_own_are_a_group(models: StartModels) -> None:
    network = from_torch(small_net(), torch.zeros(2, 1, 8, 8))
    convs = [node.id for node in network.nodes if node.kind == "CONV"]
    last = [node.id for node in network.nodes if node.kind == "FULL"]
    groups = {
        'net["conv*"].lr': parameter_names(network, convs),
        'net["conv2"].lr_mult': parameter_names(network, convs[1:]),
        'net["fc"].lr': parameter_names(network, last),
    }
    module, _ = models(CONFIG)
    values = {**CONFIG, 'net["conv*"].lr': 0.25, 'net["conv2"].lr_mult': 0.5, "momentum": 0.9}
    optimizer = make_optimizer(module, values, groups)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    found = {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert found == {
        "0.weight": 0.25, "0.bias": 0.25, "4.weight": 0.25, "4.bias": 0.25, "1.weight": 0.5, "1.bias": 0.5,
        "6.weight": 0.5, "6.bias": 0.5,
    }  # fmt: skip
    assert {group["momentum"] for group in optimizer.param_groups} == {0.9}
    values['net["conv2"].lr_mult'] = 0.2
    found = {
        names[id(p)]: group["lr"]
        for group in make_optimizer(module, values, groups).param_groups
        for p in group["params"]
    }
    assert found["0.weight"] == 0.25
    assert found["4.weight"] == 0.1, "the last group counts"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_its_options(models: StartModels, name: str) -> None:
    values = {"momentum": 0.5, "weight_decay": 0.25, "eps": 1e-3, "alpha": 0.5, "dampening": 0.0}
    options = {option: values[option] for option in optimizer_options(name) if option in values}
    _, optimizer = models({**CONFIG, "optimizer": name, **options})
    assert type(optimizer) is OPTIMIZERS[name]
    assert {option: optimizer.param_groups[0][option] for option in options} == options


@pytest.mark.parametrize("name", LOSSES)
def test_losses_by_name(models: StartModels, name: str) -> None:
    module, _ = models(CONFIG)
    of_classes = name in ("cross_entropy", "nll", "multi_margin")
    y: Any = torch.tensor([0, 2, 1]) if of_classes else torch.rand(3, 3)
    loss = named_loss(module, (torch.rand(3, 64), y), {**CONFIG, "loss": name})  # rows of numbers as images
    assert loss.shape == ()
    loss.backward()


def test_accuracy_is_the_share_of_right_rows(models: StartModels) -> None:
    module, _ = models(CONFIG)
    x = torch.rand(2_500, 1, 8, 8)
    with torch.no_grad():
        y = module.eval()(x).argmax(1)
        wrong = y.clone()
        wrong[:500] = (wrong[:500] + 1) % 3
        assert accuracy((x, y), module, CONFIG) == {"accuracy": 1.0}
        assert accuracy((x, wrong), module, CONFIG) == {"accuracy": 0.8}


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    net = small_net()
    network = from_torch(net, torch.zeros(2, 1, 8, 8))
    digests = {write_model(tmp_path / f"{n}.safetensors", network, net.state_dict(), "a@1") for n in range(20)}
    assert len(digests) == 1
