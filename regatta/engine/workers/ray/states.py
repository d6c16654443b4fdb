"""The states of a run on Ray: where each one can be fetched, and whether it is durable.

If a worker dies before its state is durable, another worker that has the state, or can still fetch it, copies it. If
no worker can, the state is lost. The pool reports the loss once no task depends on the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regatta.engine.messages import Event, StateDurable, StateLost, Task, TaskReturned


@dataclass(eq=False)
class LiveActor:
    """One actor of a worker; a worker that dies gets another one."""

    name: str
    actor: Any
    life: Any  # a reference that is pending while the actor lives
    ready: bool = False
    process: int | None = None  # a file that can be read once its process has ended, if it is on this machine
    task: Task | None = None
    made: Any = None  # the reference of the state that the task will produce
    held: set[Path] = field(default_factory=set)  # states that are, or may be, on its node
    reason: str | None = None  # why it is being ended

    def begins_with(self, state: TrackedState) -> bool:
        """Whether its task begins with that state."""
        return self.task is not None and self.task.state_in == state.path


@dataclass(eq=False)
class TrackedState:
    path: Path
    worker: str
    reference: Any
    ends_epoch: bool
    before: Path | None
    persisting: LiveActor | None = None  # the actor that makes it durable
    bytes: int | None = None  # once it is durable
    gone: bool = False  # its reference is lost
    unwanted: bool = False  # no task will begin with it any more
    evaluations: int = 0
    followed: bool = False  # a later state of its configuration is durable
    returned: list[TaskReturned] = field(default_factory=list)  # tasks that wait until its fate is known


@dataclass(eq=False)
class StateTracker:
    """The states that can be fetched by reference; `persist` lets a worker make one durable."""

    members: Mapping[str, LiveActor]
    persist: Callable[[TrackedState, LiveActor], None]
    evaluations: int  # that need the state at the end of an epoch
    budget: float  # bytes
    _known: dict[Path, TrackedState] = field(default_factory=dict)

    def get(self, path: Path | None) -> TrackedState | None:
        return None if path is None else self._known.get(path)

    def add(self, state: TrackedState, member: LiveActor) -> None:
        """A worker has made a state, and begins to make it durable."""
        self._known[state.path] = state
        self._assign(state, member)

    def forget(self, path: Path) -> None:
        """No task will begin with this state any more."""
        if self.is_safe(path):
            self._known.pop(path, None)
        else:
            self._known[path].unwanted = True

    def is_safe(self, path: Path) -> bool:
        """Whether a state may be removed from a worker's node."""
        return path not in self._known or self._known[path].bytes is not None

    def is_assigned(self, member: LiveActor, state: TrackedState) -> bool:
        """Whether that worker still has to make the state durable."""
        return state.persisting is member and self._known.get(state.path) is state

    def used(self, state: TrackedState, task: Task) -> list[Event]:
        """A task that began with this state has ended: its worker has the state."""
        state.evaluations += task.kind == "eval" and (task.group_rank is None or task.group_rank.rank == 0)
        self._release(state)
        return self.rescue(state)

    def give_back(self, state: TrackedState, returned: TaskReturned) -> list[Event]:
        """A task could not fetch its state; the task is returned once the fate of the state is known."""
        state.returned.append(returned)
        return self.rescue(state)

    def on_persisted(self, state: TrackedState, member: LiveActor, durable: StateDurable | None) -> list[Event]:
        """An attempt to make a state durable has ended; None: it could not be fetched."""
        if not self.is_assigned(member, state):
            return []
        state.persisting = None
        if durable is None:
            member.held.discard(state.path)
            state.gone = True
            return self.rescue(state)
        state.bytes = durable.bytes
        if state.unwanted:
            del self._known[state.path]
        before = self.get(state.before)
        if before is not None:
            before.followed = True
            self._release(before)
        self._limit_bytes()
        returned, state.returned = state.returned, []
        return [durable, *returned]

    def on_death(self, member: LiveActor) -> list[Event]:
        """A worker has died: others make its states durable; the state that its task began with may be lost."""
        found: list[Event] = []
        for state in list(self._known.values()):
            if state.persisting is member:
                state.persisting = None
                found += self.rescue(state)
        began = self.get(member.task.state_in if member.task is not None else None)
        return found if began is None else [*found, *self.rescue(began)]

    def rescue_all(self) -> list[Event]:
        """Try again to make states durable, because a new worker is ready."""
        return [event for state in list(self._known.values()) for event in self.rescue(state)]

    def rescue(self, state: TrackedState) -> list[Event]:
        """Assign a state to another worker if the one that should make it durable is gone; or report it as lost."""
        if state.bytes is not None or state.persisting is not None or self._known.get(state.path) is not state:
            return []
        ready = [member for member in self.members.values() if member.ready]
        holders = [member for member in ready if state.path in member.held and not member.begins_with(state)]
        if holders or (ready and not state.gone):
            self._assign(state, (holders or ready)[0])
            return []
        if not state.gone or any(member.begins_with(state) for member in self.members.values()):
            return []  # a later worker may fetch it, or a worker whose task begins with it may have it
        del self._known[state.path]
        return [*state.returned, StateLost(state.worker, state.path)]

    def _assign(self, state: TrackedState, member: LiveActor) -> None:
        state.persisting = member
        member.held.add(state.path)
        self.persist(state, member)

    def _release(self, state: TrackedState) -> None:
        """Release a state if a later one is durable and its evaluations are done."""
        evaluated = not state.ends_epoch or state.evaluations >= self.evaluations
        if state.bytes is not None and state.followed and evaluated:
            self._known.pop(state.path, None)

    def _limit_bytes(self) -> None:
        """Release the oldest durable states if all of them take too much of the object store."""
        durable = [state for state in self._known.values() if state.bytes is not None]
        total = sum(state.bytes or 0 for state in durable)
        for state in durable:
            if total <= self.budget:
                return
            total -= state.bytes or 0
            del self._known[state.path]
