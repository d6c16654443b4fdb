"""A repository in a read-only folder can be read. Tests run as another user, because root may write anywhere."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from regatta.errors import NotFoundError, UsageError
from regatta.repo import Repo

NOBODY = 65534
WEIGHTS = {"w": np.arange(400, dtype="f4")}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        set_modes(Path(folder), 0o755, 0o644)


def set_modes(folder: Path, folders: int, files: int) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(folders if path.is_dir() else files)


def as_reader(look: Callable[[], None]) -> None:
    """Do it in a process that may not write; an error there is one here."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            look()
        except BaseException:  # noqa: BLE001 (sent to the parent)
            os.write(write, traceback.format_exc().encode()[-4000:])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        error = pipe.read()
    os.waitpid(child, 0)
    assert error == ""


def look(place: Path) -> None:
    with Repo.open(place) as repo:
        assert repo.read_only and "read only" in repr(repo)
        assert np.array_equal(repo.load("net")["w"], WEIGHTS["w"])
        assert repo.read_file("net@1", "a.txt") == b"hello"
        assert [version.name for version in repo.versions(search="net")] == ["net"]
        assert len(repo.log("net")) == 1 and repo.describe("net").tags == ("best",)
        assert repo.fsck("deep").clean
        for change in (
            lambda: repo.commit("new", WEIGHTS),
            lambda: repo.tag("net", "mine"),
            lambda: repo.delete("net"),
            lambda: repo.gc(),
            lambda: repo.copy("net", "other"),
            lambda: repo.fsck(repair=True),
        ):
            with pytest.raises(UsageError):
                change()


def fill(place: Path) -> Repo:
    repo = Repo.init(place)
    repo.commit("net", WEIGHTS, files={"a.txt": b"hello"}, git=False)
    repo.tag("net", "best")
    return repo


def test_a_read_only_folder_can_be_opened(place: Path) -> None:
    fill(place).close()
    set_modes(place, 0o555, 0o444)
    before = sorted(place.rglob("*"))
    as_reader(lambda: look(place))
    assert sorted(place.rglob("*")) == before, "nothing is left there"


READING = [
    "list",
    "list --names",
    "log",
    "log net",
    "tag",
    "status",
    "desc net",
    "doctor",
    "archive --dry-run",
    "fsck --depth deep",
]
WRITING = [
    "commit x --param a=1",
    "tag t net",
    "copy net other",
    "archive",
    "gc",
    "fsck --repair",
    "unstage",
    "delete net --force",
]


def call_verbs(place: Path, out: Path) -> dict[str, int]:
    """The exit code of each."""
    from regatta.cli.main import main

    checkouts = [f"checkout net {out / name} --force" for name in ("w.npz", "w.safetensors", "whole")]
    verbs = [*READING, *(f"{verb} --json" for verb in READING), *checkouts, f"add {out / 'w.npz'}", *WRITING]
    return {verb: main([*verb.split(), "--repo", str(place / ".regatta")]) for verb in verbs}


def test_every_reading_command_works_on_it(place: Path, tmp_path: Path) -> None:
    fill(place).close()
    fill(tmp_path).close()
    call_verbs(tmp_path, tmp_path)  # loads all modules, which another user need not be able to do
    set_modes(place, 0o555, 0o444)
    before = sorted(place.rglob("*"))

    def look() -> None:
        codes = call_verbs(place, Path(out))
        writing = [*WRITING, f"add {Path(out) / 'w.npz'}"]
        assert codes == {verb: 2 if verb in writing else 0 for verb in codes}

    with tempfile.TemporaryDirectory() as out:
        os.chmod(out, 0o777)
        as_reader(look)
    assert sorted(place.rglob("*")) == before, "nothing is left there"


def test_a_repository_that_another_user_has_open_is_read_as_it_is(place: Path) -> None:
    """The last commits may be only in the log beside the catalog."""
    repo = fill(place)
    assert (place / ".regatta" / "catalog.sqlite-wal").stat().st_size
    set_modes(place, 0o755, 0o644)
    as_reader(lambda: look(place))
    repo.commit("net", WEIGHTS, git=False)
    repo.close()


def test_a_repository_without_versions_is_not_found(place: Path) -> None:
    (place / ".regatta").mkdir()
    set_modes(place, 0o555, 0o444)

    def open_it() -> None:
        with pytest.raises(NotFoundError, match="no versions"):
            Repo.open(place)

    as_reader(open_it)


def test_read_only_can_be_asked_for(tmp_path: Path) -> None:
    fill(tmp_path).close()
    with Repo.open(tmp_path, read_only=True) as repo:
        assert repo.read_only and np.array_equal(repo.load("best")["w"], WEIGHTS["w"])
