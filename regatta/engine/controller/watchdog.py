"""What a controller waits for without an event: units that may not take longer, a disk that must get room again."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from regatta.engine.workers.base import WorkerPool

LEAST_ROOM = 1 << 20
LOOK_AGAIN = 1.0  # seconds between two looks at a full disk, which tells nobody when it has room


class Watchdog:
    """A clock beside the controller: it wakes it when a unit is overdue, or when there is room again."""

    def __init__(self, wake: Callable[[], None], limit: float | None = None) -> None:
        self.limit = limit
        self._wake = wake
        self._deadlines: dict[str, float] = {}
        self._overdue: list[str] = []
        self._lacks: tuple[Path, int] | None = None  # room, in that folder, of so many bytes
        self._look_at = 0.0
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self, worker: str, units: int = 1) -> None:
        """A worker has begun a unit, or what takes as long as so many."""
        if self.limit is not None:
            with self._changed:
                self._deadlines[worker] = time.monotonic() + self.limit * units
            self._watch()

    def end(self, worker: str) -> None:
        with self._changed:
            self._deadlines.pop(worker, None)
            self._overdue = [late for late in self._overdue if late != worker]  # it was late, but it came

    def overdue(self) -> list[str]:
        """The workers whose units took too long; each is named once."""
        with self._changed:
            found, self._overdue = self._overdue, []
        return found

    def end_overdue(self, pool: WorkerPool, what: str, units: int = 1) -> None:
        """End the workers whose units take too long."""
        for worker in self.overdue():
            pool.end(worker, f"was ended: {what} longer than {units * (self.limit or 0)} seconds")

    def wait_for_room(self, folder: Path, size: int) -> bool:
        """Hold everything until the folder takes so many bytes; False if that is waited for already."""
        with self._changed:
            waits = self._lacks is not None
            self._lacks = folder, max(size, LEAST_ROOM)
            self._look_at = time.monotonic() + LOOK_AGAIN
        self._watch()
        return not waits

    def wait(self) -> None:
        """Until there is room."""
        with self._changed:
            self._changed.wait_for(lambda: self._lacks is None or self._closed)

    def holds(self) -> bool:
        return self._lacks is not None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                if self._look():
                    self._wake()
                due = [*self._deadlines.values(), *([self._look_at] if self._lacks else [])]
                self._changed.wait(max(0.0, min(due) - time.monotonic()) if due else None)

    def _look(self) -> bool:
        """Whether something has come about."""
        now = time.monotonic()
        late = [worker for worker, end in self._deadlines.items() if end <= now]
        for worker in late:
            del self._deadlines[worker]
        self._overdue += late
        if self._lacks is not None and now >= self._look_at:
            self._look_at = now + LOOK_AGAIN
            if has_room(*self._lacks):
                self._lacks = None
                self._changed.notify_all()
                return True
        return bool(late)


def has_room(folder: Path, size: int) -> bool:
    """Whether a folder takes a file of so many bytes."""
    path = folder / f".room-{os.getpid()}"
    try:
        path.write_bytes(bytes(size))
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    return True
