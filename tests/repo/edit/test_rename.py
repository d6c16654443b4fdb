"""Runs and models get other names; journals, versions and links go along."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import observed as o
import pytest

from regatta import open_run
from regatta.cli.main import main
from regatta.errors import ConflictError, NotFoundError, UsageError
from regatta.journal.lock import run_lock
from regatta.paths import JOURNAL, RUNS
from regatta.repo import Repo
from regatta.repo.commit_run import commit_run


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return o.unpack(tmp_path_factory.mktemp("edit"))


@pytest.fixture
def project(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(unpacked, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.syspath_prepend(o.HERE)
    return tmp_path / "project"


def test_all_versions_of_a_model_are_renamed(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        made = [repo.commit("net", {"w": np.ones(number)}, git=False) for number in (1, 2, 3)]
        repo.delete("net@3")
        repo.copy("net@1", "other")
        repo.tag("net@2", "good")
        assert repo.rename("net", "wide net") == 2
        assert [each.reference for each in repo.versions("wide net", order="oldest")] == ["wide net@1", "wide net@2"]
        assert repo.version("good").reference == "wide net@2" and repo.version(made[0].id).name == "wide net"
        assert repo.parents("other")[0].reference == "wide net@1"
        assert [each.name for each in repo.versions(search="wide")] == ["wide net"] * 2
        assert repo.commit("wide net", None, git=False).number == 4 and not repo.versions("net")
        assert repo.commit("net", None, git=False).number == 1
        with pytest.raises(ConflictError, match="versions with the name"):
            repo.rename("net", "other")
        with pytest.raises(ConflictError, match="a tag"):
            repo.rename("net", "good")
        with pytest.raises(NotFoundError):
            repo.rename("nets", "x")
        with pytest.raises(UsageError):
            repo.rename("net", "net@3")
        assert repo.fsck("deep").clean


def test_a_renamed_run_is_replayed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = open_run("lines-done").record
    assert main(["rename", "lines-done", "straight"]) == 0
    assert "the run lines-done is now straight, with 4 versions" in capsys.readouterr().out
    after = open_run("straight").record
    assert (after.name, after.status, after.elapsed, after.now) == ("straight", "done", before.elapsed, before.now)
    found = o.document(project, "replay", "straight")
    assert found["document"]["ok"] and found["document"]["equal"] == 36
    with Repo.open(project) as repo:
        names = {each.name for each in repo.versions(run="straight")}
        assert len(names) == 4 and all(name.startswith("straight/") for name in names)
        assert not repo.versions(run="lines-done") and repo.fsck("deep").clean
        commit_run(repo, repo.folder / RUNS / "straight")
        assert {each.name for each in repo.versions(run="straight")} == names
    with pytest.raises(NotFoundError):
        open_run("lines-done")


def test_what_names_a_renamed_run_has_its_present_name(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rename", "lines-done", "straight"]) == 0
    with Repo.open(project) as repo:
        versions = repo.versions(run="straight")
        assert {each.message for each in versions} == {"run straight"}
        assert len(repo.versions(search="straight")) == 4 and repo.fsck("deep").clean
        plain = next(each for each in versions if each.network is None).reference
    listed = o.document(project, "list", "--run", "straight")["document"]["versions"]
    assert {each["run"] for each in listed} == {"straight"}
    capsys.readouterr()
    np.savez(project / "test.npz", x=np.zeros((2, 3), np.float32))
    assert main(["eval", plain, "--data", "test.npz"]) == 2
    assert "regatta commit --run straight --networks" in capsys.readouterr().err
    assert main(["delete", "--run", "straight", "--keep-versions", "--yes"]) == 0
    capsys.readouterr()
    assert main(["eval", plain, "--data", "test.npz"]) == 2
    assert "regatta add model.onnx" in capsys.readouterr().err  # there is no run to record it from


def test_a_renamed_run_is_resumed(project: Path) -> None:
    assert main(["rename", "lines-halted", "crooked"]) == 0
    assert o.command("resume", "crooked")[0] == 0
    journal = project / ".regatta" / RUNS / "crooked" / JOURNAL
    assert o.states(journal) == o.read_expected("runs")["lines-halted"]
    with Repo.open(project) as repo:
        assert all(each.name.startswith("crooked/") for each in repo.versions(run="crooked"))
        assert repo.fsck("deep").clean


def test_an_interrupted_rename_can_be_finished(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process died after the record in the journal, and before the folder had its new name."""
    with Repo.open(project) as repo:
        with monkeypatch.context() as patch:
            patch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                repo.rename_run("lines-done", "straight")
        assert repo.rename_run("lines-done", "straight") == 4
        assert repo.fsck().clean and len(repo.versions(run="straight")) == 4


def dies_after_moving(source: Path, target: Path) -> None:
    source.rename(target)
    raise KeyboardInterrupt


def test_a_rename_that_died_after_moving_the_folder_loses_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is finished, the states are found in the moved folder, and a repair leaves them to their versions."""
    with Repo.open(project) as repo:
        before = {each.id: repr(repo.load(each)) for each in repo.versions("lines-halted/*") if each.snapshots}
        assert before
        with monkeypatch.context() as patch:
            patch.setattr("regatta.repo.edit.rename.move", dies_after_moving)
            with pytest.raises(KeyboardInterrupt):
                repo.rename_run("lines-halted", "bent")
        assert (repo.folder / RUNS / "bent").is_dir()
        assert {each.id: repr(repo.load(each)) for each in repo.versions("lines-halted/*") if each.snapshots} == before
        found = repo.fsck("deep", repair=True)
        assert found.clean and not found.repaired
        assert repo.rename_run("lines-halted", "bent") > 0
        assert {each.id: repr(repo.load(each)) for each in repo.versions("bent/*") if each.snapshots} == before
        assert repo.fsck("deep").clean and not repo.versions("lines-halted/*")


def test_a_run_whose_versions_cannot_be_renamed_stays_where_it_is(project: Path) -> None:
    with Repo.open(project) as repo:
        name = repo.versions("lines-done/*")[0].name
        repo.commit(name.replace("lines-done", "taken"), git=False)
        before = o.read_expected("runs")["lines-done"]
        with pytest.raises(ConflictError, match="taken/"):
            repo.rename_run("lines-done", "taken")
        journal = repo.folder / RUNS / "lines-done" / "journal.jsonl"
        assert o.states(journal) == before and repo.fsck("deep").clean
        assert b'"rename"' not in journal.read_bytes()


def test_names_that_are_taken_or_wrong_are_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rename", "lines-done", "lines-killed"]) == 4
    assert main(["rename", "lines-done", "../x"]) == 2
    assert main(["rename", "lines-done", "é" * 120]) == 2 and "240 bytes" in capsys.readouterr().err
    assert main(["rename", "lines-dnoe", "x"]) == 3
    assert "lines-done" in capsys.readouterr().err
    with run_lock(project / ".regatta" / RUNS / "lines-done"):
        assert main(["rename", "lines-done", "other"]) == 4
    assert main(["rename", "late@1", "x"]) == 3 and "leave out the number" in capsys.readouterr().err
