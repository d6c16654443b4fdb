"""Configurations that were not profiled have one estimate: in the plan, in simulations and in the hop scheduler."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regatta import Cluster, Dataset, Sweep, search
from regatta.engine.profiling.models import models_from_journal, to_fields
from regatta.plan.schedule.units import Unit
from regatta.plan.strategy.costs import UNIT_PAUSE_S
from regatta.search.predict import forecast

CONFIGS, EPOCHS, NARROW, WIDE = 12, 2, 16, 1536


def model_fn(config: dict[str, Any]) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    width = config["width"]
    layers = [torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.Linear(width, 2)]
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.SGD(model.parameters(), lr=config["lr"])


def loss_fn(model: torch.nn.Module, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.fixture
def sweep(one_thread: None, tmp_path: Path) -> Sweep:
    """Two of its twelve models are wide. The first two to be profiled are one of each width."""
    order = list(range(CONFIGS))
    random.Random(0).shuffle(order)  # as profiling does; it begins at the end
    wide = {order[-1], order[0]}
    values = [
        {"width": WIDE if number in wide else NARROW, "lr": 0.001 * (number + 1), "batch_size": 50}
        for number in range(CONFIGS)
    ]
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(500, 8)).astype(np.float32), draw.integers(0, 2, 500)
    data = Dataset.from_arrays(x, y, partitions=2, directory=tmp_path / "data")
    return Sweep(
        data, search.configs(values), model_fn, loss_fn=loss_fn, epochs=EPOCHS, metric="loss", pack=False,
        cluster=Cluster.inline(1), repo=tmp_path,
    )  # fmt: skip


def test_plan_and_simulation_estimate_configurations_that_were_not_profiled_alike(sweep: Sweep) -> None:
    results, strategy = sweep._profile()
    profiled = {name: sweep.configs()[name]["width"] for name in results.models.profiles}
    assert set(profiled.values()) == {NARROW, WIDE} and len(profiled) < CONFIGS / 2, "profiling stopped early"
    estimates, wanted = results.models.estimates, forecast(sweep.search, sweep.goal)
    planned = sweep._planner().profile(results, wanted).models
    for name, model in planned.items():
        if name not in profiled:
            alike = [estimates.profile(n).train for n, width in profiled.items() if width == model.values["width"]]
            assert estimates.profile(name).train == pytest.approx(np.mean(alike))
        units = [estimates.seconds(Unit("train", name, 1, partition), "w0") for partition in range(2)]
        assert sum(units) == pytest.approx(model.costs.train + 2 * model.costs.fixed)
    assert strategy.plan is not None
    (row,) = sweep.what_if([1])
    assert row["makespan"] == pytest.approx(strategy.plan.estimate.seconds, rel=0.05)
    places = [("train", 0), ("train", 1), *(("eval", number) for number in range(len(sweep.dataset.eval)))]
    units = [Unit(kind, name, epoch, place) for name in planned for epoch in (1, 2) for kind, place in places]
    seconds = sum(estimates.seconds(each, "w0") for each in units)
    assert row["makespan"] == pytest.approx(seconds + len(units) * UNIT_PAUSE_S), "with the pauses of the plan"


def test_a_resumed_run_estimates_configurations_by_their_kind(sweep: Sweep) -> None:
    """The journal has the values of all configurations and the profiles of some."""
    results, _ = sweep._profile()
    configs, measured = sweep.configs(), results.models.profiles
    lines = [{"event": "config", "config": name, "values": dict(values)} for name, values in configs.items()]
    lines += [{"event": "pilot", "config": name, **to_fields(profile)} for name, profile in measured.items()]
    estimates = models_from_journal(sweep.dataset, lines).estimates
    for name in configs:
        unit = Unit("train", name, 1, 0)
        assert estimates.seconds(unit, "w0") == pytest.approx(results.models.estimates.seconds(unit, "w0"))
