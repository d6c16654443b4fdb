"""The worker's side of Ray: an actor that trains, with the states that it needs on its node.

A state is made in a scratch folder of the node and travels to the next actor as an object. Another thread of the actor
copies the state from the scratch folder to the storage. A file in the scratch folder stays until the controller says
that the state is durable. If a node takes the object with it, any actor with the file can copy it.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import queue
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from regatta.durable import FileLock, lock_file
from regatta.engine.messages import StateDurable, Task, TaskDone, TaskFailed, TaskReturned, WorkerReady, WorkerSetup
from regatta.engine.sharing.block_reader import BlockReader
from regatta.engine.sharing.connections import Message
from regatta.engine.workers.ray.shared_blocks import BrokerChannel
from regatta.engine.workers.ray.storage import StateStorage, name_of
from regatta.engine.workers.training.device_memory import keep_freed_memory
from regatta.engine.workers.training.model_cache import CachedModel
from regatta.engine.workers.training.trainer import Trainer, choose_device, load_functions, warm_up
from regatta.engine.workers.training.unit import UnitCosts
from regatta.errors import DiskError, NotFoundError, RegattaError
from regatta.frameworks import Framework
from regatta.frameworks.threads import limit_threads
from regatta.frameworks.torch.rendezvous import RendezvousServer
from regatta.store.states.state_files import publishing, writing

SCRATCH_PREFIX, SCRATCH_LOCK = "regatta-ray-", "lock"
# The number of threads of an actor for each kind of call.
CONCURRENCY_GROUPS = {"unit": 1, "keep": 1, "hint": 1, "life": 1, "leave": 1, "ask": 1, "answer": 1, "begin": 1}


@dataclass(frozen=True)
class ActorSetup:
    """The argument of a new actor; the user's functions travel in it, from our own controller."""

    worker: str
    device: str
    threads: int
    pickled_setup: bytes
    paths: tuple[str, ...]  # where the controller finds its modules
    run: Path  # the run's folder, to which the names of states are relative
    storage: str | None
    shares: bool  # whether there is a broker of preprocessed data


class NodeStates:
    """The states on this node, as files of a scratch folder."""

    def __init__(self, storage: StateStorage, run: Path) -> None:
        self._storage = storage
        self._run = run
        # Remove the scratch folders of workers that were killed on this node.
        for lock in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*/{SCRATCH_LOCK}"):
            with contextlib.suppress(OSError), lock.open("r+b") as file:
                if lock_file(file, wait=False):
                    shutil.rmtree(lock.parent, ignore_errors=True)
        self.folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
        # This lock lasts as long as the process: a scratch folder without a lock is abandoned.
        self._scratch_lock = FileLock(self.folder / SCRATCH_LOCK)
        if not self._scratch_lock.acquire(wait=False):
            raise BlockingIOError(f"Another process locked {self.folder}.")
        self._locks: dict[Path, threading.Lock] = defaultdict(threading.Lock)
        self._references: dict[Path, Sequence[Any]] = {}  # by which states can be fetched

    def local_path(self, state: Path) -> Path:
        """Where a state is on this node, or will be."""
        return self.folder / name_of(state, self._run)

    def add_reference(self, state: Path, reference: Sequence[Any]) -> Path:
        """The local path of a state that can be had by reference; it is fetched when it is read."""
        local = self.local_path(state)
        self._references[local] = reference
        return local

    def fetch(self, local: Path) -> None:
        """Bring a state to this node: by its reference, or from the storage if that is lost."""
        import ray

        with self._locks[local], writing(local):
            if local.exists():
                return
            reference, data = self._references.get(local, ()), None
            with contextlib.suppress(ray.exceptions.ObjectLostError):
                data = ray.get(reference[0]) if reference else None
            if data is None:
                self._storage.fetch(local.relative_to(self.folder), local)
            else:
                with publishing(local) as written, written.open("wb", buffering=0) as file:
                    file.write(data.data)
        if local not in self._references:  # it was forgotten meanwhile
            local.unlink(missing_ok=True)

    def persist(self, state: Path, reference: Sequence[Any]) -> tuple[str, int] | None:
        """Make a state durable, from wherever it can be had; None if it is gone."""
        local = self.add_reference(state, reference)
        try:
            self.fetch(local)
        except NotFoundError:
            return None
        return self._storage.persist(local, local.relative_to(self.folder))

    def forget(self, states: Iterable[Path]) -> None:
        for state in states:
            self._references.pop(self.local_path(state), None)
            self.local_path(state).unlink(missing_ok=True)


class RayTrainer(Trainer):
    """A trainer that fetches the states it needs from other nodes."""

    node_states: NodeStates

    def prefetch(self, path: Path) -> None:
        self._try_fetch(path)
        super().prefetch(path)

    def load_model(self, task: Task, costs: UnitCosts) -> CachedModel:
        """Fetch the state while the model is built; a warm start needs its parent's state at once."""
        if task.state_in is None:
            return super().load_model(task, costs)
        start = time.perf_counter()
        if task.parent is not None:
            self.node_states.fetch(task.state_in)
        else:
            threading.Thread(target=self._try_fetch, args=[task.state_in], daemon=True).start()
        fetch_seconds = time.perf_counter() - start
        cached = super().load_model(task, costs)
        costs.hop_seconds += fetch_seconds
        return cached

    def _try_fetch(self, path: Path) -> None:
        with contextlib.suppress(RegattaError):  # the task that reads it will report what is wrong
            self.node_states.fetch(path)

    def _read_state(self, framework: Framework, path: Path) -> Any:
        self.node_states.fetch(path)
        return super()._read_state(framework, path)


class RayWorker:
    """The actor. Its methods run in threads of their own, so states are fetched and persisted beside a unit."""

    def __init__(self, setup: ActorSetup) -> None:
        self._setup = setup
        self._channel = BrokerChannel()
        self._begun: queue.SimpleQueue[None] = queue.SimpleQueue()

    def hello(self) -> WorkerReady:
        """Get ready; an exception, such as a module that is missing on this node, is reported to the user."""
        actor = self._setup
        sys.path.extend(path for path in actor.paths if path not in sys.path)
        setup: WorkerSetup = cloudpickle.loads(actor.pickled_setup)
        write_log(setup.logs / f"{actor.worker}.log")
        load_functions(setup)
        limit_threads(actor.threads)
        keep_freed_memory()
        warm_up()
        self._node_states = NodeStates(StateStorage(actor.run, actor.storage), actor.run)
        setup = replace(setup, recipe_or_pickle=setup.recipe, logs=self._node_states.folder)
        self._trainer = RayTrainer(actor.worker, setup, choose_device(actor.device, 0))
        self._trainer.node_states = self._node_states
        self._trainer.on_begin = functools.partial(self._begun.put, None)
        if actor.shares:
            # The user's train_fn and eval_fn get whole partitions, and may write to them.
            self._channel.copy_blocks = (setup.recipe.train_fn or setup.recipe.eval_fn) is not None
            self._trainer.partition_cache.reader = BlockReader(self._channel)
        info = {"pid": os.getpid(), "device": self._trainer.device, "threads": actor.threads}
        return WorkerReady(actor.worker, {**info, "host": socket.gethostname(), **self._location()})

    def _location(self) -> dict[str, Any]:
        """Where on the cluster this worker is, and where other nodes find it."""
        import ray.util

        context = ray.get_runtime_context()
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        server = self._trainer.group_member.server = RendezvousServer(address)
        gpus = context.get_accelerator_ids().get("GPU", [])  # each actor calls its own GPU cuda:0
        return {"node": context.get_node_id(), "address": server.host, **({"gpu": gpus[0]} if gpus else {})}

    def life(self) -> None:
        """Returns only when the actor ends."""
        threading.Event().wait()

    def run(
        self, task: Task, reference: Sequence[Any], may_be_lost: bool, spent: Sequence[Path]
    ) -> tuple[TaskDone | TaskFailed | TaskReturned, NDArray[np.uint8] | None]:
        """Run a task that begins with a durable state, or one that `may_be_lost`; also returns the new state."""
        self._node_states.forget(spent)
        state_in = None if task.state_in is None else self._node_states.add_reference(task.state_in, reference)
        state_out = None if task.state_out is None else self._node_states.local_path(task.state_out)
        done = self._trainer.run_one(replace(task, state_in=state_in, state_out=state_out))  # Ray has no packs
        if isinstance(done, TaskDone):
            return replace(done, task=task), None if state_out is None else _map_file(state_out)
        if may_be_lost and state_in is not None and not state_in.exists():
            return TaskReturned(self._setup.worker, task), None
        return replace(done, task=task), None

    def begin(self) -> None:
        """Returns when a unit has its data, and its model is about to be built."""
        self._begun.get()

    def keep(self, state: Path, reference: Sequence[Any]) -> StateDurable | DiskError | None:
        try:
            persisted = self._node_states.persist(state, reference)
        except DiskError as error:
            return error
        return None if persisted is None else StateDurable(self._setup.worker, state, *persisted)

    def hint(self, state: Path, reference: Sequence[Any]) -> None:
        self._trainer.prefetch(self._node_states.add_reference(state, reference))

    def ask(self) -> list[Message]:
        """Wait for messages of this worker to the broker of preprocessed data."""
        return self._channel.take_sent()

    def answer(self, message: Message, reference: Sequence[Any]) -> None:
        self._channel.deliver(message, reference)

    def leave(self) -> None:
        """Remove everything that this worker has left on its node."""
        shutil.rmtree(self._node_states.folder, ignore_errors=True)


def _map_file(path: Path) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def write_log(path: Path) -> None:
    """Redirect the output to the run's log folder, if this node reaches it."""
    if not path.parent.parent.is_dir():
        return
    path.parent.mkdir(exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
