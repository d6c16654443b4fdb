"""A process per worker on this machine.

The controller speaks with each over a pair of sockets and hears of a death as the end of that stream. A state hops
as a file that one worker wrote and the next one maps; the bytes pass through the page cache, not the controller.
While a worker trains, one thread of it listens (and reads the state that comes next), another makes the state that
was just published durable.

`main` is the worker's side.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import cloudpickle

from regatta.cluster import Cluster
from regatta.engine.messages import (
    Event,
    StateDurable,
    Task,
    WorkerLost,
    WorkerReady,
    WorkerSetup,
    published,
    unpickle_recipe,
)
from regatta.errors import RegattaError

if TYPE_CHECKING:
    from regatta.engine.sharing.broker import Broker

Socket: TypeAlias = "Connection[Any, Any]"
# With the paths of the controller and no others: a `random.py` in the present folder must not stand in for Python's.
_BOOT = """import sys
files, *sys.path = sys.argv[1:]
del sys.argv[1:]
{0}
main(*map(int, files.split(",")))"""
_MAIN = "from regatta.engine.workers.process import main"
STARTS = 3  # how often a worker that dies before it is ready is started
KILLED_STARTS = 10  # the same, where somebody kills it
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class _Hello:
    """The first thing a worker is told; the user's functions travel in it, from our own controller."""

    worker: str
    index: int
    device: str
    threads: int
    setup: bytes
    workers: int  # that are on this machine
    begun: float = 0.0  # when it was started
    maker: bytes | None = None  # what those are given that prepare data, where that may be shared


@dataclass
class _Member:
    process: subprocess.Popen[bytes] | None  # None: it came by itself, and is not started again
    socket: Socket
    end: int | None = None  # can be read once the process is dead
    ready: bool = False
    pid: int | None = None
    reason: str | None = None  # why it was ended

    def kill(self) -> None:
        """A worker leads a group of its own, with all that its user's code has started."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def was_killed(self) -> bool:
        return self.process is not None and self.process.returncode == -signal.SIGKILL

    def close(self) -> str:
        """Let go of it; how it ended."""
        self.kill()
        self.socket.close()
        if self.end is not None:
            os.close(self.end)
        if self.process is None:
            return self.reason or "left"
        ended = _how_it_ended(self.process.wait())
        return self.reason or ended


class ProcessPool:
    """Starts worker processes, and starts one again when it dies."""

    packs = True
    groupable = True

    def __init__(self, cluster: Cluster, setup: WorkerSetup) -> None:
        self.workers = cluster.names()
        self._cluster = cluster
        self._logs = setup.logs
        self._setup = cloudpickle.dumps(setup)
        self._members: dict[str, _Member] = {}
        self._failed_starts = dict.fromkeys(self.workers, 0.0)
        self._guests = 0
        self._woken, self._waker = Pipe(duplex=False)
        self._broker: Broker | None = None
        self._maker: bytes | None = None
        self._given = setup

    def start(self) -> None:
        if self._given.sharing is not None:
            from regatta.engine.sharing.preprocess_worker import open_broker, preprocess_setup

            self._broker = open_broker(self._given, self._cluster.threads or 1, sys.path)
            if self._broker is not None:
                self._maker = cloudpickle.dumps(preprocess_setup(self._given))
        for name in self.workers:
            self._spawn(name)

    def share(self, yes: bool) -> None:
        if self._broker is not None:
            self._broker.decide(yes)

    def submit(self, worker: str, task: Task) -> None:
        self._send(worker, task)

    def prefetch(self, worker: str, state: Path) -> None:
        self._send(worker, state)

    def forget(self, state: Path) -> None:
        """States are files, which the run itself removes."""

    def end(self, worker: str, reason: str) -> None:
        member = self._members.get(worker)
        if member is not None:
            member.reason = reason
            member.kill()

    def admit(self, connection: Socket, wishes: dict[str, Any]) -> None:
        self._guests += 1
        name = f"w{len(self.workers) + self._guests - 1}"
        threads, device = self._cluster.threads or 1, wishes.get("device")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send_bytes(json.dumps({"welcome": name, "threads": threads}).encode())
        self._members[name] = _Member(None, connection)
        device = device if isinstance(device, str) else self._cluster.device
        workers = len(self.workers) + self._guests
        self._send(name, _Hello(name, workers - 1, device, threads, self._setup, workers))

    def events(self) -> list[Event]:
        signs: dict[Any, str] = {member.socket: name for name, member in self._members.items()}
        signs |= {member.end: name for name, member in self._members.items() if member.end is not None}
        ready = wait([*signs, self._woken])
        if self._woken in ready:
            ready.remove(self._woken)
            self._woken.recv_bytes()
        return [self._hear(name) for name in dict.fromkeys(signs[sign] for sign in ready)]

    def wake(self) -> None:
        self._waker.send_bytes(b"")

    def close(self) -> None:
        for member in self._members.values():
            member.kill()
        for member in self._members.values():
            member.close()
        self._members.clear()
        if self._broker is not None:
            self._broker.close()
        self._woken.close()
        self._waker.close()

    def _spawn(self, name: str) -> None:
        ours, theirs = Pipe()
        threads = self._cluster.threads or 1
        blocks = self._broker.seat(name) if self._broker is not None else None
        files = [theirs.fileno()] if blocks is None else [theirs.fileno(), blocks.fileno()]
        begun = time.time()
        with self._log(name).open("ab") as log:
            process = started(_MAIN, files, threads, sys.path, stdout=log, stderr=log)
        theirs.close()
        if blocks is not None:
            blocks.close()
        end = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
        self._members[name] = _Member(process, ours, end, pid=process.pid)
        index = self.workers.index(name)
        told = self._setup, len(self.workers), begun, self._maker
        self._send(name, _Hello(name, index, self._cluster.device, threads, *told))

    def _send(self, worker: str, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death is heard of as an event
            self._members[worker].socket.send(message)

    def _hear(self, name: str) -> Event:
        member = self._members[name]
        if not member.socket.poll():  # it is dead, though a child of its user's code holds the stream open
            return self._bury(name)
        try:
            event: Event = member.socket.recv()
        except (EOFError, ConnectionResetError):
            return self._bury(name)
        if isinstance(event, WorkerReady):
            member.ready, member.pid = True, event.info["pid"]
            self._failed_starts[name] = 0
        return event

    def _bury(self, name: str) -> WorkerLost:
        member = self._members.pop(name)
        reason = member.close()  # the stream ended; if the process has not, it is of no more use
        if member.process is None:
            return WorkerLost(name, reason, for_good=True)
        if not member.ready:
            self._failed_starts[name] += STARTS / KILLED_STARTS if member.was_killed() else 1
        if self._failed_starts[name] < STARTS:
            self._spawn(name)
            return WorkerLost(name, reason)
        if not any(other.ready for other in self._members.values()):
            raise RegattaError(
                f"Worker {name} {reason} before it could take work, again and again.\n{self._last_words(name)}",
                hint=f"All it said is in {self._log(name)}.",
            )
        return WorkerLost(name, f"{reason} before it could take work, again and again", for_good=True)

    def _log(self, name: str) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{name}.log"

    def _last_words(self, name: str) -> str:
        text = self._log(name).read_text(errors="replace").strip()
        return "\n".join(text.splitlines()[-20:])


def start_worker(socket: Socket, threads: int, path: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
    """A worker's process, at the other end of whose socket a controller is."""
    return started(_MAIN, [socket.fileno()], threads, path, **streams)


def started(
    main: str, files: Sequence[int], threads: int, path: Sequence[str], **streams: Any
) -> subprocess.Popen[bytes]:
    """A process of ours, whose `main` is imported as that line says and gets these open files."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    repeatable = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}  # or products on several streams of a GPU round as they like
    return subprocess.Popen(
        [sys.executable, "-P", "-u", "-c", _BOOT.format(main), ",".join(map(str, files)), *path],
        pass_fds=files,
        stdin=subprocess.DEVNULL,
        env={**repeatable, **os.environ, **limits},
        start_new_session=True,  # Ctrl-C is for whoever started it
        **streams,
    )


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    known = {s.value: s.name for s in signal.Signals}  # the real-time signals between the first and the last have none
    return f"was killed by {known.get(-code, f'signal {-code}')}"


class _Side:
    """The worker's side of the stream, shared by its threads."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._lock = threading.Lock()

    def say(self, event: Event) -> None:
        with self._lock:
            self._socket.send(event)

    def hear(self) -> Any:
        return self._socket.recv()


def serve(file: int, blocks: int | None = None) -> None:
    """Be a worker until the controller is gone; `blocks` is the socket to whoever has prepared data to share."""
    die_with_parent()
    side = _Side(Connection(file))
    hello: _Hello = side.hear()  # before the imports, for the controller may wait until a large one is taken
    gc.disable()  # all that is imported stays; to look through it for garbage takes a fifth of a worker's start
    from regatta.engine.workers.training.device_memory import keep_freed
    from regatta.engine.workers.training.trainer import (
        Trainer,
        choose_device,
        limit_threads,
        memory_of,
        warm_up,
    )

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed()
    maker_seconds = _as_a_maker(hello)
    setup: WorkerSetup = cloudpickle.loads(hello.setup)  # first, for it may fail
    limit_threads(hello.threads)
    warm_up()
    gc.freeze()
    gc.enable()
    trainer = Trainer(hello.worker, setup, choose_device(hello.device, hello.index))
    if blocks is not None:
        from regatta.engine.sharing.block_reader import BlockReader
        from regatta.engine.sharing.connections import SocketChannel

        trainer.partition_cache.reader = BlockReader(SocketChannel.at(blocks))
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    fresh: queue.SimpleQueue[Path] = queue.SimpleQueue()
    threading.Thread(target=live_by, args=(_listen, side, trainer, tasks), daemon=True).start()
    threading.Thread(target=live_by, args=(_keep, side, trainer.worker, fresh), daemon=True).start()
    memory = memory_of(trainer.device, hello.device, hello.workers)
    info = {"pid": os.getpid(), "device": trainer.device, "threads": hello.threads, "memory": memory, **maker_seconds}
    side.say(WorkerReady(hello.worker, info))
    while True:
        done = trainer.run(tasks.get())
        side.say(done)
        for path in published(done):
            fresh.put(path)


def _as_a_maker(hello: _Hello) -> dict[str, float]:
    """After how many seconds a process is there that only prepares data: it need not import what models need."""
    if hello.maker is None:
        return {}
    unpickle_recipe(cloudpickle.loads(hello.maker).recipe_or_pickle)
    return {"maker_seconds": max(0.0, time.time() - hello.begun)}


def die_with_parent() -> None:
    """Where the system sees to it: one that hangs in foreign code would not hear of the end of the stream."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def live_by(body: Callable[..., None], *arguments: Any) -> None:
    """Whatever ends a part of a worker ends it all at once: one that is deaf, or keeps nothing, must not look alive."""
    try:
        body(*arguments)
    except BaseException:  # noqa: BLE001 (told to the log; the controller hears of the death)
        traceback.print_exc()
        os._exit(1)  # before the socket is closed: the reason of the end is this exit code


def _listen(side: _Side, trainer: Any, tasks: queue.SimpleQueue[Task]) -> None:
    while True:
        try:
            message = side.hear()
        except (EOFError, ConnectionResetError):
            os.killpg(os.getpid(), signal.SIGKILL)  # the controller is gone, and with it the reason to go on
        if isinstance(message, Task):
            tasks.put(message)
        else:
            trainer.prefetch(message)


def _keep(side: _Side, worker: str, fresh: queue.SimpleQueue[Path]) -> None:
    from regatta.store.states.state_files import make_durable

    while True:
        path = fresh.get()
        side.say(StateDurable(worker, path, *make_durable(path)))


def main(file: int, blocks: int | None = None) -> None:
    live_by(serve, file, blocks)
