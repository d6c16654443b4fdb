"""Groups of workers, each of which is one worker to the controller: its members do every task together.

The members are workers of another pool, and the controller does not see them. Groups form when all workers are there,
for only then are their nodes known. A group is lost when one of its members is: the others, who would wait for it in an
exchange, are ended at once, and the group forms anew when all are back. If one will not come back, the others are free
to be in another group; those who make no full one stay idle.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeAlias

from regatta.engine.messages import (
    Address,
    DiskFull,
    Event,
    GroupRank,
    StateDurable,
    StateLost,
    Task,
    TaskDone,
    TaskFailed,
    TaskReturned,
    WorkerLost,
    WorkerReady,
)
from regatta.engine.workers.base import WorkerPool, refuse
from regatta.engine.workers.form_groups import form_groups
from regatta.errors import RegattaError

Widths: TypeAlias = Callable[[Task], int]  # how many members of its group do a task
Answer: TypeAlias = TaskDone | TaskFailed | TaskReturned
_MEETINGS = count()  # never the same one twice: workers may have been in groups of the same names before
GRACE = 30.0  # seconds that the others of a group may be silent when one has failed


@dataclass
class _WorkerGroup:
    name: str
    width: int  # members that it has when it is full
    members: tuple[str, ...] = ()  # none: nobody has been found for it yet
    ready: dict[str, WorkerReady] = field(default_factory=dict)
    ending: set[str] = field(default_factory=set)  # members that were told to end, and have not yet
    up: bool = False
    over: bool = False  # it was said that it will not come back
    meeting: Path | Address | None = None
    task_members: tuple[str, ...] = ()  # who does its task
    task: Task | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    durable: list[StateDurable] = field(default_factory=list)  # that came before the answer was whole
    watchdog: float | None = None  # until when those that have not answered are waited for

    def silent(self) -> list[str]:
        return [member for member in self.task_members if member not in self.answers]

    def backend(self) -> Literal["gloo", "nccl"]:
        """NCCL takes each GPU once; members that share one, or have none, exchange through memory."""
        infos = [ready.info for ready in self.ready.values()]
        cards = {(info.get("node"), info.get("gpu", info["device"])) for info in infos}
        apart = len(cards) == len(infos)
        return "nccl" if apart and all(info["device"].startswith("cuda") for info in infos) else "gloo"

    def nodes(self, members: Sequence[str]) -> int:
        return len({_node(self.ready[member]) for member in members})

    def info(self) -> dict[str, Any]:
        infos = [self.ready[member].info for member in self.members]
        devices = ", ".join(dict.fromkeys(info["device"] for info in infos))
        pids = {member: self.ready[member].info["pid"] for member in self.members}
        whole = {"device": devices, "width": len(infos), "members": pids, "nodes": self.nodes(self.members)}
        return {name: value for name, value in infos[0].items() if name != "address"} | whole

    def is_told(self) -> bool:
        """Whether some answer says what became of the task; an echo only says that another's will."""
        answers = self.answers.values()
        return any(isinstance(a, TaskReturned) or (isinstance(a, TaskFailed) and not a.echo) for a in answers)

    def is_broken(self) -> bool:
        """Whether members have lost each other, and none knows why."""
        return not self.is_told() and any(isinstance(answer, TaskFailed) for answer in self.answers.values())

    def verdict(self) -> list[Event]:
        """The answer of the group, made from those of its members: the first that failed by itself, or the first."""
        assert self.task is not None
        answers = [self.answers[member] for member in self.task_members if member in self.answers]
        failed = [answer for answer in answers if isinstance(answer, TaskFailed) and not answer.echo]
        returned = [answer for answer in answers if isinstance(answer, TaskReturned)]
        answer = replace([*failed, *returned, *answers][0], worker=self.name, task=self.task)
        if isinstance(answer, TaskDone):
            answer = replace(answer, width=len(self.task_members))
        held = [] if failed or returned else self.durable
        self._clear()
        return [answer, *held]

    def disperse(self) -> None:
        self.up = False
        self._clear()
        self.forget_meeting()

    def forget_meeting(self) -> None:
        if isinstance(self.meeting, Path):
            self.meeting.unlink(missing_ok=True)
        self.meeting = None

    def _clear(self) -> None:
        self.task, self.watchdog, self.answers, self.durable = None, None, {}, []


class GroupPool:
    """Groups of workers of a pool: all of one width, or one of each that is given, the widest first.

    `widths` says of a task how many of a group's members do it, if not all. `patient`: that no group is left is for
    others to mend; who was lost for good may come back all the same, as when a cluster gets another node.
    """

    packs = False
    groupable = False

    def __init__(
        self,
        members: WorkerPool,
        width: int | Sequence[int],
        meetings: Path,
        widths: Widths | None = None,
        *,
        patient: bool = False,
    ) -> None:
        self._width = width if isinstance(width, int) else None  # of all, also of those that come later
        several = [width] * max(1, len(members.workers) // width) if isinstance(width, int) else width
        self._groups = {f"g{number}": _WorkerGroup(f"g{number}", each) for number, each in enumerate(several)}
        self._of: dict[str, _WorkerGroup] = {}
        self._loose: dict[str, WorkerReady] = {}  # workers that are in no group
        self._awaited = set(members.workers)  # that are in no group, and will be there
        self._reasons: dict[str, str] = {}  # why workers are gone for good
        self.workers = tuple(self._groups)
        self._pool = members
        self._patient = patient
        self._meetings = meetings
        self._widths = widths
        self._woken = False
        self._alarms: list[threading.Timer] = []

    def start(self) -> None:
        shutil.rmtree(self._meetings, ignore_errors=True)  # of a controller that was killed
        self._meetings.mkdir(parents=True)
        self._pool.start()

    def adopt(self, ready: Mapping[str, WorkerReady], awaited: Iterable[str] = ()) -> list[Event]:
        """Form groups of workers that are there already, and idle, and of others once they are; instead of `start`."""
        shutil.rmtree(self._meetings, ignore_errors=True)
        self._meetings.mkdir(parents=True)
        self._awaited = {*ready, *awaited}
        return [made for event in ready.values() for made in self._hear(event, set())]

    def is_deserted(self, groups: Sequence[str]) -> bool:
        """Whether none of these will come back."""
        return all(self._groups[group].over for group in groups)

    def first_of(self, group: str) -> str:
        """The member of a group that begins its tasks."""
        members = self._groups[group].members
        return members[0] if members else group

    def gone(self) -> set[str]:
        """Workers that will not come back."""
        return set(self._reasons)

    def release(self) -> dict[str, WorkerReady]:
        """Give the pool back, with idle workers that are in no group; those who are there."""
        self._silence()
        shutil.rmtree(self._meetings, ignore_errors=True)
        there = dict(self._loose)
        for group in self._groups.values():
            there |= group.ready
        return there

    def share(self, yes: bool) -> None:
        self._pool.share(yes)

    def submit(self, worker: str, task: Task) -> None:
        group = self._groups[worker]
        width = len(group.members) if self._widths is None else min(self._widths(task), len(group.members))
        task_members = group.members[:width]
        if task_members != group.task_members:
            group.forget_meeting()
        group.task, group.task_members = task, task_members
        for rank, member in enumerate(task_members):
            place = None
            if width > 1:
                place = GroupRank(self._meeting(group), rank, width, group.backend(), group.nodes(task_members))
            state_out = task.state_out if rank == 0 else None
            self._pool.submit(member, replace(task, group_rank=place, state_out=state_out))

    def prefetch(self, worker: str, state: Path) -> None:
        for member in self._groups[worker].task_members:
            self._pool.prefetch(member, state)

    def forget(self, state: Path) -> None:
        self._pool.forget(state)

    def end(self, worker: str, reason: str) -> None:
        for member in self._groups[worker].members[:1]:  # the others follow
            self._pool.end(member, reason)

    def admit(self, connection: Connection[Any, Any], wishes: dict[str, Any]) -> None:
        refuse(connection, "Its workers train in groups: nobody can join by himself.")

    def events(self) -> list[Event]:
        while True:
            heard = self._pool.events()
            gone = {event.worker for event in heard if isinstance(event, WorkerLost)}
            found = [made for event in heard for made in self._hear(event, gone)]
            self._end_silent()
            if found or self._woken or not heard:  # somebody may have woken the members
                self._woken = False
                return found

    def wake(self) -> None:
        self._woken = True
        self._pool.wake()

    def close(self) -> None:
        self._silence()
        self._pool.close()
        shutil.rmtree(self._meetings, ignore_errors=True)

    def _silence(self) -> None:
        for alarm in self._alarms:
            alarm.cancel()
            alarm.join()

    def _meeting(self, group: _WorkerGroup) -> Path | Address:
        """Where the members find each other: at the first of them, if others can reach it, or through a file."""
        if group.meeting is None:
            name, address = f"{group.name}-{next(_MEETINGS)}", group.ready[group.members[0]].info.get("address")
            group.meeting = self._meetings / name if address is None else Address(address, name)
        return group.meeting

    def _hear(self, event: Event, gone: set[str]) -> Sequence[Event]:
        group = self._of.get(event.worker)
        if isinstance(event, StateDurable | StateLost | DiskFull):
            return self._pass_on(event, group)
        if group is None:
            return self._hear_loose(event)
        if isinstance(event, WorkerReady):
            return self._seat(group, event)
        if isinstance(event, WorkerLost):
            return self._lose(group, event, gone)
        if group.up and isinstance(event, TaskDone | TaskFailed | TaskReturned):
            return self._answer(group, event)
        return []  # said by one that has ended since

    def _pass_on(self, event: StateDurable | StateLost | DiskFull, group: _WorkerGroup | None) -> Sequence[Event]:
        if group is None:
            return [event]
        event = replace(event, worker=group.name)
        if isinstance(event, StateDurable) and group.task is not None and event.path == group.task.state_out:
            group.durable.append(event)
            return []
        return [event]

    # -- forming -------------------------------------------------------------------------------------------

    def _hear_loose(self, event: Event) -> Sequence[Event]:
        """Of a worker that is in no group."""
        worker = event.worker
        if isinstance(event, WorkerReady):
            self._loose[worker] = event
            self._awaited.discard(worker)
            self._reasons.pop(worker, None)
            return self._form()
        if not isinstance(event, WorkerLost):
            return []
        self._loose.pop(worker, None)
        if not event.for_good:
            self._awaited.add(worker)
            return []
        self._awaited.discard(worker)
        self._reasons[worker] = event.reason
        formed = self._form()
        self._check_some_left(event)
        return formed

    def _form(self) -> list[Event]:
        """Groups of those that are in none, once all are there who will be."""
        if self._awaited:
            return []
        found: list[Event] = []
        for width in sorted({group.width for group in self._groups.values()}, reverse=True):
            for members in form_groups({worker: _node(ready) for worker, ready in self._loose.items()}, width):
                group = self._vacant(width)
                if group is None:
                    break
                group.members, group.over = members, False
                for member in members:
                    self._of[member] = group
                    found += self._seat(group, self._loose.pop(member))
        return [*found, *self._give_up_vacant()]

    def _vacant(self, width: int) -> _WorkerGroup | None:
        for group in self._groups.values():
            if not group.members and group.width == width:
                return group
        if self._width is None:
            return None
        name = f"g{len(self._groups)}"
        return self._groups.setdefault(name, _WorkerGroup(name, width))

    def _give_up_vacant(self) -> list[Event]:
        """Nobody is left for these; who holds the same data is to do their work."""
        vacant = [group for group in self._groups.values() if not group.members and not group.over]
        for group in vacant:
            group.over = True
        return [WorkerLost(group.name, f"has no members: {self._shortage()}", for_good=True) for group in vacant]

    def _shortage(self) -> str:
        idle = [f"{worker} stays idle" for worker in self._loose]
        return "; ".join([*(f"{worker} {reason}" for worker, reason in self._reasons.items()), *idle])

    def _check_some_left(self, lost: WorkerLost) -> None:
        hopeful = len(self._loose) + len(self._awaited) >= min(group.width for group in self._groups.values())
        if not self._patient and not hopeful and all(group.over for group in self._groups.values()):
            raise RegattaError(f"No group of workers is left: {lost.worker} {lost.reason}.")

    # -- what becomes of groups ----------------------------------------------------------------------------

    def _seat(self, group: _WorkerGroup, event: WorkerReady) -> Sequence[Event]:
        group.ready[event.worker] = event
        if len(group.ready) < len(group.members):
            return []
        group.up = True
        return [WorkerReady(group.name, group.info())]

    def _answer(self, group: _WorkerGroup, event: Answer) -> Sequence[Event]:
        if event.task.group_rank is not None and event.task.group_rank.meeting != group.meeting:
            return []  # said by one that has ended since, and is back
        group.answers[event.worker] = event
        if not group.silent():
            return self._conclude(group)
        if not isinstance(event, TaskDone) and group.watchdog is None:
            group.watchdog = time.monotonic() + GRACE
            alarm = threading.Timer(GRACE, self._pool.wake)
            alarm.daemon = True
            alarm.start()
            self._alarms = [*(alarm for alarm in self._alarms if alarm.is_alive()), alarm]
        return []

    def _conclude(self, group: _WorkerGroup) -> Sequence[Event]:
        group.watchdog = None
        if not group.is_broken():
            return group.verdict()
        worker, answer = next((m, a) for m, a in group.answers.items() if isinstance(a, TaskFailed))
        self._pool.end(worker, f"was ended: {answer.error}")
        return []

    def _end_silent(self) -> None:
        """When one member has failed by itself, the others may wait for it for ever."""
        for group in self._groups.values():
            if group.watchdog is not None and time.monotonic() >= group.watchdog:
                group.watchdog = None
                self._pool.end(group.silent()[0], f"was ended: another of {group.name} failed, and it said nothing")

    def _lose(self, group: _WorkerGroup, event: WorkerLost, gone: set[str]) -> Sequence[Event]:
        """A member is gone: so is its group, until all are back."""
        group.ready.pop(event.worker, None)
        if event.worker in group.ending and not event.for_good:
            group.ending.discard(event.worker)
            return []
        told = group.verdict() if group.is_told() else []  # that is why it was ended
        if group.up:
            group.ending |= group.ready.keys()
            for other in group.ready.keys() - gone:
                self._pool.end(other, f"was ended: {group.name} lost {event.worker}")
            group.ready.clear()
        group.disperse()
        lost = WorkerLost(group.name, f"lost {event.worker}, which {event.reason}", for_good=event.for_good)
        if event.for_good:
            self._release(group, event)
        formed = self._form()
        self._check_some_left(lost)
        return [*told, lost, *formed]

    def _release(self, group: _WorkerGroup, event: WorkerLost) -> None:
        """A member will not come back: the others may be in another group."""
        group.over = True
        self._reasons[event.worker] = event.reason
        for member in group.members:
            del self._of[member]
            if member in group.ready:
                self._loose[member] = group.ready[member]
            elif member != event.worker:
                self._awaited.add(member)
        group.members, group.ready, group.ending = (), {}, set()


def _node(ready: WorkerReady) -> str:
    """Where a worker is, as far as its pool knows of several nodes."""
    return str(ready.info.get("node", ""))
