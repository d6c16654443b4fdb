"""Groups of workers, each of which is one worker to the controller: its members do every task together.

The members are workers of another pool, and the controller does not see them. A group is lost when one of its members
is: the others, who would wait for it in an exchange, are ended at once, and the group forms anew when all are back.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeAlias

from regatta.engine.events import (
    Crew,
    Event,
    StateDurable,
    Task,
    TaskDone,
    TaskFailed,
    TaskReturned,
    WorkerLost,
    WorkerReady,
)
from regatta.engine.workers.base import WorkerPool, refuse
from regatta.errors import RegattaError

Widths: TypeAlias = Callable[[Task], int]  # how many members of its group do a task
Answer: TypeAlias = TaskDone | TaskFailed | TaskReturned
GRACE = 30.0  # seconds that the others of a group may be silent when one has failed


@dataclass
class _Group:
    name: str
    members: tuple[str, ...]
    ready: dict[str, WorkerReady] = field(default_factory=dict)
    ending: set[str] = field(default_factory=set)  # members that were told to end, and have not yet
    up: bool = False
    over: bool = False  # it will not come back
    meeting: Path | None = None
    crew: tuple[str, ...] = ()  # who does its task
    task: Task | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    durable: list[StateDurable] = field(default_factory=list)  # that came before the answer was whole
    patience: float | None = None  # until when those that have not answered are waited for

    def silent(self) -> list[str]:
        return [member for member in self.crew if member not in self.answers]

    def backend(self) -> Literal["gloo", "nccl"]:
        """NCCL takes each GPU once; members that share one, or have none, exchange through memory."""
        devices = [ready.info["device"] for ready in self.ready.values()]
        apart = len(set(devices)) == len(devices)
        return "nccl" if apart and all(device.startswith("cuda") for device in devices) else "gloo"

    def info(self) -> dict[str, Any]:
        infos = [self.ready[member].info for member in self.members]
        devices = ", ".join(dict.fromkeys(info["device"] for info in infos))
        pids = {member: self.ready[member].info["pid"] for member in self.members}
        return {**infos[0], "device": devices, "width": len(self.members), "members": pids}

    def verdict(self) -> list[Event]:
        """The answer of the group, made from those of its members: the first that failed by itself, or the first."""
        assert self.task is not None
        answers = [self.answers[member] for member in self.crew if member in self.answers]
        failed = [answer for answer in answers if isinstance(answer, TaskFailed)]
        failed.sort(key=lambda answer: answer.echo)
        returned = [answer for answer in answers if isinstance(answer, TaskReturned)]
        answer = replace([*failed, *returned, *answers][0], worker=self.name, task=self.task)
        if isinstance(answer, TaskDone):
            answer = replace(answer, width=len(self.crew))
        held = [] if failed or returned else self.durable
        self._clear()
        return [answer, *held]

    def disperse(self) -> None:
        self.up = False
        self._clear()
        self.forget_meeting()

    def forget_meeting(self) -> None:
        if self.meeting is not None:
            self.meeting.unlink(missing_ok=True)
            self.meeting = None

    def _clear(self) -> None:
        self.task, self.patience, self.answers, self.durable = None, None, {}, []


class GroupPool:
    """Groups of `width` workers of a pool; `widths` says of a task how many of them do it, if not all."""

    packs = False

    def __init__(self, members: WorkerPool, width: int, meetings: Path, widths: Widths | None = None) -> None:
        names = members.workers
        groups = [names[start : start + width] for start in range(0, len(names), width)]
        self._groups = {f"g{number}": _Group(f"g{number}", group) for number, group in enumerate(groups)}
        self._of = {member: group for group in self._groups.values() for member in group.members}
        self.workers = tuple(self._groups)
        self._pool = members
        self._meetings = meetings
        self._widths = widths or (lambda task: width)
        self._formed = 0
        self._woken = False
        self._alarms: list[threading.Timer] = []

    def start(self) -> None:
        shutil.rmtree(self._meetings, ignore_errors=True)  # of a controller that was killed
        self._meetings.mkdir(parents=True)
        self._pool.start()

    def submit(self, worker: str, task: Task) -> None:
        group = self._groups[worker]
        width = min(self._widths(task), len(group.members))
        crew = group.members[:width]
        if crew != group.crew:
            group.forget_meeting()
        group.task, group.crew = task, crew
        for rank, member in enumerate(crew):
            place = Crew(self._meeting(group), rank, width, group.backend()) if width > 1 else None
            state_out = task.state_out if rank == 0 else None
            self._pool.submit(member, replace(task, crew=place, state_out=state_out))

    def prefetch(self, worker: str, state: Path) -> None:
        for member in self._groups[worker].crew:
            self._pool.prefetch(member, state)

    def forget(self, state: Path) -> None:
        self._pool.forget(state)

    def end(self, worker: str, reason: str) -> None:
        self._pool.end(self._groups[worker].members[0], reason)  # the others follow

    def admit(self, connection: Connection[Any, Any], wishes: dict[str, Any]) -> None:
        refuse(connection, "Its workers train in groups: nobody can join by himself.")

    def events(self) -> list[Event]:
        while True:
            heard = self._pool.events()
            gone = {event.worker for event in heard if isinstance(event, WorkerLost)}
            found = [made for event in heard for made in self._hear(event, gone)]
            self._end_silent()
            if found or self._woken:
                self._woken = False
                return found

    def wake(self) -> None:
        self._woken = True
        self._pool.wake()

    def close(self) -> None:
        for alarm in self._alarms:
            alarm.cancel()
            alarm.join()
        self._pool.close()
        shutil.rmtree(self._meetings, ignore_errors=True)

    def _meeting(self, group: _Group) -> Path:
        if group.meeting is None:
            self._formed += 1
            group.meeting = self._meetings / f"{group.name}-{self._formed}"
        return group.meeting

    def _hear(self, event: Event, gone: set[str]) -> Sequence[Event]:
        group = self._of[event.worker]
        if isinstance(event, WorkerReady):
            return self._seat(group, event)
        if isinstance(event, WorkerLost):
            return self._lose(group, event, gone)
        if not group.up:
            return []  # said by one that has ended since
        if isinstance(event, TaskDone | TaskFailed | TaskReturned):
            return self._answer(group, event)
        if isinstance(event, StateDurable) and group.task is not None and event.path == group.task.state_out:
            group.durable.append(replace(event, worker=group.name))
            return []
        return [replace(event, worker=group.name)]

    def _seat(self, group: _Group, event: WorkerReady) -> Sequence[Event]:
        group.ready[event.worker] = event
        if len(group.ready) < len(group.members):
            return []
        group.up = True
        return [WorkerReady(group.name, group.info())]

    def _answer(self, group: _Group, event: Answer) -> Sequence[Event]:
        group.answers[event.worker] = event
        if not group.silent():
            return group.verdict()
        if not isinstance(event, TaskDone) and group.patience is None:
            group.patience = time.monotonic() + GRACE
            alarm = threading.Timer(GRACE, self._pool.wake)
            alarm.daemon = True
            alarm.start()
            self._alarms = [*(alarm for alarm in self._alarms if alarm.is_alive()), alarm]
        return []

    def _end_silent(self) -> None:
        """When one member has failed by itself, the others may wait for it for ever."""
        for group in self._groups.values():
            if group.patience is not None and time.monotonic() >= group.patience:
                group.patience = None
                self._pool.end(group.silent()[0], f"was ended: another of {group.name} failed, and it said nothing")

    def _lose(self, group: _Group, event: WorkerLost, gone: set[str]) -> Sequence[Event]:
        group.ready.pop(event.worker, None)
        if event.worker in group.ending and not event.for_good:
            group.ending.discard(event.worker)
            return []
        failed = any(not isinstance(answer, TaskDone) for answer in group.answers.values())
        told = group.verdict() if failed else []  # that is why it was ended
        if group.up:
            group.ending |= group.ready.keys()
            for other in group.ready.keys() - gone:
                self._pool.end(other, f"was ended: {group.name} lost {event.worker}")
            group.ready.clear()
        group.disperse()
        group.over = group.over or event.for_good
        reason = f"lost {event.worker}, which {event.reason}"
        if all(other.over for other in self._groups.values()):
            raise RegattaError(f"No group of workers is left: {group.name} {reason}.")
        return [*told, WorkerLost(group.name, reason, for_good=event.for_good)]
