"""Who may do what at the same time.

Writers never wait for each other but for the moment of the index's transaction. What takes data away or moves it
(reencode, offload, gc, fsck) runs one at a time, under the lock of a file, which the operating system lets go of when
its holder dies, however that happens. While a store is open anywhere, its index is not built anew.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regatta.errors import ConflictError


def shared(path: Path) -> int:
    """Share the lock of that file with others until the handle is closed: `exclusive` is then refused."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


@contextmanager
def exclusive(path: Path, purpose: str, wait: bool = True) -> Iterator[None]:
    """Hold the lock of that file, also against other threads of this process; it tells others the purpose."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(handle, path, wait)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{purpose}, process {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, path: Path, wait: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 200, 0).decode(errors="replace")
        raise ConflictError(
            f"The store is being worked on: {holder or 'unknown'}.",
            place=str(path.parent),
            hint="Wait until that is done, or end that process.",
        ) from error
