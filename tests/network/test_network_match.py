"""Two networks side by side: what corresponds, what changed, what only one has."""

from __future__ import annotations

import pytest
import torch
from network_models import LeNet, ResNet
from torch import nn

from regatta.network import Network, align, from_torch


def of(*layers: nn.Module) -> Network:
    return from_torch(nn.Sequential(*layers))


def classifier(*middle: nn.Module, hidden: int = 16) -> Network:
    return of(nn.Linear(8, hidden), nn.ReLU(), *middle, nn.Linear(hidden, 4))


def test_a_network_matches_itself() -> None:
    network = from_torch(ResNet((2, 2), width=4))
    found = align(network, network)
    assert found.same
    assert [(pair.left, pair.right) for pair in found.pairs] == [(id, id) for id in network.order]


def test_names_do_not_matter() -> None:
    class Renamed(LeNet):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = self.conv1, self.conv2
            del self.conv1, self.conv2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.__dict__.update(conv1=self.first, conv2=self.second)
            return super().forward(x)

    left, right = from_torch(LeNet()), from_torch(Renamed())
    assert left.find("conv1").kind == right.find("first").kind == "CONV"
    assert align(left, right).same


def test_a_changed_hyperparameter_is_a_change_of_its_layer() -> None:
    found = align(from_torch(LeNet(outputs=10)), from_torch(LeNet(outputs=7)))
    assert [(pair.left, dict(pair.changes)) for pair in found.changed] == [("fc2", {"out": (10, 7)})]
    assert not found.only_left and not found.only_right and not found.rewired


def test_a_default_is_shown_when_the_other_side_differs_from_it() -> None:
    found = align(of(nn.Conv2d(3, 8, 3)), of(nn.Conv2d(3, 8, 3, stride=2, bias=False)))
    assert dict(found.changed[0].changes) == {"bias": (True, False), "stride": ((1, 1), (2, 2))}


def test_an_inserted_layer_is_only_on_one_side() -> None:
    found = align(classifier(), classifier(nn.Dropout(0.2)))
    assert (found.only_left, found.only_right) == ((), ("2",))
    assert not found.changed and not found.rewired
    back = align(classifier(nn.Dropout(0.2)), classifier())
    assert (back.only_left, back.only_right) == (("2",), ())


def test_another_activation_is_a_change_of_kind() -> None:
    found = align(of(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), of(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)))
    assert [dict(pair.changes) for pair in found.changed] == [{"kind": ("RELU", "GELU")}]
    assert not found.only_left and not found.only_right


def test_more_blocks_in_the_middle_leave_both_ends_paired() -> None:
    left, right = from_torch(ResNet((2, 2), width=4)), from_torch(ResNet((2, 4), width=4))
    found = align(left, right)
    assert not found.only_left and not found.changed
    assert len(found.only_right) == len(right) - len(left)
    partner = {pair.left: pair.right for pair in found.pairs}
    assert (partner["conv1"], partner["fc"], partner["avgpool"]) == ("conv1", "fc", "avgpool")


def test_wider_layers_everywhere_are_all_paired() -> None:
    left, right = from_torch(ResNet((2, 1), width=4)), from_torch(ResNet((2, 1), width=8))
    found = align(left, right)
    assert len(found.pairs) == len(left) == len(right)
    assert all(pair.left == pair.right for pair in found.pairs)
    assert {name for pair in found.changed for name in pair.changes} == {"in", "out", "features"}


def test_an_edge_with_another_target_is_reported_as_rewired() -> None:
    class Skips(nn.Module):
        def __init__(self, early: bool) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.early = early

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.a(x)
            b = torch.tanh(self.b(a))
            return self.c(b) + (a if self.early else b)

    found = align(from_torch(Skips(True)), from_torch(Skips(False)))
    assert not found.only_left and not found.only_right and not found.changed
    assert found.rewired == ("add",)
    assert not found.same


@pytest.mark.parametrize("size", [0, 3])
def test_networks_with_nothing_in_common_are_not_paired(size: int) -> None:
    left = Network(())
    right = of(*(nn.Linear(2, 2) for _ in range(size))) if size else Network(())
    found = align(left, right)
    assert found.pairs == () and found.only_right == right.order


def test_large_networks_are_aligned_in_time() -> None:
    layers = [layer for i in range(700) for layer in (nn.Linear(2 + i % 3, 2 + (i + 1) % 3), nn.ReLU())]
    left, right = of(*layers), of(nn.Tanh(), *layers[:600], nn.Dropout(), *layers[600:], nn.Tanh())
    found = align(left, right)
    assert len(found.only_right) == 3 and not found.only_left and not found.changed
