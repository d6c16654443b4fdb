"""What the benchmarks of packs share: the models, the peers, and how they are timed.

Peers train one model after another: plain PyTorch, PyTorch with fused optimizers, and PyTorch with each model's step
under a CUDA graph of its own. All read their batches from data on the device by an order on the device.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ROWS = 4096


def mlp(_: int = 0) -> nn.Module:
    """3072-512-512-512-10: an MLP with three hidden layers for 32 x 32 colour images."""
    sizes = [3072, 512, 512, 512]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def tiny(_: int = 0) -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, channels), nn.GroupNorm(8, channels)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(inner)))


class Images(nn.Module):
    """A residual network of 32 channels with group normalisation; halves the picture after each block, or never."""

    def __init__(self, blocks: int, halve: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU())
        self.blocks = nn.ModuleList([Residual(32) for _ in range(blocks)])
        self.halve = halve
        self.out = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = F.max_pool2d(block(x), 2) if self.halve else block(x)
        return self.out(x.mean((2, 3)))


def cnn(_: int = 0) -> nn.Module:
    return Images(3, True)


def cnn_full(_: int = 0) -> nn.Module:
    return Images(3, False)


class Block(nn.Module):
    """Attention written out: at 64 tokens that is faster than PyTorch's fused attention, alone and in a pack."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(rows, tokens, width))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self, block: Callable[[], nn.Module], width: int = 128, tokens: int = 64, words: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.place = nn.Parameter(torch.zeros(tokens, width))
        self.blocks = nn.Sequential(*[block() for _ in range(4)])
        self.out = nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(self.embed(x) + self.place))


def transformer(_: int = 0) -> nn.Module:
    return Transformer(lambda: Block(128, 4))


def transformer_layers(_: int = 0) -> nn.Module:
    """The same from PyTorch's own layers, with its fused attention."""
    kinds = {"dropout": 0.0, "batch_first": True, "norm_first": True}
    return Transformer(lambda: nn.TransformerEncoderLayer(128, 4, 512, **kinds))


def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def token_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@dataclass(frozen=True)
class Family:
    """A kind of model with made data for it."""

    name: str
    build: Callable[[int], nn.Module]
    shape: tuple[int, ...]
    batch: int
    loss: Callable[[nn.Module, Any], torch.Tensor] = loss_fn
    words: int = 0  # integer inputs and a target per token

    def data(self, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.Generator().manual_seed(0)
        if self.words:
            x = torch.randint(self.words, (ROWS, *self.shape), generator=made)
            return x.to(device), x.roll(1, 1).contiguous().to(device)
        x = torch.randn(ROWS, *self.shape, generator=made)
        return x.to(device), torch.randint(10, (ROWS,), generator=made).to(device)

    def model(self, seed: int, device: str) -> nn.Module:
        torch.manual_seed(seed)
        return self.build(seed).to(device)


MLP = Family("MLP 3072-512-512-512-10", mlp, (3072,), 64)
CNN = Family("residual CNN, 32 channels", cnn, (3, 32, 32), 64)
CNN_FULL = Family("residual CNN, 32 channels, never halved", cnn_full, (3, 32, 32), 64)
TRANSFORMER = Family("transformer d=128, 4 layers, 64 tokens", transformer, (64,), 32, token_loss, 64)
LAYERS = Family("transformer from nn.TransformerEncoderLayer", transformer_layers, (64,), 32, token_loss, 64)
TINY = Family("MLP 32-32-10", tiny, (32,), 16)


def order(seed: int, batch: int) -> Callable[[int, int], list[np.ndarray]]:
    """Each member's own order, as units of a run have it."""

    def batches(rows: int, epoch: int) -> list[np.ndarray]:
        rows_of = np.random.default_rng([seed, epoch]).permutation(rows)
        return [rows_of[start : start + batch] for start in range(0, rows - batch + 1, batch)]

    return batches


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], object], device: str, repeats: int = 3) -> float:
    """Seconds, the median of some runs."""
    found = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def batches_on_device(family: Family, seed: int, steps: int, device: str) -> list[torch.Tensor]:
    made, epoch, found = order(seed, family.batch), 0, []
    while len(found) < steps:
        found += made(ROWS, epoch)
        epoch += 1
    return [torch.from_numpy(rows).to(device) for rows in found[:steps]]


def eager_seconds(
    family: Family, make: Callable[[Any], Any], steps: int, device: str = "cuda", models: int = 3
) -> float:
    """One step of plain training: models one after another."""
    data, each = family.data(device), []
    for seed in range(models):
        model = family.model(seed, device)
        optimizer, rows = make(model.parameters()), batches_on_device(family, seed, steps, device)

        def run(model=model, optimizer=optimizer, rows=rows) -> None:
            for taken in rows:
                optimizer.zero_grad(set_to_none=True)
                family.loss(model, tuple(part[taken] for part in data)).backward()
                optimizer.step()

        run()
        each.append(timed(run, device) / steps)
    return statistics.median(each)


def graph_seconds(family: Family, make: Callable[[Any], Any], steps: int) -> float:
    """One step of one model under a CUDA graph of its own."""
    data, model = family.data("cuda"), family.model(0, "cuda")
    optimizer = make(model.parameters())
    table = torch.stack(batches_on_device(family, 0, steps, "cuda"))
    cursor = torch.zeros(1, dtype=torch.int64, device="cuda")

    def step() -> None:
        rows = table.index_select(0, cursor % steps).view(-1)
        optimizer.zero_grad(set_to_none=True)
        family.loss(model, tuple(part.index_select(0, rows) for part in data)).backward()
        optimizer.step()
        cursor.add_(1)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    for _ in range(5):
        graph.replay()
    return timed(lambda: [graph.replay() for _ in range(steps)], "cuda") / steps


def packed_seconds(pack: Any, data: Any, steps: int, device: str = "cuda") -> float:
    """One step of every member of a pack that has been trained before."""
    return timed(lambda: pack.train(data, steps=steps), device) / steps


def loaded(pack: Any, family: Family, count: int, make: Callable[[Any, int], Any], device: str = "cuda") -> list[Any]:
    members = []
    for seed in range(count):
        model = family.model(seed, device)
        optimizer = make(model.parameters(), seed)
        made = order(seed, family.batch)
        members.append(pack.load(model, optimizer, family.loss, family.batch, order=made, seed=seed))
    return members


def adam(parameters: Any, seed: int = 0, **flags: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3 * (1 + seed % 7) / 4, **flags)


def eager_rows(family: Family, steps: int, device: str = "cuda") -> dict[str, float]:
    """The plain baselines: PyTorch's default, and with the fused optimizer."""
    return {
        "eager": eager_seconds(family, adam, steps, device),
        "eager, fused optimizer": eager_seconds(family, lambda p: adam(p, fused=True), steps, device),
    }


def need_gpu() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device, and there is none.")


def versus(rows: Sequence[Sequence[Any]], name: str) -> float:
    """The seconds of a named row."""
    return next(float(row[1]) for row in rows if row[0] == name)
