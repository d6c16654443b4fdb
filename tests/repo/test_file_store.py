"""Files of versions: kept once, and never written where they do not belong."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from regatta.errors import CorruptError, NotFoundError, RegattaError, UsageError
from regatta.repo import Repo
from regatta.repo.file_store import FileEntry, FileFolder, named_files, write_inside

HOSTILE = [
    "../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/.", "..", ".", "", "a/", "C:\\x", "C:x", "..\\x", "a\0b",
    "a\nb", "x" * 300, "\udcff",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_when_added(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        named_files({name: b"x"})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_when_written(tmp_path: Path, name: str) -> None:
    """A catalog may come from an untrusted source."""
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError):
        write_inside(inside, FileEntry(name, "", 1), io.BytesIO(b"x"))
    assert sorted(tmp_path.rglob("*")) == before


def test_links_at_the_target_are_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "victim").write_text("safe")
    (inside / "folder").symlink_to(outside)
    (inside / "file").symlink_to(outside / "victim")
    with pytest.raises(UsageError, match="is a link"):
        write_inside(inside, FileEntry("folder/victim", "", 1), io.BytesIO(b"x"))
    write_inside(inside, FileEntry("file", "", 1), io.BytesIO(b"x"))
    assert (outside / "victim").read_text() == "safe"
    assert not (inside / "file").is_symlink() and (inside / "file").read_bytes() == b"x"


def test_a_catalog_that_was_tampered_with_cannot_write_elsewhere(tmp_path: Path) -> None:
    with Repo.init(tmp_path) as repo:
        repo.commit("net", files={"good": b"x"}, git=False)
        repo.catalog._run("UPDATE file SET path = '../../../evil'")
        with pytest.raises(UsageError, match="evil"):
            repo.checkout("net", tmp_path / "a" / "b" / "out")
        repo.catalog._run("UPDATE file SET path = 'good', hash = '../../catalog.sqlite'")
        with pytest.raises(CorruptError, match="not the hash"):
            repo.checkout("net", tmp_path / "c")
    assert not list(tmp_path.rglob("evil"))


def test_a_folder_is_added_without_links_that_leave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "conf" / "deep").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / ".git" / "config").write_text("secret")
    (project / "conf" / "a.yaml").write_text("a")
    (project / "conf" / "deep" / "b.yaml").write_text("b")
    (project / "conf" / "again").symlink_to("a.yaml")
    monkeypatch.chdir(project)
    inside = ["conf/a.yaml", "conf/again", "conf/deep/b.yaml"]
    assert [name for name, _ in named_files(["conf"])] == inside
    assert [name for name, _ in named_files([project])] == [f"project/{name}" for name in inside]
    assert [name for name, _ in named_files([Path(".")])] == inside
    assert [name for name, _ in named_files(["../project/conf/a.yaml"])] == ["a.yaml"]
    (tmp_path / "key").write_text("secret")
    (project / "conf" / "leak").symlink_to(tmp_path / "key")
    with pytest.raises(UsageError, match="leads out"):
        named_files(["conf"])
    (project / "conf" / "leak").unlink()
    (project / "conf" / "up").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="leads out"):
        named_files(["conf"])


def test_conflicting_file_names_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    with pytest.raises(UsageError, match="same name"):
        named_files([tmp_path / "a" / "x", tmp_path / "b" / "x"])
    with pytest.raises(UsageError, match="name of another file"):
        named_files({"a": b"", "a/b": b""})
    with pytest.raises(NotFoundError):
        named_files([tmp_path / "nothing"])


def test_equal_files_are_stored_once(tmp_path: Path) -> None:
    files = FileFolder(tmp_path / "files")
    first = files.put_all({"a": b"same", "b": b"same", "c": b""})
    again = files.put_all({"d": b"same"})
    assert len({entry.hash for entry in (*first, *again)}) == 2
    assert len(list(files.present())) == 2
    assert files.read(first[0]) == b"same" and files.read(first[2]) == b""
    assert list((tmp_path / "files" / "tmp").iterdir()) == []


def test_what_else_is_in_the_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileFolder(tmp_path / "files")
    kept, gone = files.put_all({"a": b"kept", "b": b"gone"})
    (tmp_path / "files" / ".DS_Store").write_text("of the file manager")
    (tmp_path / "files" / "notes").mkdir()
    (tmp_path / "files" / "notes" / kept.hash).write_text("of the user")
    assert sorted(digest for digest, _ in files.present()) == sorted((kept.hash, gone.hash))
    status = Path.stat

    def late(path: Path, **options: bool) -> os.stat_result:
        if path.name == gone.hash:
            path.unlink(missing_ok=True)
        return status(path, **options)

    monkeypatch.setattr(Path, "stat", late)
    assert [digest for digest, _ in files.present()] == [kept.hash], "gc of another process deleted the other"


def test_a_truncated_file_is_replaced_by_the_whole_one(tmp_path: Path) -> None:
    files = FileFolder(tmp_path / "files")
    (entry,) = files.put_all({"a": b"whole"})
    files.path(entry.hash).write_bytes(b"who")
    assert files.problem_of(entry.hash, entry.bytes, whole=False) == "it has 3 bytes, not 5"
    files.put_all({"a": b"whole"})
    assert files.problem_of(entry.hash, entry.bytes, whole=True) is None


def test_a_large_file_is_stored_and_an_unreadable_one_refused(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(os.urandom(5 * 2**20 + 3))
    files = FileFolder(tmp_path / "files")
    (entry,) = files.put_all([large])
    assert files.read(entry) == large.read_bytes()
    with pytest.raises(RegattaError):
        files.put_all({"x": tmp_path / "gone"})
