"""Staged content is what was added, and becomes one version, whatever happens to the files meanwhile."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from regatta.errors import CorruptError, NotFoundError, UsageError
from regatta.paths import STAGING
from regatta.repo import Repo
from regatta.repo.intake.staging import add, commit_staged, staged, staged_files, unstage


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for epoch in (1, 2, 10):
        save_file({"w": np.full(50, epoch, "f4")}, tmp_path / f"net-epoch{epoch}.safetensors")
    (tmp_path / "log.csv").write_text("epoch,loss\n1,0.5\n2,0.25\n10,0.125\n")
    (tmp_path / "config.toml").write_text("lr = 0.1\n")
    (tmp_path / "train.py").write_text("print('hi')\n")
    return tmp_path


@pytest.fixture
def repo(here: Path) -> Repo:
    return Repo.init(here)


def test_added_files_become_a_version(repo: Repo, here: Path) -> None:
    with repo:
        add(repo, sorted(here.glob("[a-z]*.*")))
        version = commit_staged(repo, "net", hyperparameters={"seed": 3}, metrics={"test": 0.5}, message="first")
        assert version.hyperparameters == {"lr": 0.1, "seed": 3} and version.message == "first"
        assert [each.epoch for each in repo.snapshots(version)] == [1, 2, 10]
        assert repo.load(version)["w"][0] == 10 and repo.load(version, 2)["w"][0] == 2
        assert [(p.name, p.step, p.value) for p in repo.metrics(version)] == [
            ("loss", 1, 0.5), ("loss", 2, 0.25), ("loss", 10, 0.125), ("test", 10, 0.5),
        ]  # fmt: skip
        assert [file.path for file in repo.describe(version).files] == ["config.toml", "log.csv", "train.py"]
        assert staged(repo) == () and repo.store.references("staged/") == {}
        repo.gc(grace=0.0)
        after = repo.fsck("deep")
        assert after.clean and after.leftovers == 0


def test_the_content_is_that_at_the_time_of_adding(repo: Repo, here: Path) -> None:
    with repo:
        add(repo, ["net-epoch1.safetensors", "train.py"])
        save_file({"w": np.zeros(5, "f4")}, here / "net-epoch1.safetensors")
        (here / "train.py").unlink()
        repo.gc(grace=0.0)  # takes nothing that is staged
        version = commit_staged(repo, "net")
        assert repo.load(version)["w"].tolist() == [1.0] * 50
        assert repo.read_file(version, "train.py") == b"print('hi')\n"


def test_adding_again_replaces_and_unstaging_removes(repo: Repo, here: Path) -> None:
    with repo:
        add(repo, ["train.py", "net-epoch1.safetensors"])
        (here / "train.py").write_text("new\n")
        add(repo, ["train.py", "net-epoch1.safetensors"], epoch=4)
        assert [item.name for item in staged(repo)] == ["net-epoch1.safetensors", "train.py"]
        assert len(repo.store.references("staged/")) == 1
        assert [item.name for item in unstage(repo, ["train.py"])] == ["train.py"]
        with pytest.raises(NotFoundError, match="is not staged") as caught:
            unstage(repo, ["net-epoch11.safetensors"])
        assert caught.value.candidates == ("net-epoch1.safetensors",)
        assert [each.epoch for each in repo.snapshots(commit_staged(repo, "net"))] == [4]


def test_add_stages_all_files_or_none(repo: Repo, here: Path) -> None:
    (here / "bad.pt").write_bytes(b"not a state dict")
    with repo:
        with pytest.raises(UsageError):
            add(repo, ["train.py", "bad.pt"])
        assert staged(repo) == ()
        with pytest.raises(UsageError, match="Nothing is staged"):
            commit_staged(repo, "net")


def test_conflicting_files_are_refused(repo: Repo, here: Path) -> None:
    (here / "other").mkdir()
    (here / "other" / "train.py").write_text("another\n")
    with repo:
        add(repo, [here / "train.py"])
        with pytest.raises(UsageError, match="from another place"):
            add(repo, [here / "other" / "train.py"])
        add(repo, ["net-epoch1.safetensors"], epoch=1)
        add(repo, ["net-epoch2.safetensors"], epoch=1)
        with pytest.raises(UsageError, match="of epoch 1"):
            commit_staged(repo, "net")
        assert len(staged(repo)) == 3


@pytest.mark.parametrize("name", ["naïve–ключ 模型.txt", "a b\u00a0c", "emoji🚣.json", "--option", "'quoted'"])
def test_file_names_may_have_any_script(repo: Repo, here: Path, name: str) -> None:
    (here / name).write_text("{}")
    with repo:
        add(repo, [f"./{name}"])
        version = commit_staged(repo, "模型 ⛵")
        assert [file.path for file in repo.describe(version).files] == [name]
        out = repo.checkout(version, here / "out")
        assert (out / "files" / name).read_text() == "{}"


def test_links_out_of_the_folder_are_refused_and_names_stay_inside(repo: Repo, here: Path) -> None:
    outside = here / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    project = here / "project"
    project.mkdir()
    (project / "link.txt").symlink_to(outside / "secret.txt")
    os.chdir(project)
    with repo:
        with pytest.raises(UsageError, match="leads out of its folder"):
            add(repo, ["."])
        add(repo, ["../outside/secret.txt"])
        assert [item.name for item in staged(repo)] == ["secret.txt"]
        for wrong in ("back\\slash", "new\nline", "C:drive"):
            (project / wrong).write_text("x")
            with pytest.raises(UsageError, match="file name"):
                add(repo, [wrong])
        with pytest.raises(UsageError, match="not added to itself"):
            add(repo, [repo.folder])
        undecodable = os.fsdecode(b"caf\xe9")
        (project / undecodable).write_text("x")
        with pytest.raises(UsageError, match="file name"):
            add(repo, [undecodable])


def test_a_damaged_staging_area_is_an_error(repo: Repo) -> None:
    with repo:
        for text in ("{", "[]", '{"format": 9, "items": [], "committing": null}', '{"format": 1}'):
            (repo.folder / STAGING).write_text(text)
            with pytest.raises(CorruptError, match="staging area"):
                staged(repo)


def test_a_changed_value_in_the_staging_area_is_not_committed(repo: Repo, here: Path) -> None:
    with repo:
        add(repo, ["config.toml", "net-epoch2.safetensors"])
        path = repo.folder / STAGING
        whole = path.read_bytes()
        for before, after in ((b'"lr": 0.1', b'"lr": 0.9'), (b'"epoch": 2', b'"epoch": 3')):
            assert before in whole
            path.write_bytes(whole.replace(before, after))
            with pytest.raises(CorruptError, match="its content has changed"):
                commit_staged(repo, "net")
            with pytest.raises(CorruptError, match="its content has changed"):
                repo.gc(grace=0.0)
        path.write_bytes(whole)
        assert commit_staged(repo, "net").hyperparameters == {"lr": 0.1}


def test_many_processes_can_add_at_once(repo: Repo, here: Path) -> None:
    for number in range(12):
        (here / f"f{number}.txt").write_text(str(number))
    repo.close()

    def one(number: int) -> None:
        with Repo.open(here) as own:
            add(own, [here / f"f{number}.txt"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(12)))
    with Repo.open(here) as again:
        assert {item.name for item in staged(again)} == {f"f{number}.txt" for number in range(12)}
        assert len(staged_files(again)) == 12
        assert len(again.describe(commit_staged(again, "all")).files) == 12
