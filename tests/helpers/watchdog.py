"""Kills what a test run has started, should the test run be killed: run as a program by tests/conftest.py.

All of it has a variable of the run in its environment. The program reads its standard input until the end: "done" says
that the tests have ended as they should, nothing says that they were killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time

ROUNDS, PAUSE_S = 20, 0.1  # what is being killed may be starting something


def main(variable: bytes) -> None:
    if sys.stdin.buffer.read():
        return
    for _ in range(ROUNDS):
        for entry in os.listdir("/proc"):
            if entry.isdigit() and _has(entry, variable):
                try:
                    os.kill(int(entry), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        time.sleep(PAUSE_S)


def _has(entry: str, variable: bytes) -> bool:
    try:
        with open(f"/proc/{entry}/environ", "rb") as file:
            return variable in file.read().split(b"\0")
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.argv[1].encode())
