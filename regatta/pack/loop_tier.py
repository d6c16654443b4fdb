"""The loop tier, which always works: one member after another. Every new member takes its first step here."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from regatta.pack import memory
from regatta.pack.device_data import DeviceData, take_rows
from regatta.pack.member import Indices, Member, Work
from regatta.pack.state.member_state import copy_tensors, write_back
from regatta.pack.step import take_step


def train_alone(member: Member, device_data: DeviceData, batches: Sequence[Indices]) -> None:
    """A plain loop over batches."""
    with member.randomness.active():
        for rows in batches:
            indices = torch.from_numpy(rows).to(device_data.device)
            loss = take_step(member, take_rows(device_data.data, indices))
            member.advance_schedule()
            member.add_losses(loss.double().reshape(1), [len(rows)])
            member.advance(device_data.rows, 1)


@contextlib.contextmanager
def stop_on_error(member: Member) -> Iterator[None]:
    """An error in a member's own code stops only that member."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (it may raise anything)
        mark_failed(member, error)


def mark_failed(member: Member, error: Exception) -> None:
    member.error, member.tier = error, "failed"
    member.reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


class LoopTier:
    """Members one after another. `make_room` drops the graphs of others and returns whether there were any."""

    def __init__(self, device_data: DeviceData, make_room: Callable[[], bool]) -> None:
        self.device_data, self.make_room = device_data, make_room

    def take_first_steps(self, work: Work) -> None:
        """Take the first step of new members: it creates the optimizer's state and shows what a step needs."""
        for member, batches in work.items():
            if member.tier == "new" and batches:
                with stop_on_error(member), memory.measure_memory(member, self.device_data.device):
                    self.take_steps(member, batches, 1)
                if member.tier == "new":
                    member.tier, member.reason = "alone", "no other way to train it was tried yet"

    def run(self, work: Work, why: Callable[[Member], str]) -> None:
        """Take all steps that no other tier has taken; `why` returns why a member is not in another tier."""
        for member, batches in work.items():
            if batches and member.error is None:
                with stop_on_error(member):
                    self.take_steps(member, batches, len(batches))
                if member.tier == "alone":
                    member.reason = why(member)
                elif member.tier == "held back":
                    member.tier = "alone"

    def take_steps(self, member: Member, batches: deque[Indices], count: int) -> None:
        """Take the next steps. If memory runs out, drop the graphs of others and try once more."""
        taken, buffers = member.taken, dict(member.model.named_buffers())
        before, mark = copy_tensors(buffers), member.randomness.mark()
        try:
            self._take(member, batches, count)
        except torch.OutOfMemoryError:
            if member.taken != taken or not self.make_room():
                raise
            write_back(buffers, before)
            member.randomness.go_back(mark)
            self._take(member, batches, count)

    def _take(self, member: Member, batches: deque[Indices], count: int) -> None:
        taken = member.taken
        try:
            train_alone(member, self.device_data, [batches[k] for k in range(min(count, len(batches)))])
        finally:
            for _ in range(member.taken - taken):
                batches.popleft()
