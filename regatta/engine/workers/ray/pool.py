"""Workers on Ray: an actor each, on whatever nodes have room for them.

A state hops as an object reference: the actor that trained hands Ray the bytes, the next one is given the reference
and fetches them from node to node; the controller holds references, never bytes. Beside its next unit the actor that
made a state copies it to the storage. Everything that happens, the death of an actor too, is the completion of a
reference that the pool waits for.
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

import cloudpickle

from regatta.cluster import Cluster
from regatta.engine.messages import (
    DiskFull,
    Event,
    Task,
    TaskDone,
    TaskFailed,
    TaskReturned,
    WorkerLost,
    WorkerReady,
    WorkerSetup,
)
from regatta.engine.workers.base import refuse
from regatta.engine.workers.ray.actor import GROUPS, ActorSetup, RayWorker
from regatta.engine.workers.ray.preprocess_worker import RaySharing, open_ray_sharing
from regatta.engine.workers.ray.session import (
    RaySession,
    await_end,
    how_it_ended,
    watched,
)
from regatta.engine.workers.ray.states import LiveActor, StateTracker, TrackedState
from regatta.engine.workers.ray.storage import StateStorage, name_of
from regatta.errors import DiskError, RegattaError

STARTS = 3  # how often a worker that dies before it is ready is started again
LOOK = 2.0  # seconds between two looks for new nodes, of which Ray tells nobody
SHARE = 0.3  # of the cluster's object store, for states that are durable and that nobody has asked to forget
RETRY = 1.0  # seconds until a state is copied again to a storage that did not take it, which tells nobody when it does
PARTING = 3.0  # seconds in which workers tidy up, and in which they end


@dataclass(frozen=True)
class _CallResult:
    """A reference that the pool waited for has a value, or an error."""

    member: LiveActor
    call: str
    subject: TrackedState | None
    value: Any
    error: BaseException | None


@dataclass(frozen=True)
class _PersistAgain:
    """It is time to try again to make a state durable."""

    state: TrackedState
    member: LiveActor


_Notice: TypeAlias = _CallResult | _PersistAgain | Path


class RayPool:
    """Starts actors, starts one again when it dies, and adds some when the cluster grows."""

    packs = False  # a task has one state to begin with, and leaves one
    groupable = True

    def __init__(self, cluster: Cluster, setup: WorkerSetup) -> None:
        self._session = RaySession(cluster)
        self._cluster = cluster
        self._run = setup.logs.parent
        self._storage = StateStorage(self._run, cluster.storage)
        self._given, self._setup = setup, cloudpickle.dumps(setup)
        self._blocks: RaySharing | None = None
        self._numbers = count()
        self._elastic = cluster.workers is None
        self._width = cluster.group or 1  # so many workers with names in a row are to be near each other
        self._places: dict[int, Any] = {}
        self._room = self._whole(self._session.room())
        groups = max(1, min(self._session.free() // self._width, len(setup.train)))
        self.workers = tuple(self._name() for _ in range(cluster.workers or groups * self._width))
        self._members: dict[str, LiveActor] = {}
        self._failed_starts: dict[str, int] = {}
        self._proven = False  # some worker has been ready: functions and paths are right
        budget = SHARE * self._session.store_bytes()
        self._states = StateTracker(self._members, self._keep, len(setup.eval), budget)
        self._heard: queue.SimpleQueue[_Notice | None] = queue.SimpleQueue()  # None: wake up; a path: forget it
        self._clocks: set[threading.Timer] = set()
        self._looked = time.monotonic()
        self._actors = self._session.actors(RayWorker, GROUPS, cluster)

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
        if member is None:  # its death is heard of as an event
            return
        state = self._states.get(task.state_in)
        spent = [path for path in member.held if path != task.state_in and self._states.is_safe(path)]
        member.held.difference_update(spent)
        member.held.update(path for path in (task.state_in, task.state_out) if path is not None)
        member.task = task
        unsure = state is not None and state.bytes is None
        call = member.actor.run.options(num_returns=2, concurrency_group="unit")
        event, member.made = call.remote(task, _boxed(state), unsure, spent)
        self._await(event, member, "run")

    def prefetch(self, worker: str, state: Path) -> None:
        member = self._members.get(worker)
        if member is not None:
            member.held.add(state)
            member.actor.hint.options(concurrency_group="hint").remote(state, _boxed(self._states.get(state)))

    def events(self) -> list[Event]:
        found: list[Event] = []
        while not found:
            heard = self._next()
            if heard is None:
                return []
            found += self._take(heard)
            while not self._heard.empty() and found:
                heard = self._heard.get()
                if heard is None:  # to be heard after these
                    self._heard.put(None)
                    break
                found += self._take(heard)
        return found

    def wake(self) -> None:
        self._heard.put(None)

    def forget(self, state: Path) -> None:
        """Nobody will ask for this state again; may be called from another thread."""
        self._storage.drop(name_of(state, self._run))
        self._heard.put(state)

    def end(self, worker: str, reason: str) -> None:
        """End a worker that hangs; it is lost for that reason, and another takes its name."""
        member = self._members.get(worker)
        if member is not None:
            member.reason = reason
            self._session.kill(member.actor)

    def admit(self, connection: Connection[Any, Any], wishes: dict[str, Any]) -> None:
        refuse(connection, "Its workers are actors of a Ray cluster: add a node to that, and it gets a worker.")

    def close(self) -> None:
        for clock in self._clocks:
            clock.cancel()
        if self._blocks is not None:
            self._blocks.close()
        members = list(self._members.values())
        self._members.clear()
        ready = [member for member in members if member.ready]
        self._session.wait([m.actor.leave.options(concurrency_group="leave").remote() for m in ready], PARTING)
        for member in members:
            self._session.kill(member.actor)
        for member in ready:
            await_end(member.process, PARTING)
        self._session.close()

    # -- workers ---------------------------------------------------------------------------------------

    def _name(self) -> str:
        return f"w{next(self._numbers)}"

    def _spawn(self, name: str) -> None:
        """A new actor; where there is no room for it, it comes to life when there is."""
        hello = ActorSetup(
            name, _device(self._cluster), self._cluster.threads or 1, self._setup, tuple(sys.path), self._run,
            self._cluster.storage, self._blocks is not None,
        )  # fmt: skip
        actor = self._actors(scheduling_strategy=self._place(name)).remote(hello)
        member = LiveActor(name, actor, actor.life.options(concurrency_group="life").remote())
        self._members[name] = member
        if self._blocks is not None:
            self._blocks.seat(name, actor)
        self._await(member.life, member, "life")
        self._await(actor.hello.options(concurrency_group="unit").remote(), member, "hello")

    def _place(self, name: str) -> Any:
        """Near those that will be in a group with it; otherwise wherever there are fewest."""
        if self._width == 1:
            return "SPREAD"
        number = int(name[1:]) // self._width
        if number not in self._places:
            self._places[number] = self._session.reserve(self._width)
        return self._places[number]

    def _whole(self, workers: int) -> int:
        """So many workers without those who would make no full group."""
        return workers - workers % self._width

    def _await(self, reference: Any, member: LiveActor, call: str, subject: TrackedState | None = None) -> None:
        """Hear of a reference when it is complete; Ray calls back, so nobody has to ask."""

        def heard(future: Any) -> None:
            error = future.exception()
            self._heard.put(_CallResult(member, call, subject, None if error else future.result(), error))

        reference.future().add_done_callback(heard)

    def _next(self) -> _Notice | None:
        """What comes next; on the way, an elastic pool looks for new nodes every now and then."""
        while self._elastic:
            left = self._looked + LOOK - time.monotonic()
            if left > 0:
                with contextlib.suppress(queue.Empty):
                    return self._heard.get(timeout=left)
            self._looked = time.monotonic()
            self._grow()
        return self._heard.get()

    def _grow(self) -> None:
        """Workers for nodes that have come, beyond those that would take up what left."""
        room = self._whole(self._session.room())
        for _ in range(room - self._room):
            self._spawn(self._name())
        self._room = max(self._room, room)

    def _bury(self, member: LiveActor, error: BaseException) -> list[Event]:
        reason = member.reason or how_it_ended(error)
        del self._members[member.name]
        self._session.kill(member.actor)  # if only its connection ended, it is of no more use
        await_end(member.process, 0.0)
        again = member.ready or self._may_start_again(member.name, reason)
        if again:
            self._spawn(member.name)
        waits = self._session.room() < len(self._members)  # its partitions must not wait for room as well
        found: list[Event] = [WorkerLost(member.name, reason, for_good=waits or not again)]
        return [*found, *self._states.desert(member)]

    def _may_start_again(self, name: str, reason: str) -> bool:
        failures = self._failed_starts[name] = self._failed_starts.get(name, 0) + 1
        if failures < STARTS:
            return True
        if self._proven:  # this node is not like the others, which go on
            return False
        raise RegattaError(
            f"Worker {name} {reason} before it could take work, again and again.",
            hint="Its node needs the same packages, the modules of the sweep's functions and the same paths.",
        )

    # -- what is heard ---------------------------------------------------------------------------------

    def _take(self, heard: _Notice) -> list[Event]:
        if isinstance(heard, Path):
            self._states.forget(heard)
            return []
        if isinstance(heard, _PersistAgain):
            if self._states.keeps(heard.member, heard.state):
                self._keep(heard.state, heard.member)
            return []
        member = heard.member
        if self._members.get(member.name) is not member:  # the last words of one that was buried
            return []
        if heard.error is not None:
            return self._bury(member, heard.error)
        if heard.call == "hello":
            return self._welcome(member, heard.value)
        if heard.call == "run":
            return self._finish(member, heard.value)
        assert heard.subject is not None
        if isinstance(heard.value, DiskError):
            return self._postpone(heard.subject, member, heard.value)
        if heard.subject.unwanted:
            self._storage.drop(name_of(heard.subject.path, self._run))
        return self._states.settle(heard.subject, member, heard.value)

    def _postpone(self, state: TrackedState, member: LiveActor, error: DiskError) -> list[Event]:
        """The storage does not take a state now: say so, and try again by and by."""
        if not self._states.keeps(member, state):
            return []
        clock = threading.Timer(RETRY, self._heard.put, [_PersistAgain(state, member)])
        clock.daemon = True
        self._clocks = {clock, *(other for other in self._clocks if other.is_alive())}
        clock.start()
        return [DiskFull(member.name, str(error))]

    def _welcome(self, member: LiveActor, ready: WorkerReady) -> list[Event]:
        member.ready = self._proven = True
        member.process = watched(ready.info)
        if self._blocks is not None:
            self._blocks.settle(member.name, ready.info["node"])
        self._failed_starts.pop(member.name, None)
        return [ready, *self._states.rescue_all()]

    def _finish(self, member: LiveActor, event: TaskDone | TaskFailed | TaskReturned) -> list[Event]:
        """A worker is through with its task, in one way or another."""
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

    def _keep(self, state: TrackedState, member: LiveActor) -> None:
        """Let a worker make a state durable, beside what else it does."""
        kept = member.actor.keep.options(concurrency_group="keep").remote(state.path, _boxed(state))
        self._await(kept, member, "keep", state)


def _device(cluster: Cluster) -> str:
    """Ray shows an actor the GPUs that it was given, and none may be used without."""
    return "cpu" if cluster.device == "auto" and not cluster.gpus else cluster.device


def _boxed(state: TrackedState | None) -> list[Any]:
    """A reference inside a list is handed over as it is: who gets it fetches the value, and hears if it is lost."""
    return [] if state is None else [state.reference]
