"""Actors that make blocks, beside the workers of a Ray cluster, and the broker that has them made.

They ask Ray for nothing that a worker needs, and are put where there are cores to spare. Where blocks lie, in memory or
on a disk, is Ray's business: the books know of one room, as large as both.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from regatta.cluster import Cluster
from regatta.data.sharing import Sharing
from regatta.engine.messages import WorkerSetup
from regatta.engine.sharing.blocks import BlockLayout, arrays_in
from regatta.engine.sharing.broker import Broker, StartedWorker
from regatta.engine.sharing.connections import BlockLostError
from regatta.engine.sharing.ledger import BlockKey
from regatta.engine.sharing.preprocess import Preprocessor
from regatta.engine.sharing.preprocess_worker import (
    NoRoomError,
    broker_of,
    failure,
    preprocess_setup,
)
from regatta.engine.sharing.wire import Message
from regatta.engine.workers.ray.actor import write_log
from regatta.engine.workers.ray.session import RaySession
from regatta.engine.workers.ray.shared_blocks import (
    CallbackInbox,
    RayBlock,
    ReaderChannel,
    boxed,
    submitted,
)
from regatta.engine.workers.training.device_memory import keep_freed
from regatta.engine.workers.training.trainer import limit_threads
from regatta.paths import PREPROCESSING_LOG

GROUPS = {"make": 1, "life": 1}  # threads of an actor
SHARE = 0.4  # of the cluster's object store, for blocks


class RaySharing:
    """The shared blocks of a run: their broker, with its makers and readers among the actors of a cluster."""

    def __init__(self, session: RaySession, cluster: Cluster, setup: WorkerSetup, settings: Sharing) -> None:
        self._session, self._cpus = session, cluster.cpus
        self._hello = PreprocessActorSetup(
            cloudpickle.dumps(preprocess_setup(setup)), tuple(sys.path), cluster.threads or 1
        )
        self._nodes: dict[str, str] = {}  # of workers
        self._makers: Counter[str] = Counter()  # by node
        self._actors = session.actors(PreprocessActor, GROUPS, cluster)
        most = settings.processes or max(1, int(sum(session.cores().values())))
        self.broker: Broker = broker_of(setup, _room(settings, session), 0, self._start, most)

    def seat(self, worker: str, actor: Any) -> None:
        self.broker.admit(worker, ReaderChannel(actor))

    def settle(self, worker: str, node: str) -> None:
        """A worker is up; makers are best where workers leave cores idle."""
        self._nodes = {**self._nodes, worker: node}

    def close(self) -> None:
        self.broker.close()

    def _start(self) -> StartedWorker:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self._place()
        where = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=True)
        actor = self._actors(num_cpus=0, num_gpus=0, resources={}, scheduling_strategy=where).remote(self._hello)
        if node is not None:
            self._makers[node] += 1
        return StartedWorker(PreprocessChannel(actor), functools.partial(self._end, actor, node))

    def _end(self, actor: Any, node: str | None) -> None:
        self._session.kill(actor)
        if node is not None:
            self._makers[node] -= 1

    def _place(self) -> str | None:
        """The node with most cores to spare, by what we know of; one without any is for other things."""
        workers = Counter(self._nodes.values())
        cores = {node: has for node, has in self._session.cores().items() if has or workers[node]}

        def spare(node: str) -> tuple[float, int]:
            return cores[node] - self._cpus * workers[node] - self._makers[node], workers[node]

        return max(cores, key=spare, default=None)


def open_ray_sharing(session: RaySession, cluster: Cluster, setup: WorkerSetup) -> RaySharing | None:
    """The shared blocks of a run; none where there is nothing to share."""
    plan = setup.sharing
    if plan is None or plan.settings.always is False:
        return None
    return RaySharing(session, cluster, setup, plan.settings)


def _room(settings: Sharing, session: RaySession) -> int:
    memory = int(SHARE * session.store_bytes()) if settings.memory is None else settings.memory
    return memory + settings.disk_bytes(Path(tempfile.gettempdir()))  # as if each node's were like this one's


class PreprocessChannel:
    """The broker's end of the line to a maker: what it is told is a call, what it says the result of one."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._inbox = CallbackInbox()
        for name, group in (("life", "life"), ("hello", "make")):
            call = getattr(actor, name).options(concurrency_group=group).remote()
            self._inbox.expect(call, self._inbox.put, lambda error: self._inbox.put(None))

    def fileno(self) -> int:
        return self._inbox.fileno()

    def send(self, message: Message, block: RayBlock | None = None) -> None:
        call = self._actor.make.options(num_returns=2, concurrency_group="make")
        told, made = submitted(call, message, boxed(block))
        self._inbox.expect(told, lambda answer: self._inbox.put(answer, made), self._fail)

    def receive(self) -> tuple[Message, RayBlock | None]:
        message, made = self._inbox.take()
        return message, RayBlock(made) if "layout" in message else None

    def close(self) -> None:
        self._inbox.close()

    def _fail(self, error: BaseException) -> None:
        """It is dead; or, if it only could not leave what it had made, there was no room for that."""
        import ray.exceptions

        alive = isinstance(error, ray.exceptions.RayTaskError | ray.exceptions.ObjectStoreFullError)
        self._inbox.put({"size": 0} if alive else None)


@dataclass(frozen=True)
class PreprocessActorSetup:
    """What a maker is made with; the user's functions travel in it, from our own controller."""

    setup: bytes
    paths: tuple[str, ...]  # where the controller finds its modules
    threads: int


class PreprocessActor:
    """The actor."""

    def __init__(self, hello: PreprocessActorSetup) -> None:
        self._hello = hello

    def hello(self) -> Message:
        sys.path.extend(path for path in self._hello.paths if path not in sys.path)
        setup: WorkerSetup = cloudpickle.loads(self._hello.setup)
        write_log(setup.logs / PREPROCESSING_LOG)
        limit_threads(self._hello.threads)
        keep_freed()
        assert setup.recipe  # unpickle it now: that may fail
        self._preprocessor = Preprocessor(setup)
        return {"ready": os.getpid()}

    def life(self) -> None:
        """Comes to an end with the actor only."""
        threading.Event().wait()

    def make(self, order: Message, reference: Sequence[Any]) -> tuple[Message, NDArray[np.uint8] | None]:
        """Make a block; what is said of it, and beside that the block."""
        base, lost = _base(order, reference)
        block = RayBlockBuilder(order["memory"])
        try:
            self._preprocessor.fill(BlockKey(*order["make"]), base, block.allocate)
        except NoRoomError as crowded:
            return {"size": crowded.size, "lost": lost}, None
        except BaseException as error:  # noqa: BLE001 (the user's code may raise anything)
            return {**failure(error), "lost": lost}, None
        assert block.layout is not None
        return {"layout": block.layout.as_json(), "place": "memory", "lost": lost}, block.room


def _base(order: Message, reference: Sequence[Any]) -> tuple[Any, bool]:
    """What a block is made from, where that is a block too; if it is lost, it is read here."""
    if not reference:
        return None, False
    try:
        return RayBlock(reference[0]).read(BlockLayout.from_json(order["layout"])), False
    except BlockLostError:
        return None, True


class RayBlockBuilder:
    """A block that is being made, in memory of this actor: what it returns, Ray takes to its store."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.layout: BlockLayout | None = None
        self.room: NDArray[np.uint8] | None = None

    def allocate(self, layout: BlockLayout) -> Any:
        if layout.bytes > self._most:
            raise NoRoomError(layout.bytes)
        self.layout, self.room = layout, np.empty(max(1, layout.bytes), np.uint8)
        return arrays_in(self.room, layout)
