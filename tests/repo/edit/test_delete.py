"""Versions and runs are deleted, previewed and taken back; nothing else changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import observed as o
import pytest

from regatta.cli.main import main
from regatta.errors import ConflictError, NotFoundError
from regatta.journal.lock import run_lock
from regatta.paths import RUNS, STATES, bytes_on_disk
from regatta.repo import Repo
from regatta.repo.doctor import examine, worst
from regatta.repo.edit.delete import plan_run, plan_versions
from regatta.repo.edit.preview import preview


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return o.unpack(tmp_path_factory.mktemp("edit"))


@pytest.fixture
def project(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of an earlier version with runs and versions, which a test may change."""
    shutil.copytree(unpacked, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.syspath_prepend(o.HERE)
    return tmp_path / "project"


@pytest.fixture
def repo(project: Path) -> Iterator[Repo]:
    with Repo.open(project) as opened:
        yield opened


def everything(repo: Repo) -> dict[str, Any]:
    """All that users can see of the versions: metadata, metrics, files, links, tags, and the bits of the weights."""
    found: dict[str, Any] = {"tags": {tag.name: tag.version for tag in repo.tags()}}
    for version in repo.versions():
        weights = {name: np.asarray(value).tobytes() for name, value in repo.load(version).items()} if (
            version.snapshots
        ) else {}  # fmt: skip
        found[version.reference] = (
            version.fields("id", "created", "message", "hyperparameters", "metadata", "git", "run", "config"),
            [point.row() for point in repo.metrics(version)], list(repo.catalog.files(version)),
            sorted((link.base, link.kind, link.epoch) for link in repo.links([version])),
            [each.row() for each in repo.snapshots(version)], weights, repo.network(version),
        )  # fmt: skip
    return found


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return repr(one) == repr(other)  # NaN included


def test_versions_are_deleted_together_and_taken_back(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        base = repo.commit("net", {1: {"w": np.arange(9.0)}}, metrics={"loss": [1.0, float("nan")]}, git=False)
        child = repo.commit("net", {"w": np.ones(4)}, parents=[base], files={"a.py": b"pass"}, message="m", git=False)
        repo.tag(base, "good")
        repo.copy(child, "other")
        before = everything(repo)
        with pytest.raises(ConflictError, match="the tag 'good'"):
            repo.delete_versions([base, child])
        assert equal(everything(repo), before)
        repo.delete_versions([base, child], force=True)
        assert [each.name for each in repo.versions()] == ["other"] and not repo.tags()
        assert repo.fsck("deep").clean
        newer = repo.commit("net", None, git=False)
        assert newer.number == 3  # the numbers of deleted versions are not used again
        repo.delete(newer)
        assert set(repo.undo().versions) == {"net@3"}
        repo.delete(newer)
        back = repo.undo(repo.deletions()[0].id)
        assert set(back.versions) == {"net@1", "net@2"} and equal(everything(repo), before)
        assert repo.fsck("deep").clean and len(repo.deletions()) == 1
        assert repo.versions(search="m")[0].id == child.id or len(repo.versions(search="m")) == 1


def test_gc_makes_a_deletion_final(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        made = repo.commit("net", {"w": np.random.default_rng(0).random(1000)}, files={"a": b"x" * 1000}, git=False)
        repo.delete(made)
        repo.gc()  # two weeks of grace
        repo.undo()
        repo.delete(made)
        repo.gc(grace=0)
        with pytest.raises(NotFoundError, match=r"(?s)no deletion to take back.*is taken back once"):
            repo.undo()
        assert repo.fsck("deep").clean and not repo.versions()


def test_tags_that_are_taken_stay_where_they_are(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        old, new = (repo.commit("net", {"w": np.ones(number)}, git=False) for number in (1, 2))
        repo.tag(old, "good")
        repo.delete(old, force=True)
        repo.tag(new, "good")
        assert repo.undo().lost_tags == ("good",)
        assert repo.version("good").id == new.id and repo.version("net@1").id == old.id


def test_a_preview_says_what_gc_frees(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with Repo.init(tmp_path) as repo:
        shared = random.random(20_000)
        repo.commit("net", {"shared": shared, "own": random.random(10_000)}, files={"a": b"1" * 9_000}, git=False)
        repo.commit("net", {"shared": shared, "own": random.random(10_000)}, files={"b": b"2" * 9_000}, git=False)
        found = preview(repo, plan_versions(repo, [repo.version("net@1")]))
        assert found.file_bytes == 9_000 and 60_000 < found.store_bytes < 90_000
        before = bytes_on_disk(repo.folder / "store" / "packs")
        repo.delete("net@1")
        repo.gc(grace=0)
        freed = before - bytes_on_disk(repo.folder / "store" / "packs")
        assert abs(freed - found.store_bytes) < 10_000


def test_a_run_is_deleted_with_its_versions_and_comes_back(repo: Repo) -> None:
    before, names = everything(repo), repo.store.references()
    versions = repo.versions(run="lines-done")
    done = repo.delete_run("lines-done", force=True)
    assert done.run == "lines-done" and {each.id for each in done.versions} == {each.id for each in versions}
    assert not repo.versions(run="lines-done") and not (repo.folder / RUNS / "lines-done").exists()
    assert repo.fsck("deep").clean
    repo.gc()  # what it used stays for two weeks
    assert repo.undo().run == "lines-done"
    assert equal(everything(repo), before) and repo.store.references() == names
    found = o.document(repo.folder.parent, "replay", "lines-done")
    assert found["document"]["ok"] and found["document"]["equal"] == 36


def test_a_deleted_run_is_gone_after_gc(repo: Repo) -> None:
    plan = plan_run(repo, "lines-done", force=True)
    expected = preview(repo, plan)
    assert expected.run_bytes == bytes_on_disk(repo.folder / RUNS / "lines-done") and expected.bytes > 10_000
    repo.delete_run("lines-done", force=True)
    would = repo.gc(grace=0, dry_run=True)
    assert (repo.folder / "deleted").glob("*/run") and repo.deletions()
    freed = repo.gc(grace=0)
    assert (would.run_bytes, would.files) == (freed.run_bytes, freed.files) and 0 < would.bytes <= freed.bytes
    assert would.store.snapshots == freed.store.snapshots > 0 and would.store.tensors == freed.store.tensors
    assert freed.run_bytes >= expected.run_bytes
    assert repo.fsck("deep").clean and not repo.store.references("runs/lines-done.")
    with pytest.raises(NotFoundError):
        repo.undo()


def test_versions_can_stay_when_their_run_goes(repo: Repo) -> None:
    """Also those of a halted run, whose newest states are files."""
    for name in ("lines-done", "lines-halted"):
        before = everything(repo)
        assert list((repo.folder / RUNS / name / STATES).rglob("*.safetensors")) or name == "lines-done"
        repo.delete_run(name, keep_versions=True)
        after = everything(repo)
        assert {key: value[5] for key, value in after.items() if key != "tags"} == {
            key: value[5] for key, value in before.items() if key != "tags"
        }
        repo.gc(grace=0)
        assert repo.fsck("deep").clean and not (repo.folder / RUNS / name).exists()
        assert len(repo.versions(run=name)) > 0


def test_a_run_in_training_is_not_deleted(repo: Repo) -> None:
    with run_lock(repo.folder / RUNS / "lines-done"), pytest.raises(ConflictError) as refused:
        repo.delete_run("lines-done", force=True)
    assert "is being trained" in refused.value.message
    assert str(refused.value).lower().count("wait for its end") == 1
    assert repo.fsck().clean and repo.deletions() == []


def test_a_run_that_was_removed_by_hand_is_repaired(repo: Repo) -> None:
    """The last states of a halted run are files, and go with its folder; those of a done run are in the store."""
    for name in ("lines-halted", "spots-packed", "lines-done"):
        shutil.rmtree(repo.folder / RUNS / name)
    problems = repo.fsck().problems
    assert problems and any("was removed" in each for each in problems)
    assert any(each.state == "error" and "was removed" in each.says for each in examine(repo.folder))
    repaired = repo.fsck(repair=True)
    assert repaired.problems
    assert repo.fsck("deep").clean and worst(examine(repo.folder)) != "error"
    for version in repo.versions():
        if version.snapshots:
            repo.load(version)  # what is left can be read
    assert len(repo.versions(run="lines-halted")) > 0  # with their metrics and hyperparameters
    repo.gc(grace=0)
    assert repo.fsck("deep").clean


def test_the_versions_of_a_run_that_was_removed_by_hand_are_deleted_by_its_name(project: Path) -> None:
    folder = project / ".regatta" / RUNS
    with Repo.open(project) as repo:
        before = {each.id for each in repo.versions(run="lines-done")}
    shutil.rmtree(folder / "lines-done")
    (folder / "lines-halted").rename(folder / "elsewhere")
    assert main(["delete", "lines-done", "--force"]) == 0
    with Repo.open(project) as repo:
        assert before and not repo.versions(run="lines-done") and "lines-done" not in repo.catalog.run_names()
        with pytest.raises(NotFoundError, match="no run 'lines-halted'"):
            repo.delete_run("lines-halted")  # its folder is still there, under another name
        assert {each.id for each in map(repo.version, repo.undo().versions)} == before
        repo.delete_run("lines-done", keep_versions=True)
        assert {each.id for each in repo.versions(run="lines-done")} == before


# The commands


def test_delete_takes_versions_and_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", "keeper", "lines-done/bc26a4b2b4"]) == 0 and main(["delete", "lines-done", "--dry-run"]) == 4
    assert "--force" in capsys.readouterr().err
    assert main(["delete", "lines-done", "--dry-run", "--json", "--force"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dry_run"] and document["run"] == "lines-done" and document["bytes"] > 0
    assert len(document["deleted"]) == 4
    assert main(["delete", "lines-done", "--dry-run", "--force"]) == 0
    shown = capsys.readouterr()
    assert "gc would then free" in shown.out and (project / ".regatta/runs/lines-done").exists()
    assert "it is done: regatta delete lines-done --force\n" in shown.err
    assert main(["delete", "lines-done", "--force"]) == 0
    assert "deleted the run lines-done with 4 versions" in capsys.readouterr().out
    assert main(["undo", "--list"]) == 0 and "run lines-done with 4 versions" in capsys.readouterr().out
    assert main(["undo"]) == 0 and "the run lines-done is back, with 4 versions" in capsys.readouterr().out
    assert main(["undo"]) == 3
    assert main(["delete", "late", "--json"]) == 0
    assert "bytes" not in json.loads(capsys.readouterr().out)
    assert main(["undo"]) == 0 and "is back" in capsys.readouterr().out
    assert main(["delete", "lines-dnoe"]) == 3


def test_a_name_of_a_run_and_of_a_version_must_be_made_clear(
    project: Path, repo: Repo, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.commit("lines-done", None, git=False)
    assert main(["delete", "lines-done"]) == 2
    assert "delete --run lines-done" in capsys.readouterr().err
    assert main(["delete", "lines-done@1"]) == 0 and (project / ".regatta/runs/lines-done").exists()
    assert main(["undo"]) == 0
    assert main(["delete", "--run", "lines-done", "--keep-versions"]) == 0
    assert not (project / ".regatta/runs/lines-done").exists()
