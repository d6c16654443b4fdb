"""One controller per run: a second one is refused with an error that names the first."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regatta.durable import FileLock, is_locked
from regatta.errors import ConflictError
from regatta.paths import RUN_LOCK


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Held from before the first record until the journal is closed; the kernel frees it when the process dies."""
    lock = FileLock(folder / RUN_LOCK)
    if not lock.acquire(wait=False):
        raise ConflictError(
            f"Run {folder.name} is being trained already, {_describe(lock.note())}.",
            hint="Wait for its end, or stop that process; stop, clone and extend reach it while it runs.",
        )
    try:
        lock.write_note(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}))
        yield
    finally:
        lock.release(in_forks=True)


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
