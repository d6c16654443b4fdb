"""Files that are whole after a crash, and locks between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regatta.durable import (
    FileLock,
    checked_json,
    exclusive,
    fsync_path,
    is_locked,
    lock_file,
    move,
    parse_checked_json,
    put_aside,
    replacing,
    temporary_name,
)
from regatta.errors import ConflictError


def record_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every step that touches the disk, in order: which kind of thing is forced to it, and the rename."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    def note_replace(source: Any, target: Any) -> None:
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return steps


def test_a_moved_folder_is_durable_in_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path / "runs" / "a", tmp_path / "deleted"):
        place.mkdir(parents=True)
    steps = record_steps(monkeypatch)
    move(tmp_path / "runs" / "a", tmp_path / "deleted" / "run")
    move(tmp_path / "deleted" / "run", tmp_path / "deleted" / "renamed")
    assert steps == ["rename", "folder", "folder", "rename", "folder"]
    assert (tmp_path / "deleted" / "renamed").is_dir() and not (tmp_path / "runs" / "a").exists()


def test_files_that_are_put_aside_keep_their_content_and_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "packs" / name for name in ("b", "a")]
    files[0].parent.mkdir()
    for path in files:
        path.write_text(path.name)
    steps = record_steps(monkeypatch)
    moved = put_aside(files, tmp_path / "quarantine")
    assert [path.name.split(".")[0] for path in moved] == ["b", "a"] == [path.read_text() for path in moved]
    assert steps == ["rename", "rename", "folder", "folder", "folder"]
    assert not any(path.exists() for path in files)
    assert put_aside([], tmp_path / "quarantine") == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["file", "rename", "folder"]),
        ({"durable_name": False}, ["file", "rename"]),
        ({"durable": False, "durable_name": False}, ["rename"]),
    ],
)
def test_the_order_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool], expected: list[str]
) -> None:
    steps = record_steps(monkeypatch)
    with replacing(tmp_path / "a", **options) as written:
        written.write_bytes(b"new")
        assert not (tmp_path / "a").exists()
    assert steps == expected
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(OSError, match="full"), replacing(tmp_path / "a") as written:
        written.write_bytes(b"ne")
        raise OSError("full")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_no_two_writers_share_a_temporary_name(tmp_path: Path) -> None:
    names = {temporary_name(tmp_path / "a.json") for _ in range(100)}
    assert len(names) == 100
    assert all(name.parent == tmp_path and name.name.startswith(".") and name.suffix != ".json" for name in names)


def test_files_and_folders_are_forced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = record_steps(monkeypatch)
    (tmp_path / "a").touch()
    fsync_path(tmp_path / "a")
    fsync_path(tmp_path)
    assert steps == ["file", "folder"]


def test_a_lock_keeps_others_out_until_it_is_released(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")
    assert first.acquire()
    first.write_note("who holds it")
    assert is_locked(tmp_path / "lock")
    assert not second.acquire(wait=False)
    assert second.note() == b"who holds it"
    first.release()
    first.release()
    assert second.acquire(wait=False)
    second.release()


def test_shared_locks_only_refuse_exclusive_ones(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock", shared=True), FileLock(tmp_path / "lock", shared=True):
        assert not is_locked(tmp_path / "lock")
        with pytest.raises(ConflictError, match="being worked on"), exclusive(tmp_path / "lock", "gc", wait=False):
            pass
    with exclusive(tmp_path / "lock", "gc", wait=False):
        assert is_locked(tmp_path / "lock")


def test_the_error_names_the_holder(tmp_path: Path) -> None:
    refused = pytest.raises(ConflictError, match=f"fsck, process {os.getpid()}")
    with exclusive(tmp_path / "lock", "fsck"), refused, exclusive(tmp_path / "lock", "gc", wait=False):
        pass
    assert not is_locked(tmp_path / "lock")


def test_a_dead_process_holds_no_lock(tmp_path: Path) -> None:
    code = "import os, sys; from regatta.durable import FileLock; from pathlib import Path\n"
    code += "FileLock(Path(sys.argv[1])).acquire(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], check=False)
    assert (tmp_path / "lock").exists()
    assert not is_locked(tmp_path / "lock")


@pytest.mark.parametrize("in_forks", [True, False])
def test_a_forked_process_keeps_a_lock_unless_it_is_unlocked(tmp_path: Path, in_forks: bool) -> None:
    lock = FileLock(tmp_path / "lock")
    lock.acquire()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(write)
        os.read(read, 1)  # until the parent closes its end
        os._exit(0)
    os.close(read)
    try:
        lock.release(in_forks=in_forks)
        assert is_locked(tmp_path / "lock") is not in_forks
    finally:
        os.close(write)
        os.waitpid(pid, 0)


def test_an_open_file_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("xb") as file:
        assert lock_file(file)
        with path.open("rb") as other:
            assert not lock_file(other, wait=False)
    assert not is_locked(path)


def test_every_change_of_a_value_in_checked_json_is_seen() -> None:
    content = {"b": [1, 0.1, {"x": None, "nan": "NaN"}], "a": "\u00e9\ud800", "1": float("inf")}
    text = checked_json(content).encode()
    assert parse_checked_json(text) == content
    assert parse_checked_json(b'{"without": 1}') == {"without": 1}, "as earlier versions wrote it"
    for before, after in ((b"0.1", b"0.2"), (b"null", b"true"), (b"Infinity", b"-Infinity"), (b'"x"', b'"y"')):
        assert before in text
        with pytest.raises(ValueError, match="has changed"):
            parse_checked_json(text.replace(before, after))
