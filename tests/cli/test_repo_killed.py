"""`add` and `commit` killed at random moments, and several at once: each reported commit exists once."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kill_drill import PromiseLog, read_log
from processes import soon

from regatta.cli.main import main
from regatta.repo import Repo
from regatta.repo.intake.staging import staged


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main(["init"]) == 0
    return tmp_path


def child(work: Callable[[], None]) -> int:
    """A process that does that until it is killed, or to its end; it prints nothing."""
    ident = os.fork()
    if not ident:
        code = 1
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
            work()
            code = 0
        finally:
            os._exit(code)
    return ident


def add_and_commit(here: Path, start: int) -> None:
    notes = PromiseLog(here / "notes")
    for number in range(start, start + 10_000):
        (here / "weights.json").write_text(f'{{"number": {number}}}')
        assert main(["add", "weights.json"]) == 0
        assert main(["commit", "net", "-m", f"number {number}"]) == 0
        notes.add("net", number)


def test_reported_commits_survive_random_kills(here: Path) -> None:
    luck = random.Random(3)
    for turn in range(5):
        ident = child(lambda turn=turn: add_and_commit(here, turn * 10_000))  # type: ignore[misc]
        if turn % 2:  # after the first report of the process; in the other turns, at any moment
            reported = len(read_log(here / "notes"))
            assert soon(lambda reported=reported: len(read_log(here / "notes")) > reported)  # type: ignore[misc]
        time.sleep(luck.uniform(0.0, 0.4))
        os.kill(ident, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(ident, 0)[1]), "it ended by itself"
        with Repo.open(here) as repo:
            assert len(staged(repo)) <= 1
    promised = [int(number) for _, number in read_log(here / "notes")]
    assert promised
    with Repo.open(here) as repo:
        found = [version.hyperparameters["number"] for version in repo.versions("net")]
        assert len(found) == len(set(found)), "a version was made twice"
        assert set(promised) <= set(found)
        repo.gc(grace=0.0)
        after = repo.fsck("deep")
        assert after.clean and after.leftovers == 0


def test_two_processes_commit_at_once(here: Path) -> None:
    def commit(writer: int) -> None:
        for number in range(5):
            assert main(["commit", "shared", "--param", f"writer={writer}", "--param", f"number={number}"]) == 0

    children = [child(lambda writer=writer: commit(writer)) for writer in (1, 2)]  # type: ignore[misc]
    assert [os.waitpid(ident, 0)[1] for ident in children] == [0, 0]
    with Repo.open(here) as repo:
        made = repo.versions("shared", order="oldest")
        assert sorted(version.number for version in made) == list(range(1, 11))
        values = {(v.hyperparameters["writer"], v.hyperparameters["number"]) for v in made}
        assert values == {(writer, number) for writer in (1, 2) for number in range(5)}
