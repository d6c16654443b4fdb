"""Groups of workers. To the controller a group is one worker; its members run every task together.

The members are workers of another pool, which the controller does not see. Groups form when all workers are ready,
because only then their nodes are known. A group is lost when one of its members is lost. The other members, which would
wait for it in an exchange, are ended at once, and the group forms again when all are back. If a member will not come
back, the others may join another group; workers that are too few for a full group stay idle.
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
    TaskBegun,
    TaskDone,
    TaskFailed,
    TaskReturned,
    WorkerLost,
    WorkerReady,
)
from regatta.engine.workers.base import WorkerPool, refuse
from regatta.errors import RegattaError

Widths: TypeAlias = Callable[[Task], int]  # the number of members that run a task
Answer: TypeAlias = TaskDone | TaskFailed | TaskReturned
_MEETING_NUMBERS = count()  # never used twice: workers may have been in groups of the same names before
GROUP_ANSWER_TIMEOUT_S = 30.0  # for the other members, once one has failed


@dataclass
class _WorkerGroup:
    name: str
    width: int  # the number of members of a full group
    members: tuple[str, ...] = ()  # empty until workers have been found for it
    ready: dict[str, WorkerReady] = field(default_factory=dict)
    ending: set[str] = field(default_factory=set)  # members that are being ended
    up: bool = False
    lost_for_good: bool = False  # the pool has reported that it will not come back
    meeting: Path | Address | None = None
    active: tuple[str, ...] = ()  # the members that run its task
    task: Task | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    durable: list[StateDurable] = field(default_factory=list)  # events that came before the last answer
    deadline: float | None = None  # for the members that have not answered

    def unanswered(self) -> list[str]:
        return [member for member in self.active if member not in self.answers]

    def backend(self) -> Literal["gloo", "nccl"]:
        """NCCL needs a GPU for each member; members that share one, or have none, exchange through memory."""
        infos = [ready.info for ready in self.ready.values()]
        gpus = {(info.get("node"), info.get("gpu", info["device"])) for info in infos}
        separate = len(gpus) == len(infos)
        return "nccl" if separate and all(info["device"].startswith("cuda") for info in infos) else "gloo"

    def count_nodes(self, members: Sequence[str]) -> int:
        return len({_node(self.ready[member]) for member in members})

    def info(self) -> dict[str, Any]:
        infos = [self.ready[member].info for member in self.members]
        devices = ", ".join(dict.fromkeys(info["device"] for info in infos))
        pids = {member: self.ready[member].info["pid"] for member in self.members}
        group = {"device": devices, "width": len(infos), "members": pids, "nodes": self.count_nodes(self.members)}
        return {name: value for name, value in infos[0].items() if name != "address"} | group

    def has_reason(self) -> bool:
        """Whether an answer says why the task failed; an echo only says that another member failed."""
        answers = self.answers.values()
        return any(isinstance(a, TaskReturned) or (isinstance(a, TaskFailed) and not a.echo) for a in answers)

    def take_result(self) -> list[Event]:
        """The answer of the group: that of the first member that failed by itself, or else of the first member."""
        assert self.task is not None
        answers = [self.answers[member] for member in self.active if member in self.answers]
        failed = [answer for answer in answers if isinstance(answer, TaskFailed) and not answer.echo]
        returned = [answer for answer in answers if isinstance(answer, TaskReturned)]
        answer = replace([*failed, *returned, *answers][0], worker=self.name, task=self.task)
        if isinstance(answer, TaskDone):
            answer = replace(answer, width=len(self.active))
        durable = [] if failed or returned else self.durable
        self.clear()
        return [answer, *durable]

    def forget_meeting(self) -> None:
        if isinstance(self.meeting, Path):
            self.meeting.unlink(missing_ok=True)
        self.meeting = None

    def clear(self) -> None:
        self.task, self.deadline, self.answers, self.durable = None, None, {}, []


class GroupPool:
    """Groups of workers of another pool: all of one width, or one for each given width, the widest first."""

    packs = False
    groupable = False

    def __init__(
        self,
        members: WorkerPool,
        width: int | Sequence[int],
        meetings: Path,
        widths: Widths | None = None,  # None: all members run a task
        *,
        wait_for_workers: bool = False,  # if no group is left: lost workers may come back with another node
    ) -> None:
        self._width = width if isinstance(width, int) else None  # of all groups, also of later ones
        initial = [width] * max(1, len(members.workers) // width) if isinstance(width, int) else width
        self._groups = {f"g{number}": _WorkerGroup(f"g{number}", each) for number, each in enumerate(initial)}
        self._group_of: dict[str, _WorkerGroup] = {}
        self._ungrouped: dict[str, WorkerReady] = {}  # ready workers that are in no group
        self._awaited = set(members.workers)  # workers in no group that will become ready
        self._lost: dict[str, str] = {}  # workers that will not come back, with the reasons
        self.workers = tuple(self._groups)
        self._pool = members
        self._wait_for_workers = wait_for_workers
        self._meetings = meetings
        self._widths = widths
        self._woken = False
        self._timers: list[threading.Timer] = []

    def start(self) -> None:
        self._empty_meetings()
        self._pool.start()

    def adopt(self, ready: Mapping[str, WorkerReady], awaited: Iterable[str] = ()) -> list[Event]:
        """Form groups of workers that are ready and idle, and of others once they are; instead of `start`."""
        self._empty_meetings()
        self._awaited = {*ready, *awaited}
        return [made for event in ready.values() for made in self._on_event(event, set())]

    def _empty_meetings(self) -> None:
        shutil.rmtree(self._meetings, ignore_errors=True)  # of a controller that was killed
        self._meetings.mkdir(parents=True)

    def all_lost(self, groups: Sequence[str]) -> bool:
        """Whether none of these groups will come back."""
        return all(self._groups[group].lost_for_good for group in groups)

    def first_member(self, group: str) -> str:
        members = self._groups[group].members
        return members[0] if members else group

    def lost_workers(self) -> set[str]:
        return set(self._lost)

    def release(self) -> dict[str, WorkerReady]:
        """Dissolve the groups; returns the ready workers, which the other pool manages alone from now on."""
        self._cancel_timers()
        shutil.rmtree(self._meetings, ignore_errors=True)
        ready = dict(self._ungrouped)
        for group in self._groups.values():
            ready |= group.ready
        return ready

    def share(self, yes: bool) -> None:
        self._pool.share(yes)

    def submit(self, worker: str, task: Task) -> None:
        group = self._groups[worker]
        width = len(group.members) if self._widths is None else min(self._widths(task), len(group.members))
        active = group.members[:width]
        if active != group.active:
            group.forget_meeting()
        group.task, group.active = task, active
        for rank, member in enumerate(active):
            place = None
            if width > 1:
                place = GroupRank(self._meeting(group), rank, width, group.backend(), group.count_nodes(active))
            state_out = task.state_out if rank == 0 else None
            self._pool.submit(member, replace(task, group_rank=place, state_out=state_out))

    def prefetch(self, worker: str, state: Path) -> None:
        for member in self._groups[worker].active:
            self._pool.prefetch(member, state)

    def forget(self, state: Path) -> None:
        self._pool.forget(state)

    def end(self, worker: str, reason: str) -> bool:
        first = self._groups[worker].members[:1]  # the other members are ended as a consequence
        return any(self._pool.end(member, reason) for member in first)

    def admit(self, connection: Connection[Any, Any], wishes: dict[str, Any]) -> None:
        refuse(connection, "Its workers train in groups: a single worker cannot join.")

    def events(self) -> list[Event]:
        while True:
            received = self._pool.events()
            lost = {event.worker for event in received if isinstance(event, WorkerLost)}
            found = [made for event in received for made in self._on_event(event, lost)]
            for group in self._groups.values():
                if group.deadline is not None and time.monotonic() >= group.deadline:
                    group.deadline = None  # one member has failed by itself, and the others may wait for it forever
                    reason = f"was ended: another of {group.name} failed, and it said nothing"
                    self._pool.end(group.unanswered()[0], reason)
            if found or self._woken or not received:  # another thread may have woken the members' pool
                self._woken = False
                return found

    def wake(self) -> None:
        self._woken = True
        self._pool.wake()

    def close(self) -> None:
        self._cancel_timers()
        self._pool.close()
        shutil.rmtree(self._meetings, ignore_errors=True)

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()

    def _meeting(self, group: _WorkerGroup) -> Path | Address:
        """Where the members find each other: at the first of them, if others can reach it, or through a file."""
        if group.meeting is None:
            name = f"{group.name}-{next(_MEETING_NUMBERS)}"
            address = group.ready[group.members[0]].info.get("address")
            group.meeting = self._meetings / name if address is None else Address(address, name)
        return group.meeting

    def _on_event(self, event: Event, lost: set[str]) -> Sequence[Event]:
        group = self._group_of.get(event.worker)
        if isinstance(event, StateDurable | StateLost | DiskFull):
            if group is None:
                return [event]
            event = replace(event, worker=group.name)
            if isinstance(event, StateDurable) and group.task is not None and event.path == group.task.state_out:
                group.durable.append(event)
                return []
            return [event]
        if group is None:
            return self._on_ungrouped_event(event)
        if isinstance(event, TaskBegun):
            return [replace(event, worker=group.name)]
        if isinstance(event, WorkerReady):
            return self._on_member_up(group, event)
        if isinstance(event, WorkerLost):
            return self._on_member_down(group, event, lost)
        if group.up and isinstance(event, TaskDone | TaskFailed | TaskReturned):
            return self._on_answer(group, event)
        return []  # from a member that has ended since

    # -- forming groups ------------------------------------------------------------------------------------

    def _on_ungrouped_event(self, event: Event) -> Sequence[Event]:
        """An event of a worker that is in no group."""
        worker = event.worker
        if isinstance(event, WorkerReady):
            self._ungrouped[worker] = event
            self._awaited.discard(worker)
            self._lost.pop(worker, None)
            return self._form()
        if not isinstance(event, WorkerLost):
            return []
        self._ungrouped.pop(worker, None)
        if not event.for_good:
            self._awaited.add(worker)
            return []
        self._awaited.discard(worker)
        self._lost[worker] = event.reason
        formed = self._form()
        self._check_some_left(event)
        return formed

    def _form(self) -> list[Event]:
        """Form groups of the workers that are in none, once no more workers are awaited."""
        if self._awaited:
            return []
        found: list[Event] = []
        for width in sorted({group.width for group in self._groups.values()}, reverse=True):
            for members in form_groups({worker: _node(ready) for worker, ready in self._ungrouped.items()}, width):
                group = self._vacant(width)
                if group is None:
                    break
                group.members, group.lost_for_good = members, False
                for member in members:
                    self._group_of[member] = group
                    found += self._on_member_up(group, self._ungrouped.pop(member))
        # No workers are left for the vacant groups: others with the same data take over their work.
        lost = [f"{worker} {reason}" for worker, reason in self._lost.items()]
        idle = [f"{worker} stays idle" for worker in self._ungrouped]
        for group in self._groups.values():
            if not group.members and not group.lost_for_good:
                group.lost_for_good = True
                found.append(WorkerLost(group.name, f"has no members: {'; '.join([*lost, *idle])}", for_good=True))
        return found

    def _vacant(self, width: int) -> _WorkerGroup | None:
        for group in self._groups.values():
            if not group.members and group.width == width:
                return group
        if self._width is None:
            return None
        name = f"g{len(self._groups)}"
        return self._groups.setdefault(name, _WorkerGroup(name, width))

    def _check_some_left(self, lost: WorkerLost) -> None:
        enough = len(self._ungrouped) + len(self._awaited) >= min(group.width for group in self._groups.values())
        if not self._wait_for_workers and not enough and self.all_lost(tuple(self._groups)):
            raise RegattaError(f"No group of workers is left: {lost.worker} {lost.reason}.")

    # -- events of members ---------------------------------------------------------------------------------

    def _on_member_up(self, group: _WorkerGroup, event: WorkerReady) -> Sequence[Event]:
        group.ready[event.worker] = event
        if len(group.ready) < len(group.members):
            return []
        group.up = True
        return [WorkerReady(group.name, group.info())]

    def _on_answer(self, group: _WorkerGroup, event: Answer) -> Sequence[Event]:
        if event.task.group_rank is not None and event.task.group_rank.meeting != group.meeting:
            return []  # from a member that has ended since, and is back
        group.answers[event.worker] = event
        if not group.unanswered():
            group.deadline = None
            failed = [answer for answer in group.answers.values() if isinstance(answer, TaskFailed)]
            if group.has_reason() or not failed:
                return group.take_result()
            # The members have lost each other, and none knows why.
            self._pool.end(failed[0].worker, f"was ended: {failed[0].error}")
            return []
        if not isinstance(event, TaskDone) and group.deadline is None:
            group.deadline = time.monotonic() + GROUP_ANSWER_TIMEOUT_S
            timer = threading.Timer(GROUP_ANSWER_TIMEOUT_S, self._pool.wake)
            timer.daemon = True
            timer.start()
            self._timers = [*(timer for timer in self._timers if timer.is_alive()), timer]
        return []

    def _on_member_down(self, group: _WorkerGroup, event: WorkerLost, lost: set[str]) -> Sequence[Event]:
        """A member is lost, and with it its group, until all members are back."""
        group.ready.pop(event.worker, None)
        if event.worker in group.ending and not event.for_good:
            group.ending.discard(event.worker)
            return []
        result = group.take_result() if group.has_reason() else []  # the reason why the member was ended
        if group.up:
            group.ending |= group.ready.keys()
            for other in group.ready.keys() - lost:
                self._pool.end(other, f"was ended: {group.name} lost {event.worker}")
            group.ready.clear()
        group.up = False
        group.clear()
        group.forget_meeting()
        reason = f"lost {event.worker}, which {event.reason}"
        group_lost = WorkerLost(group.name, reason, for_good=event.for_good, killed=event.killed)
        if event.for_good:
            self._dissolve(group, event)
        formed = self._form()
        self._check_some_left(group_lost)
        return [*result, group_lost, *formed]

    def _dissolve(self, group: _WorkerGroup, event: WorkerLost) -> None:
        """A member will not come back: the others may join another group."""
        group.lost_for_good = True
        self._lost[event.worker] = event.reason
        for member in group.members:
            del self._group_of[member]
            if member in group.ready:
                self._ungrouped[member] = group.ready[member]
            elif member != event.worker:
                self._awaited.add(member)
        group.members, group.ready, group.ending = (), {}, set()


def _node(ready: WorkerReady) -> str:
    """The node of a worker, as far as its pool knows of several nodes."""
    return str(ready.info.get("node", ""))


def form_groups(nodes: Mapping[str, str], width: int) -> list[tuple[str, ...]]:
    """Groups of `width` workers, preferably of one node, where they exchange data faster; the rest are in no group."""
    by_node: dict[str, list[str]] = {}
    for worker in sorted(nodes, key=_by_number):
        by_node.setdefault(nodes[worker], []).append(worker)
    groups = []
    while sum(map(len, by_node.values())) >= width:
        groups.append(_take_group(list(by_node.values()), width))
    return sorted(groups, key=lambda group: _by_number(group[0]))


def _take_group(nodes: list[list[str]], width: int) -> tuple[str, ...]:
    """Take a group from as few nodes as possible, and from the smallest nodes that are enough."""
    group: list[str] = []
    while len(group) < width:
        missing = width - len(group)
        enough = [workers for workers in nodes if len(workers) >= missing]
        chosen = min(enough, key=len) if enough else max(nodes, key=len)
        group += chosen[:missing]
        del chosen[:missing]
    return tuple(group)


def _by_number(worker: str) -> tuple[int, str]:
    """Sorts w2 before w10."""
    return len(worker), worker
