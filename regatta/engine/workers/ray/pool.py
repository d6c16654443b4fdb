"""A pool of workers on Ray: an actor for each worker, on any node with room for it.

A state hops as an object reference. The actor that trained gives the bytes to Ray; the next actor gets the reference
and fetches the bytes from node to node. The controller holds references, never bytes. While it trains its next unit,
an actor copies the state that it made to the storage. Every event, including the death of an actor, is the completion
of a reference that the pool waits for.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from regatta.cluster import Cluster
from regatta.engine.messages import (
    DiskFull,
    Event,
    Task,
    TaskBegun,
    TaskDone,
    TaskFailed,
    TaskReturned,
    WorkerLost,
    WorkerSetup,
)
from regatta.engine.workers.base import refuse
from regatta.engine.workers.ray.actor import CONCURRENCY_GROUPS, ActorSetup, RayWorker
from regatta.engine.workers.ray.preprocess_worker import RaySharing, open_ray_sharing
from regatta.engine.workers.ray.session import RaySession, await_end, how_it_ended, watch_process
from regatta.engine.workers.ray.shared_blocks import boxed
from regatta.engine.workers.ray.states import LiveActor, StateTracker, TrackedState
from regatta.engine.workers.ray.storage import StateStorage, name_of
from regatta.errors import DiskError, RegattaError
from regatta.journal.unpickle import to_pickle

MAX_START_ATTEMPTS = 3  # for a worker that dies before it is ready
NEW_NODES_INTERVAL_S = 2.0  # Ray does not report new nodes by itself
STATES_FRACTION = 0.3  # of the cluster's object store, for durable states that may still be needed
PERSIST_RETRY_S = 1.0  # after the storage refused a state
CLOSE_TIMEOUT_S = 3.0  # for workers to clean up, and again for them to end


@dataclass(frozen=True)
class _CallResult:
    """The value or the error of a call to an actor; "retry" if it is time to try again to make a state durable."""

    member: LiveActor
    call: str
    state: TrackedState | None = None
    value: Any = None
    error: BaseException | None = None


_Notice: TypeAlias = _CallResult | Path  # a path: forget that state


class RayPool:
    """Starts actors, restarts those that die, and adds actors when the cluster grows."""

    packs = False  # a task begins with one state, and produces one
    groupable = True

    def __init__(self, cluster: Cluster, setup: WorkerSetup) -> None:
        self._session = RaySession(cluster)
        self._cluster = cluster
        self._run = setup.logs.parent
        self._storage = StateStorage(self._run, cluster.storage)
        self._given, self._setup = setup, to_pickle(setup)
        self._blocks: RaySharing | None = None
        self._numbers = count()
        self._elastic = cluster.workers is None
        self._width = cluster.group or 1  # workers with consecutive names that should be near each other
        self._reservations: dict[int, Any] = {}
        self._room = self._session_room()
        groups = max(1, min(self._session.free() // self._width, len(setup.train)))
        self.workers = tuple(self._name() for _ in range(cluster.workers or groups * self._width))
        self._members: dict[str, LiveActor] = {}
        self._failed_starts: dict[str, int] = {}
        self._proven = False  # a worker has been ready, so functions and paths are right
        budget = STATES_FRACTION * self._session.store_bytes()
        self._states = StateTracker(self._members, self._persist, len(setup.eval), budget)
        self._notices: queue.SimpleQueue[_Notice | None] = queue.SimpleQueue()  # None: wake up
        self._timers: set[threading.Timer] = set()
        self._last_look = time.monotonic()  # for new nodes
        self._actors = self._session.actors(RayWorker, CONCURRENCY_GROUPS, cluster)

    # -- the protocol ----------------------------------------------------------------------------------

    def start(self) -> None:
        self._blocks = open_ray_sharing(self._session, self._cluster, self._given)
        for name in self.workers:
            self._spawn(name)

    def share(self, yes: bool) -> None:
        if self._blocks is not None:
            self._blocks.broker.decide(yes)

    def submit(self, worker: str, task: Task) -> None:
        member = self._members.get(worker)
        if member is None:  # its death is an event of its own
            return
        state = self._states.get(task.state_in)
        spent = [path for path in member.held if path != task.state_in and self._states.is_safe(path)]
        member.held.difference_update(spent)
        member.held.update(path for path in (task.state_in, task.state_out) if path is not None)
        member.task = task
        may_be_lost = state is not None and state.bytes is None
        run = member.actor.run.options(num_returns=2, concurrency_group="unit")
        event, member.made = run.remote(task, boxed(state), may_be_lost, spent)
        self._await(event, member, "run")
        if task.kind != "pilot":
            self._await(member.actor.begin.options(concurrency_group="begin").remote(), member, "begin")

    def prefetch(self, worker: str, state: Path) -> None:
        member = self._members.get(worker)
        if member is not None:
            member.held.add(state)
            member.actor.hint.options(concurrency_group="hint").remote(state, boxed(self._states.get(state)))

    def events(self) -> list[Event]:
        found: list[Event] = []
        while not found:
            notice = self._next_notice()
            if notice is None:
                return []
            found += self._handle(notice)
            while not self._notices.empty() and found:
                notice = self._notices.get()
                if notice is None:  # wake up after these events
                    self._notices.put(None)
                    break
                found += self._handle(notice)
        return found

    def wake(self) -> None:
        self._notices.put(None)

    def forget(self, state: Path) -> None:
        self._storage.drop(name_of(state, self._run))
        self._notices.put(state)

    def end(self, worker: str, reason: str) -> bool:
        member = self._members.get(worker)
        if member is not None:
            member.reason = reason
            self._session.kill(member.actor)
        return member is not None

    def admit(self, connection: Connection[Any, Any], wishes: dict[str, Any]) -> None:
        refuse(connection, "Its workers are actors of a Ray cluster: add a node to that, and it gets a worker.")

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._blocks is not None:
            self._blocks.broker.close()
        members = list(self._members.values())
        self._members.clear()
        ready = [member for member in members if member.ready]
        self._session.wait([m.actor.leave.options(concurrency_group="leave").remote() for m in ready], CLOSE_TIMEOUT_S)
        for member in members:
            self._session.kill(member.actor)
        for member in ready:
            await_end(member.process, CLOSE_TIMEOUT_S)
        self._session.close()

    # -- workers ---------------------------------------------------------------------------------------

    def _name(self) -> str:
        return f"w{next(self._numbers)}"

    def _spawn(self, name: str) -> None:
        """Start an actor; if there is no room for it, it starts when there is."""
        cluster = self._cluster
        # Ray shows an actor only the GPUs assigned to it; without GPUs, the device is the CPU.
        device = "cpu" if cluster.device == "auto" and not cluster.gpus else cluster.device
        setup = ActorSetup(
            name, device, cluster.threads or 1, self._setup, tuple(sys.path), self._run, cluster.storage,
            self._blocks is not None,
        )  # fmt: skip
        actor = self._actors(scheduling_strategy=self._placement(name)).remote(setup)
        member = LiveActor(name, actor, actor.life.options(concurrency_group="life").remote())
        self._members[name] = member
        if self._blocks is not None:
            self._blocks.add_reader(name, actor)
        self._await(member.life, member, "life")
        self._await(actor.hello.options(concurrency_group="unit").remote(), member, "hello")

    def _placement(self, name: str) -> Any:
        """Near the other workers of its group; without groups, where there are fewest workers."""
        if self._width == 1:
            return "SPREAD"
        number = int(name[1:]) // self._width
        if number not in self._reservations:
            self._reservations[number] = self._session.reserve(self._width)
        return self._reservations[number]

    def _session_room(self) -> int:
        """The number of workers that the cluster has room for, in full groups."""
        workers = self._session.room()
        return workers - workers % self._width

    def _await(self, reference: Any, member: LiveActor, call: str, state: TrackedState | None = None) -> None:
        """Put a notice into the queue when a reference is complete; Ray calls back."""

        def on_done(future: Any) -> None:
            error = future.exception()
            self._notices.put(_CallResult(member, call, state, None if error else future.result(), error))

        reference.future().add_done_callback(on_done)

    def _next_notice(self) -> _Notice | None:
        """Wait for the next notice; meanwhile, an elastic pool looks for new nodes at intervals."""
        while self._elastic:
            left = self._last_look + NEW_NODES_INTERVAL_S - time.monotonic()
            if left > 0:
                with contextlib.suppress(queue.Empty):
                    return self._notices.get(timeout=left)
            self._last_look = time.monotonic()
            self._grow()
        return self._notices.get()

    def _grow(self) -> None:
        """Start workers for new nodes, beyond those that replace lost ones."""
        room = self._session_room()
        for _ in range(room - self._room):
            self._spawn(self._name())
        self._room = max(self._room, room)

    def _on_death(self, member: LiveActor, error: BaseException) -> list[Event]:
        reason = member.reason or how_it_ended(error)
        del self._members[member.name]
        self._session.kill(member.actor)  # if only its connection ended, it cannot be used any more
        await_end(member.process, 0.0)
        restart = member.ready or self._may_restart(member.name, reason)
        if restart:
            self._spawn(member.name)
        no_room = self._session.room() < len(self._members)  # then its partitions must not wait for the new actor
        found: list[Event] = [WorkerLost(member.name, reason, for_good=no_room or not restart)]
        return [*found, *self._states.on_death(member)]

    def _may_restart(self, name: str, reason: str) -> bool:
        failures = self._failed_starts[name] = self._failed_starts.get(name, 0) + 1
        if failures < MAX_START_ATTEMPTS:
            return True
        if self._proven:  # only this node has a problem; the others go on
            return False
        raise RegattaError(
            f"Worker {name} {reason} before it could take work, again and again.",
            hint="Its node needs the same packages, the modules of the sweep's functions and the same paths.",
        )

    # -- notices ---------------------------------------------------------------------------------------

    def _handle(self, notice: _Notice) -> list[Event]:
        if isinstance(notice, Path):
            self._states.forget(notice)
            return []
        member = notice.member
        if self._members.get(member.name) is not member:  # it has died meanwhile
            return []
        if notice.error is not None:
            return self._on_death(member, notice.error)
        if notice.call == "hello":
            member.ready = self._proven = True
            member.process = watch_process(notice.value.info)
            if self._blocks is not None:
                self._blocks.on_worker_up(member.name, notice.value.info["node"])
            self._failed_starts.pop(member.name, None)
            return [notice.value, *self._states.rescue_all()]
        if notice.call == "begin":
            return [TaskBegun(member.name)] if member.task is not None else []
        if notice.call == "run":
            return self._on_task_end(member, notice.value)
        assert notice.state is not None
        if notice.call == "retry":
            if self._states.is_assigned(member, notice.state):
                self._persist(notice.state, member)
            return []
        if isinstance(notice.value, DiskError):
            return self._retry_later(notice.state, member, notice.value)
        if notice.state.unwanted:
            self._storage.drop(name_of(notice.state.path, self._run))
        return self._states.on_persisted(notice.state, member, notice.value)

    def _retry_later(self, state: TrackedState, member: LiveActor, error: DiskError) -> list[Event]:
        """The storage refused a state: report that, and try again after a while."""
        if not self._states.is_assigned(member, state):
            return []
        timer = threading.Timer(PERSIST_RETRY_S, self._notices.put, [_CallResult(member, "retry", state)])
        timer.daemon = True
        self._timers = {timer, *(other for other in self._timers if other.is_alive())}
        timer.start()
        return [DiskFull(member.name, str(error))]

    def _on_task_end(self, member: LiveActor, event: TaskDone | TaskFailed | TaskReturned) -> list[Event]:
        task, made = event.task, member.made
        member.task = member.made = None
        before = self._states.get(task.state_in)
        if isinstance(event, TaskReturned):
            if before is None or before.bytes is not None:
                return [event]
            member.held.discard(before.path)
            return self._states.give_back(before, event)
        if isinstance(event, TaskDone) and task.state_out is not None:
            state = TrackedState(task.state_out, member.name, made, task.ends_epoch, task.state_in)
            self._states.add(state, member)
        return [event] if before is None else [event, *self._states.used(before, task)]

    def _persist(self, state: TrackedState, member: LiveActor) -> None:
        """Let a worker make a state durable, beside its task."""
        durable = member.actor.keep.options(concurrency_group="keep").remote(state.path, boxed(state))
        self._await(durable, member, "keep", state)
