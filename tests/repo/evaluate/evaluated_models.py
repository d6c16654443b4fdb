"""Models for the tests of bounds and evaluation, and weights that share their leading bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from regatta import network
from regatta.network.bounds import Ball, between
from regatta.store.format.dtypes import DTYPES
from regatta.store.format.planes import bounds, known_bits

F32 = DTYPES["F32"]


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Joined(nn.Module):
    """What two branches make of the same input, side by side."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.other(x)], 1)


class Gated(nn.Module):
    """A product of two branches, a learned scale, a mean over space: squeeze and excite."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Linear(channels, channels)
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.sigmoid(self.gate(x.mean((2, 3)))).unsqueeze(-1).unsqueeze(-1)
        return x * weight * self.scale - 0.5


class Attending(nn.Module):
    """Attention written out."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(features, features) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 3.0
        return torch.softmax(scores, -1) @ self.value(x)


class Squared(nn.Module):
    """A matrix times its own transpose: both operands of the product are the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.transpose(1, 2)


class TransformerBlock(nn.Module):
    """Attention and two full connections, each added to what comes in."""

    def __init__(self, features: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.query, self.key, self.value, self.out = (nn.Linear(features, features) for _ in range(4))
        self.up, self.down = nn.Linear(features, hidden), nn.Linear(hidden, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, features = x.shape
        z = self.norm_1(x)
        q, k, v = (
            part(z).view(batch, steps, self.heads, features // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        shares = torch.softmax(q @ k.transpose(2, 3) / (features // self.heads) ** 0.5, -1)
        x = x + self.out((shares @ v).transpose(1, 2).reshape(batch, steps, features))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """Reads an image row by row: GELU, LayerNorm and attention."""

    def __init__(self, features: int = 16, heads: int = 2, hidden: int = 32, blocks: int = 1) -> None:
        super().__init__()
        self.embed, self.positions = nn.Linear(8, features), nn.Parameter(0.1 * torch.randn(1, 8, features))
        self.blocks = nn.Sequential(*(TransformerBlock(features, heads, hidden) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(features), nn.Linear(features, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embed(x) + self.positions)).mean(1))


def read(net: nn.Module, example: torch.Tensor) -> network.Network:
    return network.from_torch(net.eval(), example)


def weights(net: nn.Module) -> dict[str, Any]:
    return {name: value.numpy().copy() for name, value in net.state_dict().items() if value.is_floating_point()}


def stir(net: nn.Module, seed: int) -> None:
    """Statistics and scales that are not those of a fresh layer."""
    made = torch.Generator().manual_seed(seed)
    for module in net.modules():
        for name in ("weight", "bias", "running_mean"):
            value = getattr(module, name, None)
            if isinstance(value, torch.Tensor) and value.dim() == 1:
                value.data.add_(0.3 * torch.randn(value.shape, generator=made))
        if isinstance(getattr(module, "running_var", None), torch.Tensor):
            module.running_var.data.uniform_(0.2, 2.0, generator=made)  # type: ignore[union-attr, operator]


def boxes(values: Mapping[str, Any], planes: int) -> dict[str, Ball]:
    made = {}
    for name, value in values.items():
        low, high = bounds(value.reshape(-1).view("<u4"), planes, F32)
        made[name] = between(low.reshape(value.shape), high.reshape(value.shape))
    return made


def completed(values: Mapping[str, Any], planes: int, rng: np.random.Generator, corners: bool) -> dict[str, Any]:
    """Other weights with the same leading planes: any, or at the ends of what these allow."""
    known = np.uint32(known_bits(F32, planes))
    made = {}
    for name, value in values.items():
        words = value.reshape(-1).view("<u4")
        drawn = rng.integers(0, 2**32, len(words), np.uint32)
        drawn = np.where(drawn & 1, np.uint32(2**32 - 1), np.uint32(0)) if corners else drawn
        made[name] = ((words & known) | (drawn & ~known)).view("<f4").reshape(value.shape)
    return made


def worst(net: nn.Module, values: Mapping[str, Any], planes: int, x: Any) -> dict[str, Any]:
    """The weights with the same leading planes that, to first order, make output 0 of the first input the least."""
    answer(net, values, x[:1])
    logits = net(torch.from_numpy(x[:1]))[0]
    held = {name: value for name, value in net.named_parameters() if name in values}
    slopes = torch.autograd.grad(logits[0] - logits[1], list(held.values()), allow_unused=True)
    made = dict(values)
    for name, slope in zip(held, slopes, strict=True):
        low, high = bounds(values[name].reshape(-1).view("<u4"), planes, F32)
        shape = values[name].shape
        if slope is not None:
            made[name] = np.where(slope.numpy() > 0, low.reshape(shape), high.reshape(shape)).astype("f4")
    return made


def answer(net: nn.Module, values: Mapping[str, Any], x: Any) -> Any:
    """What the model itself says with these weights, in float32."""
    with torch.no_grad():
        net.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()}, strict=False)
        return net.eval()(torch.from_numpy(x)).numpy().astype(np.float64)
