"""Networks to slice and change: a small AlexNet by its names of layers, random ones, and queries on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from regatta.dql.bind import bind
from regatta.dql.networks.bound_networks import BoundConstruct, BoundSlice
from regatta.dql.networks.layer_sets import NamedLayers
from regatta.dql.networks.variants import Constructed, construct, variants
from regatta.dql.parse import parse
from regatta.dql.schema import KnownNames
from regatta.network import Network, from_torch

IMAGES = torch.linspace(-1, 1, 2 * 28 * 28).reshape(2, 1, 28, 28)


class SmallAlexNet(nn.Module):
    """conv1 to conv3, pools of a function, fc6 to fc8."""

    def __init__(self, pool: type[nn.Module] = nn.AvgPool2d) -> None:
        super().__init__()
        self.conv1, self.pool1 = nn.Conv2d(1, 4, 3, padding=1), pool(2)
        self.conv2, self.relu2 = nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()
        self.conv3, self.pool3 = nn.Conv2d(6, 6, 3, padding=1), pool(2)
        self.fc6, self.fc7, self.fc8 = nn.Linear(6 * 49, 32), nn.Linear(32, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.pool1(self.conv1(x)))
        x = self.pool3(self.conv3(self.relu2(x))).flatten(1)
        return self.fc8(torch.relu(self.fc7(torch.relu(self.fc6(x)))))


def alexnet(pool: type[nn.Module] = nn.AvgPool2d) -> tuple[nn.Module, Network]:
    torch.manual_seed(0)
    model = SmallAlexNet(pool).eval()
    return model, from_torch(model, IMAGES)


# Random networks


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Fork(nn.Module):
    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.left(x), self.right(x)], 1)


class TransformerBlock(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.attention = nn.MultiheadAttention(features, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(features, 2 * features), nn.GELU(), nn.Linear(2 * features, features))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def _stage(kind: str) -> nn.Module:
    def conv(out: int = 4, size: int = 3) -> nn.Module:
        return nn.Conv2d(4, out, size, padding=size // 2)

    stages = {
        "conv": lambda: conv(),
        "norm": lambda: nn.BatchNorm2d(4),
        "relu": lambda: nn.ReLU(),
        "tanh": lambda: nn.Tanh(),
        "dropout": lambda: nn.Dropout(0.3),
        "pool": lambda: nn.MaxPool2d(3, 1, 1),
        "residual": lambda: Residual(nn.Sequential(conv(), nn.BatchNorm2d(4), nn.ReLU(), conv())),
        "fork": lambda: Fork(nn.Sequential(conv(2, 1), nn.ReLU()), conv(2, 5)),
        "deep fork": lambda: Fork(Residual(nn.ReLU()), Residual(nn.Tanh())),
    }
    return stages[kind]()


def _cnn(kinds: list[str]) -> tuple[nn.Module, Tensor]:
    channels, stages = 4, list[nn.Module]()
    for kind in kinds:
        stages.append(_stage(kind))
        if kind == "deep fork":
            stages.append(nn.Conv2d(8, 4, 1))
    parts = [nn.Conv2d(3, channels, 3, padding=1), *stages, nn.Flatten(), nn.Linear(4 * 36, 5)]
    return nn.Sequential(*parts), torch.linspace(-2, 2, 2 * 3 * 36).reshape(2, 3, 6, 6)


def _transformer(blocks: int) -> tuple[nn.Module, Tensor]:
    parts = [nn.Linear(6, 8), *(TransformerBlock(8) for _ in range(blocks)), nn.LayerNorm(8), Mean(), nn.Linear(8, 3)]
    return nn.Sequential(*parts), torch.linspace(-2, 2, 2 * 5 * 6).reshape(2, 5, 6)


def _made(seed: int, kinds: list[str] | int) -> tuple[nn.Module, Network, Tensor]:
    torch.manual_seed(seed)
    model, example = _transformer(kinds) if isinstance(kinds, int) else _cnn(kinds)
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5)
    return model.eval(), from_torch(model, example), example


KINDS = ("conv", "norm", "relu", "tanh", "dropout", "pool", "residual", "fork", "deep fork")
RANDOM_NETWORKS = st.builds(
    _made, st.integers(0, 99), st.one_of(st.lists(st.sampled_from(KINDS), max_size=6), st.integers(1, 2))
)


# Queries


def bound(text: str, **parameters: Any) -> Any:
    return bind(text, parse(text).query, KnownNames(), parameters)


def constructed(network: Network, mutations: str, **parameters: Any) -> list[Constructed]:
    """The networks of all variants of `construct b from a mutate MUTATIONS`."""
    query = bound(f"construct b from a mutate {mutations}", **parameters)
    assert isinstance(query, BoundConstruct)
    return [construct(NamedLayers(network), query, variant) for variant in variants(query)]


def sliced(network: Network, text: str) -> Network:
    query = bound(text)
    assert isinstance(query, BoundSlice)
    layers = NamedLayers(network)
    return network.slice(layers.select(query.inputs), layers.select(query.outputs))


def state(model: nn.Module) -> Mapping[str, Tensor]:
    return dict(model.state_dict())
