"""An evaluate trains exactly what the same sweep, written by hand, trains; and it can be interrupted and repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from evaluations import CONFIG, launch, project, rows_of
from processes import killed_after

import regatta
from regatta import Cluster, Dataset, Run, open_run, search
from regatta.dql.evaluation.operators import prepare_evaluation, swept
from regatta.dql.run import QueryContext, prepare
from regatta.network import from_json, to_torch
from regatta.repo import Repo
from regatta.repo.catalog.networks import canonical_json
from regatta.repo.edit.rename import rename_run

TEXT = """evaluate m from m1 where m1.name like "alexnet%"
with config = "config.toml", config.momentum = 0.9
vary config.base_lr in [0.1, 0.01]"""


def hashes(run: Run) -> dict[Any, str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


def by_hand(folder: Path, repo: Repo, rates: list[float], **options: Any) -> Run:
    """The sweep of TEXT, as one would write it in Python."""
    versions = {version.id[:10]: version for version in repo.versions(name="alexnet*")}

    def model_fn(config: dict[str, Any]) -> Any:
        with Repo.open(folder) as opened:
            version = opened.resolve(config["model"])
            network = from_json(canonical_json(opened.network(version), "network"))
            weights = opened.weights(version).read()
        module = to_torch(network, weights)
        return module, torch.optim.SGD(module.parameters(), lr=config["base_lr"], momentum=config["momentum"])

    def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> Any:
        x, y = batch
        return torch.nn.functional.cross_entropy(model(x), y)

    arrays = regatta.data.read_partition(folder / "small.npz")
    data = Dataset.from_arrays(*arrays, partitions=4, directory=folder / "by-hand")
    values = {
        "loss": ["cross_entropy"],
        "optimizer": ["sgd"],
        "batch_size": [8],
        "momentum": [0.9],
        "input_data": ["small"],
    }
    space = search.grid(model=sorted(versions), base_lr=rates, **values)
    return regatta.launch(
        data, space, model_fn, loss_fn=loss_fn, epochs=3, visits="seeded", cluster=Cluster.inline(1), repo=repo.folder,
        name="by-hand", progress=False, **options,
    )  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_same_weights_as_the_same_sweep_written_by_hand(here: Path) -> None:
    with project(here, "avg", "max") as repo:
        run = launch(repo, TEXT)
        same = by_hand(here, repo, [0.1, 0.01])
    assert len(hashes(run)) == 4 * 3 * 4
    assert hashes(run) == hashes(same)
    losses = {config.id: config.series("loss") for config in run.record.configs.values()}
    assert losses == {config.id: config.series("loss") for config in same.record.configs.values()}
    for config in run.record.configs:
        ours, theirs = (each.weights(config) for each in (run, same))
        assert all((ours[name] == theirs[name]).all() for name in ours)
        assert ours.keys() == theirs.keys()


def test_a_killed_run_goes_on_and_is_repeated_bit_for_bit(here: Path) -> None:
    """In other processes, with the networks and weights in the folder of the run: the versions may be gone by then."""
    with project(here, "avg", "max") as repo:
        whole = launch(repo, TEXT + ' into "whole"')
        context = QueryContext(repo, TEXT + ' into "killed"', launch={"cluster": Cluster.inline(1)})
        prepared = prepare_evaluation(context, prepare(context).query)  # type: ignore[arg-type]
        with swept(context, prepared, context.launch) as sweep:
            assert killed_after(30, sweep)
        repo.delete_versions([*repo.versions(name="alexnet*")], force=True)
    stopped = open_run("killed", repo.folder)
    assert stopped.record.status == "interrupted"
    assert 0 < len(hashes(stopped)) < len(hashes(whole))
    run = stopped.go_on(progress=False)
    assert run.record.status == "done"
    assert hashes(run) == hashes(whole)
    assert run.replay().ok
    assert open_run("whole", repo.folder).replay().ok


def test_an_interrupted_evaluate_is_resumed_by_the_same_query(here: Path) -> None:
    with project(here, "avg") as repo:
        text = TEXT + ' into "again"'
        context = QueryContext(repo, text, launch={"cluster": Cluster.inline(1)})
        prepared = prepare_evaluation(context, prepare(context).query)  # type: ignore[arg-type]
        with swept(context, prepared, context.launch) as sweep:
            assert killed_after(20, sweep)
        run = launch(repo, text)
        assert len(list((repo.folder / "runs").iterdir())) == 1
        assert run.record.status == "done"
        assert len(run.record.sessions) == 2
        assert not list(repo.folder.glob("models-*")), "no files are left over"


def test_results_are_versions_with_networks_and_lineage(here: Path) -> None:
    with project(here, "avg", "max", config=CONFIG.replace("epochs = 3", "epochs = 1")) as repo:
        run = launch(repo, TEXT)
        rows = rows_of(run)
        assert [row["result"] for row in rows] == ["kept"] * 4
        assert {row["model"] for row in rows} == {"alexnet-avgv1-0@1", "alexnet-maxv1-1@1"}
        for row in rows:
            version = repo.resolve(row["version"])
            assert [link.kind for link in repo.catalog.links([version.key])] == ["trained"]
            assert [parent.reference for parent in repo.parents(version)] == [row["model"]]
            assert "conv1" in str(repo.network(version))
            assert version.hyperparameters["momentum"] == 0.9


def test_the_models_survive_a_new_name_and_a_move_of_the_project(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "first").mkdir()
    monkeypatch.chdir(here / "first")
    with project(here / "first", "avg", config=CONFIG.replace("epochs = 3", "epochs = 1")) as repo:
        run = launch(repo, TEXT)
        rename_run(repo, run.name, "renamed")
    (here / "first").rename(here / "second")
    monkeypatch.chdir(here / "second")
    assert open_run("renamed", here / "second" / ".regatta").replay().ok
