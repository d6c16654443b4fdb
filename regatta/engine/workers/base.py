"""The protocol of a pool of workers."""

from __future__ import annotations

import contextlib
import json
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from regatta.engine.messages import Event, Task


class WorkerPool(Protocol):
    """Workers by name. Tasks go in, events come out; a worker that dies is said to be lost and started again.

    Workers that join get names of their own; `workers` are those that the run began with.
    """

    workers: tuple[str, ...]
    packs: bool  # whether a task may have `packed_with`
    groupable: bool  # whether groups can be made of its workers while they are there

    def start(self) -> None:
        """Bring the workers up; each says `WorkerReady` when it can take a task."""

    def share(self, yes: bool) -> None:
        """Whether data is prepared once for all from now on, where it can be."""

    def submit(self, worker: str, task: Task) -> None:
        """Give an idle worker its task."""

    def prefetch(self, worker: str, state: Path) -> None:
        """Tell a busy worker which state it will probably need next; being wrong costs only the reading."""

    def forget(self, state: Path) -> None:
        """Nobody will ask for this state again; may be called from another thread."""

    def end(self, worker: str, reason: str) -> None:
        """Kill a worker whose task takes too long; it is lost for that reason."""

    def admit(self, connection: Connection[Any, Any], wishes: dict[str, Any]) -> None:
        """Let a worker join that came by itself, or tell it why not."""

    def events(self) -> list[Event]:
        """Wait until something happened, and say what. Empty only when `wake` was called."""

    def wake(self) -> None:
        """Make `events` return now; may be called from another thread."""

    def close(self) -> None:
        """End the workers, at once; what they were doing is lost."""


def refuse(connection: Connection[Any, Any], reason: str) -> None:
    """Tell a worker that wants to join that it cannot."""
    with contextlib.suppress(OSError):  # it is gone already
        connection.send_bytes(json.dumps({"refused": reason}).encode())
    connection.close()
