"""A copy of a repository is whole, whatever other processes do to it meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import observed as o
import pytest
from locations import ROOT

from regatta.cli.main import main
from regatta.errors import ConflictError, CorruptError
from regatta.paths import JOURNAL, RUNS
from regatta.repo import Repo
from regatta.repo.backup import pinned as pinned_module
from regatta.repo.intake.staging import add, staged

BUSY = Path(__file__).with_name("busy_repository.py")


def small_repository(folder: Path) -> Repo:
    repo = Repo.init(folder)
    repo.commit("net", {1: {"w": np.arange(6.0)}, 2: {"w": np.arange(6.0) + 1}}, files={"a.py": b"pass"}, git=False)
    repo.tag("net", "good")
    (folder / "notes.txt").write_text("staged, not committed")
    np.savez(folder / "more.npz", w=np.ones(3))
    add(repo, [folder / "notes.txt", folder / "more.npz"])
    return repo


def test_a_backup_has_everything(tmp_path: Path) -> None:
    with small_repository(tmp_path / "here") as repo:
        made = repo.backup(tmp_path / "there")
    assert (made.versions, made.files, made.path) == (1, 1, tmp_path / "there" / ".regatta")
    with Repo.open(tmp_path / "there") as copy:
        assert copy.fsck("deep").clean
        assert np.array_equal(copy.load("good", 1)["w"], np.arange(6.0)) and copy.read_file("net", "a.py") == b"pass"
        assert [item.name for item in staged(copy)] == ["more.npz", "notes.txt"]
        copy.commit("net", {"w": np.zeros(2)}, git=False)  # it is a repository of its own
    with Repo.open(tmp_path / "here") as repo:
        assert len(repo.versions()) == 1
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == [".regatta"]


def test_a_backup_replaces_nothing(tmp_path: Path) -> None:
    with small_repository(tmp_path) as repo:
        repo.backup(tmp_path / "copy")
        with pytest.raises(ConflictError, match="already"):
            repo.backup(tmp_path / "copy")
        with pytest.raises(ConflictError, match="into itself"):
            repo.backup(repo.folder / "copy")
        (tmp_path / "link").symlink_to(repo.folder)
        with pytest.raises(ConflictError, match="into itself"):
            repo.backup(tmp_path / "link" / "copy")


def test_a_damaged_repository_gives_no_copy(tmp_path: Path) -> None:
    with small_repository(tmp_path) as repo:
        next((repo.folder / "files").glob("??/*")).unlink()
        with pytest.raises(CorruptError, match="missing"):
            repo.backup(tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_the_command_says_what_it_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small_repository(tmp_path).close()
    assert main(["backup", "copy"]) == 0
    assert "copy/.regatta: 1 version, 0 runs, 1 file" in capsys.readouterr().out
    assert main(["backup", "copy"]) == 4


def test_the_runs_of_a_backup_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of an earlier version, halted and done: their states are in the store or files, and come along."""
    project = o.unpack(tmp_path / "here")
    with Repo.open(project) as repo:
        made = repo.backup(tmp_path / "there")
        assert made.runs == len(list((repo.folder / RUNS).iterdir())) > 5 and made.versions == len(repo.versions())
        expected = {each.reference: set(repo.load(each)) for each in repo.versions() if each.snapshots}
    shutil.rmtree(project / ".regatta")
    with Repo.open(tmp_path / "there") as copy:
        assert {each.reference: set(copy.load(each)) for each in copy.versions() if each.snapshots} == expected
    monkeypatch.syspath_prepend(o.HERE)
    monkeypatch.chdir(tmp_path / "there")
    assert o.command("resume", "lines-halted")[0] == 0
    journal = tmp_path / "there" / ".regatta" / RUNS / "lines-halted" / JOURNAL
    assert o.states(journal) == o.read_expected("runs")["lines-halted"]


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_backups_beside_a_writer_are_whole(tmp_path: Path, count: int) -> None:
    Repo.init(tmp_path / "here").close()
    command = [sys.executable, str(BUSY), str(tmp_path / "here")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
    assert writer.stdout is not None
    try:
        versions = []
        for number in range(count):
            for _ in range(3):
                assert writer.stdout.readline().strip().isdigit(), writer.stderr and writer.stderr.read()
            with Repo.open(tmp_path / "here") as repo:
                repo.backup(tmp_path / str(number))
            with Repo.open(tmp_path / str(number)) as copy:
                found = copy.fsck("deep")
                assert found.clean, found.problems
                versions.append({each.reference for each in copy.versions()})
                for each in copy.versions():
                    assert copy.load(each)["w"].shape == (4_000,)
        assert len({frozenset(each) for each in versions}) > 1  # the writer went on in between
        assert writer.poll() is None, writer.stderr and writer.stderr.read()
    finally:
        writer.kill()
        writer.communicate()


def test_no_version_changes_between_the_two_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete and a commit that begin after the catalog is pinned, and before the index is, must wait."""
    small_repository(tmp_path / "here").close()
    threads: list[threading.Thread] = []
    pin = pinned_module._reading

    def change() -> None:
        with Repo.open(tmp_path / "here") as other:
            other.commit("other", {"w": np.ones(5)}, git=False)
            other.delete("net", force=True)

    def slowly(database: Any, held: Any) -> Any:
        found = pin(database, held)
        if not threads:
            threads.append(threading.Thread(target=change))
            threads[0].start()
            threads[0].join(1.0)
        return found

    monkeypatch.setattr(pinned_module, "_reading", slowly)
    with Repo.open(tmp_path / "here") as repo:
        repo.backup(tmp_path / "there")
    threads[0].join()
    with Repo.open(tmp_path / "there") as copy, Repo.open(tmp_path / "here") as repo:
        assert copy.fsck("deep").clean and [each.name for each in copy.versions()] == ["net"]
        assert [each.name for each in repo.versions()] == ["other"]
