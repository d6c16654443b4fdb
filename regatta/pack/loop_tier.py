"""The tier that always works: a plain loop, one member after another; here every newcomer takes its first step."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from regatta.pack import memory
from regatta.pack.device_data import Resident, take
from regatta.pack.member import Indices, Member, Work
from regatta.pack.member_state import copied, put_back
from regatta.pack.step import take_step


def take_alone(member: Member, resident: Resident, batches: Sequence[Indices]) -> None:
    """A plain loop over batches."""
    with member.randomness.active():
        for rows in batches:
            indices = torch.from_numpy(rows).to(resident.device)
            loss = take_step(member, take(resident.data, indices))
            if member.schedule is not None:
                member.schedule.step()
            member.note(loss.double().reshape(1), [len(rows)])
            member.advance(resident.rows, 1)


@contextlib.contextmanager
def own_fault(member: Member) -> Iterator[None]:
    """What a member's own code raises stops that member, and no other."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (it may raise anything)
        stop(member, error)


def stop(member: Member, error: Exception) -> None:
    member.error, member.tier = error, "failed"
    member.reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


class Alone:
    """Members in turn; `make_room` gives up the graphs of others, and says whether there were any."""

    def __init__(self, resident: Resident, make_room: Callable[[], bool]) -> None:
        self.resident, self.make_room = resident, make_room

    def introduce(self, work: Work) -> None:
        """The first step of a newcomer: it makes the optimizer's state and shows what a step takes."""
        for member, batches in work.items():
            if member.tier == "new" and batches:
                with own_fault(member), memory.weighed(member, self.resident.device):
                    self.take(member, batches, 1)
                if member.tier == "new":
                    member.tier, member.reason = "alone", "no other way to train it was tried yet"

    def run(self, work: Work, why: Callable[[Member], str]) -> None:
        """All steps that no other tier has taken; `why` tells what kept a member from the other tiers."""
        for member, batches in work.items():
            if batches and member.error is None:
                with own_fault(member):
                    self.take(member, batches, len(batches))
                if member.tier == "alone":
                    member.reason = why(member)
                elif member.tier == "held back":
                    member.tier = "alone"

    def take(self, member: Member, batches: deque[Indices], count: int) -> None:
        """The next steps; where memory is short, they are tried once more after graphs of others were given up."""
        taken, buffers = member.taken, dict(member.model.named_buffers())
        before, mark = copied(buffers), member.randomness.mark()
        try:
            self._take(member, batches, count)
        except torch.OutOfMemoryError:
            if member.taken != taken or not self.make_room():
                raise
            put_back(buffers, before)
            member.randomness.go_back(mark)
            self._take(member, batches, count)

    def _take(self, member: Member, batches: deque[Indices], count: int) -> None:
        taken = member.taken
        try:
            take_alone(member, self.resident, [batches[k] for k in range(min(count, len(batches)))])
        finally:
            for _ in range(member.taken - taken):
                batches.popleft()
