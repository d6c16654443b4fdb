"""Workers in this process, one task at a time: the definition of what the other pools do faster."""

from __future__ import annotations

import functools
import os
import queue
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from regatta.cluster import Cluster
from regatta.engine.messages import Event, StateDurable, Task, TaskBegun, WorkerReady, WorkerSetup, published
from regatta.engine.workers.base import refuse
from regatta.engine.workers.training.device_memory import device_memory
from regatta.engine.workers.training.trainer import Trainer, choose_device
from regatta.frameworks import threads
from regatta.store.states.state_files import make_durable


class InlinePool:
    """Takes tasks in the order in which they came, each when the controller waits for events."""

    packs = True
    groupable = False

    def __init__(self, cluster: Cluster, setup: WorkerSetup) -> None:
        self.workers = cluster.names()
        self._trainers = {
            name: Trainer(name, setup, choose_device(cluster.device, index)) for index, name in enumerate(self.workers)
        }
        self._tasks: queue.SimpleQueue[tuple[str, Task] | None] = queue.SimpleQueue()  # None: wake up
        self._events: list[Event] = []
        for name, trainer in self._trainers.items():
            trainer.on_begin = functools.partial(self._events.append, TaskBegun(name))

    def start(self) -> None:
        for name, trainer in self._trainers.items():
            info = {"pid": os.getpid(), "device": trainer.device, "threads": threads.count()}
            info["memory"] = device_memory(trainer.device)  # they take turns
            self._events.append(WorkerReady(name, info))

    def share(self, yes: bool) -> None:
        """There is nobody to share with."""

    def submit(self, worker: str, task: Task) -> None:
        self._tasks.put((worker, task))

    def prefetch(self, worker: str, state: Path) -> None:
        """Nothing to gain: while one unit trains, nothing else can read."""

    def forget(self, state: Path) -> None:
        """Nothing is kept here."""

    def end(self, worker: str, reason: str) -> bool:
        """A task in this process cannot be ended; it takes as long as it takes."""
        return False

    def admit(self, connection: Connection[Any, Any], wishes: dict[str, Any]) -> None:
        refuse(connection, "It trains in its own process, one unit after another: nobody can join.")

    def events(self) -> list[Event]:
        if not self._events:
            given = self._tasks.get()
            if given is None:
                return []
            worker, task = given
            done = self._trainers[worker].run(task)
            self._events.append(done)
            self._events += [StateDurable(worker, path, *make_durable(path)) for path in published(done)]
        found = list(self._events)
        self._events.clear()
        return found

    def wake(self) -> None:
        self._tasks.put(None)

    def close(self) -> None:
        """There is nothing to end; tasks that nobody waited for were never begun."""
