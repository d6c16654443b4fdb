"""Random recipes of training, and the plain loop that each member of a pack must equal bit for bit.

A recipe is drawn from a seed: optimizers of torch.optim with their options, schedules, kinds of models, hooks, batch
sizes, and a sequence of loads, trainings, changes by hand and frees. `differences` runs it in a pack, repeats each
member in a plain loop with nothing of ours, and names what differs.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from regatta.pack import Member, Pack, capturable
from regatta.pack.state.member_state import same_bits

Draw = random.Random
FEATURES, CLASSES = 12, 4


class Attention(nn.Module):
    """A small transformer written by hand, as users write them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner, self.first, self.second = nn.Linear(4, 8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out, self.drop = nn.Linear(8, 24), nn.Linear(8, 8), nn.Dropout(dropout)
        self.wide, self.narrow, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x.unflatten(1, (3, 4)))
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        x = x + self.drop(self.out(F.scaled_dot_product_attention(q, k, v)))
        x = x + self.drop(self.narrow(F.gelu(self.wide(self.second(x)))))
        return self.head(x.mean(1))


class Counting(nn.Module):
    """Computes with a number that is not a tensor, and that every step changes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x) * (1 + 0.01 * self.calls)


def _mlp(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES)
    )


def _norm(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 4)
    )


def _matrices(dropout: float) -> nn.Module:
    layers = [nn.Linear(FEATURES, 8, bias=False), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES, bias=False)]
    return nn.Sequential(*layers)


class Embedded(nn.Module):
    """Has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(FEATURES, CLASSES, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x.argmax(1))


def _conv(dropout: float) -> nn.Module:
    layers = [nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(3 * FEATURES, CLASSES))


def _batch_norm(dropout: float) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 4))


def _encoder(dropout: float) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (3, 4)), layer, nn.Flatten(), nn.Linear(FEATURES, CLASSES))


MODELS: dict[str, Callable[[float], nn.Module]] = {
    "mlp": _mlp,
    "layer norm": _norm,
    "conv": _conv,
    "batch norm": _batch_norm,
    "attention": Attention,
    "encoder": _encoder,
    "counting": lambda dropout: Counting(_mlp(dropout)),
    "matrices": _matrices,
    "embedding": lambda dropout: Embedded(),
}
MODEL_WEIGHTS = (10, 3, 3, 1, 1, 1, 1, 1, 0)


_BETAS, _DECAYS = ((0.9, 0.99), (0.8, 0.999), (0.95, 0.9)), (0.01, 0.1)
_FLAGS: dict[str, tuple[Any, ...]] = {"foreach": (True, False), "maximize": (True,)}
_EPS = {"eps": (1e-6, 1e-7)}
_ADAM = {"betas": _BETAS, **_EPS, "weight_decay": _DECAYS, "amsgrad": (True,), "fused": (True,), **_FLAGS}
# values other than the default of each option; tests/pack/test_pack_recipes.py looks for options that are left out
OPTIMIZERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {
        "momentum": (0.9, 0.5),
        "nesterov": (True,),
        "dampening": (0.1,),
        "weight_decay": _DECAYS,
        "fused": (True,),
        **_FLAGS,
    },
    "Adam": {**_ADAM, "decoupled_weight_decay": (True,)},
    "AdamW": _ADAM,
    "Adagrad": {
        "lr_decay": (0.01,),
        "initial_accumulator_value": (0.1, 0.2),
        "weight_decay": _DECAYS,
        "fused": (True,),
        **_EPS,
        **_FLAGS,
    },
    "RMSprop": {
        "alpha": (0.9, 0.95),
        "momentum": (0.9, 0.5),
        "centered": (True,),
        "weight_decay": _DECAYS,
        **_EPS,
        **_FLAGS,
    },
    "Adadelta": {"rho": (0.8, 0.95), "weight_decay": _DECAYS, **_EPS, **_FLAGS},
    "Adamax": {"betas": _BETAS, "weight_decay": _DECAYS, **_EPS, **_FLAGS},
    "NAdam": {
        "betas": _BETAS,
        "weight_decay": _DECAYS,
        "momentum_decay": (1e-2,),
        "decoupled_weight_decay": (True,),
        **_EPS,
        **_FLAGS,
    },
    "RAdam": {"betas": _BETAS, "weight_decay": _DECAYS, "decoupled_weight_decay": (True,), **_EPS, **_FLAGS},
    "ASGD": {"lambd": (1e-2,), "alpha": (0.5,), "t0": (5.0,), "weight_decay": _DECAYS, **_FLAGS},
    "Rprop": {"etas": ((0.4, 1.1),), "step_sizes": ((1e-5, 1.0),), **_FLAGS},
    "Adafactor": {
        "beta2_decay": (-0.5,),
        "eps": ((None, 1e-2), (1e-4, 1e-3)),
        "d": (2.0,),
        "weight_decay": _DECAYS,
        **_FLAGS,
    },
    "LBFGS": {
        "max_iter": (2, 3),
        "max_eval": (3,),
        "tolerance_grad": (1e-3,),
        "tolerance_change": (1e-3,),
        "history_size": (2,),
        "line_search_fn": ("strong_wolfe",),
    },
    "Muon": {
        "weight_decay": (0.01, 0.2),
        "momentum": (0.9, 0.5),
        "nesterov": (False,),
        "ns_steps": (3,),
        "ns_coefficients": ((3.0, -4.0, 2.0),),
        "adjust_lr_fn": ("original", "match_rms_adamw"),
        **_EPS,
    },
    "SparseAdam": {"betas": _BETAS, "maximize": (True,), **_EPS},
}
OPTIMIZER_WEIGHTS = (6, 6, 6, 3, 4, *[1] * 10)
NOT_DRAWN = {
    "lr": "each recipe has its own",
    "capturable": "needs a GPU, where every optimizer that has it gets it",
    "differentiable": "raises in a plain loop, because it changes a parameter in place under autograd",
}
# a stack refuses most of these, so drawing them often would leave few stacks
RARELY = ("foreach", "maximize", "fused", "amsgrad", "centered", "lr_decay", "dampening")
WITHOUT_TENSOR_RATE = ("LBFGS", "Adafactor", "Muon", "SparseAdam")
MODEL_OF = {"Muon": "matrices", "SparseAdam": "embedding"}

schedules = torch.optim.lr_scheduler


def draw_options(name: str, shared: Draw, draw: Draw) -> dict[str, Any]:
    """Options that all members of a pack have, each with a value of its own."""
    drawn = [option for option in OPTIMIZERS[name] if shared.random() < (0.04 if option in RARELY else 0.4)]
    return {option: draw.choice(OPTIMIZERS[name][option]) for option in drawn}


def _one_cycle(o: Any, d: Draw) -> Any:
    momentum = any(name in o.defaults for name in ("betas", "momentum")) and d.random() < 0.8
    top = float(o.param_groups[0]["lr"]) * 3
    return schedules.OneCycleLR(
        o, top, total_steps=400, pct_start=d.choice([0.02, 0.1]), anneal_strategy=d.choice(["cos", "linear"]),
        cycle_momentum=momentum, base_momentum=d.choice([0.85, 0.7]), max_momentum=d.choice([0.95, 0.9]),
        div_factor=d.choice([25, 4]), final_div_factor=d.choice([1e4, 10]), three_phase=d.random() < 0.3,
    )  # fmt: skip


def _cyclic(o: Any, d: Draw) -> Any:
    momentum = ("betas" in o.defaults or o.defaults.get("momentum", 0) > 0) and d.random() < 0.8
    rate, mode = float(o.param_groups[0]["lr"]), d.choice(["triangular", "triangular2", "exp_range"])
    return schedules.CyclicLR(
        o, rate / 4, rate, d.choice([3, 7]), d.choice([None, 5]), mode, d.choice([1.0, 0.99]),
        d.choice([None, None, lambda x: 0.9**x]), d.choice(["cycle", "iterations"]), momentum, d.choice([0.8, 0.7]),
    )  # fmt: skip


def _sequential(o: Any, d: Draw) -> Any:
    first = schedules.LinearLR(o, 0.2, total_iters=5)
    return schedules.SequentialLR(o, [first, schedules.ExponentialLR(o, 0.95)], [d.choice([4, 9])])


def _chained(o: Any, d: Draw) -> Any:
    return schedules.ChainedScheduler([schedules.ConstantLR(o, 0.5, 6), schedules.ExponentialLR(o, 0.97)])


SCHEDULES: dict[str, Callable[[Any, Draw], Any]] = {
    "LambdaLR": lambda o, d: schedules.LambdaLR(o, lambda step: 1 / (1 + 0.1 * step)),
    "MultiplicativeLR": lambda o, d: schedules.MultiplicativeLR(o, lambda step: 0.98),
    "StepLR": lambda o, d: schedules.StepLR(o, d.choice([1, 5, 11]), d.choice([0.7, 0.9])),
    "MultiStepLR": lambda o, d: schedules.MultiStepLR(o, d.choice([[3, 9, 21], [1, 2]]), d.choice([0.5, 0.1])),
    "ConstantLR": lambda o, d: schedules.ConstantLR(o, d.choice([0.3, 1.0]), d.choice([4, 13])),
    "LinearLR": lambda o, d: schedules.LinearLR(o, 0.1, d.choice([1.0, 0.5]), d.choice([5, 20])),
    "ExponentialLR": lambda o, d: schedules.ExponentialLR(o, d.choice([0.9, 0.97])),
    "PolynomialLR": lambda o, d: schedules.PolynomialLR(o, 30, d.choice([1.0, 2.0])),
    "CosineAnnealingLR": lambda o, d: schedules.CosineAnnealingLR(o, d.choice([7, 40]), d.choice([0.0, 0.001])),
    "CosineAnnealingWarmRestarts": lambda o, d: schedules.CosineAnnealingWarmRestarts(
        o, 4, d.choice([1, 2]), d.choice([0.0, 0.001])
    ),
    "SequentialLR": _sequential,
    "ChainedScheduler": _chained,
    "OneCycleLR": _one_cycle,
    "CyclicLR": _cyclic,
    "SWALR": lambda o, d: torch.optim.swa_utils.SWALR(o, 0.01, d.choice([5, 20]), d.choice(["cos", "linear"])),
}
HOOKS = ("gradient", "forward", "before the step", "after the step", "after accumulation")


@dataclass(frozen=True)
class Recipe:
    """What the members of one pack have in common."""

    seed: int
    model: str
    dropout: float
    optimizer: str
    groups: int
    schedule: str | None
    hook: str | None
    tensor_rate: bool
    own_options: bool  # each member draws its own options
    clip: bool
    rows: int
    batch: int
    own_batch: bool  # each member has its own batch size
    members: int
    device: str
    graphs: bool

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in vars(self).items())


def draw_recipe(seed: int, device: str = "cpu") -> Recipe:
    draw = Draw(seed)
    model = draw.choices(list(MODELS), MODEL_WEIGHTS)[0]
    optimizer = draw.choices(list(OPTIMIZERS), OPTIMIZER_WEIGHTS)[0]
    dropout = draw.choice([0.0, 0.0, 0.2, 0.4])
    schedule, graphs = draw.choice([None, *SCHEDULES]), device == "cuda" or draw.random() < 0.3
    hook, clip = draw.choice(HOOKS) if draw.random() < 0.1 else None, draw.random() < 0.15
    sparse, on_device = optimizer == "SparseAdam", graphs and schedule is not None
    return Recipe(
        seed, MODEL_OF.get(optimizer, model), dropout, optimizer,
        1 + (draw.random() < 0.1) if optimizer not in ("LBFGS", *MODEL_OF) else 1, schedule, None if sparse else hook,
        draw.random() < (0.7 if on_device else 0.05), draw.random() < 0.6, clip and not sparse,
        draw.choice([40, 60, 96]), draw.choice([4, 8, 9, 16, 16]), draw.random() < 0.05,
        draw.choice([1, 2, 2, 3, 4, 6]), device, graphs,
    )  # fmt: skip


@dataclass
class Trainee:
    """One member's model with all that belongs to it, made from the recipe and the member's number."""

    recipe: Recipe
    number: int
    options: dict[str, Any] | None = None  # of its optimizer, if they are not to be drawn
    calls: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        recipe, number = self.recipe, self.number
        torch.manual_seed(1000 * recipe.seed + number)
        self.model = MODELS[recipe.model](recipe.dropout).to(recipe.device)
        draw = Draw(recipe.seed if not recipe.own_options else 31 * recipe.seed + number)
        self.optimizer = self._optimizer(draw)
        with_schedule = recipe.schedule is not None
        if recipe.device == "cuda":
            capturable(self.optimizer, with_schedule)
        self.schedule = SCHEDULES[recipe.schedule](self.optimizer, draw) if recipe.schedule is not None else None
        self.clip_norm = 0.05 * (1 + number) if recipe.clip else None
        self.batch = recipe.batch + (number % 3 if recipe.own_batch else 0)
        self.seed = 7 + number
        self._add_hook()

    def _optimizer(self, draw: Draw) -> torch.optim.Optimizer:
        """An optimizer with options that PyTorch accepts together."""
        name, shared = self.recipe.optimizer, Draw(self.recipe.seed + 1)
        factor = draw.choice([1, 1.5, 2])
        for _ in range(100):
            options = draw_options(name, shared, draw) if self.options is None else self.options
            try:
                return self._made(name, factor, options, as_tensors=shared.random() < 0.3)
            except (ValueError, RuntimeError):  # such as nesterov without momentum
                continue
        raise AssertionError(f"no options of {name} are accepted")

    def _made(self, name: str, factor: float, options: dict[str, Any], as_tensors: bool) -> torch.optim.Optimizer:
        rate: Any = factor * (0.02 if name in ("SGD", "ASGD", "Adagrad") else 0.004)
        if self.recipe.tensor_rate and name not in WITHOUT_TENSOR_RATE:
            rate = torch.tensor(rate)
            if as_tensors and self.recipe.device == "cpu":
                if name in ("Adam", "AdamW") and "betas" in options:
                    options["betas"] = tuple(map(torch.tensor, options["betas"]))
                if name == "SGD" and "weight_decay" in options:
                    options["weight_decay"] = torch.tensor(options["weight_decay"])
        parameters = list(self.model.parameters())
        made: Any = getattr(torch.optim, name)
        if self.recipe.groups == 1:
            return made(parameters, lr=rate, **options)  # type: ignore[no-any-return]
        halves = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": rate * 0.5}]
        return made(halves, lr=rate, **options)  # type: ignore[no-any-return]

    def _add_hook(self) -> None:
        hook, calls = self.recipe.hook, self.calls
        first = next(self.model.parameters())

        def count(*_: Any) -> None:
            calls[0] += 1

        def decay(optimizer: Any, *_: Any) -> None:
            calls[0] += 1
            if calls[0] % 6 == 0:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.9

        if hook == "gradient":
            first.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        elif hook == "forward":
            self.model.register_forward_hook(count)
        elif hook == "before the step":
            self.optimizer.register_step_pre_hook(decay)
        elif hook == "after the step":
            self.optimizer.register_step_post_hook(decay)
        elif hook == "after accumulation":
            first.register_post_accumulate_grad_hook(count)

    def order(self, rows: int, epoch: int) -> list[np.ndarray]:
        drawn = np.random.default_rng([self.recipe.seed, self.number, epoch]).permutation(rows)
        starts = range(0, rows - 1, self.batch)  # batch normalization refuses a last batch of one row
        return [drawn[start : start + self.batch] for start in starts]

    def change(self, kind: str) -> None:
        """What users change by hand between two calls of `train`."""
        for group in self.optimizer.param_groups:
            if kind == "lr":
                group["lr"] *= 0.5
            elif kind == "weight_decay" and group.get("weight_decay"):
                group["weight_decay"] *= 0.5
            elif kind == "momentum" and group.get("momentum"):
                group["momentum"] *= 0.5
            elif kind == "betas" and "betas" in group:
                group["betas"] = (0.85, *group["betas"][1:])
        if kind == "dropout":
            for module in self.model.modules():
                if isinstance(module, nn.Dropout) and module.p:
                    module.p /= 2

    def state(self, losses: list[float]) -> dict[str, Any]:
        schedule = {} if self.schedule is None else self.schedule.state_dict()
        plain = {"calls": self.calls[0], "counted": getattr(self.model, "calls", 0)}
        trees = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "schedule": schedule}
        return flat({**trees, **plain, "losses": losses})


def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def data(recipe: Recipe) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(recipe.seed)
    x = torch.randn(recipe.rows, FEATURES, generator=made)
    return x.to(recipe.device), torch.randint(CLASSES, (recipe.rows,), generator=made).to(recipe.device)


@dataclass
class Life:
    """One member from its first load on: what a plain loop has to repeat."""

    number: int
    trainee: Trainee
    member: Member
    changes: list[tuple[int, str]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    state: dict[str, Any] | None = None  # since it was freed
    tiers: set[str] = field(default_factory=set)  # in which calls of `train` left it


class Story:
    """A recipe in a pack: members are loaded, trained for numbers of steps of their own, changed, freed, loaded."""

    def __init__(self, recipe: Recipe, pack: Pack) -> None:
        self.recipe, self.pack, self.data = recipe, pack, data(recipe)
        self.lives: list[Life] = []
        draw = Draw(recipe.seed + 5)
        for number in range(recipe.members):
            self.load(number)
        for _ in range(draw.choice([2, 3, 4, 5])):
            self.train(draw)
            self.event(draw)
        self.train(draw)

    def load(self, number: int, state: dict[str, Any] | None = None) -> None:
        trainee = Trainee(self.recipe, number)
        if state is not None and isinstance(trainee.model, Counting):
            trainee.model.calls = self.lives[number].trainee.model.calls  # type: ignore[union-attr, assignment]
        member = self.pack.load(
            trainee.model, trainee.optimizer, loss_fn, trainee.batch, schedule=trainee.schedule, seed=trainee.seed,
            order=trainee.order, clip_norm=trainee.clip_norm, state=state,
        )  # fmt: skip
        if state is None:
            self.lives.append(Life(number, trainee, member))
            return
        life = self.lives[number]
        trainee.calls[0] = life.trainee.calls[0]
        for _, kind in life.changes:
            if kind == "dropout":
                trainee.change(kind)
        life.trainee, life.member, life.state = trainee, member, None

    def train(self, draw: Draw) -> None:
        present = [life.member for life in self.lives if life.state is None]
        if not present:
            return
        way = draw.random()
        if way < 0.3:
            self.pack.train(self.data, epochs=draw.choice([1, 2]))
        elif way < 0.6:
            self.pack.train(self.data, steps=draw.choice([1, 5, 14, 30]))
        else:
            self.pack.train(self.data, steps={member: draw.choice([0, 5, 12, 20, 35]) for member in present})
        for life in self.lives:
            life.tiers.add(life.member.tier)

    def event(self, draw: Draw) -> None:
        life, way = draw.choice(self.lives), draw.random()
        if life.member.error is not None:  # a plain loop ends there
            return
        if way < 0.25:
            self.load(len(self.lives))
        elif way < 0.6 and life.state is None:
            life.state = self.pack.free(life.member)
            life.losses += life.member.losses.tolist()
        elif way < 0.8 and life.state is None:
            kind = draw.choice(["lr", "weight_decay", "momentum", "betas", "dropout"])
            everyone = draw.random() < 0.5
            for each in self.lives if everyone else [life]:
                if each.state is None and each.member.error is None:
                    each.changes.append((each.member.taken, kind))
                    each.trainee.change(kind)
        if way > 0.4:
            freed = [each for each in self.lives if each.state is not None]
            if freed:
                again = draw.choice(freed)
                self.load(again.number, again.state)


def plain_loop(trainee: Trainee, steps: int, changes: Sequence[tuple[int, str]] = ()) -> dict[str, Any]:
    """A plain PyTorch loop, with nothing of ours but the form of the optimizer on a GPU."""
    recipe = trainee.recipe
    x, y = data(recipe)
    batches: list[np.ndarray] = []
    epoch = 0
    while len(batches) < steps:
        batches += trainee.order(recipe.rows, epoch)
        epoch += 1
    waiting, losses = list(changes), []
    random.seed(trainee.seed)
    np.random.seed(trainee.seed)
    torch.manual_seed(trainee.seed)
    trainee.model.train()
    for step, rows in enumerate([*batches[:steps], None]):
        while waiting and waiting[0][0] == step:
            trainee.change(waiting.pop(0)[1])
        if rows is not None:
            taken = torch.from_numpy(rows).to(recipe.device)
            losses.append(_plain_step(trainee, (x[taken], y[taken])))
    return trainee.state([loss.item() for loss in losses])


def _plain_step(trainee: Trainee, batch: Any) -> torch.Tensor:
    def closure() -> torch.Tensor:
        trainee.optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(trainee.model, batch)
        loss.backward()
        return loss

    if isinstance(trainee.optimizer, torch.optim.LBFGS):
        loss: Any = trainee.optimizer.step(closure)  # type: ignore[arg-type]
    else:
        loss = closure()
        if trainee.clip_norm is not None:
            nn.utils.clip_grad_norm_(trainee.model.parameters(), trainee.clip_norm)
        trainee.optimizer.step()
    if trainee.schedule is not None:
        trainee.schedule.step()
    return loss.detach()


def differences(recipe: Recipe, pack: Pack, tiers: Counter[str] | None = None) -> list[str]:
    """Everything in which a member of the pack differs from the plain loop; `tiers` counts how members were trained."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            story = Story(recipe, pack)
            if tiers is not None:
                tiers.update(tier for life in story.lives for tier in life.tiers)
            return [found for life in story.lives for found in _life_differences(recipe, life)]
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_rng_state(before[2])


def _life_differences(recipe: Recipe, life: Life) -> list[str]:
    losses = life.losses + (life.member.losses.tolist() if life.state is None else [])
    ours = life.trainee.state(losses)
    where = f"member {life.number} ({life.member.tier}: {life.member.reason}, {life.member.taken} steps)"
    if life.member.error is not None:
        return _failure_differences(recipe, life, where)
    wrong = unequal(ours, plain_loop(Trainee(recipe, life.number), life.member.taken, life.changes))
    return [f"{where}: {wrong[:4]} of {len(wrong)}"] if wrong else []


def _failure_differences(recipe: Recipe, life: Life, where: str) -> list[str]:
    """A member that failed must have failed as the plain loop does: LBFGS divides by zero at a rate of zero."""
    other, expected = Trainee(recipe, life.number), life.member.error
    try:
        plain_loop(other, life.member.taken + 1, life.changes)
    except Exception as error:  # noqa: BLE001 (whatever PyTorch raises)
        if repr(error) != repr(expected):
            return [f"{where} failed: {expected!r}, and the plain loop: {error!r}"]
        wrong = unequal(life.trainee.state([]), other.state([]))
        return [f"{where} failed: {wrong[:4]} of {len(wrong)}"] if wrong else []
    return [f"{where} failed: {expected!r}, and the plain loop does not"]


def unequal(ours: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The names of what differs."""
    if ours.keys() != expected.keys():
        return sorted(ours.keys() ^ expected.keys())
    return [name for name in ours if not _equal(ours[name], expected[name])]


def flat(tree: Any, place: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {k: v for name, part in tree.items() for k, v in flat(part, f"{place}/{name}").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, part in enumerate(tree) for k, v in flat(part, f"{place}/{i}").items()}
    return {place: tree}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return same_bits(one.cpu(), other.cpu())  # a member that was freed has had its rates on the CPU in between
    if isinstance(one, float) and one != one:
        return bool(other != other)
    if callable(one) or hasattr(one, "__self__") or type(one).__module__ == "weakref":
        return True
    return bool(one == other)
