"""Packs against plain loops, for random recipes: optimizers, schedules, models, hooks, steps, loads and frees."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from pack_cases import FreezingGraphs
from pack_recipes import SCHEDULES, Recipe, differences, draw_recipe

from regatta.pack import Pack, Rates
from regatta.pack.rates import PackTiming

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK, MANY, ON_GPU = 40, 2000, 300


class AlwaysPays(Rates):
    """Packs are kept, however busy the machine is that measures them."""

    def get(self, key: Any) -> PackTiming:
        return PackTiming(together=1.0, in_turn=2.0)


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
        found = differences(recipe, pack)
        tiers.update(member.tier for member in pack.members)
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
            number, "mlp", 0.0, optimizer, 1, schedule, None, graphs, True, False, 60, 16, False, 3, "cpu", graphs
        )
        assert differences(recipe, pack_for(recipe)) == [], recipe


@pytest.mark.slow
def test_two_thousand_recipes_equal_plain_loops() -> None:
    tiers = check(range(QUICK, QUICK + MANY))
    assert tiers["fused"] > MANY // 10 and tiers["graph"] > MANY // 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_recipes_on_a_gpu_equal_plain_loops() -> None:
    cudnn = torch.backends.cudnn
    before, cudnn.deterministic = cudnn.deterministic, True
    try:
        assert check(range(ON_GPU), "cuda")["graph"] > 0
    finally:
        cudnn.deterministic = before
