"""On a full disk, what reads and what frees room works: a small file system in memory is filled to the last byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from regatta.cli.main import main
from regatta.repo import Repo

READING = (
    ("list",), ("list", "--json"), ("log",), ("desc", "net"), ("status",), ("tag",), ("runs",), ("undo", "--list"),
    ("fsck",), ("fsck", "--depth", "deep"), ("gc", "--dry-run"), ("delete", "net@2", "--dry-run"),
)  # fmt: skip


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    os.chdir("/")
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def full_repository(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with six versions, one of them deleted, on a disk without any room."""
    monkeypatch.chdir(small_disk)
    random = np.random.default_rng(0)
    with Repo.init(small_disk) as repo:
        for number in range(6):
            weights = {epoch: {"w": random.random(20_000)} for epoch in (1, 2)}
            files = {f"log{number}.txt": random.bytes(3_000)}
            repo.commit("net", weights, files=files, hyperparameters={"lr": number}, metrics={"loss": [1.0]}, git=False)
        repo.delete("net@1")
    fill(small_disk)
    return small_disk


def fill(disk: Path) -> None:
    with (disk / "filling").open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    assert room(disk) == 0


def room(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def test_what_reads_works_without_room(
    full_repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in READING:
        assert main(list(words)) == 0, (words, capsys.readouterr())
    assert main(["diff", "net@2", "net@3"]) == 1  # they differ
    assert main(["checkout", "net@3", str(tmp_path / "w.safetensors")]) == 0
    assert main(["checkout", "net@3", str(tmp_path / "folder")]) == 0
    assert main(["backup", str(tmp_path / "copy")]) == 0
    assert (tmp_path / "folder" / "files" / "log2.txt").stat().st_size == 3_000
    with Repo.open(tmp_path / "copy") as copy:
        assert copy.fsck("deep").clean and len(copy.versions()) == 5
    assert room(full_repository) == 0


def test_what_frees_room_needs_none(full_repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delete", "net@2", "net@3"]) == 0
    assert "cannot be taken back" in capsys.readouterr().err
    assert main(["gc", "--grace", "0"]) == 0
    assert room(full_repository) > 3 * 2 * 130_000  # three of six versions
    assert main(["fsck", "--depth", "deep"]) == 0
    with Repo.open(full_repository) as repo:
        assert [each.number for each in repo.versions(order="oldest")] == [4, 5, 6]
        assert repo.commit("net", {"w": np.ones(10)}, git=False).number == 7
        assert repo.fsck("deep").clean


def test_a_killed_process_leaves_no_locked_repository(small_disk: Path, tmp_path: Path) -> None:
    """It leaves the logs of SQLite. To write them back, SQLite needs room beside them."""
    code = (
        "import os, signal, numpy as np\nfrom regatta.repo import Repo\nrepo = Repo.init('.')\n"
        "for n in range(6): repo.commit('net', {'w': np.random.random(20_000)}, hyperparameters={'n': n}, git=False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=small_disk, check=False)
    logs = [small_disk / ".regatta" / "catalog.sqlite-wal", small_disk / ".regatta" / "store" / "index.sqlite-wal"]
    assert all(log.stat().st_size for log in logs)
    fill(small_disk)
    os.chdir(small_disk)
    assert main(["list"]) == 0
    assert main(["checkout", "net@3", str(tmp_path / "w.safetensors")]) == 0
    assert main(["fsck", "--depth", "deep"]) == 0
    assert main(["delete", "net@2"]) == 0
    assert main(["gc", "--grace", "0"]) == 0
    assert room(small_disk) > 100_000
    with Repo.open(small_disk) as repo:
        assert [each.number for each in repo.versions(order="oldest")] == [1, 3, 4, 5, 6]
        assert repo.version("net").hyperparameters == {"n": 5} and repo.fsck("deep").clean


def test_a_deleted_run_frees_room_at_once(full_repository: Path) -> None:
    (full_repository / "filling").unlink()
    from fake_run import FakeRun

    folder = FakeRun(name="first").write(full_repository / ".regatta" / "runs").parent
    (folder / "states" / "large").parent.mkdir(exist_ok=True)
    (folder / "states" / "large").write_bytes(bytes(500_000))
    fill(full_repository)
    assert main(["delete", "first"]) == 0
    assert room(full_repository) >= 500_000


def test_what_needs_room_says_so(full_repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (full_repository / "filling").unlink()
    np.savez(full_repository / "more.npz", w=np.random.default_rng(1).random(50_000))
    fill(full_repository)
    for words in (["add", "more.npz"], ["archive"], ["checkout", "net", "here.npz"], ["backup", "copy"]):
        assert main(words) in (0, 1, 2), words
        said = capsys.readouterr().err
        assert "Traceback" not in said
    assert main(["add", "more.npz"]) == 1
    assert "full" in capsys.readouterr().err or "No space" in said
    assert main(["fsck", "--depth", "deep"]) == 0


def test_deleting_beside_another_process(full_repository: Path) -> None:
    """Another process has the databases open, so their logs are there, and are used."""
    (full_repository / "filling").unlink()
    with Repo.open(full_repository) as other:
        other.commit("net", {"w": np.ones(5)}, git=False)
        assert len(other.store.references()) > 0
        fill(full_repository)
        assert main(["list"]) == 0
        assert main(["gc", "--grace", "0"]) == 0
        assert other.fsck("deep").clean
    assert room(full_repository) > 150_000
