"""Listening to a pool of workers."""

from __future__ import annotations

from typing import Any

from regatta.engine.messages import TaskFailed
from regatta.engine.workers.base import WorkerPool


def heard(pool: WorkerPool, kind: Any) -> Any:
    """The next event of its kind; no task may fail before."""
    while True:
        for event in pool.events():
            assert not isinstance(event, TaskFailed), event
            if isinstance(event, kind):
                return event
