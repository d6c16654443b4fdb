"""Small PyTorch models, each with something in its state that is easily lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as lr

WIDTH, CLASSES = 12, 3


def classify(model: nn.Module, batch: Any, config: Any) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def mlp(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), *between, nn.Linear(8, CLASSES))


class Tied(nn.Module):
    """Two names of one weight, and a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.again.weight = self.first.weight
        self.out = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("seen_first", self.seen[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += x.mean()
        return self.out(torch.tanh(self.again(torch.tanh(self.first(x)))))


class Unsaved(nn.Module):
    """Buffers that a state_dict leaves out: some are there from the start, some come, go or grow."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)
        self.register_buffer("scale", None, persistent=False)
        self.register_buffer("past", torch.zeros(0, WIDTH), persistent=False)
        self.register_buffer("same_mean", self.mean, persistent=False)
        self.register_buffer("first", torch.zeros(1), persistent=False)
        self.register_buffer("last", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
            self.scale = torch.ones(1) if self.scale is None else self.scale * 1.01
            self.past = torch.cat([self.past, x.detach()[:1]])[-3:]
            self.first, self.last = None, x.detach()[-1].clone()
        scale = 1.0 if self.scale is None else self.scale
        return self.out((x - self.mean) * scale + self.past.sum(0))


class Extra(nn.Module):
    """State that is not a tensor of the module: a get_extra_state with a nested tree."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)
        self.steps = 0
        self.past: list[float] = []
        self.seen = {1: torch.zeros(2), "1": torch.zeros(2), "a/b": torch.zeros(1), "a": {"b": torch.ones(1)}}

    def get_extra_state(self) -> Any:
        return {"steps": self.steps, "past": tuple(self.past), "seen": self.seen, "best": float("inf")}

    def set_extra_state(self, state: Any) -> None:
        self.steps, self.past, self.seen = state["steps"], list(state["past"]), state["seen"]
        assert state["best"] == float("inf")
        assert isinstance(state["past"], tuple)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
            self.past = [*self.past, float(x.detach()[0, 0])][-4:]
            self.seen["1"] = self.seen["1"] + 1
            self.seen["a"]["b"].mul_(1.5)
        return self.out(x) * (1 + 0.01 * self.steps) + self.seen["1"].sum() - self.seen["a/b"].sum()


class Odd(nn.Module):
    """Parameters and buffers of no dimension, of no elements, of whole numbers and of booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("none", torch.zeros(0))
        self.register_buffer("special", torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]))
        self.register_buffer("wide", torch.tensor([0.1], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
            self.mask = ~self.mask
        return self.out(x) * self.scale * self.mask + self.nothing.sum()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(WIDTH, CLASSES, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.complex64) @ self.turn).abs()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4, padding_idx=0)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words((x * 3).abs().long().clamp(max=6)).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x.view(len(x), 3, 4))[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x.view(len(x), 3, 4)).mean(1))


class Image(nn.Module):
    """A convolution whose weights and optimizer state lie in memory channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 2)
        self.norm = nn.BatchNorm2d(5)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(len(x), 3, 2, 2).to(memory_format=torch.channels_last)
        return self.out(self.norm(self.conv(x)).flatten(1))


class Named(torch.optim.SGD):
    """An optimizer with state of its own under a name, not under a parameter."""

    def step(self, closure: Any = None) -> Any:
        counts = self.state["counts"]
        counts["steps"] = counts.get("steps", 0) + 1
        for group in self.param_groups:
            group["lr"] = 0.1 / counts["steps"]
        return super().step(closure)


def with_optimizer(make: Callable[[], nn.Module], optimizer: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def model_fn(config: Any) -> Any:
        model = make()
        return model, optimizer(model.parameters(), **options)

    return model_fn


def with_schedule(schedule: Callable[[Any], Any], optimizer: Callable[..., Any] = torch.optim.SGD) -> Any:
    def model_fn(config: Any) -> Any:
        model = mlp(nn.Dropout(0.2))
        steps = optimizer(model.parameters(), lr=0.1)
        return model, steps, schedule(steps)

    return model_fn


def sequence(optimizer: Any) -> Any:
    warm = lr.LinearLR(optimizer, start_factor=0.5, total_iters=2)
    return lr.SequentialLR(optimizer, [warm, lr.ExponentialLR(optimizer, 0.9)], milestones=[1])


def both(optimizer: Any) -> Any:
    return {"step": lr.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3), "epoch": lr.ExponentialLR(optimizer, 0.9)}


def half(config: Any) -> Any:
    """bfloat16 weights whose optimizer keeps its state in float32."""
    model = mlp().to(torch.bfloat16)

    def loss_dtype(module: nn.Module, inputs: Any) -> Any:
        return tuple(part.to(torch.bfloat16) for part in inputs)

    model.register_forward_pre_hook(loss_dtype)
    return model, WideMomentum(model.parameters(), lr=0.05)


class WideMomentum(torch.optim.Optimizer):
    """Momentum and a copy of the weights in float32, as trainings in half precision keep them."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["master"], state["momentum"] = p.detach().float(), torch.zeros_like(p, dtype=torch.float32)
                state["momentum"].mul_(0.9).add_(p.grad.float())
                state["master"].sub_(group["lr"] * state["momentum"])
                p.data.copy_(state["master"])


def frozen(config: Any) -> Any:
    model = mlp(nn.BatchNorm1d(8))
    model[0].requires_grad_(False)
    return model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)


def groups(config: Any) -> Any:
    model = mlp()
    parts = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "weight_decay": 0.1}]
    return model, torch.optim.AdamW(parts, lr=torch.tensor(0.05), foreach=False)


def tensor_rate(config: Any) -> Any:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.05))
    return model, optimizer, {"step": lr.ExponentialLR(optimizer, 0.9)}


def channels_last(config: Any) -> Any:
    model = Image().to(memory_format=torch.channels_last)
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def lazy(config: Any) -> Any:
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, CLASSES))
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[3])
    return model, torch.optim.Rprop(model.parameters(), lr=0.01)


MODELS: dict[str, Callable[[Any], Any]] = {
    "adam": with_optimizer(mlp, torch.optim.Adam, lr=0.05),
    "adam fused": with_optimizer(mlp, torch.optim.Adam, lr=0.05, fused=True),
    "adamw amsgrad": with_optimizer(mlp, torch.optim.AdamW, lr=0.05, amsgrad=True),
    "sgd nesterov": with_optimizer(mlp, torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "sgd plain": with_optimizer(mlp, torch.optim.SGD, lr=0.05),
    "rmsprop": with_optimizer(mlp, torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True),
    "adagrad": with_optimizer(mlp, torch.optim.Adagrad, lr=0.05),
    "adafactor": with_optimizer(mlp, torch.optim.Adafactor, lr=0.05),
    "asgd": with_optimizer(mlp, torch.optim.ASGD, lr=0.05),
    "lbfgs": with_optimizer(mlp, torch.optim.LBFGS, lr=0.5, max_iter=3, history_size=2),
    "optimizer with named state": with_optimizer(mlp, Named, lr=0.05, momentum=0.9),
    "groups": groups,
    "learning rate in a tensor": tensor_rate,
    "bfloat16 with float32 state": half,
    "tied": with_optimizer(Tied, torch.optim.Adam, lr=0.05),
    "batch norm": with_optimizer(lambda: mlp(nn.BatchNorm1d(8)), torch.optim.Adam, lr=0.05),
    "dropout": with_optimizer(lambda: mlp(nn.Dropout(0.5)), torch.optim.Adam, lr=0.05),
    "unsaved buffers": with_optimizer(Unsaved, torch.optim.SGD, lr=0.05),
    "extra state": with_optimizer(Extra, torch.optim.SGD, lr=0.05),
    "odd shapes": with_optimizer(Odd, torch.optim.Adam, lr=0.05),
    "complex": with_optimizer(Complex, torch.optim.Adam, lr=0.05),
    "embedding": with_optimizer(Words, torch.optim.SGD, lr=0.05, momentum=0.9),
    "recurrent": with_optimizer(Recurrent, torch.optim.Adam, lr=0.05),
    "attention": with_optimizer(Attentive, torch.optim.Adam, lr=0.05),
    "channels last": channels_last,
    "frozen": frozen,
    "parametrized": lazy,
    "one cycle per step": with_schedule(
        lambda o: {"step": lr.OneCycleLR(o, 0.2, total_steps=100)}, torch.optim.AdamW
    ),
    "step schedule": with_schedule(lambda o: lr.StepLR(o, 1, 0.5)),
    "multi-step schedule": with_schedule(lambda o: lr.MultiStepLR(o, [1, 2, 2], 0.5)),
    "cosine schedule": with_schedule(lambda o: lr.CosineAnnealingLR(o, 3)),
    "warm restarts": with_schedule(lambda o: {"step": lr.CosineAnnealingWarmRestarts(o, 4)}),
    "lambda schedule": with_schedule(lambda o: lr.LambdaLR(o, lambda epoch: 0.8**epoch)),
    "sequence of schedules": with_schedule(sequence),
    "chained schedules": with_schedule(lambda o: lr.ChainedScheduler([lr.ExponentialLR(o, 0.9), lr.StepLR(o, 1)])),
    "a schedule per step and one per epoch": with_schedule(both),
}  # fmt: skip
