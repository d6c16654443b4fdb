"""A run becomes versions, one for each configuration, with its epochs and parents and without copies."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch._dynamo
from fake_run import FakeRun
from recipes import loss_fn, model_fn, plain_fn, plain_loss, small_data

from regatta import Cluster, Run, Sweep, open_run, search
from regatta.errors import CorruptError, NotFoundError, UsageError
from regatta.repo import Repo
from regatta.repo.commit_run import commit_run, version_id
from regatta.repo.snapshots import state_file
from regatta.search import factor
from regatta.store.states.archive_run import archive_run
from regatta.store.states.state_archive import series_of


@pytest.fixture(scope="module")
def bred(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A population of four over two generations, and a clone of each kind."""
    folder = tmp_path_factory.mktemp("bred")
    space = search.pbt(
        lr=search.uniform(0.005, 0.1), batch_size=[6], population=4, every=2, mutate={"lr": factor(0.5, 2.0)}
    )
    data = small_data(folder / "data")
    options = {"epochs": 6, "cluster": Cluster.inline(1), "framework": "numpy"}
    sweep = Sweep(data, space, plain_fn, loss_fn=plain_loss, repo=folder / "repo", name="pbt", **options)
    run = sweep.launch(progress=False)
    best = run.best
    assert best is not None
    run.clone(best["config"], {"lr": 0.3}, epochs=1)
    run.clone(best["config"], {"lr": 0.4}, epochs=1, warm=False)
    return open_run("pbt", folder / "repo").go_on(progress=False)


@pytest.fixture
def copied(bred: Run, tmp_path: Path) -> Run:
    """The same in a repository of its own, which the test may change."""
    shutil.copytree(bred.folder.parents[1], tmp_path / "repo")
    return open_run("pbt", tmp_path / "repo")


def equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_population_has_its_lineage(copied: Run) -> None:
    with Repo.open(copied.folder.parents[1]) as repo:
        versions = commit_run(repo, copied.folder)
        configs = copied.record.configs
        assert {version.config for version in versions} == set(configs)
        series = series_of(copied.folder)
        assert series is not None
        links = {(link.base, link.derived): link for version in versions for link in repo.parents(version).links}
        bred = {config.id: config for config in configs.values() if config.parent_epoch is not None}
        assert len(bred) == 5
        for config in bred.values():
            link = links.pop((version_id(series, str(config.parent)), version_id(series, config.id)))
            assert link.epoch == config.parent_epoch
            assert link.kind == ("clone" if config.values["lr"] == 0.3 else "child")
        (cold,) = links.values()
        assert (cold.kind, cold.epoch) == ("clone", None)
        assert repo.version(cold.derived).hyperparameters["lr"] == 0.4
        grandchild = max(versions, key=lambda version: len(repo.log(version)))
        assert len(repo.log(grandchild)) >= 3
        assert repo.log(grandchild)[0] == grandchild


def test_every_epoch_is_a_snapshot_from_a_file_or_the_store(copied: Run) -> None:
    with Repo.open(copied.folder.parents[1]) as repo:
        versions = commit_run(repo, copied.folder)
        expected = {
            (version.id, epoch): copied.weights(str(version.config), epoch)
            for version in versions
            for epoch in copied.record.configs[str(version.config)].reports
        }
        assert sum(version.snapshots for version in versions) == len(expected)
        assert not (repo.folder / "store").exists() and repo.fsck("deep").clean
        assert all(equal(repo.load(version, epoch), values) for (version, epoch), values in expected.items())
        first = versions[0]
        partial = repo.load(first, planes=1)
        assert all((low <= repo.load(first)[n]).all() for n, (low, _) in ((n, p.bounds) for n, p in partial.items()))
        assert archive_run(copied.folder, repo.folder / "store") == len(expected)
        assert all(equal(repo.load(version, epoch), values) for (version, epoch), values in expected.items())
        assert repo.fsck("deep").clean
        shutil.rmtree(copied.folder)  # the store has all of it
        assert all(equal(repo.load(version, epoch), values) for (version, epoch), values in expected.items())
        repo.gc(grace=0)
        assert repo.fsck("deep").clean and equal(repo.load(first), expected[first.id, first.snapshots])


def test_a_version_of_a_run_has_its_values_metrics_and_status(copied: Run) -> None:
    with Repo.open(copied.folder.parents[1]) as repo:
        version = commit_run(repo, copied.folder)[0]
        config = copied.record.configs[str(version.config)]
        assert version.name == f"pbt/{config.id}" and version.hyperparameters == config.values
        assert version.metadata["status"] == config.status and version.metadata["dataset"] == "small"
        points = [(p.step, p.value) for p in repo.metrics(version) if p.name == copied.record.metric]
        assert points == [(epoch, config.reports[epoch][copied.record.metric]) for epoch in sorted(config.reports)]
        weights = copied.weights(config.id)
        assert version.parameters == sum(w.size for w in weights.values())
        assert version.bytes == sum(w.nbytes for w in weights.values())
        run = repo.describe(version).run
        assert run is not None and (repo.folder / run.folder / "journal.jsonl").samefile(
            copied.folder / "journal.jsonl"
        )
        best = repo.best(copied.record.metric, copied.record.mode, run="pbt")  # type: ignore[arg-type]
        assert best is not None and copied.best is not None and best.config == copied.best["config"]


def test_a_run_is_not_a_version(copied: Run) -> None:
    with Repo.open(copied.folder.parents[1]) as repo:
        commit_run(repo, copied.folder)
        assert copied.best is not None
        with pytest.raises(NotFoundError, match="'pbt' is a run, not a version") as caught:
            repo.version("pbt")
        assert f"Its best version is {copied.best['version']};" in str(caught.value)
        assert not caught.value.candidates
        with pytest.raises(NotFoundError, match=r"Did you mean pbt\?"):
            repo.version("pbtt")


def test_a_resumed_run_records_its_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = search.grid(lr=[0.01], batch_size=[9])
    options = {"cluster": Cluster.inline(1), "repo": tmp_path, "name": "torch"}
    with monkeypatch.context() as early:
        early.setattr(Sweep, "_seconds_for_networks", lambda sweep, run: 0.0)
        run = Sweep(small_data(tmp_path / "data"), space, model_fn, loss_fn=loss_fn, **options).launch(progress=False)
    run.extend(next(iter(run.record.configs)), 1)
    monkeypatch.setitem(sys.modules, "torch._dynamo", torch._dynamo)  # as after minutes of training
    open_run("torch", tmp_path).go_on(progress=False)
    with Repo.open(tmp_path) as repo:
        assert all(version.network is not None for version in repo.versions())


def test_committing_again_adds_only_what_is_new(copied: Run) -> None:
    with Repo.open(copied.folder.parents[1]) as repo:
        first = commit_run(repo, copied.folder)
        changes = repo.catalog._db.total_changes
        assert commit_run(repo, copied.folder) == first
        assert repo.catalog._db.total_changes - changes <= 1  # the run itself is noted again
        config = str(first[0].config)
        before = first[0].snapshots
        copied.extend(config, 1)
        longer = open_run("pbt", repo.folder).go_on(progress=False)
        network = {"nodes": [{"id": "x", "kind": "INPUT"}], "edges": []}
        again = commit_run(repo, longer.folder, record=longer.record, networks={config: network})
        assert len(again) == len(first)
        assert repo.version(first[0].id).snapshots == before + 1
        assert repo.network(first[0].id) == network
        assert equal(repo.load(first[0].id, before + 1), longer.weights(config, before + 1))
        assert len(repo.metrics(first[0].id)) > len(repo.catalog.metrics(first[1]))
        assert repo.fsck("deep").clean


def test_a_copy_of_a_version_of_a_run_outlives_the_run(copied: Run) -> None:
    with Repo.open(copied.folder.parents[1]) as repo:
        version = commit_run(repo, copied.folder)[0]
        expected = repo.load(version, 1)
        made = repo.copy(version, "mine", snapshot=1)
        shutil.rmtree(copied.folder)
        assert equal(repo.load(made), expected)
        with pytest.raises(NotFoundError, match="are missing"):
            repo.load(version, 2)
        assert not repo.fsck().clean


def test_states_of_another_run_in_the_same_folder_are_not_taken(copied: Run) -> None:
    with Repo.open(copied.folder.parents[1]) as repo:
        version = commit_run(repo, copied.folder)[0]
        journal = copied.folder / "journal.jsonl"
        journal.write_text(journal.read_text().replace('"seed":0', '"seed":1', 1).replace('"seed": 0', '"seed": 1', 1))
        with pytest.raises(NotFoundError, match="are missing"):
            repo.load(version)


def test_failed_and_nan_configurations_are_versions_too(tmp_path: Path) -> None:
    folder = FakeRun(fails=(3,), nans=(5,)).write(tmp_path / "repo" / "runs").parent
    with Repo.at(tmp_path / "repo") as repo:
        versions = commit_run(repo, folder)
        assert len(versions) == 8 and all(version.snapshots == 0 for version in versions)
        failed = [version for version in versions if version.metadata["status"] == "failed"]
        assert len(failed) == 1 and failed[0].metadata["error"] == "ValueError: bad luck"
        assert repo.fsck().clean
    with Repo.at(tmp_path / "repo") as repo, pytest.raises(NotFoundError, match="no journal"):
        commit_run(repo, tmp_path)


def test_a_state_of_a_run_that_changed_on_the_disk_is_never_read(copied: Run, tmp_path: Path) -> None:
    with Repo.open(tmp_path / "repo") as repo:
        version = next(each for each in repo.versions() if each.snapshots)
        snapshot = repo.snapshots(version)[-1]
        path = state_file(repo, version, snapshot)
        assert path is not None
        right = repo.load(version)
        data = bytearray(path.read_bytes())
        data[-3] ^= 16  # in the last tensor
        path.write_bytes(data)
        weights = repo.weights(version)
        for read in (
            lambda: repo.load(version),
            lambda: weights[next(iter(weights))],
            lambda: weights.read(planes=1),
            lambda: repo.checkout(version, tmp_path / "out.safetensors"),
            lambda: repo.checkout(version, tmp_path / "out.npz"),
            lambda: repo.copy(version, "other"),
            lambda: copied.weights(str(version.config)),
        ):
            with pytest.raises((CorruptError, UsageError), match=r"not the one that the run wrote|has the hash"):
                read()
        assert not list(tmp_path.glob("out*"))
        data[-3] ^= 16
        path.write_bytes(data)
        assert equal(repo.load(version), right) and equal(repo.load(repo.copy(version, "other")), right)
        assert equal(copied.weights(str(version.config)), right)
