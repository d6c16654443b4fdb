"""One controller per run: a second one is refused with an error that names the first."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

from regatta.durable import FileLock, is_locked
from regatta.errors import ConflictError
from regatta.paths import RUN_LOCK


class RunLock:
    """Held from before the first record until the journal is closed; the kernel frees it when the process dies."""

    def __init__(self, folder: Path) -> None:
        self._lock = FileLock(folder / RUN_LOCK)

    def __enter__(self) -> RunLock:
        if not self._lock.acquire(wait=False):
            raise ConflictError(
                f"Run {self._lock.path.parent.name} is being trained already, {_describe(self._lock.note())}.",
                hint="Wait for its end, or stop that process; stop, clone and extend reach it while it runs.",
            )
        self._lock.write_note(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}))
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release(in_forks=True)


def is_live(folder: Path) -> bool:
    """Whether some process is the controller of the run in this folder."""
    return is_locked(folder / RUN_LOCK)


def _describe(holder: bytes) -> str:
    try:
        known = json.loads(holder)
        since = time.strftime("%H:%M:%S", time.localtime(known["since"]))
        return f"by process {known['pid']} on {known['host']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "by another process"
