"""The thread of a controller that has blocks made and hands them out.

It decides nothing but how many makers there are; the ledger does. Makers are processes: one is started when it is
known that blocks will be asked for, another when blocks have been waited for, all in all, for longer than it takes to
start one, and one that has had nothing to do for a while is ended. One that dies is replaced, and its block made again.
Where they are, and how blocks come from them and go to readers, is the business of lines.
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

from regatta.engine.sharing.connections import SelectableChannel, SharedBlock, SocketChannel
from regatta.engine.sharing.ledger import (
    DEATHS,
    BlockJob,
    BlockKey,
    Ledger,
)
from regatta.engine.sharing.wire import Message

START_SECONDS = 2.0  # what a maker's start is taken to cost before one was started
AGAIN = 0.2  # seconds after a start that failed to the next
IDLE_SECONDS = 20.0  # after which one of several makers is ended


@dataclass(frozen=True)
class StartedWorker:
    """A maker that was started: the line to it, and how to end it at once, whatever it does."""

    line: SelectableChannel
    end: Callable[[], None]


Start: TypeAlias = Callable[[], StartedWorker]


@dataclass
class _TrackedWorker:
    hired: StartedWorker
    begun: float
    pid: int | None = None  # known once it is ready
    job: BlockJob | None = None
    since: float = 0.0  # idle since, or busy since

    @property
    def line(self) -> SelectableChannel:
        return self.hired.line

    @property
    def ready(self) -> bool:
        return self.pid is not None

    @property
    def idle(self) -> bool:
        return self.ready and self.job is None

    def end(self) -> None:
        self.hired.end()
        self.line.close()


@dataclass(frozen=True)
class SharingBenefit:
    """When sharing pays: what blocks save, made once instead of by each model, against what makers cost."""

    always: bool
    saved: int  # so many times is a block not made again in the whole run

    def pays(self, seconds: float | None) -> bool:
        return self.always or (seconds is not None and seconds * self.saved > START_SECONDS)


class Broker:
    """Hands out blocks until it is closed."""

    def __init__(self, ledger: Ledger, start: Start, worth: SharingBenefit, most: int) -> None:
        self._ledger, self._start, self._worth, self._most = ledger, start, worth, most
        self._blocks: dict[BlockKey, tuple[SharedBlock, Any]] = {}  # with their layouts
        self._readers: dict[str, SelectableChannel] = {}
        self._makers: list[_TrackedWorker] = []
        self._made: list[float] = []  # seconds that the last blocks took
        self._measured: float | None = None
        self._decided: bool | None = None  # by the plan
        self._start_seconds = START_SECONDS
        self._failed_starts = 0
        self._waiting_since: float | None = None
        self._waited = 0.0  # seconds before that, since the last maker was started
        self._selector = selectors.DefaultSelector()
        self._new: list[tuple[str, SelectableChannel]] = []
        self._lock = threading.Lock()
        self._closing = False
        self._over = False
        self._woken, self._waker = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake_up)
        self._thread = threading.Thread(target=self._serve, name="blocks", daemon=True)
        self._thread.start()

    def seat(self, name: str) -> socket.socket:
        """A socket for a new reader of this machine; the end of its stream is how it leaves."""
        ours, theirs = socket.socketpair()
        self.admit(name, SocketChannel(ours))
        return theirs

    def admit(self, name: str, reader: SelectableChannel) -> None:
        """Serve a new reader; it takes the place of one of that name."""
        with self._lock:
            if self._over:  # nobody would ever answer it
                reader.close()
                return
            self._new.append((name, reader))
        self._waker.send(b"x")

    def decide(self, yes: bool) -> None:
        """Whether to share from now on, whatever was measured."""
        self._decided = yes
        self._waker.send(b"x")

    def makers(self) -> list[int]:
        """The processes that make blocks, as far as they are up."""
        return [maker.pid for maker in list(self._makers) if maker.pid is not None]

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._waker.send(b"x")
        self._thread.join()
        self._woken.close()
        self._waker.close()

    # -- the loop ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._closing:
                for chosen, _ in self._selector.select(self._watchdog()):
                    chosen.data()
                    self._close_dropped()
                self._staff()
                self._hand_out()
        finally:
            self._clear()

    def _wake_up(self) -> None:
        self._woken.recv(64)
        with self._lock:
            new, self._new = self._new, []
        for name, reader in new:
            if name in self._readers:  # its worker was started again
                self._part(name)
            self._readers[name] = reader
            hear = functools.partial(self._hear_reader, name, reader)
            self._selector.register(reader, selectors.EVENT_READ, hear)

    def _clear(self) -> None:
        for maker in self._makers:
            maker.end()
        with self._lock:
            self._over, new = True, self._new
        for _, reader in (*self._readers.items(), *new):
            reader.close()
        for block, _ in self._blocks.values():
            block.close()
        self._selector.close()

    def _close_dropped(self) -> None:
        for key in self._ledger.closed():
            block, _ = self._blocks.pop(key)
            block.close()

    # -- readers -----------------------------------------------------------------------------------------

    def _hear_reader(self, name: str, reader: SelectableChannel) -> None:
        if self._readers.get(name) is not reader:
            return  # it left earlier in this round, and another may have its name
        try:
            message, _ = reader.receive()
        except EOFError:
            self._part(name)
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
            self._look_up(name, BlockKey(*message["want"]), message["models"])

    def _look_up(self, name: str, key: BlockKey, models: list[str]) -> None:
        if not self._pays() or self._failed_starts >= DEATHS:
            self._tell(name, {"yourself": True})
        elif self._ledger.want(name, key, models):
            self._give(name, key)

    def _give(self, name: str, key: BlockKey) -> None:
        block, layout = self._blocks[key]
        self._tell(name, {"layout": layout}, block)

    def _tell(self, name: str, message: Message, block: SharedBlock | None = None) -> None:
        with contextlib.suppress(OSError):  # its end is heard of as the end of the stream
            self._readers[name].send(message, block)

    def _part(self, name: str) -> None:
        reader = self._readers.pop(name)
        self._selector.unregister(reader)
        reader.close()
        alone = self._ledger.leave(name)
        for maker in [maker for maker in self._makers if maker.job is not None and maker.job.key in alone]:
            self._bury(maker)  # who waits is only ever ended because it waits for too long

    # -- makers ------------------------------------------------------------------------------------------

    def _hear_maker(self, maker: _TrackedWorker) -> None:
        if maker not in self._makers:
            return  # it was ended earlier in this round
        try:
            message, block = maker.line.receive()
        except EOFError:
            self._bury(maker)
            return
        now = time.monotonic()
        job, busy, maker.job, maker.since = maker.job, now - maker.since, None, now
        if "ready" in message:
            maker.pid, self._failed_starts = message["ready"], 0
            self._start_seconds = now - maker.begun
            self._waiting_since = None  # until now, nobody could have been served
        elif job is not None:
            self._take(job, message, block, busy)

    def _take(self, job: BlockJob, message: Message, block: SharedBlock | None, seconds: float) -> None:
        """What became of a job."""
        key, ledger = job.key, self._ledger
        if message.get("lost"):  # what it was to be made from
            ledger.lost(f"job {key}", key.base)
        if job.spill:
            if ledger.spilled(key, block is not None):
                self._keep(key, block, self._blocks[key][1])
            elif block is not None:
                block.close()
        elif block is not None:
            self._made = [*self._made[-7:], seconds]
            self._keep(key, block, message["layout"])
            for name in ledger.made(key, message["layout"]["bytes"], message["place"]):
                self._give(name, key)
        elif "size" in message:
            for name in ledger.crowded(key, message["size"]):
                self._tell(name, {"yourself": True})
        elif message.get("unsharable") and not self._worth.always:  # nobody has asked for it
            self._decided = False
            for name in ledger.failed(key):
                self._tell(name, {"yourself": True})
        else:
            self._fail(key, message)

    def _keep(self, key: BlockKey, block: SharedBlock | None, layout: Any) -> None:
        assert block is not None
        if key in self._blocks:
            self._blocks[key][0].close()
        self._blocks[key] = block, layout

    def _fail(self, key: BlockKey, message: Message) -> None:
        for name in self._ledger.failed(key):
            self._tell(name, {"error": message["error"], "traceback": message["traceback"]})

    def _bury(self, maker: _TrackedWorker) -> None:
        self._selector.unregister(maker.line)
        self._makers.remove(maker)
        maker.end()
        if not maker.ready:
            self._fail_to_start()
        if maker.job is not None and self._ledger.died(maker.job):
            text = f"Preparing {_told(maker.job.key)} took {DEATHS} processes with it."
            self._fail(maker.job.key, {"error": text, "traceback": text})

    def _fail_to_start(self) -> None:
        self._failed_starts += 1
        if self._failed_starts >= DEATHS and not self._makers:  # then workers do it themselves, and say what is wrong
            self._send_away()

    def _send_away(self) -> None:
        for name in list(self._readers):
            if self._ledger.waits(name):
                self._ledger.leave(name)
                self._tell(name, {"yourself": True})

    def _pays(self) -> bool:
        return self._worth.pays(self._measured) if self._decided is None else self._decided

    def _is_certain(self) -> bool:
        return self._worth.always if self._decided is None else self._decided

    # -- how many makers ---------------------------------------------------------------------------------

    def _staff(self) -> None:
        """Start a maker where readers wait for longer than that takes; end one that is not needed."""
        now, waiting = time.monotonic(), self._ledger.waiting()
        free = sum(maker.job is None for maker in self._makers)  # one that starts is as good as idle
        if self._is_certain() and not self._makers and self._failed_starts < DEATHS:
            self._hire(now)  # beside the workers; where the plan decides, after the pilots, which it would disturb
        elif waiting <= free:
            self._waited += 0.0 if self._waiting_since is None else now - self._waiting_since
            self._waiting_since = None
        else:
            self._waiting_since = self._waiting_since or now
            if self._is_slow(now) and len(self._makers) < self._most and self._failed_starts < DEATHS:
                self._hire(now)
                self._waiting_since, self._waited = None, 0.0
        idle = [maker for maker in self._makers if maker.idle and now - maker.since > IDLE_SECONDS]
        if idle and len(self._makers) > 1:
            self._dismiss(idle[-1])

    def _is_slow(self, now: float) -> bool:
        """Whether what waits would wait, or all has waited so far, for longer than a maker takes to start."""
        assert self._waiting_since is not None
        usual = sum(self._made) / len(self._made) if self._made else self._measured or 0.0
        return not self._makers or max(usual, self._waited + now - self._waiting_since) > self._start_seconds

    def _hire(self, now: float) -> None:
        try:
            maker = _TrackedWorker(self._start(), now, since=now)
        except Exception:  # noqa: BLE001 (no process, no memory, no file: whatever a start may lack)
            self._fail_to_start()
            return
        self._makers.append(maker)
        self._selector.register(maker.line, selectors.EVENT_READ, lambda: self._hear_maker(maker))

    def _dismiss(self, maker: _TrackedWorker) -> None:
        self._selector.unregister(maker.line)
        self._makers.remove(maker)
        maker.end()

    def _hand_out(self) -> None:
        idle = [maker for maker in self._makers if maker.idle]
        for maker, job in zip(idle, self._ledger.jobs(len(idle)), strict=False):
            maker.job, maker.since = job, time.monotonic()
            with contextlib.suppress(OSError):  # its death is heard of
                self._order(maker, job)

    def _order(self, maker: _TrackedWorker, job: BlockJob) -> None:
        if job.spill:
            block, layout = self._blocks[job.key]
            maker.line.send({"spill": layout["bytes"]}, block)
            return
        base = self._ledger.base_of(job.key)
        block_of_base, layout_of_base = self._blocks[base] if base is not None else (None, None)
        order = {"make": job.key, "memory": job.memory, "disk": job.disk, "layout": layout_of_base}
        maker.line.send(order, block_of_base)

    def _watchdog(self) -> float | None:
        """Until when nothing need happen for something to be done."""
        now, moments = time.monotonic(), list[float]()
        if self._waiting_since is not None and len(self._makers) < self._most:
            moments.append(self._waiting_since + self._start_seconds - self._waited)
        if not self._makers and 0 < self._failed_starts < DEATHS:
            moments.append(now + AGAIN)
        if len(self._makers) > 1:
            moments += [maker.since + IDLE_SECONDS for maker in self._makers if maker.idle]
        return max(0.0, min(moments) - now) + 0.01 if moments else None


def _told(key: BlockKey) -> str:
    read = f"the {key.kind} partition {key.partition}"
    return read if key.epoch is None else f"{read} for epoch {key.epoch}"
