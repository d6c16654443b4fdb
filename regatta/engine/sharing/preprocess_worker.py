"""A process that makes blocks for all workers of this machine: it reads partitions and transforms them.

The broker sends it one job at a time, to make a block or to spill one to the disk. It answers with the open file of
a block.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle

from regatta.engine.messages import Recipe, WorkerSetup
from regatta.engine.sharing.blocks import BlockLayout, UnsharableError, copy_block, map_block, new_block
from regatta.engine.sharing.broker import Broker, StartedWorker, StartWorker
from regatta.engine.sharing.connections import Message, SocketChannel, receive, send
from regatta.engine.sharing.ledger import BlockJob, BlockKey, Ledger
from regatta.engine.sharing.preprocess import UnreadableError
from regatta.engine.workers.start_process import StartedProcess, die_with_parent, exit_on_error, start_process
from regatta.engine.workers.training.error_report import cause_of, headline, users_traceback
from regatta.journal.unpickle import to_pickle
from regatta.paths import PREPROCESSING_LOG

_MAIN = "regatta.engine.sharing.preprocess_worker:main"


def open_broker(setup: WorkerSetup, threads: int, preload: str) -> Broker | None:
    """The broker of a run that shares blocks; None if there is nothing to share."""
    plan = setup.sharing
    if plan is None or plan.settings.always is False:
        return None
    setup.logs.mkdir(parents=True, exist_ok=True)
    settings = plan.settings
    pickled = to_pickle((threads, preprocess_setup(setup)))
    start = functools.partial(_start, pickled, threads, preload, setup.logs)
    return new_broker(setup, settings.memory_bytes(), settings.disk_bytes(setup.logs), start, settings.max_processes())


def new_broker(setup: WorkerSetup, memory: int, disk: int, start: StartWorker, max_workers: int) -> Broker:
    """A broker for the blocks of a run, on one machine or on a cluster."""
    plan = setup.sharing
    assert plan is not None
    parts = len(setup.train)
    ledger = Ledger(memory, disk, partitions=parts, epochs=plan.epochs, reads=plan.reads, transforms=plan.transforms)
    saved_blocks = (plan.models - 1) * max(1, plan.epochs * parts)
    return Broker(ledger, start, plan.settings.always is True, saved_blocks, max_workers)


def preprocess_setup(setup: WorkerSetup) -> WorkerSetup:
    """The setup of a preprocess worker, which knows nothing of models."""
    recipe = setup.recipe_or_pickle
    if isinstance(recipe, Recipe):
        recipe = Recipe(_no_model, input_fn=recipe.input_fn, transform_fn=recipe.transform_fn)
    return replace(setup, recipe_or_pickle=recipe, sharing=None)


def _no_model(config: dict[str, Any]) -> None:
    """A preprocess worker builds no models."""


def _start(pickled: bytes, threads: int, preload: str, logs: Path) -> StartedWorker:
    ours, theirs = socket.socketpair()
    file = new_block(len(pickled))
    try:
        os.pwrite(file, pickled, 0)
        with theirs:
            process = start_process(_MAIN, [theirs.fileno(), file], threads, logs / PREPROCESSING_LOG, preload)
    finally:
        os.close(file)
    return SocketChannel(ours), functools.partial(_kill, process)


def _kill(process: StartedProcess) -> None:
    process.kill()
    process.wait()
    process.close()


def main(socket_file: int, setup_file: int) -> None:
    exit_on_error(_serve, socket_file, setup_file)


def _serve(socket_file: int, setup_file: int) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from regatta.engine.sharing.preprocess import Preprocessor
    from regatta.engine.workers.training.device_memory import keep_freed_memory
    from regatta.frameworks.threads import limit_threads

    with open(setup_file, "rb") as pickled:
        threads, setup = cloudpickle.loads(pickled.read())
    worker = PreprocessWorker(Preprocessor(setup), socket.socket(fileno=socket_file))
    limit_threads(threads)
    keep_freed_memory()
    assert setup.recipe  # unpickled now, because that may fail
    worker.send({"ready": os.getpid()})
    while True:
        worker.run_job()


class PreprocessWorker:
    """The process's side of the channel to the broker."""

    def __init__(self, preprocessor: Any, controller: socket.socket) -> None:
        self._preprocessor = preprocessor
        self._controller = controller
        self._folder = preprocessor.setup.logs

    def send(self, message: Message, file: int | None = None) -> None:
        try:
            send(self._controller, message, file)
        except OSError:
            _exit()
        if file is not None:
            os.close(file)

    def run_job(self) -> None:
        try:
            order, file = receive(self._controller)
        except EOFError:
            _exit()
        if "spill" in order:
            assert file is not None
            self._spill(order["spill"], file)
            return
        base = None if file is None else map_block(file, BlockLayout.from_json(order["layout"]))
        if file is not None:
            os.close(file)
        try:
            self._make(BlockJob(BlockKey(*order["make"]), memory=order["memory"], disk=order["disk"]), base)
        except BaseException as error:  # noqa: BLE001 (the user's code may raise anything)
            self.send(failure(error))

    def _spill(self, size: int, file: int) -> None:
        try:
            copied = copy_block(file, size, self._folder)
        except OSError:
            self.send({"spilled": False})
        else:
            self.send({"spilled": True}, copied)
        finally:
            os.close(file)

    def _make(self, job: BlockJob, base: Any) -> None:
        block = FileBlockBuilder(job, self._folder)
        try:
            self._preprocessor.fill(job.key, base, block.allocate)
        except NoRoomError as error:
            self.send({"size": error.size})
            return
        except BaseException:
            if block.file is not None:
                os.close(block.file)
            raise
        assert block.file is not None and block.layout is not None
        self.send({"layout": block.layout.as_json(), "place": block.place}, block.file)


def failure(error: BaseException) -> Message:
    """The answer for a job that failed; `unsharable` data workers may preprocess for themselves."""
    unsharable = isinstance(error.error if isinstance(error, UnreadableError) else error, UnsharableError)
    details = {"error": headline(error), "traceback": users_traceback(error), "cause": cause_of(error)}
    return {**details, "unsharable": unsharable}


class NoRoomError(Exception):
    """Neither memory nor disk has room for the block."""

    def __init__(self, size: int) -> None:
        self.size = size


class FileBlockBuilder:
    """A block that is being made, in memory or on the disk."""

    def __init__(self, job: BlockJob, folder: Path) -> None:
        self._job, self._folder = job, folder
        self.file: int | None = None
        self.layout: BlockLayout | None = None
        self.place = "memory"

    def allocate(self, layout: BlockLayout) -> Any:
        places = (("memory", self._job.memory, None), ("disk", self._job.disk, self._folder))
        for self.place, room, folder in places:
            if layout.bytes <= room:
                try:
                    self.file, self.layout = new_block(layout.bytes, folder), layout
                except OSError:
                    continue  # it is full, against expectation
                return map_block(self.file, layout, writing=True)
        raise NoRoomError(layout.bytes)


def _exit() -> None:
    """The controller is gone: end this process and all that it has started."""
    os.killpg(os.getpid(), signal.SIGKILL)
    sys.exit(1)
