"""The version log and the catalog restore each other, whatever part of either is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regatta.errors import CorruptError, DiskError, NewerVersionError
from regatta.repo import Repo
from regatta.repo.catalog.catalog import Catalog
from regatta.repo.catalog.version_log import LogLine, VersionLog, parse_log


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    with Repo.init(tmp_path) as opened:
        for number in (1, 2, 3):
            opened.commit("net", message=f"message {number}", hyperparameters={"n": number}, git=False)
        opened.tag("net@2", "best")
        opened.delete("net@1")
        yield opened


def log_lines(repo: Repo) -> list[bytes]:
    return repo.catalog.log.path.read_bytes().splitlines(keepends=True)


def test_the_log_says_what_the_catalog_holds(repo: Repo) -> None:
    content = repo.catalog.log.read()
    assert content.entries() == repo.catalog.read_entries()
    assert content.position() == repo.catalog.log_position()
    assert content.damaged == () and content.bytes == content.size


def cut(lines: list[bytes]) -> list[bytes]:
    return lines[:-2]


def no_first_line(lines: list[bytes]) -> list[bytes]:
    return lines[1:]


def one_damaged(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b"message 3", b"massage 3") for line in lines]


def none_left(lines: list[bytes]) -> list[bytes]:
    return []


@pytest.mark.parametrize("damage", [cut, no_first_line, one_damaged, none_left])
def test_a_damaged_log_is_written_again_from_the_catalog(
    repo: Repo, damage: Callable[[list[bytes]], list[bytes]]
) -> None:
    before = repo.catalog.read_entries()
    damaged = b"".join(damage(log_lines(repo)))
    repo.catalog.log.path.write_bytes(damaged)
    assert repo.versions("net"), "reading needs no log"
    assert not repo.fsck("deep").clean
    with pytest.raises(CorruptError, match="disagree"):
        repo.gc(grace=0)
    repo.fsck(repair=True)
    assert repo.fsck("deep").clean
    assert repo.catalog.read_entries() == repo.catalog.log.read().entries() == before


def test_nothing_is_added_to_a_log_that_lost_its_end(repo: Repo) -> None:
    repo.catalog.log.path.write_bytes(b"".join(cut(log_lines(repo))))
    with pytest.raises(CorruptError, match="fsck --repair"):
        repo.tag("net", "other")
    assert [tag.name for tag in repo.tags()] == ["best"]


def test_a_transaction_that_did_not_end_is_cut_off(repo: Repo) -> None:
    position = repo.catalog.log_position()
    assert position is not None
    begun = LogLine(position.lines + 1, position.lines + 2, "tag", "half", {"version": "x", "created": 1.0}).text()
    for rest in (begun, begun[:50]):
        with repo.catalog.log.path.open("ab") as file:
            file.write(rest)
        repo.tag("net", "whole", move=True)
        assert repo.fsck("deep").clean and [tag.name for tag in repo.tags()] == ["best", "whole"]
        repo.untag("whole")


def test_a_change_that_only_the_log_has_is_there_after_opening(repo: Repo, tmp_path: Path) -> None:
    """As after a kill between the log and the catalog, or with a damaged log of SQLite."""
    older = {path.name: path.read_bytes() for path in repo.folder.glob("catalog.sqlite*")}
    repo.commit("late", message="late", git=False)
    repo.close()
    for path in repo.folder.glob("catalog.sqlite*"):
        path.unlink()
    for name, content in older.items():
        if not name.endswith("-shm"):
            (repo.folder / name).write_bytes(content)
    with Repo.open(tmp_path) as again:
        assert again.version("late").message == "late" and again.fsck("deep").clean


def test_names_that_changed_hands_are_right_in_a_catalog_that_is_far_behind(repo: Repo, tmp_path: Path) -> None:
    """As if the log of SQLite, with the last changes, were damaged."""
    repo.commit("other", git=False)
    repo.commit("other", git=False)
    repo.close()
    older = (repo.folder / "catalog.sqlite").read_bytes()
    with Repo.open(tmp_path) as again:
        for old, new in (("net", "third"), ("other", "net"), ("third", "other")):
            again.rename(old, new)
        wanted = again.catalog.read_entries()
    (repo.folder / "catalog.sqlite").write_bytes(older)
    with Repo.open(tmp_path) as again:
        assert again.catalog.read_entries() == wanted and again.fsck("deep").clean


def test_a_change_between_the_log_and_the_catalog_is_not_damage(repo: Repo, tmp_path: Path) -> None:
    """Another process is just there, or was killed there, while this one has the catalog open."""
    with Repo.open(tmp_path) as other, pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        commit = other.catalog._run

        def killed(statement: str, *values: Any) -> int:
            if statement == "COMMIT":
                other.catalog._db.execute("ROLLBACK")
                raise KeyboardInterrupt
            return commit(statement, *values)

        patch.setattr(other.catalog, "_run", killed)
        other.commit("late", git=False)
    assert repo.catalog.log.read().position() != repo.catalog.log_position()
    assert repo.fsck("deep").clean and repo.gc(grace=0)
    assert repo.version("late")


@pytest.mark.parametrize("rolled_back", [False, True])
def test_a_commit_that_fails_leaves_no_line(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolled_back: bool
) -> None:
    """On a full disk, SQLite rolls a transaction back by itself."""
    size = repo.catalog.log.size()
    run = repo.catalog._run

    def full(statement: str, *values: Any) -> int:
        if statement == "COMMIT":
            if rolled_back:
                run("ROLLBACK")
            raise DiskError("No space left.")
        return run(statement, *values)

    monkeypatch.setattr(repo.catalog, "_run", full)
    with pytest.raises(DiskError):
        repo.commit("never", git=False)
    monkeypatch.undo()
    assert repo.catalog.log.size() == size and not repo.versions("never") and repo.fsck("deep").clean
    with Repo.open(tmp_path) as again:
        assert not again.versions("never")


def test_reading_needs_no_room_for_a_change_that_only_the_log_has(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another process has the catalog open on a full disk, it cannot catch up with its log."""
    position = repo.catalog.log_position()
    assert position is not None
    repo.catalog.log.append(position, {("tag", "late"): {"version": repo.version("net").id, "created": 1.0}})

    def full(self: Catalog) -> None:
        raise DiskError("No space left.")

    monkeypatch.setattr(Catalog, "_catch_up", full)
    with Repo.open(tmp_path) as other:
        assert [tag.name for tag in other.tags()] == ["best"]
        with pytest.raises(DiskError):
            other.tag("net", "more")
    monkeypatch.undo()
    with Repo.open(tmp_path) as other:
        assert [tag.name for tag in other.tags()] == ["best", "late"]


@pytest.mark.parametrize("column", ["hyperparameters", "metadata", "metrics", "git", "created"])
def test_fields_that_cannot_be_read_are_damage(repo: Repo, column: str) -> None:
    """They are parsed when they are read."""
    repo.catalog._run(f"UPDATE model_version SET {column} = '{{\"n\": [1}}' WHERE name = 'net'")
    version = repo.version("net")
    with pytest.raises(CorruptError, match="catalog has content that cannot be read"):
        getattr(version, "when" if column == "created" else column)
    assert not repo.fsck("deep").clean
    repo.fsck(repair=True)
    assert repo.fsck("deep").clean and repo.version("net").hyperparameters == {"n": 3}


def test_gc_writes_a_log_of_old_lines_again(repo: Repo) -> None:
    for _ in range(200):
        repo.tag("net@2", "best", move=True)
        repo.tag("net@3", "best", move=True)
    before = repo.catalog.log.size()
    entries = repo.catalog.read_entries()
    repo.gc(grace=0)
    assert repo.catalog.log.size() < before / 4
    assert repo.catalog.log.read().entries() == entries and repo.fsck("deep").clean


def test_a_log_of_a_later_version_is_refused(tmp_path: Path) -> None:
    line = LogLine(1, 1, "log", "x", {"format": 2, "since": 0.0}).text()
    with pytest.raises(NewerVersionError, match="later version"):
        parse_log(line, "place")
    assert VersionLog(tmp_path / "none").read().lines == ()
