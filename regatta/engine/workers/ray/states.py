"""What a pool of Ray workers knows of states: where each can be had, and what became of it.

A state that was not durable when its worker died is copied by another worker that has it, or that can still fetch it;
only when nobody can is it lost, and the controller is told that once no task depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regatta.engine.messages import (
    Event,
    StateDurable,
    StateLost,
    Task,
    TaskReturned,
)


@dataclass(eq=False)
class LiveActor:
    """One life of a worker."""

    name: str
    actor: Any
    life: Any  # a reference that is pending while the actor lives
    ready: bool = False
    process: int | None = None  # a file that can be read once its process is dead, if that is of this machine
    task: Task | None = None
    made: Any = None  # the reference of the state that the task will leave
    held: set[Path] = field(default_factory=set)  # states that are, or may be, on its shelf
    reason: str | None = None  # why it is being ended

    def begins_with(self, state: TrackedState) -> bool:
        """Whether it does a task that starts from that state."""
        return self.task is not None and self.task.state_in == state.path


@dataclass(eq=False)
class TrackedState:
    """A state that some worker has made in this run."""

    path: Path
    worker: str
    reference: Any
    ends_epoch: bool
    before: Path | None
    keeper: LiveActor | None = None  # who makes it durable
    bytes: int | None = None  # once it is durable
    gone: bool = False  # its reference leads nowhere
    unwanted: bool = False  # somebody else has made it durable, and nobody will ask for it again
    judged: int = 0
    followed: bool = False  # a later state of its configuration is durable
    returned: list[TaskReturned] = field(default_factory=list)  # tasks that wait to hear what became of it


class StateTracker:
    """The states that can be had by reference; `keep` lets a worker make one durable."""

    def __init__(
        self,
        members: Mapping[str, LiveActor],
        keep: Callable[[TrackedState, LiveActor], None],
        judges: int,
        budget: float,
    ) -> None:
        self._members = members
        self._keep = keep
        self._judges = judges  # evaluations that a state at the end of an epoch is needed for
        self._budget = budget  # bytes
        self._known: dict[Path, TrackedState] = {}

    def get(self, path: Path | None) -> TrackedState | None:
        return None if path is None else self._known.get(path)

    def add(self, state: TrackedState, member: LiveActor) -> None:
        """A worker has made a state, and begins to make it durable."""
        self._known[state.path] = state
        self._entrust(state, member)

    def forget(self, path: Path) -> None:
        """Nobody will ask for this state again."""
        if self.is_safe(path):
            self._known.pop(path, None)
        else:
            self._known[path].unwanted = True

    def is_safe(self, path: Path) -> bool:
        """Whether a state may go from a worker's shelf."""
        return path not in self._known or self._known[path].bytes is not None

    def keeps(self, member: LiveActor, state: TrackedState) -> bool:
        """Whether it still is for that worker to make the state durable."""
        return state.keeper is member and self._known.get(state.path) is state

    def used(self, state: TrackedState, task: Task) -> list[Event]:
        """A task that began with this state is through: who did it has the state."""
        state.judged += task.kind == "eval" and (task.group_rank is None or task.group_rank.rank == 0)
        self._release(state)
        return self.rescue(state)

    def give_back(self, state: TrackedState, returned: TaskReturned) -> list[Event]:
        """A task could not get hold of its state; it goes back when it is known what became of that."""
        state.returned.append(returned)
        return self.rescue(state)

    def settle(self, state: TrackedState, member: LiveActor, kept: StateDurable | None) -> list[Event]:
        """What became of an attempt to make a state durable."""
        if not self.keeps(member, state):
            return []
        state.keeper = None
        if kept is None:
            member.held.discard(state.path)
            state.gone = True
            return self.rescue(state)
        state.bytes = kept.bytes
        if state.unwanted:
            del self._known[state.path]
        before = self.get(state.before)
        if before is not None:
            before.followed = True
            self._release(before)
        self._shed()
        returned, state.returned = state.returned, []
        return [kept, *returned]

    def desert(self, member: LiveActor) -> list[Event]:
        """A worker has died: what it was to make durable, others must; what it had begun with may be lost."""
        found: list[Event] = []
        for state in list(self._known.values()):
            if state.keeper is member:
                state.keeper = None
                found += self.rescue(state)
        began = self.get(member.task.state_in if member.task is not None else None)
        return found if began is None else [*found, *self.rescue(began)]

    def rescue_all(self) -> list[Event]:
        """Somebody new is there to be asked."""
        return [event for state in list(self._known.values()) for event in self.rescue(state)]

    def rescue(self, state: TrackedState) -> list[Event]:
        """See that a state becomes durable though who should have done it has died; or say that it is lost."""
        if state.bytes is not None or state.keeper is not None or self._known.get(state.path) is not state:
            return []
        ready = [member for member in self._members.values() if member.ready]
        holders = [member for member in ready if state.path in member.held and not member.begins_with(state)]
        if holders or (ready and not state.gone):
            self._entrust(state, (holders or ready)[0])
            return []
        if not state.gone or any(member.begins_with(state) for member in self._members.values()):
            return []  # whoever comes next is asked; or whoever has begun with it may have got hold of it
        del self._known[state.path]
        return [*state.returned, StateLost(state.worker, state.path)]

    def _entrust(self, state: TrackedState, member: LiveActor) -> None:
        state.keeper = member
        member.held.add(state.path)
        self._keep(state, member)

    def _release(self, state: TrackedState) -> None:
        """Let go of a state that has been followed, and judged where that is due."""
        judged = not state.ends_epoch or state.judged >= self._judges
        if state.bytes is not None and state.followed and judged:
            self._known.pop(state.path, None)

    def _shed(self) -> None:
        """Let go of the oldest durable states when all that are held take too much of the object store."""
        durable = [state for state in self._known.values() if state.bytes is not None]
        total = sum(state.bytes or 0 for state in durable)
        for state in durable:
            if total <= self._budget:
                return
            total -= state.bytes or 0
            del self._known[state.path]
