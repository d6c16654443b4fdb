"""The worker's side of Ray: an actor that trains, with the states that it needs beside it.

A state is made in a scratch folder of the node, goes to the next actor as an object, and is copied from the scratch
folder to the storage by another thread of the actor that made it. A file in the scratch folder stays until the
controller says that the state is durable: should a node take the object with it, whoever has the file can copy it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
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
from regatta.engine.messages import (
    StateDurable,
    Task,
    TaskDone,
    TaskFailed,
    TaskReturned,
    WorkerReady,
    WorkerSetup,
)
from regatta.engine.sharing.block_reader import BlockReader
from regatta.engine.sharing.wire import Message
from regatta.engine.workers.ray.shared_blocks import BrokerChannel
from regatta.engine.workers.ray.storage import StateStorage, name_of
from regatta.engine.workers.training.device_memory import keep_freed
from regatta.engine.workers.training.trainer import (
    Trainer,
    choose_device,
    limit_threads,
    warm_up,
)
from regatta.errors import DiskError, NotFoundError, RegattaError
from regatta.frameworks import Framework
from regatta.frameworks.torch.rendezvous import RendezvousServer
from regatta.store.states.state_files import publish, temporary, writing

SCRATCH, SCRATCH_LOCK = "regatta-ray-", "lock"
# Threads of an actor, by what they do.
GROUPS = {"unit": 1, "keep": 1, "hint": 1, "life": 1, "leave": 1, "ask": 1, "answer": 1}


@dataclass(frozen=True)
class ActorSetup:
    """What an actor is made with; the user's functions travel in it, from our own controller."""

    worker: str
    device: str
    threads: int
    setup: bytes
    paths: tuple[str, ...]  # where the controller finds its modules
    run: Path  # the run's folder, in which states have their names
    storage: str | None
    shares: bool  # whether there is a broker of prepared data to ask


class NodeStates:
    """The states that are on this node, as files of a scratch folder."""

    def __init__(self, storage: StateStorage, run: Path) -> None:
        self._storage = storage
        self._run = run
        _sweep(Path(tempfile.gettempdir()))
        self.folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
        self._scratch_lock = FileLock(self.folder / SCRATCH_LOCK)  # held until this process ends: `_sweep` looks at it
        if not self._scratch_lock.acquire(wait=False):
            raise BlockingIOError(f"Another process locked {self.folder}.")
        self._locks: dict[Path, threading.Lock] = defaultdict(threading.Lock)
        self._offers: dict[Path, Sequence[Any]] = {}  # the references by which states can be had

    def place(self, state: Path) -> Path:
        """Where a state is on this node, or will be."""
        return self.folder / name_of(state, self._run)

    def offer(self, state: Path, reference: Sequence[Any]) -> Path:
        """The place of a state that can be had by reference; it is fetched when somebody reads it."""
        local = self.place(state)
        self._offers[local] = reference
        return local

    def bring(self, local: Path) -> None:
        """Have the state on this node: by its reference, or from the storage when that is lost."""
        with self._locks[local], writing(local):
            if local.exists():
                return
            local.parent.mkdir(parents=True, exist_ok=True)
            data = _value(self._offers.get(local, ()))
            if data is None:
                self._storage.fetch(local.relative_to(self.folder), local)
            else:
                written = temporary(local)
                with written.open("wb", buffering=0) as file:
                    file.write(data.data)
                publish(written, local)
        if local not in self._offers:  # it was forgotten meanwhile
            local.unlink(missing_ok=True)

    def keep(self, state: Path, reference: Sequence[Any]) -> tuple[str, int] | None:
        """Make a state durable, from wherever it can be had; None: it is gone."""
        local = self.offer(state, reference)
        try:
            self.bring(local)
        except NotFoundError:
            return None
        return self._storage.keep(local, local.relative_to(self.folder))

    def forget(self, states: Iterable[Path]) -> None:
        for state in states:
            self._offers.pop(self.place(state), None)
            self.place(state).unlink(missing_ok=True)

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _value(reference: Sequence[Any]) -> NDArray[np.uint8] | None:
    """The bytes behind a reference, in the node's shared memory; None when they are lost or there is none."""
    import ray

    try:
        return ray.get(reference[0]) if reference else None
    except ray.exceptions.ObjectLostError:
        return None


def _sweep(folder: Path) -> None:
    """Remove what workers that were killed have left on this node."""
    for lock in folder.glob(f"{SCRATCH}*/{SCRATCH_LOCK}"):
        with contextlib.suppress(OSError), lock.open("r+b") as file:
            if lock_file(file, wait=False):
                shutil.rmtree(lock.parent, ignore_errors=True)


class RayTrainer(Trainer):
    """Reads states that are not here yet when a task begins."""

    shelf: NodeStates

    def prefetch(self, path: Path) -> None:
        self._bring_ahead(path)
        super().prefetch(path)

    def fetch(self, task: Task, costs: Any) -> Any:
        """The state comes while the model is built; what a clone inherits is read at once."""
        if task.state_in is None:
            return super().fetch(task, costs)
        start = time.perf_counter()
        if task.parent is not None:
            self.shelf.bring(task.state_in)
        else:
            threading.Thread(target=self._bring_ahead, args=[task.state_in], daemon=True).start()
        brought = time.perf_counter() - start
        found = super().fetch(task, costs)
        costs.hop_seconds += brought
        return found

    def _bring_ahead(self, path: Path) -> None:
        with contextlib.suppress(RegattaError):  # whoever reads it will say what is wrong
            self.shelf.bring(path)

    def _read(self, framework: Framework, path: Path) -> Any:
        self.shelf.bring(path)
        return super()._read(framework, path)


class RayWorker:
    """The actor. Its methods run in threads of their own, so that states are kept and fetched beside a unit."""

    def __init__(self, hello: ActorSetup) -> None:
        self._hello = hello
        self._line = BrokerChannel()

    def hello(self) -> WorkerReady:
        """Get ready; what this raises, such as a module that is missing here, is told to the user."""
        hello = self._hello
        sys.path.extend(path for path in hello.paths if path not in sys.path)
        setup: WorkerSetup = cloudpickle.loads(hello.setup)
        write_log(setup.logs / f"{hello.worker}.log")
        limit_threads(hello.threads)
        keep_freed()
        warm_up()
        self._shelf = NodeStates(StateStorage(hello.run, hello.storage), hello.run)
        setup = replace(setup, recipe_or_pickle=setup.recipe, logs=self._shelf.folder)  # unpickle it now: that may fail
        self._trainer = RayTrainer(hello.worker, setup, choose_device(hello.device, 0))
        self._trainer.shelf = self._shelf
        if hello.shares:
            self._line.private = (setup.recipe.train_fn or setup.recipe.eval_fn) is not None  # they get all of it
            self._trainer.partition_cache.reader = BlockReader(self._line)
        info = {"pid": os.getpid(), "device": self._trainer.device, "threads": hello.threads}
        return WorkerReady(hello.worker, {**info, "host": socket.gethostname(), **self._place()})

    def _place(self) -> dict[str, Any]:
        """Where on the cluster this worker is, and where other nodes find it."""
        import ray.util

        context = ray.get_runtime_context()
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        door = self._trainer.group_member.door = RendezvousServer(address)
        cards = context.get_accelerator_ids().get("GPU", [])  # each actor calls its own cuda:0
        return {"node": context.get_node_id(), "address": door.host, **({"gpu": cards[0]} if cards else {})}

    def life(self) -> None:
        """Comes to an end with the actor only."""
        threading.Event().wait()

    def run(
        self, task: Task, reference: Sequence[Any], unsure: bool, spent: Sequence[Path]
    ) -> tuple[TaskDone | TaskFailed | TaskReturned, NDArray[np.uint8] | None]:
        """Do a task; of a unit that trained, the state beside. `unsure`: it begins with a state that may be lost."""
        self._shelf.forget(spent)
        here = replace(
            task,
            state_in=None if task.state_in is None else self._shelf.offer(task.state_in, reference),
            state_out=None if task.state_out is None else self._shelf.place(task.state_out),
        )
        done = self._trainer.run_one(here)  # a task on Ray has no `packed_with`
        if isinstance(done, TaskDone):
            return replace(done, task=task), None if here.state_out is None else _mapped(here.state_out)
        if unsure and here.state_in is not None and not here.state_in.exists():
            return TaskReturned(self._hello.worker, task), None
        return replace(done, task=task), None

    def keep(self, state: Path, reference: Sequence[Any]) -> StateDurable | DiskError | None:
        try:
            kept = self._shelf.keep(state, reference)
        except DiskError as error:
            return error
        return None if kept is None else StateDurable(self._hello.worker, state, *kept)

    def hint(self, state: Path, reference: Sequence[Any]) -> None:
        self._trainer.prefetch(self._shelf.offer(state, reference))

    def ask(self) -> list[Message]:
        """What this worker has to say to the broker of prepared data, when there is something."""
        return self._line.said()

    def answer(self, message: Message, reference: Sequence[Any]) -> None:
        self._line.hear(message, reference)

    def leave(self) -> None:
        """Leave nothing behind."""
        self._shelf.clear()


def _mapped(path: Path) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def write_log(path: Path) -> None:
    """What is printed goes where that of other workers goes, when this node reaches the run's folder."""
    if not path.parent.parent.is_dir():
        return
    path.parent.mkdir(exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
