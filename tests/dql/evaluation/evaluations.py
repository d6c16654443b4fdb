"""Small networks in a repository, data for them, and queries over both."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from regatta import Cluster, Run
from regatta.dql.evaluation.result import evaluation_rows
from regatta.dql.run import LAUNCHERS, QueryContext, prepare
from regatta.network import from_torch
from regatta.repo import Repo

CONFIG = """
input_data = "small"
batch_size = 8
epochs = 3
visits = "seeded"
base_lr = 0.1

[data]
small = "small.npz"
"""


def alexnet(pool: str, width: int = 2) -> nn.Sequential:
    """Five convolutions, three pools and three full layers, for images of 8 x 8."""
    pools = {"avg": nn.AvgPool2d, "max": nn.MaxPool2d}[pool]
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, width, 3, padding=1), pool1=pools(2), conv2=nn.Conv2d(width, width, 3, padding=1),
            pool2=pools(2), conv3=nn.Conv2d(width, width, 3, padding=1), relu3=nn.ReLU(),
            conv4=nn.Conv2d(width, width, 3, padding=1), relu4=nn.ReLU(), conv5=nn.Conv2d(width, 4, 3, padding=1),
            pool5=pools(2), flat=nn.Flatten(), fc6=nn.Linear(4, 8), relu6=nn.ReLU(), fc7=nn.Linear(8, 8),
            relu7=nn.ReLU(), fc8=nn.Linear(8, 10),
        )
    )  # fmt: skip


def digits(rows: slice) -> tuple[Any, Any]:
    found = load_digits()
    return (found.images[rows, None] / 16).astype(np.float32), found.target[rows].astype(np.int64)


def commit_alexnets(repo: Repo, *pools: str) -> None:
    for number, pool in enumerate(pools):
        torch.manual_seed(number)
        net = alexnet(pool)
        network = from_torch(net, torch.zeros(2, 1, 8, 8))
        repo.commit(f"alexnet-{pool}v1-{number}", net.state_dict(), network=network, git=False)


def project(folder: Path, *pools: str, config: str = CONFIG, rows: int = 160) -> Repo:
    """A repository with AlexNets, and beside it a config and its data."""
    repo = Repo.init(folder)
    commit_alexnets(repo, *pools)
    (folder / "config.toml").write_text(config)
    for name, part in (("small", slice(0, rows)), ("path1", slice(0, 120)), ("path2", slice(120, 240))):
        x, y = digits(part)
        np.savez(folder / f"{name}.npz", x=x, y=y)
    return repo


def launch(repo: Repo, text: str, parameters: dict[str, Any] | None = None, **options: Any) -> Run:
    max_models = options.pop("max_models", 1_000)
    given = {"cluster": Cluster.inline(1), "progress": False, **options}
    context = QueryContext(repo, text, max_models=max_models, launch=given)
    query = prepare(context, parameters or {}).query
    run: Run = LAUNCHERS[type(query)](context, query)
    return run


def rows_of(run: Run) -> list[dict[str, Any]]:
    return evaluation_rows(run)
