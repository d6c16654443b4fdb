"""How the tests themselves run: in the background, where SIGINT is ignored, and leaving no process behind if killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from locations import TESTS

LIMIT_S = 300.0
WAITS = """
import os, subprocess, sys, time

def test_waits():
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"
    subprocess.Popen([sys.executable, "-c", program], stdout=open({report!r}, "w"), start_new_session=True)
    time.sleep(3600)
"""
INTERRUPTED = """
import os, signal, subprocess, sys, time
import pytest

def test_ctrl_c_arrives():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(3600)

def test_ctrl_c_arrives_in_programs():
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\\n"
"""


def start_tests(source: str, folder: Path, prepare: Callable[[], object] | None = None) -> subprocess.Popen[str]:
    """A test run of its own, with the conftest.py of all tests."""
    (folder / "test_of_this_run.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "-c", os.devnull]
    path = os.pathsep.join([str(TESTS), str(TESTS / "helpers"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [*command, "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=prepare,
    )


def test_tests_run_in_the_background(tmp_path: Path) -> None:
    """A shell starts programs in the background with SIGINT ignored, and programs inherit that."""
    run = start_tests(INTERRUPTED, tmp_path, lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0 and "2 passed" in output, output


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_killed_test_run_leaves_no_process_behind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report")
    run = start_tests(WAITS.format(report=str(tmp_path / "report")), tmp_path)
    with os.fdopen(os.open(tmp_path / "report", os.O_RDWR)) as report:  # so that opening it waits for nobody
        try:
            assert select.select([report], [], [], LIMIT_S)[0]
            child = os.pidfd_open(int(report.readline()))
        finally:
            run.kill()
            run.communicate()
    try:
        ended = bool(select.select([child], [], [], LIMIT_S)[0])
        if not ended:
            signal.pidfd_send_signal(child, signal.SIGKILL)
        assert ended
    finally:
        os.close(child)
