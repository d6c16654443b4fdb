"""Packs against plain loops, for random recipes: optimizers, schedules, models, hooks, steps, loads and frees."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from typing import Any

import pytest
import torch
from pack_cases import AlwaysPays, FreezingGraphs
from pack_recipes import (
    MODEL_OF,
    NOT_DRAWN,
    OPTIMIZERS,
    SCHEDULES,
    Recipe,
    Trainee,
    differences,
    draw_recipe,
    loss_fn,
    plain_loop,
    unequal,
)
from pack_recipes import data as data_of

from regatta.pack import Pack
from regatta.pack.stacked.updates import STATES
from regatta.pack.state.host_arithmetic import WatchedArithmetic

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK, MANY, ON_GPU = 40, 2000, 300
CYCLE_MOMENTUM = ("OneCycleLR", "CyclicLR")  # a captured step may hold it as a constant
PARTS, PARTS_ON_GPU = 8, 6  # of the many: each is a test, for processes side by side


def pack_for(recipe: Recipe) -> Pack:
    if recipe.device == "cuda":
        return Pack("cuda", rates=AlwaysPays())
    if recipe.graphs:
        return Pack("cpu", tiers=("graph", "alone"), graphs=FreezingGraphs(), rates=AlwaysPays())
    return Pack("cpu", rates=AlwaysPays())


def check(seeds: range, device: str = "cpu") -> Counter[str]:
    """Compare recipes, and count how their members were trained in the end."""
    different, tiers = {}, Counter[str]()
    for seed in seeds:
        recipe = draw_recipe(seed, device)
        pack = pack_for(recipe)
        found = differences(recipe, pack, tiers)
        if found:
            different[str(recipe)] = found
    print(f"{len(seeds)} recipes on {device}, {len(different)} differ; members by tier: {dict(tiers)}")
    assert not different
    return tiers


@pytest.mark.parametrize("part", range(4))
def test_packs_equal_plain_loops(part: int) -> None:
    check(range(part * QUICK // 4, (part + 1) * QUICK // 4))


@pytest.mark.parametrize("graphs", [False, True], ids=["stacked", "captured"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_of_pytorch_is_followed(schedule: str, graphs: bool) -> None:
    for number, optimizer in enumerate(("Adam", "SGD")):
        recipe = Recipe(
            number, "mlp", 0.0, optimizer, 1, schedule, None, graphs, True, False, 120, 16, False, 3, "cpu", graphs
        )
        tiers = Counter[str]()
        assert differences(recipe, pack_for(recipe), tiers) == [], recipe
        assert tiers["graph" if graphs else "fused"] or (graphs and schedule in CYCLE_MOMENTUM)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("schedule", [*SCHEDULES, "Dividing"])
def test_every_schedule_is_followed_on_a_gpu(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU rounds a division otherwise than the host."""
    monkeypatch.setitem(SCHEDULES, "Dividing", lambda optimizer, draw: Dividing(optimizer))
    for number, optimizer in enumerate(("Adam", "SGD")):
        recipe = Recipe(
            number, "mlp", 0.0, optimizer, 1, schedule, None, True, True, False, 120, 16, False, 3, "cuda", True
        )
        tiers = Counter[str]()
        assert differences(recipe, pack_for(recipe), tiers) == [], recipe
        assert tiers["graph"] or schedule in CYCLE_MOMENTUM


class Dividing(torch.optim.lr_scheduler.LRScheduler):
    """A schedule that a user has written."""

    def get_lr(self) -> list[Any]:
        return [group["lr"] / 1.07 for group in self.optimizer.param_groups]


@pytest.mark.parametrize(("schedule", "operation"), [("SWALR", "div"), ("OneCycleLR", None), ("Dividing", "div")])
def test_schedules_whose_arithmetic_a_device_may_round_otherwise_are_found(
    schedule: str, operation: str | None
) -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], lr=torch.tensor(0.01))
    made = Dividing(optimizer) if schedule == "Dividing" else SCHEDULES[schedule](optimizer, random.Random(0))
    watched = WatchedArithmetic()
    for _ in range(20):
        optimizer.step()
        with watched:
            made.step()
    assert watched.differs == operation


# options with which another option is accepted, or has an effect
NEEDED = {
    "nesterov": {"momentum": 0.9},
    "dampening": {"momentum": 0.9},
    "decoupled_weight_decay": {"weight_decay": 0.1},
}
NEVER_CAPTURED = ("LBFGS", "SparseAdam")  # one evaluates the loss by itself, the other is for sparse gradients


def each_option(optimizer: str) -> list[dict[str, Any]]:
    """No options, and each value of each option."""
    values = [(name, value) for name, all_values in OPTIMIZERS[optimizer].items() for value in all_values]
    return [{}, *({**(NEEDED.get(name, {}) if value else {}), name: value} for name, value in values)]


@pytest.mark.parametrize("graphs", [False, True], ids=["stacked", "captured"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_option_of_every_optimizer_is_followed(optimizer: str, graphs: bool) -> None:
    model, dropout = MODEL_OF.get(optimizer, "mlp"), 0.0 if graphs else 0.2
    recipe = Recipe(0, model, dropout, optimizer, 1, None, None, False, False, False, 60, 12, False, 2, "cpu", graphs)
    tiers = Counter[str]()
    for options in each_option(optimizer):
        pack, trainees = pack_for(recipe), [Trainee(recipe, number, options) for number in range(recipe.members)]
        for trainee in trainees:
            parts = trainee.model, trainee.optimizer, loss_fn, trainee.batch
            pack.load(*parts, seed=trainee.seed, order=trainee.order)
        pack.train(data_of(recipe), steps=14)
        tiers.update(member.tier for member in pack.members)
        for trainee, member in zip(trainees, pack.members, strict=True):
            expected = plain_loop(Trainee(recipe, trainee.number, options), 14)
            assert unequal(trainee.state(member.losses.tolist()), expected) == [], (options, pack.plan())
    print(f"{optimizer}: {dict(tiers)}")
    if graphs:
        assert tiers["graph"] or optimizer in NEVER_CAPTURED
    else:
        assert tiers["fused"] or getattr(torch.optim, optimizer) not in STATES


def options_of(kind: type) -> set[str]:
    return set(inspect.signature(kind).parameters) - {"params"}


def test_no_class_of_pytorch_and_none_of_its_options_is_left_out() -> None:
    optimizers = {kind.__name__: kind for kind in vars(torch.optim).values() if _is_a(kind, torch.optim.Optimizer)}
    assert OPTIMIZERS.keys() == optimizers.keys()
    for name, kind in optimizers.items():
        assert options_of(kind) - NOT_DRAWN.keys() == OPTIMIZERS[name].keys(), name
    schedules = torch.optim.lr_scheduler
    named = {kind.__name__ for kind in vars(schedules).values() if _is_a(kind, schedules.LRScheduler)}
    assert SCHEDULES.keys() - {"SWALR"} == named - {"ReduceLROnPlateau"}  # which `load` refuses


def _is_a(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base) and kind is not base and kind.__name__[0] != "_"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_packs_equal_plain_loops(part: int) -> None:
    """2,000 recipes. `pytest -m slow tests/pack/test_pack_recipes.py -n 2 -rP` shows how many members each tier had."""
    first, count = QUICK + part * MANY // PARTS, MANY // PARTS
    tiers = check(range(first, first + count))
    assert tiers["fused"] > count // 4 and tiers["graph"] > count // 20  # most graphs are refused, or too short


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("part", range(PARTS_ON_GPU))
def test_recipes_on_a_gpu_equal_plain_loops(part: int) -> None:
    cudnn = torch.backends.cudnn
    before, cudnn.deterministic = cudnn.deterministic, True
    try:
        assert check(range(part, ON_GPU, PARTS_ON_GPU), "cuda")["graph"] > 0
    finally:
        cudnn.deterministic = before
