"""Modules of `to_torch` are alike for packs if their networks are, and train in one stack as they do alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from network_models import Attends, Branches, LeNet, Patches, ResNet
from torch import nn
from torch.nn import functional

from regatta.frameworks.torch import framework
from regatta.network import from_torch, to_torch
from regatta.network.mutate import LayerTemplate, insert
from regatta.pack import Pack
from regatta.pack.fingerprint import structure

MODELS = {
    "lenet": (LeNet(), torch.zeros(2, 1, 28, 28)),
    "resnet": (ResNet((1, 1), 4, 5), torch.zeros(2, 3, 32, 32)),
    "patches": (Patches(), torch.zeros(2, 3, 16, 16)),
    "branches": (Branches(), torch.zeros(2, 3, 9, 9)),
    "attends": (Attends(), torch.zeros(2, 5, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_modules_of_one_network_have_one_structure(name: str) -> None:
    model, example = MODELS[name]
    network = from_torch(model.eval(), example)
    assert structure(to_torch(network)) == structure(to_torch(network))
    other = insert(network, network.inputs[0].id, LayerTemplate("IDENTITY")).network
    assert structure(to_torch(network)) != structure(to_torch(other))


def loss_fn(model: nn.Module, batch: Any, config: Any = None) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def test_modules_of_one_network_are_packed_on_the_cpu() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network = from_torch(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)), torch.zeros(2, 12))
        made = torch.Generator().manual_seed(3)
        data = torch.randn(96, 12, generator=made), torch.randint(4, (96,), generator=made)
        pack = Pack("cpu")
        modules = [to_torch(network, seed=seed) for seed in range(3)]
        members = [pack.load(module, torch.optim.Adam(module.parameters(), lr=1e-2), loss_fn, 16) for module in modules]
        pack.train(data, epochs=2)
        assert {member.tier for member in members} == {"fused"}
        for seed, member in enumerate(members):
            alone = to_torch(network, seed=seed)
            trainee = framework.assemble((alone, torch.optim.Adam(alone.parameters(), lr=1e-2), None), "cpu")
            held = framework.prepare(data, "cpu")
            for epoch in range(2):
                framework.train(trainee, held, member.order(len(data[0]), epoch), loss_fn, {})
            found = member.model.state_dict()
            assert all(torch.equal(found[key], tensor) for key, tensor in alone.state_dict().items())
    finally:
        torch.set_num_threads(threads)
