"""A process that makes blocks: reads partitions and transforms them, for all workers of this machine.

It is told what to make, or to write to the disk, one thing at a time, and answers with the open file of a block.
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
from regatta.engine.sharing.blocks import (
    BlockLayout,
    UnsharableError,
    copy_block,
    map_block,
    new_block,
)
from regatta.engine.sharing.broker import (
    Broker,
    SharingBenefit,
    Start,
    StartedWorker,
)
from regatta.engine.sharing.connections import SocketChannel
from regatta.engine.sharing.ledger import BlockJob, BlockKey, Ledger
from regatta.engine.sharing.wire import Message, receive, send
from regatta.engine.workers.start_process import StartedProcess, die_with_parent, exit_on_error, start_process
from regatta.engine.workers.training.error_report import headline, users_traceback
from regatta.paths import PREPROCESSING_LOG

_MAIN = "regatta.engine.sharing.preprocess_worker:main"


def open_broker(setup: WorkerSetup, threads: int, preload: str) -> Broker | None:
    """The broker of a run whose blocks are to be shared; none where there is nothing to share."""
    plan = setup.sharing
    if plan is None or plan.settings.always is False:
        return None
    setup.logs.mkdir(parents=True, exist_ok=True)
    settings = plan.settings
    hello = cloudpickle.dumps((threads, preprocess_setup(setup)))
    return broker_of(
        setup, settings.memory_bytes(), settings.disk_bytes(setup.logs),
        functools.partial(_start, hello, threads, preload, setup.logs), settings.most_processes(),
    )  # fmt: skip


def broker_of(setup: WorkerSetup, memory: int, disk: int, start: Start, most: int) -> Broker:
    """A broker with the books of a run, for at most so many makers, wherever they are."""
    plan = setup.sharing
    assert plan is not None
    partitions = len(setup.train)
    ledger = Ledger(
        memory, disk, partitions=partitions, epochs=plan.epochs, reads=plan.reads, transforms=plan.transforms
    )
    worth = SharingBenefit(plan.settings.always is True, (plan.models - 1) * max(1, plan.epochs * partitions))
    return Broker(ledger, start, worth, most)


def preprocess_setup(setup: WorkerSetup) -> WorkerSetup:
    """What a maker is given: nothing of models."""
    recipe = setup.recipe_or_pickle
    if isinstance(recipe, Recipe):
        recipe = Recipe(_nothing, input_fn=recipe.input_fn, transform_fn=recipe.transform_fn)
    return replace(setup, recipe_or_pickle=recipe, sharing=None)


def _nothing(config: dict[str, Any]) -> None:
    """Models are none of a maker's business."""


def _start(hello: bytes, threads: int, preload: str, logs: Path) -> StartedWorker:
    ours, theirs = socket.socketpair()
    file = new_block(len(hello))
    try:
        os.pwrite(file, hello, 0)
        with theirs:
            process = start_process(_MAIN, [theirs.fileno(), file], threads, logs / PREPROCESSING_LOG, preload)
    finally:
        os.close(file)
    return StartedWorker(SocketChannel(ours), functools.partial(_end, process))


def _end(process: StartedProcess) -> None:
    process.kill()
    process.wait()
    process.close()


def main(file: int, hello: int) -> None:
    exit_on_error(_serve, file, hello)


def _serve(file: int, hello: int) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from regatta.engine.sharing.preprocess import Preprocessor
    from regatta.engine.workers.training.device_memory import keep_freed
    from regatta.engine.workers.training.trainer import limit_threads

    with open(hello, "rb") as told:
        threads, setup = cloudpickle.loads(told.read())
    maker = PreprocessWorker(Preprocessor(setup), socket.socket(fileno=file))
    limit_threads(threads)
    keep_freed()
    assert setup.recipe
    maker.say({"ready": os.getpid()})
    while True:
        maker.work()


class PreprocessWorker:
    def __init__(self, preprocessor: Any, controller: socket.socket) -> None:
        self._preprocessor = preprocessor
        self._controller = controller
        self._folder = preprocessor.setup.logs

    def say(self, message: Message, file: int | None = None) -> None:
        try:
            send(self._controller, message, file)
        except OSError:
            _part()
        if file is not None:
            os.close(file)

    def work(self) -> None:
        """Do one job."""
        try:
            order, file = receive(self._controller)
        except EOFError:
            _part()
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
            self.say(failure(error))

    def _spill(self, size: int, file: int) -> None:
        try:
            copied = copy_block(file, size, self._folder)
        except OSError:
            self.say({"spilled": False})
        else:
            self.say({"spilled": True}, copied)
        finally:
            os.close(file)

    def _make(self, job: BlockJob, base: Any) -> None:
        block = FileBlockBuilder(job, self._folder)
        try:
            self._preprocessor.fill(job.key, base, block.allocate)
        except NoRoomError as crowded:
            self.say({"size": crowded.size})
            return
        except BaseException:
            block.drop()
            raise
        assert block.file is not None and block.layout is not None
        self.say({"layout": block.layout.as_json(), "place": block.place}, block.file)


def failure(error: BaseException) -> Message:
    """What a maker says of a job that failed; `unsharable`: workers may do it for themselves."""
    unsharable = isinstance(error, UnsharableError)
    return {"error": headline(error), "traceback": users_traceback(error), "unsharable": unsharable}


class NoRoomError(Exception):
    """Neither memory nor disk takes the block."""

    def __init__(self, size: int) -> None:
        self.size = size


class FileBlockBuilder:
    """A block that is being made."""

    def __init__(self, job: BlockJob, folder: Path) -> None:
        self._job, self._folder = job, folder
        self.file: int | None = None
        self.layout: BlockLayout | None = None
        self.place = "memory"

    def allocate(self, layout: BlockLayout) -> Any:
        self.file, self.layout = self._new(layout.bytes), layout
        return map_block(self.file, layout, writing=True)

    def drop(self) -> None:
        if self.file is not None:
            os.close(self.file)

    def _new(self, size: int) -> int:
        places = (("memory", self._job.memory, None), ("disk", self._job.disk, self._folder))
        for self.place, room, folder in places:
            if size <= room:
                try:
                    return new_block(size, folder)
                except OSError:
                    continue  # it is full, whatever was thought
        raise NoRoomError(size)


def _part() -> None:
    """The controller is gone, and with it the reason to go on."""
    os.killpg(os.getpid(), signal.SIGKILL)
    sys.exit(1)
