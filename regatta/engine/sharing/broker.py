"""A thread of the controller that has blocks made and gives them to readers.

The ledger decides which blocks to make; the broker decides only how many preprocess workers there are. It starts the
first one when blocks will be needed. It starts another one when readers have waited, in total, for longer than
a start takes. It ends one that was idle for a while, if there are others. When one dies, its block is made again.
Channels hide where preprocess workers are, and how blocks reach the readers.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from regatta.engine.messages import Cause
from regatta.engine.sharing.connections import Message, SelectableChannel, SharedBlock, SocketChannel
from regatta.engine.sharing.ledger import MAX_DEATHS, BlockJob, BlockKey, Ledger

EXPECTED_START_S = 2.0  # of a preprocess worker, before the first one has started
RESTART_DELAY_S = 0.2  # after a failed start
IDLE_TIMEOUT_S = 20.0  # after which one of several preprocess workers is ended
COUNTED_BLOCKS = 8  # the last blocks give the usual time to make one
_MAKE_IT_YOURSELF: Message = {"yourself": True}


# A preprocess worker that was started: the channel to it, and a function that kills it at once.
StartedWorker: TypeAlias = tuple[SelectableChannel, Callable[[], None]]
StartWorker: TypeAlias = Callable[[], StartedWorker]


@dataclass
class _TrackedWorker:
    channel: SelectableChannel
    kill: Callable[[], None]
    start_time: float
    pid: int | None = None  # known once it is ready
    job: BlockJob | None = None
    since: float = 0.0  # when it became idle or busy

    @property
    def idle(self) -> bool:
        return self.pid is not None and self.job is None


class Broker:
    """Gives blocks to readers until it is closed."""

    def __init__(self, ledger: Ledger, start: StartWorker, always: bool, saved_blocks: int, max_workers: int) -> None:
        """Share blocks `always`, or if that saves time: it makes `saved_blocks` fewer blocks in the whole run."""
        self._ledger, self._start_worker, self._max_workers = ledger, start, max_workers
        self._always, self._saved_blocks = always, saved_blocks
        self._blocks: dict[BlockKey, tuple[SharedBlock, Any]] = {}  # with their layouts
        self._readers: dict[str, SelectableChannel] = {}
        self._workers: list[_TrackedWorker] = []
        self._block_seconds: list[float] = []  # of the last blocks
        self._measured: float | None = None
        self._decided: bool | None = None  # by the plan
        self._start_seconds = EXPECTED_START_S
        self._failed_starts = 0
        self._waiting_since: float | None = None
        self._waited = 0.0  # seconds before that, since the last preprocess worker was started
        self._selector = selectors.DefaultSelector()
        self._new_readers: list[tuple[str, SelectableChannel]] = []
        self._lock = threading.Lock()
        self._closing = False
        self._ended = False
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._add_new_readers)
        self._thread = threading.Thread(target=self._run, name="blocks", daemon=True)
        self._thread.start()

    def connect(self, name: str) -> socket.socket:
        """A socket for a new reader on this machine; the reader leaves when it closes the socket."""
        ours, theirs = socket.socketpair()
        self.add_reader(name, SocketChannel(ours))
        return theirs

    def add_reader(self, name: str, channel: SelectableChannel) -> None:
        """Serve a new reader; it replaces an earlier reader of that name."""
        with self._lock:
            if self._ended:  # nothing would ever answer it
                channel.close()
                return
            self._new_readers.append((name, channel))
        self._wake()

    def decide(self, share: bool) -> None:
        """Share from now on or not, whatever was measured."""
        self._decided = share
        self._wake()

    def preprocess_workers(self) -> list[int]:
        """The process ids of the preprocess workers that are ready."""
        return [worker.pid for worker in list(self._workers) if worker.pid is not None]

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._wake()
        self._thread.join()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _wake(self) -> None:
        self._wake_sender.send(b"x")

    # -- the loop ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                for chosen, _ in self._selector.select(self._timeout()):
                    chosen.data()
                    for key in self._ledger.take_dropped():
                        block, _ = self._blocks.pop(key)
                        block.close()
                self._adjust_workers()
                self._assign_jobs()
        finally:
            self._close_all()

    def _add_new_readers(self) -> None:
        self._wake_receiver.recv(64)
        with self._lock:
            new, self._new_readers = self._new_readers, []
        for name, channel in new:
            if name in self._readers:  # its worker was started again
                self._remove_reader(name)
            self._readers[name] = channel
            on_message = functools.partial(self._on_reader_message, name, channel)
            self._selector.register(channel, selectors.EVENT_READ, on_message)

    def _close_all(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.channel.close()
        with self._lock:
            self._ended, new = True, self._new_readers
        for _, channel in (*self._readers.items(), *new):
            channel.close()
        for block, _ in self._blocks.values():
            block.close()
        self._selector.close()

    # -- readers -----------------------------------------------------------------------------------------

    def _on_reader_message(self, name: str, channel: SelectableChannel) -> None:
        if self._readers.get(name) is not channel:
            return  # it left earlier in this round, and another reader may have its name
        try:
            message, _ = channel.receive()
        except EOFError:
            self._remove_reader(name)
            return
        if "measured" in message:
            self._measured = max(message["measured"], self._measured or 0.0)
        elif "release" in message:
            self._ledger.release(name, BlockKey(*message["release"]))
        elif "note" in message:
            self._ledger.note(BlockKey(*message["note"]), message["models"])
        elif "lost" in message:
            self._ledger.lost(name, BlockKey(*message["lost"]))
        else:
            self._on_request(name, BlockKey(*message["want"]), message["models"])

    def _on_request(self, name: str, key: BlockKey, models: list[str]) -> None:
        pays = self._always or (self._measured or 0.0) * self._saved_blocks > EXPECTED_START_S
        shares = pays if self._decided is None else self._decided
        if not shares or self._failed_starts >= MAX_DEATHS:
            self._send(name, _MAKE_IT_YOURSELF)
        elif self._ledger.request(name, key, models):
            self._send_block(name, key)

    def _send_block(self, name: str, key: BlockKey) -> None:
        block, layout = self._blocks[key]
        self._send(name, {"layout": layout}, block)

    def _send(self, name: str, message: Message, block: SharedBlock | None = None) -> None:
        with contextlib.suppress(OSError):  # the end of its channel is an event of its own
            self._readers[name].send(message, block)

    def _remove_reader(self, name: str) -> None:
        channel = self._readers.pop(name)
        self._selector.unregister(channel)
        channel.close()
        alone = self._ledger.remove_reader(name)
        for worker in [worker for worker in self._workers if worker.job is not None and worker.job.key in alone]:
            self._on_death(worker)  # a waiting reader is only ever ended because it waited for too long

    # -- preprocess workers ------------------------------------------------------------------------------

    def _on_worker_message(self, worker: _TrackedWorker) -> None:
        if worker not in self._workers:
            return  # it was ended earlier in this round
        try:
            message, block = worker.channel.receive()
        except EOFError:
            self._on_death(worker)
            return
        now = time.monotonic()
        job, seconds, worker.job, worker.since = worker.job, now - worker.since, None, now
        if "ready" in message:
            worker.pid, self._failed_starts = message["ready"], 0
            self._start_seconds = now - worker.start_time
            self._waiting_since = None  # until now, no request could have been served
        elif job is not None:
            self._on_result(job, message, block, seconds)

    def _on_result(self, job: BlockJob, message: Message, block: SharedBlock | None, seconds: float) -> None:
        key, ledger = job.key, self._ledger
        if message.get("lost"):  # the base of the block
            ledger.lost(f"job {key}", key.base)
        if job.spill:
            if ledger.spilled(key, block is not None):
                self._keep(key, block, self._blocks[key][1])
            elif block is not None:
                block.close()
        elif block is not None:
            self._block_seconds = [*self._block_seconds[1 - COUNTED_BLOCKS :], seconds]
            self._keep(key, block, message["layout"])
            for name in ledger.made(key, message["layout"]["bytes"], message["place"]):
                self._send_block(name, key)
        elif "size" in message:
            for name in ledger.no_room(key, message["size"]):
                self._send(name, _MAKE_IT_YOURSELF)
        elif message.get("unsharable") and not self._always:  # the user did not ask for sharing
            self._decided = False
            for name in ledger.failed(key):
                self._send(name, _MAKE_IT_YOURSELF)
        else:
            self._report_failure(key, message["error"], message["traceback"], message.get("cause", "model"))

    def _keep(self, key: BlockKey, block: SharedBlock | None, layout: Any) -> None:
        assert block is not None
        if key in self._blocks:
            self._blocks[key][0].close()
        self._blocks[key] = block, layout

    def _report_failure(self, key: BlockKey, error: str, traceback: str, cause: Cause) -> None:
        for name in self._ledger.failed(key):
            self._send(name, {"error": error, "traceback": traceback, "cause": cause})

    def _on_death(self, worker: _TrackedWorker) -> None:
        self._end(worker)
        if worker.pid is None:
            self._on_failed_start()
        if worker.job is not None and self._ledger.worker_died(worker.job):
            key = worker.job.key
            epoch = "" if key.epoch is None else f" for epoch {key.epoch}"
            text = f"Preparing the {key.kind} partition {key.partition}{epoch} took {MAX_DEATHS} processes with it."
            self._report_failure(key, text, text, "data")

    def _end(self, worker: _TrackedWorker) -> None:
        self._selector.unregister(worker.channel)
        self._workers.remove(worker)
        worker.kill()
        worker.channel.close()

    def _on_failed_start(self) -> None:
        self._failed_starts += 1
        if self._failed_starts < MAX_DEATHS or self._workers:
            return
        for name in list(self._readers):  # workers preprocess for themselves, and will report what is wrong
            if self._ledger.is_waiting(name):
                self._ledger.remove_reader(name)
                self._send(name, _MAKE_IT_YOURSELF)

    # -- how many preprocess workers ---------------------------------------------------------------------

    def _adjust_workers(self) -> None:
        """Start a worker if readers wait, or would wait, for longer than a start takes; end one that is not needed."""
        now, unassigned = time.monotonic(), self._ledger.count_unassigned()
        free = sum(worker.job is None for worker in self._workers)  # one that is starting counts as idle
        certain = self._always if self._decided is None else self._decided
        if certain and not self._workers and self._failed_starts < MAX_DEATHS:
            self._start(now)  # beside the workers; if the plan decides, then after profiling, which it would disturb
        elif unassigned <= free:
            self._waited += 0.0 if self._waiting_since is None else now - self._waiting_since
            self._waiting_since = None
        else:
            self._waiting_since = self._waiting_since or now
            may_start = len(self._workers) < self._max_workers and self._failed_starts < MAX_DEATHS
            made = self._block_seconds
            usual = sum(made) / len(made) if made else self._measured or 0.0
            waited = self._waited + now - self._waiting_since
            if may_start and (not self._workers or max(usual, waited) > self._start_seconds):
                self._start(now)
                self._waiting_since, self._waited = None, 0.0
        idle = [worker for worker in self._workers if worker.idle and now - worker.since > IDLE_TIMEOUT_S]
        if idle and len(self._workers) > 1:
            self._end(idle[-1])

    def _start(self, now: float) -> None:
        try:
            worker = _TrackedWorker(*self._start_worker(), now, since=now)
        except Exception:  # noqa: BLE001 (no process, no memory, no file: a start may fail in many ways)
            self._on_failed_start()
            return
        self._workers.append(worker)
        self._selector.register(worker.channel, selectors.EVENT_READ, lambda: self._on_worker_message(worker))

    def _assign_jobs(self) -> None:
        idle = [worker for worker in self._workers if worker.idle]
        for worker, job in zip(idle, self._ledger.next_jobs(len(idle)), strict=False):
            worker.job, worker.since = job, time.monotonic()
            needed = job.key if job.spill else self._ledger.base_of(job.key)
            block, layout = self._blocks[needed] if needed is not None else (None, None)
            order = {"make": job.key, "memory": job.memory, "disk": job.disk, "layout": layout}
            if job.spill and layout is not None:
                order = {"spill": layout["bytes"]}
            with contextlib.suppress(OSError):  # its death is an event of its own
                worker.channel.send(order, block)

    def _timeout(self) -> float | None:
        """Seconds until the broker has something to do without a message."""
        now, moments = time.monotonic(), list[float]()
        if self._waiting_since is not None and len(self._workers) < self._max_workers:
            moments.append(self._waiting_since + self._start_seconds - self._waited)
        if not self._workers and 0 < self._failed_starts < MAX_DEATHS:
            moments.append(now + RESTART_DELAY_S)
        if len(self._workers) > 1:
            moments += [worker.since + IDLE_TIMEOUT_S for worker in self._workers if worker.idle]
        return max(0.0, min(moments) - now) + 0.01 if moments else None
