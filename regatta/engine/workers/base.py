"""The protocol of a pool of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from regatta.engine.events import Event, Task


class WorkerPool(Protocol):
    """Workers by name. Tasks go in, events come out; a worker that dies is said to be lost and started again."""

    workers: tuple[str, ...]

    def start(self) -> None:
        """Bring the workers up; each says `WorkerReady` when it can take a task."""

    def submit(self, worker: str, task: Task) -> None:
        """Give an idle worker its task."""

    def prefetch(self, worker: str, state: Path) -> None:
        """Tell a busy worker which state it will probably need next; being wrong costs only the reading."""

    def events(self) -> list[Event]:
        """Wait until something happened, and say what. Empty only when `wake` was called."""

    def wake(self) -> None:
        """Make `events` return now; may be called from another thread."""

    def close(self) -> None:
        """End the workers, at once; what they were doing is lost."""
