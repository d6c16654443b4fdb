"""The protocol of a pool of workers."""

from __future__ import annotations

import contextlib
import json
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from regatta.engine.messages import Event, Task


class WorkerPool(Protocol):
    """Workers by name. Tasks go in, events come out; a worker that dies is reported as lost, and started again."""

    workers: tuple[str, ...]  # that the run began with; workers that join later get other names
    packs: bool  # whether a task may have `packed_with`
    groupable: bool  # whether its running workers can form groups

    def start(self) -> None:
        """Start the workers; each one sends `WorkerReady` when it can take a task."""

    def share(self, yes: bool) -> None:
        """Share preprocessed data among workers from now on, or not, where the pool can."""

    def submit(self, worker: str, task: Task) -> None:
        """Give an idle worker its task."""

    def prefetch(self, worker: str, state: Path) -> None:
        """Tell a busy worker which state it will probably need next; a wrong guess costs only the reading."""

    def forget(self, state: Path) -> None:
        """No task will begin with this state any more; may be called from another thread."""

    def end(self, worker: str, reason: str) -> bool:
        """Kill a worker, which then is lost for this reason, and started again; False where that cannot be done."""

    def admit(self, connection: Connection[Any, Any], wishes: dict[str, Any]) -> None:
        """Let a worker join the run, or refuse it with a reason."""

    def events(self) -> list[Event]:
        """Wait for events, and return them; the list is empty only after `wake`."""

    def wake(self) -> None:
        """Make `events` return now; may be called from another thread."""

    def close(self) -> None:
        """End the workers at once; their present tasks are lost."""


def refuse(connection: Connection[Any, Any], reason: str) -> None:
    with contextlib.suppress(OSError):  # it is gone already
        connection.send_bytes(json.dumps({"refused": reason}).encode())
    connection.close()
