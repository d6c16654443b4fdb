from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from regatta.errors import UsageError
from regatta.paths import bytes_on_disk, ensure_repository, find_repository


def test_the_nearest_repository_upward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / ".regatta").mkdir()
    assert find_repository(deep) == tmp_path / ".regatta"
    (tmp_path / "a" / ".regatta").mkdir()
    assert find_repository(str(deep)) == tmp_path / "a" / ".regatta"
    monkeypatch.chdir(deep)
    assert find_repository() == ensure_repository() == tmp_path / "a" / ".regatta"


def test_a_file_of_that_name_is_not_a_repository(tmp_path: Path) -> None:
    (tmp_path / ".regatta").write_text("")
    found = find_repository(tmp_path)
    assert found != tmp_path / ".regatta"


def test_a_repository_is_created_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ensure_repository() == tmp_path / ".regatta"
    assert (tmp_path / ".regatta").is_dir()
    assert ensure_repository(tmp_path / "named") == tmp_path / "named"
    assert (tmp_path / "named").is_dir()


def test_a_repository_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / ".regatta"):
        with pytest.raises(UsageError, match="repository folder cannot be written") as error:
            ensure_repository(path)
        assert error.value.place == str(path)


def test_a_repository_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # tests may run as a user who may write anywhere
    with pytest.raises(UsageError, match="permission denied"):
        ensure_repository(tmp_path)


def test_the_space_of_a_folder_from_which_another_process_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_bytes(b"x" * 10_000)
    os.link(tmp_path / "a" / "deep" / "file", tmp_path / "a" / "again")  # one file, two names
    whole = bytes_on_disk(tmp_path)
    assert 3 * 10_000 <= whole < 4 * 10_000 + 8 * 8192
    scan = os.scandir

    def late(path: Any) -> Any:
        if not isinstance(path, int) and Path(path).name == "deep":
            shutil.rmtree(Path(path).parent)
        return scan(path)

    monkeypatch.setattr(os, "scandir", late)
    assert bytes_on_disk(tmp_path) < whole
