from __future__ import annotations

from pathlib import Path

import pytest

from regatta.errors import UsageError
from regatta.paths import ensure_repository, find_repository


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
