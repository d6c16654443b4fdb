"""The worker's side of a process pool: what a worker process runs.

While the worker trains, one thread of it listens, and reads the state that probably comes next; another thread makes
the state that was just published durable.
"""

from __future__ import annotations

import functools
import gc
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle

from regatta.engine.messages import (
    Event,
    StateDurable,
    Task,
    TaskBegun,
    WorkerReady,
    WorkerSetup,
    published,
    unpickle_recipe,
)
from regatta.engine.workers.start_process import die_with_parent, exit_on_error
from regatta.store.states.state_files import make_durable

Socket: TypeAlias = "Connection[Any, Any]"
MAIN = "regatta.engine.workers.worker_main:main"


@dataclass(frozen=True)
class WorkerArguments:
    """The first message to a worker; it carries the user's functions, from our own controller."""

    worker: str
    index: int
    device: str
    threads: int
    setup: bytes
    workers: int  # that are on this machine
    begun: float = 0.0  # when it was started
    preprocess: bytes | None = None  # the setup of preprocess workers, where there may be some
    joins: bool = False  # by itself: it says which partitions it can read
    holds: dict[str, list[int]] | None = None  # the partitions that it says to hold


def serve(file: int, blocks: int | None = None) -> None:
    """Be a worker until the controller is gone; `blocks` is the socket to the broker of preprocessed data."""
    die_with_parent()
    controller: Socket = Connection(file)
    arguments: WorkerArguments = controller.recv()  # before the imports: a controller that sends much waits for it
    gc.disable()  # all that is imported stays; to look through it for garbage takes a fifth of a worker's start
    from regatta.engine.workers.training.device_memory import keep_freed_memory
    from regatta.engine.workers.training.trainer import Trainer, choose_device, load_functions, memory_of, warm_up
    from regatta.frameworks.threads import limit_threads

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    start_seconds: dict[str, float] = {}
    if arguments.preprocess is not None:  # how long a process takes that only prepares data, and imports no more
        unpickle_recipe(cloudpickle.loads(arguments.preprocess).recipe_or_pickle)
        start_seconds["maker_seconds"] = max(0.0, time.time() - arguments.begun)
    setup: WorkerSetup = cloudpickle.loads(arguments.setup)  # first, for it may fail
    load_functions(setup)
    limit_threads(arguments.threads)
    warm_up()
    gc.freeze()
    gc.enable()
    trainer = Trainer(arguments.worker, setup, choose_device(arguments.device, arguments.index))
    if blocks is not None:
        from regatta.engine.sharing.block_reader import BlockReader
        from regatta.engine.sharing.connections import SocketChannel

        trainer.partition_cache.reader = BlockReader(SocketChannel(socket.socket(fileno=blocks)))
    sending = threading.Lock()  # two threads send

    def send(event: Event) -> None:
        with sending:
            controller.send(event)

    trainer.on_begin = functools.partial(send, TaskBegun(arguments.worker))
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    fresh: queue.SimpleQueue[Path] = queue.SimpleQueue()
    threading.Thread(target=exit_on_error, args=(_listen, controller, trainer, tasks), daemon=True).start()
    threading.Thread(target=exit_on_error, args=(_keep, send, trainer.worker, fresh), daemon=True).start()
    info = {"pid": os.getpid(), "device": trainer.device, "threads": arguments.threads}
    info |= {"memory": memory_of(trainer.device, arguments.device, arguments.workers), **start_seconds}
    if arguments.joins:
        info["readable"], info["named"] = arguments.holds or readable_partitions(setup), arguments.holds is not None
    send(WorkerReady(arguments.worker, info))
    while True:
        done = trainer.run(tasks.get())
        send(done)
        for path in published(done):
            fresh.put(path)


def readable_partitions(setup: WorkerSetup) -> dict[str, list[int]]:
    """The numbers of the partitions whose files or folders this process can open."""
    own, choice = (setup.train, setup.eval), setup.choice
    paths = own if choice is None else (choice.train, choice.eval)  # of the first data set, and of the others
    return {
        kind: [j for j in range(len(first)) if all(map(_can_open, known[j :: len(first)]))]
        for kind, first, known in zip(("train", "eval"), own, paths, strict=True)
    }


def _can_open(path: Path) -> bool:
    try:
        if path.is_dir():
            os.listdir(path)
        else:
            with path.open("rb") as file:
                file.read(1)
    except OSError:
        return False
    return True


def _listen(controller: Socket, trainer: Any, tasks: queue.SimpleQueue[Task]) -> None:
    while True:
        try:
            message = controller.recv()
        except (EOFError, ConnectionResetError):
            os.killpg(os.getpid(), signal.SIGKILL)  # the controller is gone, and with it the reason to go on
        if isinstance(message, Task):
            tasks.put(message)
        else:
            trainer.prefetch(message)


# Threads beside the trainer's import nothing: two threads that import parts of one package can get half of it.


def _keep(send: Callable[[Event], None], worker: str, fresh: queue.SimpleQueue[Path]) -> None:
    while True:
        path = fresh.get()
        send(StateDurable(worker, path, *make_durable(path)))


def main(file: int, blocks: int | None = None) -> None:
    exit_on_error(serve, file, blocks)
