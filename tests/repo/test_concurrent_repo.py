"""Concurrent processes, killed at any moment: no reported commit is lost, and none is partial."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, count
from pathlib import Path

import pytest
from crash_drill import run_drill
from kill_drill import PromiseLog, read_log, snapshot_of
from processes import soon

from regatta.repo import Repo
from regatta.testing.store import bits_of

HERE = Path(__file__).parent
PROCESSES = multiprocessing.get_context("spawn")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one: what a process leaves behind is the same there, and sooner."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        yield Path(folder)


def commit_some(folder: Path, writer: int, number: int) -> list[str]:
    with Repo.at(folder) as repo:
        return [
            repo.commit("shared", snapshot_of(writer, n), files={"n": str(n).encode()}, git=False).reference
            for n in range(number)
        ]


def dying(folder: Path, every: int) -> list[object]:
    result: list[object] = run_drill(HERE / "commit_crash_points.py", folder, every)
    return result


def test_two_processes_commit_at_once(memory: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=PROCESSES) as pool:
        results = list(pool.map(commit_some, [memory] * 2, range(2), [8] * 2))
    assert sorted(chain(*results)) == sorted(f"shared@{number}" for number in range(1, 17))
    with Repo.at(memory) as repo:
        assert len(repo.versions("shared")) == 16 and repo.fsck("deep").clean


def test_threads_share_a_repository_during_gc(memory: Path) -> None:
    with Repo.at(memory) as repo, Repo.at(memory) as other:
        ended = threading.Event()

        def collect() -> None:
            while not ended.is_set():
                other.gc(grace=0.0)

        def write(writer: int) -> None:
            for n in range(5):
                repo.commit(f"w{writer}", snapshot_of(writer, n), files={"f": f"{writer} {n}".encode()}, git=False)
                repo.versions(search="w", limit=3)

        collector = threading.Thread(target=collect)
        writers = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
        for thread in (collector, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        ended.set()
        collector.join()
        assert len(repo.versions()) == 15 and repo.fsck("deep").clean
        assert all(repo.read_file(f"w{w}@{n + 1}", "f") == f"{w} {n}".encode() for w in range(3) for n in range(5))


def commit_until_killed(folder: Path, writer: int) -> None:
    notes = PromiseLog(folder / f"notes-{writer}")
    with Repo.at(folder / "repo") as repo:
        for number in count(time.time_ns()):
            files = {"number": str(number).encode()}
            made = repo.commit(f"w{writer}", snapshot_of(writer, number), files=files, git=False)
            notes.add(made.id, number)


def test_commits_survive_random_kills(memory: Path) -> None:
    luck = random.Random(5)
    Repo.at(memory / "repo").close()
    for turn in range(6):
        children, reported = [], len(read_log(memory / "notes-0"))
        for writer in (0, 1):
            child = os.fork()
            if not child:
                try:
                    commit_until_killed(memory, writer)
                finally:
                    os._exit(1)
            children.append(child)
        if turn % 2:  # after the first report of a process; in the other turns, at any moment
            assert soon(lambda reported=reported: len(read_log(memory / "notes-0")) > reported)  # type: ignore[misc]
        time.sleep(luck.uniform(0.0, 0.4))
        for child in children:
            os.kill(child, signal.SIGKILL)
        assert all(os.WIFSIGNALED(os.waitpid(child, 0)[1]) for child in children), "a process ended by itself"
    with Repo.at(memory / "repo") as repo:
        assert repo.fsck("deep").clean
        promised = [(writer, *note) for writer in (0, 1) for note in read_log(memory / f"notes-{writer}")]
        assert promised
        for writer, version, number in promised:
            values = {key: bits_of(value) for key, value in repo.load(version).items()}
            assert values == {key: bits_of(value) for key, value in snapshot_of(writer, int(number)).items()}
            assert repo.read_file(version, "number") == number.encode()
        repo.gc(grace=0.0)
        after = repo.fsck("deep")
        assert after.clean and after.leftovers == 0 and after.versions >= len(promised)


def test_every_operation_survives_kills_at_some_steps(memory: Path) -> None:
    moments, *problems = dying(memory, every=23)
    assert problems == []
    assert isinstance(moments, int) and moments > 15


@pytest.mark.slow
def test_every_operation_survives_kills_at_every_step(memory: Path) -> None:
    moments, *problems = dying(memory, every=1)
    assert problems == []
    assert isinstance(moments, int) and moments > 200
