"""One controller per run: the second is refused, and told who the first is."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from regatta.errors import ConflictError


class RunLock:
    """Held from before the first record until the journal is closed; the kernel lets go of it when we die."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file = -1

    def __enter__(self) -> RunLock:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 4096, 0)
            os.close(self._file)
            raise ConflictError(
                f"Run {self._path.parent.name} is being trained already, {_describe(holder)}.",
                hint="Wait for its end, or stop that process; stop, clone and extend reach it while it runs.",
            ) from None
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()})
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)
        return self

    def __exit__(self, *error: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)  # whatever process was forked meanwhile and has the file open too
        os.close(self._file)


def is_live(folder: Path) -> bool:
    """Whether a controller, of whatever process, is at work on the run of this folder."""
    try:
        file = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _describe(holder: bytes) -> str:
    try:
        known = json.loads(holder)
        since = time.strftime("%H:%M:%S", time.localtime(known["since"]))
        return f"by process {known['pid']} on {known['host']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "by another process"
