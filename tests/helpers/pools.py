"""Waiting for events of a pool of workers."""

from __future__ import annotations

from typing import Any

from regatta.engine.messages import TaskFailed
from regatta.engine.workers.base import WorkerPool


def next_event(pool: WorkerPool, kind: Any) -> Any:
    """Wait for the next event of a kind; no task may fail before it."""
    while True:
        for event in pool.events():
            assert not isinstance(event, TaskFailed), event
            if isinstance(event, kind):
                return event
