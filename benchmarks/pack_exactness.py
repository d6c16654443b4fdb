"""Ten members that have little in common, and the plain loop that each must equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from regatta.pack import capturable

ROWS = 3000


def net(kind: str, width: int) -> nn.Module:
    if kind == "mlp":
        return nn.Sequential(nn.Linear(192, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10))
    if kind == "dropout":
        return nn.Sequential(nn.Linear(192, width), nn.GELU(), nn.Dropout(0.3), nn.Linear(width, 10))
    layers = [nn.Unflatten(1, (3, 8, 8)), nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.1 if kind == "both" else 0.0), nn.Linear(64 * width, 10))


def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True)
class Kind:
    """How to make one of the ten."""

    net: str
    width: int
    batch: int
    optimizer: Callable[[Any], torch.optim.Optimizer]
    schedule: Callable[[Any], Any] | None = None
    clip_norm: float | None = None
    scaled: bool = False


optim = torch.optim
KINDS = (
    Kind("mlp", 64, 20, lambda p: optim.Adam(p, lr=1e-3)),
    Kind("mlp", 128, 32, lambda p: optim.SGD(p, lr=0.05, momentum=0.9)),
    Kind("mlp", 256, 48, lambda p: optim.RMSprop(p, lr=1e-3)),
    Kind("mlp", 64, 64, lambda p: optim.Adagrad(p, lr=0.01)),
    Kind("conv", 8, 32, lambda p: optim.AdamW(p, lr=2e-3)),
    Kind("conv", 16, 64, lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)),
    Kind("dropout", 128, 32, lambda p: optim.Adam(p, lr=3e-3)),
    Kind("both", 8, 48, lambda p: optim.NAdam(p, lr=1e-3)),
    Kind("mlp", 128, 20, lambda p: optim.SGD(p, lr=0.1), lambda o: optim.lr_scheduler.ExponentialLR(o, 0.99), 1.0),
    Kind("dropout", 64, 64, lambda p: optim.AdamW(p, lr=1e-2), lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 200),
         None, True),
)  # fmt: skip


def data(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 192, generator=made)
    return x.to(device), (x[:, :10].argmax(1) % 10).to(device)


def order(number: int) -> Callable[[int, int], list[np.ndarray]]:
    def batches(rows: int, epoch: int) -> list[np.ndarray]:
        rows_of, size = np.random.default_rng([number, epoch]).permutation(rows), KINDS[number].batch
        return [rows_of[start : start + size] for start in range(0, rows, size)]

    return batches


def parts(number: int, device: str) -> dict[str, Any]:
    """The arguments of `Pack.load`, with a new model."""
    kind = KINDS[number]
    torch.manual_seed(number)
    model = net(kind.net, kind.width).to(device)
    optimizer = kind.optimizer(model.parameters())
    capturable(optimizer, kind.schedule is not None)
    return {
        "model": model,
        "optimizer": optimizer,
        "loss_fn": loss_fn,
        "batch_size": kind.batch,
        "schedule": kind.schedule(optimizer) if kind.schedule else None,
        "clip_norm": kind.clip_norm,
        "scaler": torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=20) if kind.scaled else None,
        "order": order(number),
        "seed": 100 + number,
        "name": f"{number} {kind.net} {kind.width}, batch {kind.batch}, {type(optimizer).__name__}",
    }


def alone(number: int, epochs: int, device: str) -> dict[str, Any]:
    """A plain loop, with nothing of ours but the form of the optimizer."""
    own = parts(number, device)
    model, optimizer, schedule, scaler = own["model"], own["optimizer"], own["schedule"], own["scaler"]
    torch.manual_seed(own["seed"])
    x, y = data(device)
    losses = []
    model.train()
    for epoch in range(epochs):
        for rows in own["order"](ROWS, epoch):
            taken = torch.from_numpy(rows).to(device)
            optimizer.zero_grad(set_to_none=True)
            loss = loss_fn(model, (x[taken], y[taken]))
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                if own["clip_norm"] is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), own["clip_norm"])
                optimizer.step()
            if schedule is not None:
                schedule.step()
            losses.append(loss.detach())
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "losses": torch.stack(losses).double().cpu(),
    }


def differences(state: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The names of values that differ in any bit; learning rates of the groups included."""
    ours, theirs = (
        _flat({k: state[k] for k in ("model", "optimizer")}),
        _flat({k: expected[k] for k in ("model", "optimizer")}),
    )
    missing = sorted(ours.keys() ^ theirs.keys())
    return missing + [name for name in ours.keys() & theirs.keys() if not _same(ours[name], theirs[name])]


def _flat(tree: Any, place: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {k: v for name, part in tree.items() for k, v in _flat(part, f"{place}/{name}").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, part in enumerate(tree) for k, v in _flat(part, f"{place}/{i}").items()}
    return {place: tree}


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = one.detach().cpu().reshape(-1), other.detach().cpu().reshape(-1)
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
