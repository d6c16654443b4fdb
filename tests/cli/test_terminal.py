"""The command line on a terminal: its width, its colours, its pager."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

import pytest
from fake_run import FakeRun
from locations import ROOT

ESCAPE = re.compile(rb"\x1b")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    FakeRun(configs=60, name="first").write(tmp_path / ".regatta" / "runs")
    return tmp_path


def on_terminal(here: Path, *words: str, columns: int = 80, **environment: str) -> bytes:
    """What a terminal shows of a command, byte for byte."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns), "TERM": "xterm-256color", **environment}
    process, terminal = pty.fork()
    if not process:
        os.chdir(here)
        os.execve(sys.executable, [sys.executable, "-m", "regatta", *words], known)
    shown = b""
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        shown += read
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, shown
    return shown.replace(b"\r\n", b"\n")


def test_no_color_leaves_no_escape(here: Path) -> None:
    assert ESCAPE.search(on_terminal(here, "show", NO_COLOR=""))
    for words in (["show"], ["runs"], ["doctor"]):
        assert not ESCAPE.search(on_terminal(here, *words, NO_COLOR="1"))


def test_a_long_table_goes_through_the_pager(here: Path) -> None:
    assert b"PAGED" not in on_terminal(here, "show", PAGER="sed s/^/PAGED/")
    lines = on_terminal(here, "show", "--all", PAGER="sed s/^/PAGED/").splitlines()
    assert len(lines) > 60 and all(line.startswith(b"PAGED") for line in lines)
    assert on_terminal(here, "show", "--all", PAGER="cat", NO_COLOR="1").count(b"\n") == len(lines)


def test_a_pager_that_ends_early_is_not_an_error(here: Path) -> None:
    assert on_terminal(here, "show", "--all", PAGER="head -n 1", NO_COLOR="1").count(b"\n") == 1


def test_wide_shows_every_column(here: Path) -> None:
    assert b"--wide" in on_terminal(here, "show", columns=50)
    assert b"--wide" not in on_terminal(here, "show", "--wide", columns=50)
