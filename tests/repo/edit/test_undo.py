"""A deletion is taken back whatever happened since: renames, other deletions, gc within its grace, kills, damage."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import observed as o
import pytest

from regatta.errors import ConflictError, CorruptError, NotFoundError
from regatta.paths import DELETED, DELETED_RECORD
from regatta.repo import Repo
from regatta.repo.commit_run import commit_run

RUN = "lines-done"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return o.unpack(tmp_path_factory.mktemp("undo"))


@pytest.fixture
def repo(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repo]:
    """A repository of an earlier version with runs, which a test may change."""
    shutil.copytree(unpacked, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    with Repo.open(tmp_path / "project") as opened:
        yield opened


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Repo]:
    with Repo.init(tmp_path) as opened:
        for number in (1, 2):
            opened.commit("net", {"w": np.full(9, number, "f4")}, message=f"message {number}", git=False)
        yield opened


def weights(repo: Repo, version: Any) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in repo.load(version).items()}


def states_of_run(repo: Repo) -> list[Any]:
    return [version for version in repo.versions(f"{RUN}/*") if version.snapshots]


def test_a_version_comes_back_after_its_model_was_renamed(small: Repo) -> None:
    small.delete("net@2")
    small.rename("net", "other")
    assert small.undo().versions == ("net@2",)
    assert small.fsck("deep").clean and small.gc(grace=0)
    assert small.commit("net", git=False).number == 3
    assert small.fsck("deep").clean


def test_a_version_whose_number_is_taken_gets_the_next_one(small: Repo) -> None:
    small.delete("net@1")
    small.rename("net", "other")
    first = small.commit("net", message="another", git=False)
    assert first.number == 1
    assert small.undo().versions == ("net@2",)
    assert small.version("net@2").message == "message 1" and small.version("net@1").id == first.id
    assert small.fsck("deep").clean


def test_a_version_that_was_committed_again_keeps_its_new_number(repo: Repo) -> None:
    version = states_of_run(repo)[0]
    repo.delete(version)
    commit_run(repo, repo.folder / "runs" / RUN)
    assert repo.undo().versions == (f"{version.name}@2",)


def test_nothing_changes_if_a_tag_has_the_name_of_a_deleted_version(small: Repo) -> None:
    kept = small.commit("other", git=False)
    small.delete_versions(["net@1", "net@2"])
    small.tag(kept, "net")
    before, names = small.catalog.read_entries(), small.store.references()
    with pytest.raises(ConflictError, match="tag 'net'"):
        small.undo()
    assert (small.catalog.read_entries(), small.store.references()) == (before, names)
    small.untag("net")
    assert small.undo().versions == ("net@1", "net@2")


@pytest.mark.parametrize("keep_versions", [True, False])
def test_a_version_comes_back_after_its_run_was_deleted(repo: Repo, keep_versions: bool) -> None:
    repo.archive()  # moves the states into the store
    version = states_of_run(repo)[0]
    before = weights(repo, version)
    first = repo.delete_versions([version], force=True).undo
    repo.delete_run(RUN, keep_versions=keep_versions, force=True)
    repo.gc()  # everything is within the grace
    repo.undo(first)
    assert weights(repo, version.reference) == before
    assert repo.fsck("deep").clean


def test_a_version_comes_back_after_gc_released_the_names_of_its_run(repo: Repo) -> None:
    version = states_of_run(repo)[0]
    before = weights(repo, version)
    repo.delete_run(RUN, keep_versions=True)
    repo.delete(repo.version(version.reference), force=True)
    repo.gc()
    repo.undo()
    assert weights(repo, version.reference) == before
    repo.gc(grace=0)
    assert weights(repo, version.reference) == before and repo.fsck("deep").clean


def test_a_version_whose_states_went_with_a_run_waits_for_the_run(repo: Repo) -> None:
    version = next(
        each for each in repo.versions() if any(s.kind == "state" and s.id is None for s in repo.snapshots(each))
    )
    run = repo.catalog.run(version.run)
    assert run is not None
    before = weights(repo, version)
    first = repo.delete_versions([version], force=True).undo
    second = repo.delete_run(run.name, force=True).undo
    with pytest.raises(NotFoundError, match="went with its run") as refused:
        repo.undo(first)
    assert f"regatta undo {second}" in str(refused.value)
    repo.undo(second)
    repo.undo(first)
    assert weights(repo, version.reference) == before and repo.fsck("deep").clean


def test_a_damaged_record_hides_no_other_deletion(small: Repo) -> None:
    first = small.delete_versions(["net@1"]).undo
    second = small.delete_versions(["net@2"]).undo
    record = small.folder / DELETED / str(second) / DELETED_RECORD
    record.write_bytes(record.read_bytes().replace(b"message 2", b"massage 2"))
    assert [each.id for each in small.deletions()] == [first]
    with pytest.raises(CorruptError, match="its content has changed"):
        small.undo(second)
    assert small.undo().versions == ("net@1",)
    small.gc(grace=0)
    assert not list((small.folder / DELETED).iterdir())


def test_a_record_of_an_earlier_version_is_read(small: Repo) -> None:
    deleted = small.delete_versions(["net@2"]).undo
    record = small.folder / DELETED / str(deleted) / DELETED_RECORD
    content = json.loads(record.read_text())
    del content["checksum"], content["runs"]
    record.write_text(json.dumps(content))
    assert small.undo().versions == ("net@2",)


def test_gc_removes_what_killed_deletions_left(small: Repo) -> None:
    half = small.folder / DELETED / "20260101-000000-abcd"
    (half / "run").mkdir(parents=True)
    (half / "run" / "journal.jsonl").write_text("{}\n")
    assert small.deletions() == []
    small.gc()
    assert half.exists(), "it is not older than the grace"
    os.utime(half, (0, 0))
    small.gc()
    assert not half.exists()
