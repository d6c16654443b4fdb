"""A process per worker on this machine.

The controller and a worker talk over a pair of sockets; the end of that stream is how a death is noticed. A state hops
as a file that one worker writes and the next one maps: its bytes pass through the page cache, not the controller.

worker_main.py is the worker's side, start_process.py how it is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.cluster import Cluster
from regatta.data.availability import find_partitions
from regatta.engine.messages import Event, Task, WorkerLost, WorkerReady, WorkerSetup
from regatta.engine.workers.base import refuse
from regatta.engine.workers.fork_client import is_stopped
from regatta.engine.workers.start_process import StartedProcess, preload_for, start_process
from regatta.engine.workers.worker_main import MAIN, Socket, WorkerArguments
from regatta.errors import PausedError, RegattaError
from regatta.journal.unpickle import to_pickle

if TYPE_CHECKING:
    from regatta.engine.sharing.broker import Broker

MAX_START_ATTEMPTS = 3  # of a worker that ends before it is ready
MAX_KILLED_STARTS = 10  # the same, of a worker that is killed from outside
LOG_TAIL_LINES = 20
MAX_STOPPED_S = 60.0  # of a worker that a signal has stopped; then its unit is done again
_KERNEL_COUNTERS = Path("/proc/vmstat")


@dataclass
class _WorkerProcess:
    process: StartedProcess | None  # None: a worker that joined, and is not started again
    socket: Socket
    ready: bool = False
    pid: int | None = None
    reason: str | None = None  # why the controller ended it
    stopped: bool = False  # by a signal, when the controller ended it
    stopped_since: float | None = None  # as far as the controller has looked
    introduction: threading.Thread | None = None  # sends the first message

    def kill(self) -> None:
        """Kill a worker, which leads a process group, with all that its user's code has started."""
        if self.process is not None:
            self.process.kill()
        elif self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> str:
        """End the worker, and say how it ended."""
        self.kill()
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.socket.fileno())) as stream:
            stream.shutdown(socket.SHUT_RDWR)  # nothing is sent any more
        if self.introduction is not None:
            self.introduction.join()
        self.socket.close()
        if self.process is None:
            return self.reason or "left"
        ended = how_it_ended(self.process.wait())
        self.process.close()
        return self.reason or ended


class ProcessPool:
    """Starts worker processes, and starts one again when it dies."""

    packs = True
    groupable = True

    def __init__(self, cluster: Cluster, setup: WorkerSetup) -> None:
        self.workers = cluster.names()
        self._cluster = cluster
        self._logs = setup.logs
        self._setup = to_pickle(setup)
        self._members: dict[str, _WorkerProcess] = {}
        self._failed_starts = dict.fromkeys(self.workers, 0.0)
        self._joined = 0
        self._out_of_memory = _count_kills_for_memory()
        self._next_look = 0.0  # for workers that a signal has stopped
        self._woken, self._waker = Pipe(duplex=False)
        self._broker: Broker | None = None
        self._preprocess: bytes | None = None
        self._given = setup
        self._preload = preload_for(setup.recipe_or_pickle)

    def start(self) -> None:
        if self._given.sharing is not None:
            from regatta.engine.sharing.preprocess_worker import open_broker, preprocess_setup

            self._broker = open_broker(self._given, self._cluster.threads or 1, self._preload)
            if self._broker is not None:
                self._preprocess = to_pickle(preprocess_setup(self._given))
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

    def end(self, worker: str, reason: str) -> bool:
        member = self._members.get(worker)
        if member is not None:
            member.stopped = member.pid is not None and is_stopped(member.pid)
            member.reason = f"{reason}, for it was stopped by a signal" if member.stopped else reason
            member.kill()
        return member is not None

    def admit(self, connection: Socket, wishes: dict[str, Any]) -> None:
        try:
            holds = find_partitions(wishes.get("holds"), self._given.train, self._given.eval)
        except RegattaError as error:
            refuse(connection, str(error))
            return
        self._joined += 1
        name = f"w{len(self.workers) + self._joined - 1}"
        threads, device = self._cluster.threads or 1, wishes.get("device")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send_bytes(json.dumps({"welcome": name, "threads": threads}).encode())
        self._members[name] = _WorkerProcess(None, connection)
        device = device if isinstance(device, str) else self._cluster.device
        workers = len(self.workers) + self._joined
        index, setup = workers - 1, self._setup
        self._introduce(name, WorkerArguments(name, index, device, threads, setup, workers, joins=True, holds=holds))

    def events(self) -> list[Event]:
        signs: dict[Any, str] = {member.socket: name for name, member in self._members.items()}
        for name, member in self._members.items():
            if member.process is not None and member.process.fileno() >= 0:
                signs[member.process.fileno()] = name
        ready: list[Any] = []
        while not ready:
            ready = wait([*signs, self._woken], MAX_STOPPED_S / 4)
            self._end_stopped()  # no event comes from a worker that waits for a signal to go on
        if self._woken in ready:
            ready.remove(self._woken)
            self._woken.recv_bytes()
        return [self._receive(name) for name in dict.fromkeys(signs[sign] for sign in ready)]

    def _end_stopped(self) -> None:
        """End the workers that a signal has stopped for too long: their units are done again."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + MAX_STOPPED_S / 4
        for name, member in self._members.items():
            if member.pid is None or not is_stopped(member.pid, by="T"):
                member.stopped_since = None
            elif member.stopped_since is None:
                member.stopped_since = now
            elif now - member.stopped_since >= MAX_STOPPED_S:
                self.end(name, "was ended")

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
        blocks = self._broker.connect(name) if self._broker is not None else None
        files = [theirs.fileno()] if blocks is None else [theirs.fileno(), blocks.fileno()]
        begun = time.time()
        try:
            process = start_process(MAIN, files, threads, self._log(name), self._preload)
        finally:
            theirs.close()
            if blocks is not None:
                blocks.close()
        self._members[name] = _WorkerProcess(process, ours, pid=process.pid)
        index = self.workers.index(name)
        rest = self._setup, len(self.workers), begun, self._preprocess
        self._introduce(name, WorkerArguments(name, index, self._cluster.device, threads, *rest))

    def _introduce(self, worker: str, arguments: WorkerArguments) -> None:
        """Send the first message, with all that the user's functions hold: a thread waits until the worker reads it."""
        member = self._members[worker]
        sending = threading.Thread(target=_send, args=(member.socket, arguments), name=f"start {worker}", daemon=True)
        member.introduction = sending
        sending.start()

    def _send(self, worker: str, message: Any) -> None:
        _send(self._members[worker].socket, message)

    def _receive(self, name: str) -> Event:
        member = self._members[name]
        if not member.socket.poll():  # it is dead, though a child of its user's code holds the stream open
            return self._on_death(name)
        try:
            event: Event = member.socket.recv()
        except (EOFError, ConnectionResetError):
            return self._on_death(name)
        if isinstance(event, WorkerReady):
            member.ready, member.pid = True, event.info["pid"]
            self._failed_starts[name] = 0
        return event

    def _on_death(self, name: str) -> WorkerLost:
        member = self._members.pop(name)
        reason = member.close()  # the stream ended; if the process has not, it is of no more use
        if member.process is None:
            return WorkerLost(name, reason, for_good=True)
        killed = self._was_killed(member)
        if not member.ready:
            self._failed_starts[name] += MAX_START_ATTEMPTS / MAX_KILLED_STARTS if killed else 1
        if self._failed_starts[name] < MAX_START_ATTEMPTS:
            self._spawn(name)
            return WorkerLost(name, reason, killed=killed)
        if not any(other.ready for other in self._members.values()):
            log = self._log(name).read_text(errors="replace").strip()
            tail = "\n".join(log.splitlines()[-LOG_TAIL_LINES:])
            raise PausedError(
                f"Worker {name} {reason} before it could take work, again and again.\n{tail}",
                hint=f"All it said is in {self._log(name)}.",
            )
        return WorkerLost(name, f"{reason} before it could take work, again and again", for_good=True)

    def _was_killed(self, member: _WorkerProcess) -> bool:
        """Whether the death of a worker has nothing to do with what it did."""
        if member.reason is not None:
            return member.stopped
        before, self._out_of_memory = self._out_of_memory, _count_kills_for_memory()
        by_signal = member.process is not None and member.process.returncode == -signal.SIGKILL
        return by_signal and before == self._out_of_memory

    def _log(self, name: str) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{name}.log"


def _send(connection: Socket, message: Any) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the death of the worker comes as an event
        connection.send(message)


def _count_kills_for_memory() -> int:
    """How many processes of this machine the kernel has killed because memory ran out; 0 where it does not say."""
    with contextlib.suppress(OSError):
        counters = dict(line.split() for line in _KERNEL_COUNTERS.read_text().splitlines())
        return int(counters.get("oom_kill", 0))
    return 0


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    known = {s.value: s.name for s in signal.Signals}  # most real-time signals have no name
    return f"was killed by {known.get(-code, f'signal {-code}')}"
