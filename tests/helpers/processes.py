"""Facts about processes, seen from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regatta import Sweep


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def children(pid: int) -> set[int]:
    """The processes that this one has started; those that its fork servers have forked count, the servers do not."""
    servers = fork_servers(pid)
    found = _direct_children(pid) - servers
    for server in servers:
        found |= _direct_children(server)
    return found


def fork_servers(pid: int) -> set[int]:
    """The processes from which this controller's workers are forked."""
    return {child for child in _direct_children(pid) if b"fork_server import main" in _command(child)}


def _direct_children(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields and int(fields[1]) == pid and fields[0] != "Z":
            found.add(int(entry.name))
    return found


def _command(pid: int) -> bytes:
    """The arguments of a process; for an instant after it was started, the kernel shows none."""
    command = b""
    try:
        while not command and is_running(pid):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
    return command


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process itself."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def soon(condition: Callable[[], bool], seconds: float = 300.0) -> bool:
    """Wait for a condition; returns whether it became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def killed_after(records: int, sweep: Sweep) -> bool:
    """Train in a child process that is killed once its journal has that many more records; whether it was."""
    journal = Path(str(sweep.repo)) / "runs" / str(sweep.name) / "journal.jsonl"
    before = lines_of(journal)
    child = os.fork()
    if child == 0:
        try:
            sweep.launch(progress=False)
        finally:
            os._exit(0)
    while lines_of(journal) < before + records and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def lines_of(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0
