"""Every optimizer of torch.optim and every schedule of lr_scheduler, by hops and by packs, against a plain loop.

docs/frameworks.md shows what is compared here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.data import batch_order, read_partition
from regatta.errors import UsageError
from regatta.frameworks.torch.framework import assemble, seeded
from regatta.seeds import initial_seed, unit_seed

RATES = (0.05, 0.02)  # two models of each recipe, so that packs have two members
EPOCHS = 2
FLAGS = {
    "maximize": [False, True],
    "foreach": [None, True, False],
}
# The options that are combined. The first value of each is the default.
OPTIMIZERS: dict[str, dict[str, list[Any]]] = {
    "ASGD": {"weight_decay": [0, 0.1], "t0": [1e6, 2], **FLAGS},
    "Adadelta": {"weight_decay": [0, 0.1], "rho": [0.9, 0.5], **FLAGS},
    "Adafactor": {"weight_decay": [0, 0.1], "d": [1.0, 2.0], **FLAGS},
    "Adagrad": {"weight_decay": [0, 0.1], "lr_decay": [0, 0.1], "fused": [None, True], "maximize": [False, True]},
    "Adam": {"weight_decay": [0, 0.1], "amsgrad": [False, True], "fused": [None, True], **FLAGS},
    "AdamW": {"weight_decay": [0.01, 0], "amsgrad": [False, True], "fused": [None, True], **FLAGS},
    "Adamax": {"weight_decay": [0, 0.1], "betas": [(0.9, 0.999), (0.5, 0.9)], **FLAGS},
    "LBFGS": {"max_iter": [20, 3], "history_size": [100, 2], "line_search_fn": [None, "strong_wolfe"]},
    "Muon": {"weight_decay": [0.1, 0], "momentum": [0.95, 0.5], "nesterov": [True, False]},
    "NAdam": {"weight_decay": [0, 0.1], "decoupled_weight_decay": [False, True], **FLAGS},
    "RAdam": {"weight_decay": [0, 0.1], "decoupled_weight_decay": [False, True], **FLAGS},
    "RMSprop": {"weight_decay": [0, 0.1], "momentum": [0, 0.9], "centered": [False, True], **FLAGS},
    "Rprop": {"etas": [(0.5, 1.2), (0.4, 1.5)], **FLAGS},
    "SGD": {"momentum": [0, 0.9], "nesterov": [False, True], "weight_decay": [0, 0.1], "fused": [None, True], **FLAGS},
    "SparseAdam": {"betas": [(0.9, 0.999), (0.5, 0.9)], "maximize": [False, True]},
}
SCHEDULES: dict[str, list[Callable[[Any], Any]]] = {
    "ChainedScheduler": [
        lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(o, 0.5, 3), lr_scheduler.ExponentialLR(o, 0.9)]
        )
    ],
    "ConstantLR": [lambda o: lr_scheduler.ConstantLR(o, 0.5, 3)],
    "CosineAnnealingLR": [lambda o: lr_scheduler.CosineAnnealingLR(o, 5, 0.001)],
    "CosineAnnealingWarmRestarts": [lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2)],
    "CyclicLR": [
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, mode="triangular2", cycle_momentum=False),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, mode="exp_range", gamma=0.9, cycle_momentum=False),
    ],
    "ExponentialLR": [lambda o: lr_scheduler.ExponentialLR(o, 0.9)],
    "LambdaLR": [lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step)],
    "LinearLR": [lambda o: lr_scheduler.LinearLR(o, 0.2, 1.0, 4)],
    "MultiStepLR": [lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.5)],
    "MultiplicativeLR": [lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9)],
    "OneCycleLR": [
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=100),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=100, three_phase=True, anneal_strategy="linear"),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=100, cycle_momentum=False),
    ],
    "PolynomialLR": [lambda o: lr_scheduler.PolynomialLR(o, 6, 2.0)],
    "SequentialLR": [
        lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o, 0.1), lr_scheduler.StepLR(o, 2)], [3])
    ],
    "StepLR": [lambda o: lr_scheduler.StepLR(o, 2, 0.5)],
}
REFUSED = {"ReduceLROnPlateau": "refused: waits for a metric, which a unit lacks"}
SCHEDULED = ("Adam", "SGD")  # with betas, and with momentum


def options_of(name: str) -> list[dict[str, Any]]:
    """Every combination of an optimizer's options that PyTorch accepts, the defaults first."""
    axes = OPTIMIZERS[name]
    combined = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [options for options in combined if accepts(name, options)]


def accepts(name: str, options: Mapping[str, Any]) -> bool:
    parameter = nn.Parameter(torch.zeros(2, 2))
    try:
        getattr(torch.optim, name)([parameter], lr=0.1, **options)
    except (ValueError, RuntimeError):
        return False
    return True


def recipes(whole: bool) -> list[dict[str, Any]]:
    """A configuration for each recipe: its optimizer, the number of its options, its schedule."""
    found = []
    for name in OPTIMIZERS:
        known = len(options_of(name))
        found += [{"optimizer": name, "options": k} for k in range(known) if whole or k == known - 1]
    for name, makers in SCHEDULES.items():
        found += [
            {"optimizer": optimizer, "options": 0, "schedule": name, "maker": k, "every": every}
            for optimizer in SCHEDULED
            for every in ("step", "epoch")
            for k in range(len(makers))
            if whole or (k == 0 and every == "step" and optimizer == SCHEDULED[len(name) % 2])
        ]
    return [{**recipe, "lr": rate, "batch_size": 7} for recipe in found for rate in RATES]


class Net(nn.Module):
    """Matrices alone, as Muon wants them, and dropout; or an embedding, whose gradients are sparse."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        if sparse:
            self.layers = nn.Sequential(nn.Embedding(6, 3, sparse=True))
        else:
            self.layers = nn.Sequential(
                nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3, bias=False)
            )
        self.sparse = sparse

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.argmax(1) if self.sparse else x)


def model_fn(config: dict[str, Any]) -> Any:
    name = config["optimizer"]
    net = Net(sparse=name == "SparseAdam")
    options = options_of(name)[config["options"]]
    if config.get("schedule") in ("OneCycleLR", "CyclicLR") and name == "SGD":
        options = {**options, "momentum": 0.9}
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=config["lr"], **options)
    if "schedule" not in config:
        return net, optimizer
    return net, optimizer, {config["every"]: SCHEDULES[config["schedule"]][config["maker"]](optimizer)}


def loss_fn(model: nn.Module, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def plain_loop(run: Run, data: Dataset, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The same recipe in PyTorch alone, in the order in which the run visited the partitions."""
    units = [unit for unit in run.find(config).units if unit.kind == "train"]
    with seeded(initial_seed(0, config)):
        net, optimizer, *schedules = model_fn(config)
    schedule = schedules[0] if schedules else {}
    for number, unit in enumerate(units, 1):
        x, y = map(torch.from_numpy, read_partition(data.train[unit.partition].path))
        seed = unit_seed(0, config, unit.epoch, unit.partition)
        with seeded(seed):
            net.train()
            for rows in batch_order(len(x), config["batch_size"], seed):

                def closure(rows: Any = rows, x: Any = x, y: Any = y) -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = loss_fn(net, (x[rows], y[rows]), config)
                    loss.backward()
                    return loss

                if config["optimizer"] != "LBFGS":
                    closure()
                    optimizer.step()
                else:
                    optimizer.step(closure)
                if "step" in schedule:
                    schedule["step"].step()
            if "epoch" in schedule and number % len(data.train) == 0:
                schedule["epoch"].step()
    return net.state_dict()


def differing(run: Run, data: Dataset, configs: list[dict[str, Any]]) -> list[Any]:
    """The recipes whose weights are not those of the plain loop, bit for bit, and those that failed."""
    found = []
    for config in configs:
        if run.find(config).error is not None:
            found.append((config, run.find(config).error))
            continue
        weights, expected = run.weights(config), plain_loop(run, data, config)
        if any(weights[name].tobytes() != value.numpy().tobytes() for name, value in expected.items()):
            found.append(config)
    return found


@pytest.fixture(scope="module", autouse=True)
def one_thread_only(one_thread: None) -> None:
    """The workers have one thread."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    generator = torch.Generator().manual_seed(3)
    y = torch.randint(3, (64,), generator=generator)
    x = torch.randn(64, 6, generator=generator) + y[:, None]
    folder = tmp_path_factory.mktemp("data")
    return Dataset.from_arrays(x.numpy(), y.numpy(), partitions=2, eval_fraction=0.25, directory=folder, name="recipes")


@pytest.mark.parametrize("pack", [False, True], ids=["hops", "packs"])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
def test_recipes_equal_a_plain_loop(data: Dataset, tmp_path: Path, whole: bool, pack: bool) -> None:
    configs = recipes(whole)
    options = {"loss_fn": loss_fn, "epochs": EPOCHS, "repo": tmp_path, "cluster": Cluster.inline(2), "pack": pack}
    run = Sweep(data, search.configs(configs), model_fn, **options).launch(progress=False)
    assert any(unit.pack for unit in run.record.units) == pack
    assert differing(run, data, configs) == []


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_refused_schedules(every: str) -> None:
    for name in REFUSED:
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.raises(UsageError, match="waits for a metric"):
            assemble((net, optimizer, {every: getattr(lr_scheduler, name)(optimizer)}), "cpu")


def test_no_class_of_pytorch_is_left_out() -> None:
    base = torch.optim.Optimizer
    known = {n for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, base) and c is not base}
    assert set(OPTIMIZERS) == known
    schedules = {
        name
        for name, each in vars(lr_scheduler).items()
        if isinstance(each, type) and issubclass(each, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert {*SCHEDULES, *REFUSED, "LRScheduler"} == schedules


def table() -> str:
    lines = ["| class | recipes: options | by hops | by packs |", "|---|---|---|---|"]
    for name in OPTIMIZERS:
        lines.append(f"| `{name}` | {len(options_of(name))}: {', '.join(OPTIMIZERS[name])} | equal | equal |")
    for name, makers in SCHEDULES.items():
        count = len(makers) * 2 * len(SCHEDULED)
        lines.append(f"| `{name}` | {count}: per step and per epoch, Adam and SGD | equal | equal |")
    lines += [f"| `{name}` | {reason} | | |" for name, reason in REFUSED.items()]
    return "\n".join(lines)


def test_the_table_of_the_documents_is_this_one(root: Path) -> None:
    assert table() in (root / "docs" / "frameworks.md").read_text()
