"""Where workers on Ray keep durable states: in the run's folder, on a local URL, on a file system of another kind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from blake3 import blake3

from regatta.engine.workers.ray.storage import StateStorage, name_of
from regatta.errors import DiskError, NotFoundError, UsageError

NAME = Path("states/config/0001-002.safetensors")
URLS = [None, "file://{}/far", "dir::file://{}/far"]


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param is None else str(request.param).format(tmp_path)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "scratch"
    path.write_bytes(b"a state")
    return path


def test_a_persisted_state_can_be_fetched_until_it_is_dropped(url: str | None, made: Path, tmp_path: Path) -> None:
    storage = StateStorage(tmp_path / "run", url)
    for _ in range(2):  # by the worker that made it, and by one that replaced it
        assert storage.persist(made, NAME) == (blake3(b"a state").hexdigest(), 7)
    made.unlink()  # as when a worker forgets it
    storage.fetch(NAME, tmp_path / "other node" / "state")
    assert (tmp_path / "other node" / "state").read_bytes() == b"a state"
    for _ in range(2):
        storage.drop(NAME)
    with pytest.raises(NotFoundError, match="The state is not there"):
        storage.fetch(NAME, tmp_path / "again")
    assert list(tmp_path.glob("*again*")) == []


@pytest.mark.parametrize("url", URLS[1:], indirect=True)
def test_runs_below_one_url_are_separate(url: str, made: Path, tmp_path: Path) -> None:
    StateStorage(tmp_path / "one", url).persist(made, NAME)
    with pytest.raises(NotFoundError):
        StateStorage(tmp_path / "two", url).fetch(NAME, tmp_path / "other")


def test_a_state_goes_to_another_disk_as_a_copy(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = StateStorage(tmp_path / "run", None)
    storage.persist(made, NAME)
    assert (tmp_path / "run" / NAME).samefile(made)

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    storage.persist(made, NAME)
    assert not (tmp_path / "run" / NAME).samefile(made)
    assert (tmp_path / "run" / NAME).read_bytes() == b"a state"


def test_a_storage_that_refuses_states(url: str | None, made: Path, tmp_path: Path) -> None:
    """A file is where its folder belongs."""
    storage = StateStorage(tmp_path / "run", url)
    storage.persist(made, NAME)
    (folder,) = [path for path in tmp_path.rglob("states") if path.is_dir()]
    folder.rename(tmp_path / "away")
    folder.write_text("in the way")
    with pytest.raises(DiskError, match="The state cannot be written"):
        storage.persist(made, NAME)
    folder.unlink()
    assert storage.persist(made, NAME)[1] == 7


def test_an_unknown_url_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"storage='nowhere://bucket' cannot be used: .*nowhere"):
        StateStorage(tmp_path, "nowhere://bucket")


def test_names_are_the_same_on_every_node() -> None:
    assert name_of(Path("/runs/one") / NAME, Path("/runs/one")) == NAME
    assert name_of(Path("/tmp/else"), Path("/runs/one")) == Path("elsewhere/tmp/else")
