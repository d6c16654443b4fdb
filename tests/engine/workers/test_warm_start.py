"""Children begin with their parents' states, bit for bit, and with their own values."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import killed_after
from recipes import eval_fn, loss_fn, model_fn, plain_fn, plain_loss, small_data

from regatta import Cluster, Run, Sweep, open_run, search
from regatta.engine.workers.training.warm_start import warm_start
from regatta.errors import UsageError
from regatta.frameworks.torch import framework
from regatta.search import factor


def population(folder: Path, name: str = "pbt", **options: Any) -> Sweep:
    space = search.pbt(
        lr=search.uniform(0.005, 0.1), batch_size=[6], population=4, every=2, mutate={"lr": factor(0.5, 2.0)}
    )
    settings = {"epochs": 6, "visits": "seeded", "cluster": Cluster.inline(2), "framework": "numpy", **options}
    return Sweep(small_data(folder / "data"), space, plain_fn, loss_fn=plain_loss, repo=folder, name=name, **settings)


@pytest.fixture(scope="module")
def bred(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return population(tmp_path_factory.mktemp("bred")).launch(progress=False)


def test_the_lineage_is_a_forest(bred: Run) -> None:
    configs = bred.record.configs
    children = [config for config in configs.values() if config.parent is not None]
    assert len(children) == 4, "two generations of two"
    for config in children:
        seen, config_at = {config.id}, config
        while config_at.parent is not None:
            assert config_at.parent in configs
            assert config_at.parent_epoch in configs[config_at.parent].reports
            assert config_at.parent not in seen, "a configuration descends from itself"
            seen.add(config_at.parent)
            config_at = configs[config_at.parent]
    reread = open_run(bred.name, bred.folder.parents[1]).record
    assert {c.id: (c.parent, c.parent_epoch) for c in reread.configs.values()} == {
        c.id: (c.parent, c.parent_epoch) for c in configs.values()
    }


def test_each_child_starts_from_its_parents_exact_state(bred: Run) -> None:
    """Replayed by hand with the NumPy reference: weights and momentum of the parent, rate of the child."""
    from regatta.data import batch_order, read_partition
    from regatta.frameworks import numpy as reference
    from regatta.seeds import unit_seed

    dataset = bred.sweep().dataset
    for child in [config for config in bred.record.configs.values() if config.parent is not None]:
        weights = bred.weights(str(child.parent), child.parent_epoch)
        path = bred.folder / "states" / str(child.parent) / f"{child.parent_epoch:04d}-004.safetensors"
        trainee = reference.assemble(plain_fn(dict(child.values)), "cpu")
        reference.restore(trainee, reference.read(path))
        assert all(np.array_equal(trainee.model[name], weights[name]) for name in weights)
        trainee.optimizer.lr = child.values["lr"]
        for partition in child.visits(1):
            data = reference.prepare(read_partition(dataset.train[partition].path), "cpu")
            seed = unit_seed(0, child.values, 1, partition)
            with reference.seeded(seed):
                order = batch_order(reference.rows(data), 6, seed)
                reference.train(trainee, data, order, plain_loss, dict(child.values))
        found = bred.weights(child.id, 1)
        assert all(np.array_equal(found[name], trainee.model[name]) for name in found)


def test_a_population_is_replayed(bred: Run) -> None:
    report = bred.replay()
    assert report.ok
    assert report.units == 4 * sum(len(config.reports) for config in bred.record.configs.values())


def test_a_population_whose_controller_is_killed_is_the_same(bred: Run, tmp_path: Path) -> None:
    luck, kills = random.Random(3), 0
    sweep = population(tmp_path)
    while True:
        kills += killed_after(luck.randint(1, 60), sweep)
        run = open_run("pbt", tmp_path)
        if run.record.status == "done":
            break
    assert kills > 2
    theirs, ours = bred.record.configs, run.record.configs
    assert {c.id: (c.values, c.parent, c.parent_epoch, c.reports) for c in ours.values()} == {
        c.id: (c.values, c.parent, c.parent_epoch, c.reports) for c in theirs.values()
    }


def test_changed_settings_are_the_childs_and_the_rest_the_parents(tmp_path: Path) -> None:
    def build(lr: float, momentum: float) -> Any:
        net = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
        return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)

    parent = framework.assemble(build(0.4, 0.9), "cpu")
    parent.model(torch.ones(1, 3)).sum().backward()
    parent.optimizer.step()
    framework.end_epoch(parent)
    framework.save(parent, tmp_path / "state")
    child = framework.assemble(build(0.2, 0.8), "cpu")
    warm_start(framework, framework.assemble(build(0.4, 0.9), "cpu"), child, tmp_path / "state")
    group = child.optimizer.param_groups[0]
    assert (group["momentum"], group["initial_lr"]) == (0.8, 0.2)
    assert group["lr"] == pytest.approx(0.02), "as far down as the parent's"
    assert child.schedules["epoch"].last_epoch == 1
    assert child.schedules["epoch"].base_lrs == [0.2]
    for name, tensor in parent.model.state_dict().items():
        assert torch.equal(child.model.state_dict()[name], tensor)
    states = zip(
        child.optimizer.state_dict()["state"].values(), parent.optimizer.state_dict()["state"].values(), strict=True
    )
    assert all(torch.equal(mine["momentum_buffer"], theirs["momentum_buffer"]) for mine, theirs in states)
    with pytest.raises(UsageError, match="does not fit"):
        other = (torch.nn.Linear(4, 2), None)
        wide = framework.assemble((other[0], torch.optim.SGD(other[0].parameters(), lr=0.1)), "cpu")
        warm_start(framework, framework.assemble(build(0.4, 0.9), "cpu"), wide, tmp_path / "state")


def test_pbt_with_torch_on_processes(tmp_path: Path) -> None:
    space = search.pbt(lr=search.uniform(0.005, 0.1), batch_size=[6], population=4, every=1, mutate={"lr": factor(0.5)})
    run = Sweep(
        small_data(tmp_path / "data"), space, model_fn, loss_fn=loss_fn, eval_fn=eval_fn, epochs=3,
        cluster=Cluster.local(2, threads=1), repo=tmp_path,
    ).launch(progress=False)  # fmt: skip
    assert run.record.status == "done"
    assert sum(config.parent is not None for config in run.record.configs.values()) == 4
    assert run.replay().ok
    lines = [json.loads(line) for line in (run.folder / "journal.jsonl").read_text().splitlines()]
    assert all({"elapsed", "device_seconds"} <= line.keys() for line in lines if line["event"] == "report")
