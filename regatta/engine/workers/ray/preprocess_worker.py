"""Actors that preprocess data for the workers of a Ray cluster, and their broker.

The actors reserve no resources that a worker needs, and run on nodes with idle cores. Ray decides whether a block is in
memory or on a disk, so the ledger sees one memory that is as large as both.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
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
from regatta.engine.sharing.connections import BlockLostError, Message
from regatta.engine.sharing.ledger import BlockKey
from regatta.engine.sharing.preprocess import Preprocessor
from regatta.engine.sharing.preprocess_worker import NoRoomError, failure, new_broker, preprocess_setup
from regatta.engine.workers.ray.actor import write_log
from regatta.engine.workers.ray.session import RaySession
from regatta.engine.workers.ray.shared_blocks import CallbackInbox, RayBlock, ReaderChannel, boxed, call
from regatta.engine.workers.training.device_memory import keep_freed_memory
from regatta.frameworks.threads import limit_threads
from regatta.journal.unpickle import to_pickle
from regatta.paths import PREPROCESSING_LOG

CONCURRENCY_GROUPS = {"make": 1, "life": 1}  # threads of an actor
BLOCKS_FRACTION = 0.4  # of the cluster's object store


class RaySharing:
    """The shared blocks of a run on a cluster: the broker, with actors as preprocess workers and readers."""

    def __init__(self, session: RaySession, cluster: Cluster, setup: WorkerSetup, settings: Sharing) -> None:
        self._session, self._cpus = session, cluster.cpus
        self._arguments = to_pickle(preprocess_setup(setup)), tuple(sys.path), cluster.threads or 1
        self._nodes: dict[str, str] = {}  # of workers
        self._started: Counter[str] = Counter()  # preprocess workers, by node
        self._actors = session.actors(PreprocessActor, CONCURRENCY_GROUPS, cluster)
        max_workers = settings.processes or max(1, int(sum(session.cores().values())))
        memory = int(BLOCKS_FRACTION * session.store_bytes()) if settings.memory is None else settings.memory
        memory += settings.disk_bytes(Path(tempfile.gettempdir()))  # other nodes are taken to have the same disk
        self.broker: Broker = new_broker(setup, memory, 0, self._start, max_workers)

    def add_reader(self, worker: str, actor: Any) -> None:
        self.broker.add_reader(worker, ReaderChannel(actor))

    def on_worker_up(self, worker: str, node: str) -> None:
        """Remember the node of a worker: preprocess workers go where workers leave cores idle."""
        self._nodes = {**self._nodes, worker: node}

    def _start(self) -> StartedWorker:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self._choose_node()
        where = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=True)
        actor = self._actors(num_cpus=0, num_gpus=0, resources={}, scheduling_strategy=where).remote(*self._arguments)
        if node is not None:
            self._started[node] += 1
        return PreprocessChannel(actor), functools.partial(self._kill, actor, node)

    def _kill(self, actor: Any, node: str | None) -> None:
        self._session.kill(actor)
        if node is not None:
            self._started[node] -= 1

    def _choose_node(self) -> str | None:
        """The node with the most idle cores, as far as is known; nodes without cores serve other purposes."""
        workers = Counter(self._nodes.values())
        cores = {node: has for node, has in self._session.cores().items() if has or workers[node]}

        def idle_cores(node: str) -> tuple[float, int]:
            return cores[node] - self._cpus * workers[node] - self._started[node], workers[node]

        return max(cores, key=idle_cores, default=None)


def open_ray_sharing(session: RaySession, cluster: Cluster, setup: WorkerSetup) -> RaySharing | None:
    """The shared blocks of a run; None if there is nothing to share."""
    plan = setup.sharing
    if plan is None or plan.settings.always is False:
        return None
    return RaySharing(session, cluster, setup, plan.settings)


class PreprocessChannel:
    """The broker's end of the channel to a preprocess actor: a message is a call, and the answer is its result."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._inbox = CallbackInbox()
        for name, group in (("life", "life"), ("hello", "make")):
            result = getattr(actor, name).options(concurrency_group=group).remote()
            self._inbox.expect(result, self._inbox.put, lambda error: self._inbox.put(None))

    def fileno(self) -> int:
        return self._inbox.fileno()

    def send(self, message: Message, block: RayBlock | None = None) -> None:
        method = self._actor.make.options(num_returns=2, concurrency_group="make")
        answer, made = call(method, message, boxed(block))
        self._inbox.expect(answer, lambda found: self._inbox.put(found, made), self._on_error)

    def receive(self) -> tuple[Message, RayBlock | None]:
        message, made = self._inbox.take()
        return message, RayBlock(made) if "layout" in message else None

    def close(self) -> None:
        self._inbox.close()

    def _on_error(self, error: BaseException) -> None:
        """The actor is dead; or, if it only could not store its block, there was no room for it."""
        import ray.exceptions

        alive = isinstance(error, ray.exceptions.RayTaskError | ray.exceptions.ObjectStoreFullError)
        self._inbox.put({"size": 0} if alive else None)


class PreprocessActor:
    """The actor that makes blocks; the user's functions travel in the pickled setup, from our own controller."""

    def __init__(self, pickled_setup: bytes, paths: Sequence[str], threads: int) -> None:
        """`paths` are those where the controller finds its modules."""
        self._pickled_setup, self._paths, self._threads = pickled_setup, paths, threads

    def hello(self) -> Message:
        sys.path.extend(path for path in self._paths if path not in sys.path)
        setup: WorkerSetup = cloudpickle.loads(self._pickled_setup)
        write_log(setup.logs / PREPROCESSING_LOG)
        limit_threads(self._threads)
        keep_freed_memory()
        assert setup.recipe  # unpickle it now: that may fail
        self._preprocessor = Preprocessor(setup)
        return {"ready": os.getpid()}

    def life(self) -> None:
        """Returns only when the actor ends."""
        threading.Event().wait()

    def make(self, order: Message, reference: Sequence[Any]) -> tuple[Message, NDArray[np.uint8] | None]:
        """Make a block; returns the answer for the broker, and the block."""
        base, lost, block = None, False, RayBlockBuilder(order["memory"])
        try:
            if reference:
                base = RayBlock(reference[0]).read(BlockLayout.from_json(order["layout"]))
        except BlockLostError:
            lost = True  # the base of the block is read here
        try:
            self._preprocessor.fill(BlockKey(*order["make"]), base, block.allocate)
        except NoRoomError as error:
            return {"size": error.size, "lost": lost}, None
        except BaseException as error:  # noqa: BLE001 (the user's code may raise anything)
            return {**failure(error), "lost": lost}, None
        assert block.layout is not None
        return {"layout": block.layout.as_json(), "place": "memory", "lost": lost}, block.buffer


class RayBlockBuilder:
    """A block that is being made in the memory of this actor; Ray copies what the actor returns into its store."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.layout: BlockLayout | None = None
        self.buffer: NDArray[np.uint8] | None = None

    def allocate(self, layout: BlockLayout) -> Any:
        if layout.bytes > self._max_bytes:
            raise NoRoomError(layout.bytes)
        self.layout, self.buffer = layout, np.empty(max(1, layout.bytes), np.uint8)
        return arrays_in(self.buffer, layout)
