"""The archive of a repository: smaller, the same, and lossy only where that was asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from recipes import plain_fn, plain_loss, small_data

from regatta import Cluster, Repo, Run, Sweep, open_run, search
from regatta.errors import UsageError
from regatta.repo.archive import bases, lossy_schemes


@pytest.fixture
def run(tmp_path: Path) -> Run:
    space = search.grid(lr=[0.1, 0.05], batch_size=[6])
    sweep = Sweep(
        small_data(tmp_path / "data"), space, plain_fn, loss_fn=plain_loss, repo=tmp_path / "repo", name="r",
        epochs=3, cluster=Cluster.inline(1), framework="numpy",
    )  # fmt: skip
    return sweep.launch(progress=False)


def series(repo: Repo, name: str, count: int = 4) -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=20_000).astype("f4")
    epochs = {}
    for epoch in range(1, count + 1):
        weights = (weights + 1e-5 * rng.normal(size=weights.size)).astype("f4")
        epochs[epoch] = {"w": weights, "step": np.int64(epoch)}
    repo.commit(name, epochs, git=False)


def test_a_sweep_commits_versions_and_a_resumed_run_extends_them(run: Run) -> None:
    folder = run.folder.parents[1]
    with Repo.open(folder) as repo:
        versions = {version.config: version for version in repo.versions(run="r")}
        assert {version.snapshots for version in versions.values()} == {3}
        assert run.best is not None and run.best["version"] == versions[run.best["config"]].reference
    run.extend(run.best["config"], 2)
    again = open_run("r", folder).go_on(progress=False)
    with Repo.open(folder) as repo:
        assert sorted(version.snapshots for version in repo.versions(run="r")) == [3, 5]
        assert len(repo.versions()) == 2
        assert again.version(run.best["config"]) == run.best["version"]


def test_a_run_succeeds_when_its_versions_cannot_be_committed(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run.folder.parents[1]
    assert run.best is not None
    run.extend(run.best["config"], 1)
    for name in ("catalog.sqlite", "catalog.sqlite-wal"):
        (folder / name).unlink(missing_ok=True)
    (folder / "catalog.sqlite").write_bytes(b"not a database, but something else" * 100)
    again = open_run("r", folder)
    again.go_on(progress=False)
    assert again.record.status == "done"
    printed = capsys.readouterr().err
    assert "not yet as versions" in printed and "regatta commit --run r" in printed
    (folder / "catalog.sqlite").unlink()
    assert again.leave_versions() is None
    with Repo.open(folder) as repo:
        assert len(repo.versions(run="r")) == 2


def test_the_report_has_the_bytes_on_the_disk(run: Run) -> None:
    folder = run.folder.parents[1]
    with Repo.open(folder) as repo:
        series(repo, "big")
        result = repo.archive()
        assert result.disk_after_gc < min(result.disk_before, result.disk_after)
        assert result.disk_after == du(folder)
        repo.gc(grace=0)
        repo.catalog.checkpoint()
        repo.store.index.checkpoint()
        assert du(folder) == pytest.approx(result.disk_after_gc, abs=2**15)
        again = repo.archive()
        assert again.report is not None and again.report.moved == 0
        assert again.disk_before == again.disk_after == again.disk_after_gc


def test_a_small_model_takes_less_than_its_file(tmp_path: Path) -> None:
    """Beside the weights, which compress by a sixth, a repository takes 120 kB, with its reserve for a full disk."""
    rng = np.random.default_rng(0)
    weights = {f"{n}.weight": rng.normal(0, 0.05, size=(500, 200)).astype("f4") for n in range(3)}
    folder = tmp_path / "repo"
    with Repo.init(folder) as repo:
        repo.commit("small", weights, git=False)
    packs = sum(du(pack) for pack in folder.rglob("*.pack"))
    assert packs < 0.86 * 1_200_000
    assert du(folder) - packs < 120_000


def du(folder: Path) -> int:
    return int(subprocess.check_output(["du", "-s", "--block-size=1", str(folder)], text=True).split()[0])


def test_an_archive_moves_states_into_the_store_and_keeps_every_bit(run: Run) -> None:
    with Repo.open(run.folder.parents[1]) as repo:
        series(repo, "big")
        before = {(v.id, s.epoch): repo.load(v, s.epoch) for v in repo.versions() for s in repo.snapshots(v)}
        tried = repo.archive(dry_run=True)
        assert tried.states == 6 and tried.trial is not None and tried.trial.tensors > 0
        assert list((run.folder / "states").rglob("*.safetensors")), "a dry run moves nothing"
        done = repo.archive(budget=3.0)
        assert done.states == 6 and done.report is not None and done.report.saved > 0.2
        assert done.report.encodings.keys() & {"subtract", "subtract-grouped"}
        assert not list((run.folder / "states").rglob("*.safetensors"))
        for (version, epoch), weights in before.items():
            found = repo.load(version, epoch)
            assert all(np.array_equal(found[name], value) for name, value in weights.items())
        repo.gc(grace=0.0)
        assert repo.fsck("deep").clean


def test_lineage_gives_the_candidate_bases_of_deltas(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        series(repo, "base", 2)
        child = repo.commit("child", repo.load("base"), parents=["base"], git=False)
        other = repo.commit("other", {"w": np.ones(3, "f4")}, parents=["base"], git=False)
        ids = [snapshot.id for snapshot in repo.snapshots("base")]
        found = bases(repo)
        assert found[str(ids[1])] == [ids[0]]
        assert found[str(repo.snapshots(other)[0].id)] == [ids[1]]
        assert repo.snapshots(child)[0].id == ids[1]  # the same weights: no difference to itself


def test_archives_are_lossy_only_on_request(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        series(repo, "mine")
        series(repo, "exact", 2)
        exact, mine = repo.load("exact"), repo.load("mine")
        tried = repo.archive("mine", lossy="uniform-8", dry_run=True)
        assert np.array_equal(repo.load("mine")["w"], mine["w"])
        done = repo.archive("mine", lossy="uniform-8")
        assert tried.lessened == done.lessened
        (lost,) = done.lessened
        assert lost.snapshots == 4 and lost.bytes_after < 0.4 * lost.bytes_before
        change = np.abs(repo.load("mine")["w"] - mine["w"]).max()
        assert 0 < change <= lost.largest_change * (1 + 1e-6)
        assert repo.load("mine")["step"] == 4, "only floats lose bits"
        assert np.array_equal(repo.load("exact")["w"], exact["w"])
        repo.gc(grace=0.0)
        after = repo.fsck("deep")
        assert after.clean and after.leftovers == 0
        for words in ((), ("mine",)):
            with pytest.raises(UsageError):
                repo.archive(*words, lossy="uniform-9" if words else "float16")
        assert {"float16", "fixed-8", "uniform-1"} <= set(lossy_schemes())


def test_a_run_can_resume_after_a_lossy_archive(run: Run) -> None:
    folder = run.folder.parents[1]
    assert run.best is not None
    best = run.best["version"]
    with Repo.open(folder) as repo:
        newest = repo.load(best)
        (lost,) = repo.archive(best, lossy="fixed-8").lessened
        assert lost.snapshots == 2
        assert all(np.array_equal(repo.load(best)[name], value) for name, value in newest.items())
        repo.gc(grace=0.0)
    run.extend(run.best["config"], 2)
    open_run("r", folder).go_on(progress=False)
    with Repo.open(folder) as repo:
        snapshots = repo.snapshots(best)
        assert [each.epoch for each in snapshots] == [1, 2, 3, 4, 5]
        assert [each.kind for each in snapshots] == ["weights", "weights", "state", "state", "state"]
        assert all(repo.load(best, epoch) for epoch in range(1, 6)) and repo.fsck("deep").clean
