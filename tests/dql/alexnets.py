"""A repository of real networks: small AlexNets, trained for some steps on handwritten digits, and a few others.

All have conv1 to conv5, three pools and fc6 to fc8. The pools are of both kinds, and stand right behind a convolution
or behind its ReLU. Times are fixed, so that conditions on dates have answers that can be written down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from regatta.network import from_torch
from regatta.repo import Repo
from regatta.repo.catalog.records import RunEntry

DAY = 86_400.0
START = datetime(2015, 11, 1, tzinfo=UTC).timestamp()
# name, day of November 2015, pools after conv1, conv2 and conv5, whether a ReLU stands between, lr, parent
MODELS: Sequence[tuple[str, int, tuple[str, str, str], bool, float, str | None]] = (
    ("alexnet_early", 10, ("max", "max", "max"), False, 0.1, None),  # before the 22nd
    ("alexnet_max", 23, ("max", "max", "max"), False, 0.1, "alexnet_early"),
    ("alexnet_avg", 24, ("avg", "avg", "avg"), False, 0.1, "alexnet_max"),
    ("alexnet_mixed", 25, ("avg", "avg", "max"), False, 0.01, "alexnet_max"),
    ("alexnet_second", 26, ("avg", "max", "avg"), False, 0.01, None),  # the maximum follows conv2 alone
    ("alexnet_relu", 27, ("max", "max", "max"), True, 0.01, None),  # ReLUs follow, and pools after them
    ("alexnet-origin1", 28, ("max", "max", "max"), False, 0.1, None),
    ("alexnet-avgv1", 29, ("avg", "avg", "avg"), False, 0.1, "alexnet-origin1"),
)
ONNX_LIKE = {
    "nodes": [
        {"id": "input", "kind": "INPUT"},
        {"id": "/conv1/Conv", "kind": "CONV", "attributes": {"dims": 2, "in": 1, "out": 8, "kernel": [5, 5]}},
        {"id": "/Relu", "kind": "RELU"},
        {"id": "1", "kind": "POOL", "attributes": {"dims": 2, "function": "max", "kernel": [2, 2], "stride": [2, 2]}},
        {"id": "/features/features.2/Conv", "kind": "CONV", "attributes": {"dims": 2, "out": 128, "groups": 2}},
        {"id": "add", "kind": "ADD"},
        {"id": "out", "kind": "OUTPUT"},
    ],
    "edges": [
        ["input", "/conv1/Conv"], ["/conv1/Conv", "/Relu"], ["/Relu", "1"], ["1", "/features/features.2/Conv"],
        ["/features/features.2/Conv", "add", 0], ["1", "add", 1], ["add", "out"],
    ],
}  # fmt: skip


def alexnet(pools: Sequence[str], relu_first: bool, activation: str = "relu") -> Any:
    """conv1 to conv5 with pools behind the first, the second and the last, then fc6 to fc8; for images of 8 x 8."""
    from torch import nn

    widths = [1, 4, 6, 8, 8, 6]
    pool = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number in range(1, 6):
        layers[f"conv{number}"] = nn.Conv2d(widths[number - 1], widths[number], 3, padding=1)
        pooled = {1: 0, 2: 1, 5: 2}.get(number)
        parts: list[tuple[str, nn.Module]] = [(f"{activation}{number}", nn.ReLU())]
        if pooled is not None:
            parts.insert(int(relu_first), (f"pool{number}", pool[pools[pooled]](2)))
        layers.update(parts)
    layers |= OrderedDict(flatten=nn.Flatten(), fc6=nn.Linear(6, 16), relu6=nn.ReLU(), fc7=nn.Linear(16, 12))
    layers |= OrderedDict(relu7=nn.ReLU(), fc8=nn.Linear(12, 10))
    return nn.Sequential(layers)


def train(model: Any, lr: float, steps: int = 3) -> list[float]:
    """The losses of some steps on digits."""
    import torch

    digits = load_digits()
    x = torch.tensor(digits.images[:128, None] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[:128])
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights_of(model: Any) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def make_alexnets(folder: Path) -> None:
    """Make the repository in a folder."""
    import torch

    with Repo.init(folder) as repo:
        for number, (name, day, pools, relu_first, lr, parent) in enumerate(MODELS):
            torch.manual_seed(number)
            # The third query of the paper inserts relu1, relu2, ...
            model = alexnet(pools, relu_first, "act" if name == "alexnet-avgv1" else "relu")
            network = from_torch(model, torch.zeros(1, 1, 8, 8))
            train(model, lr)
            _set_time(repo, day)
            repo.commit(
                name, weights_of(model), network=network, git=False, message=f"with {' '.join(pools)} pools",
                hyperparameters={"lr": lr, "batch_size": 128, "optimizer": "sgd", "pools": list(pools)},
                metrics=_metrics(number), parents=[parent] if parent else [],
                metadata={"data": {"name": "digits", "images": 128}, "checked": number % 2 == 0},
            )  # fmt: skip
        _set_time(repo, 30)
        repo.commit("onnx", network=ONNX_LIKE, git=False, hyperparameters={"lr": "auto", "nesterov": True})
        repo.commit("alexnet_max", git=False, network=repo.network("alexnet_avg"), metrics={"loss": [0.5, 0.25]},
                    hyperparameters={"lr": 1, "optimizer": None}, message="a second version")  # fmt: skip
        repo.commit("notes", git=False, message="It has neither network nor metrics.")
        repo.tag("alexnet_max@1", "best")
        repo.tag("alexnet_avg", "checked")
        repo.tag("alexnet_avg", "candidate")
        _add_run(repo)


def _set_time(repo: Repo, day: int) -> None:
    repo.clock = lambda: START + (day - 1) * DAY


def _metrics(number: int) -> Mapping[str, Any]:
    """Not those of the training, which differ between machines."""
    return {
        "loss": {1: 2.5 - number / 10, 2: 2.0 - number / 10, 3: 2.25 - number / 10},
        "accuracy": {1: 0.1 + number / 20, 3: 0.2 + number / 20},
    }


def _add_run(repo: Repo) -> None:
    """A run with two versions, one of them without a finite loss."""
    from regatta.repo.catalog.catalog import NewVersion

    started = START + 40 * DAY
    with repo.catalog.transaction():
        entry = RunEntry("grid.0a1b", "grid", "runs/grid", "done", started, "loss", "min", {"seed": 1})
        repo.catalog.set_run(entry)
        for number, loss in enumerate((0.75, float("nan"))):
            repo.catalog.add(
                NewVersion(
                    f"{number:032x}", f"grid/c{number}", started + 60 * number, run=entry.series, config=f"c{number}",
                    hyperparameters={"lr": 10.0 ** -(number + 1), "dropout": None}, metrics={"loss": {1: loss}},
                    git={"commit": "c0ffee", "branch": "main", "dirty": number == 1},
                )
            )  # fmt: skip
