"""Waits that no event ends: units that take too long, and a full disk that must get room again."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from regatta.engine.workers.base import WorkerPool
from regatta.errors import DiskError

MIN_ROOM_BYTES = 1 << 20
DISK_POLL_S = 1.0  # between two looks at a full disk: no event says that it has room again
MAX_PAUSES = 5  # for a full disk, without a state written in between


class Watchdog:
    """A thread that wakes the controller: a unit is overdue, the disk has room again, or a moment has come."""

    def __init__(self, wake: Callable[[], None], limit_s: float | None = None) -> None:
        self._limit_s = limit_s
        self._wake = wake
        self._deadlines: dict[str, float] = {}
        self._overdue: list[str] = []
        self._alarms: list[float] = []
        self._room_needed: tuple[Path, int] | None = None  # folder, bytes
        self._gives_up = False  # waiting for room
        self._next_look = 0.0
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start_unit(self, worker: str, units: int = 1) -> None:
        """A worker has started a task, which may take as long as `units` units."""
        if self._limit_s is not None:
            with self._changed:
                self._deadlines[worker] = time.monotonic() + self._limit_s * units
            self._notify()

    def end_unit(self, worker: str) -> None:
        with self._changed:
            self._deadlines.pop(worker, None)
            self._overdue = [late for late in self._overdue if late != worker]  # it was late, but it has answered

    def end_overdue(self, pool: WorkerPool, what: str, units: int = 1) -> None:
        """End the workers whose units take too long; each one once."""
        with self._changed:
            overdue, self._overdue = self._overdue, []
        for worker in overdue:
            pool.end(worker, f"was ended: {what} longer than {units * (self._limit_s or 0)} seconds")

    def wake_at(self, moment: float) -> None:
        """Wake the controller at a moment of `time.monotonic`."""
        with self._changed:
            self._alarms.append(moment)
        self._notify()

    def watch_disk(self, folder: Path, size: int) -> bool:
        """Start to wait until the folder has room for `size` bytes; False if it is waited for already."""
        with self._changed:
            waits = self._room_needed is not None
            self._room_needed = folder, max(size, MIN_ROOM_BYTES)
            self._next_look = time.monotonic() + DISK_POLL_S
        self._notify()
        return not waits

    def wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._room_needed is None or self._closed or self._gives_up)

    def give_up_room(self) -> None:
        """Wait for room no longer; may be called from another thread or from the handler of a signal."""
        with self._changed:
            self._gives_up = True
            self._changed.notify_all()

    @property
    def disk_is_full(self) -> bool:
        return self._room_needed is not None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _notify(self) -> None:
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
                due = [*self._deadlines.values(), *self._alarms, *([self._next_look] if self._room_needed else [])]
                self._changed.wait(max(0.0, min(due) - time.monotonic()) if due else None)

    def _look(self) -> bool:
        """Whether the controller has something to do now."""
        now = time.monotonic()
        late = [worker for worker, end in self._deadlines.items() if end <= now]
        for worker in late:
            del self._deadlines[worker]
        self._overdue += late
        rings = any(moment <= now for moment in self._alarms)
        self._alarms = [moment for moment in self._alarms if moment > now]
        if self._room_needed is not None and now >= self._next_look:
            self._next_look = now + DISK_POLL_S
            if has_room(*self._room_needed):
                self._room_needed = None
                self._changed.notify_all()
                return True
        return rings or bool(late)


class DiskPause:
    """Pauses a run while the disk does not take its states; gives up if pausing does not help."""

    def __init__(self, watchdog: Watchdog, folder: Path, show: Callable[[str, str], None]) -> None:
        self.state_bytes = 0  # of the largest state
        self._watchdog = watchdog
        self._folder = folder
        self._show = show
        self._pauses = 0  # since a state was written

    def begin(self, error: str) -> None:
        """Start no new units until the disk has room."""
        if self._watchdog.watch_disk(self._folder, self.state_bytes):
            self._pauses += 1
            if self._pauses > MAX_PAUSES:  # the disk says that it has room, and then has none
                raise DiskError(error)
            text = f"Paused; training resumes by itself once the disk takes {self.state_bytes} bytes: {error}"
            self._show("warning", text)

    def on_state_written(self) -> None:
        self._pauses = 0


def has_room(folder: Path, size: int) -> bool:
    """Whether a folder takes a file of `size` bytes."""
    path = folder / f".room-{os.getpid()}"
    try:
        path.write_bytes(bytes(size))
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    return True
