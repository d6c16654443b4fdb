"""Small data, models and functions for the tests of the engine and of sweeps; workers import them from here."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regatta import Dataset

WIDTH, CLASSES = 6, 3


def small_data(folder: Path, rows: int = 60, proportions: Any = (4, 1, 2, 3), **options: Any) -> Dataset:
    """Noisy classes of six numbers each, in four partitions of different sizes."""
    generator = np.random.default_rng(3)
    y = generator.integers(0, CLASSES, rows)
    x = (generator.normal(size=(rows, WIDTH)) + y[:, None]).astype(np.float32)
    options = {"partitions": len(proportions), "eval_fraction": 0.25, "eval_partitions": 3, **options}
    return Dataset.from_arrays(x, y, proportions=proportions, directory=folder, name="small", **options)


class Net(nn.Module):
    """Counts its training steps, so that functions can misbehave at a certain one."""

    def __init__(self, hidden: int, *between: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), *between, nn.Linear(hidden, CLASSES))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
        return self.layers(x)


def model_fn(config: dict[str, Any]) -> Any:
    """The model and optimizer of `config["kind"]`; Adam by default."""
    if config.get("fails") == "build":
        raise ValueError("no such model")
    kind, rate = config.get("kind", "adam"), config.get("lr", 0.01)
    between = {"dropout": [nn.Dropout(0.4)], "norm": [nn.BatchNorm1d(8)]}.get(kind, [])
    net = Net(8, *between)
    if kind == "momentum":
        return net, torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    if kind == "schedule per epoch":
        return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.3)
    if kind == "schedule per step":
        return net, optimizer, {"step": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=200)}
    return net, optimizer


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    x, y = batch
    time.sleep(config.get("sleeps", 0.0))
    fails = config.get("fails")
    if fails == "first batch" or (fails == "epoch 2" and model.training and model.steps >= config["epoch_steps"]):
        raise ValueError(f"cannot train at step {int(model.steps)}")
    if fails == "death" and model.training and model.steps >= config["epoch_steps"]:
        os._exit(3)
    if fails == "stall" and model.training and model.steps >= config["epoch_steps"]:
        time.sleep(600)
    loss = nn.functional.cross_entropy(model(x), y)
    return loss * float("nan") if fails == "nan" else loss


def eval_fn(data: Any, model: Any, config: dict[str, Any]) -> dict[str, float]:
    x, y = data
    if config.get("fails") == "eval" and model.steps >= config["epoch_steps"]:
        raise ValueError("cannot judge")
    return {"accuracy": float((model(x).argmax(1) == y).float().mean())}


def train_fn(data: Any, model: Any, optimizer: Any, config: dict[str, Any]) -> dict[str, float]:
    """Two steps on all rows, with noise from the global generator."""
    x, y = data
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "rows": float(len(x))}


def plain_fn(config: dict[str, Any]) -> Any:
    """For the NumPy reference: a linear model of the classes."""
    from regatta.frameworks.numpy import SGD

    return {"w": np.random.normal(size=(WIDTH, CLASSES)), "b": np.zeros(CLASSES)}, SGD(config["lr"], momentum=0.9)


def plain_loss(weights: Any, batch: Any, config: dict[str, Any]) -> Any:
    """Squared distance from the one-hot class, and its gradients."""
    x, y = batch
    error = x @ weights["w"] + weights["b"] - np.eye(CLASSES)[y] + np.random.normal(scale=0.01, size=(len(x), CLASSES))
    return (error**2).mean(), {"w": x.T @ error / len(x), "b": error.mean(0)}
