"""The fused tier: members with the same structure are stacked, proven exact, measured, and stepped together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from regatta.pack import ticks
from regatta.pack.cuda_graphs.capture import CudaGraphs
from regatta.pack.device_data import DeviceData
from regatta.pack.fingerprint import fingerprint
from regatta.pack.loop_tier import LoopTier, stop_on_error
from regatta.pack.member import Indices, Member, Work
from regatta.pack.rates import Rates
from regatta.pack.stacked.stack import Stack
from regatta.pack.stacked.tensors import NotStackable
from regatta.pack.track import Track

PROOF_STEPS = 2  # steps that are taken both ways; a value that was wrongly made constant shows in the second
MAX_STACKED_PARAMETERS = 200_000  # a larger member fills a GPU alone
MIN_MEMBERS_ON_GPU = 8  # with fewer members, concurrent graphs are as fast

Batches = list[list[Indices]]  # by step, then by member


def group_alike(members: Sequence[Member]) -> list[list[Member]]:
    """Groups of two or more members whose structure allows one stack."""
    groups: dict[Any, list[Member]] = {}
    for member in members:
        groups.setdefault(fingerprint(member), []).append(member)
    return [group for group in groups.values() if len(group) > 1]


@dataclass
class StackedTier:
    """All stacks of a pack. `exact` accepts only stacks proven bit for bit; `graphs` captures them on a GPU."""

    device_data: DeviceData
    rates: Rates
    loop_tier: LoopTier
    exact: bool
    graphs: CudaGraphs | None
    allowed: bool

    def __post_init__(self) -> None:
        self.proven: dict[Stack, Track] = {}
        self._refused: dict[tuple[Member, ...], str] = {}

    def why_not(self, member: Member) -> str | None:
        """Why a member is not in a stack although others have the same structure."""
        return next((reason for group, reason in self._refused.items() if member in group), None)

    def run(self, work: Work) -> None:
        """Take the steps of members with the same structure, as long as their batches have equal sizes."""
        self._form(work)
        for stack in list(self.proven):
            self._run(stack, work)

    def remove_member(self, member: Member) -> None:
        """Dissolve the stack of a member; the others may form another one."""
        for stack in list(self.proven):
            if member in stack.members:
                self._dissolve(stack)
        self._refused = {group: reason for group, reason in self._refused.items() if member not in group}

    def _form(self, work: Work) -> None:
        """Keep the stacks whose members did not change, and form new ones."""
        ready = [m for m, batches in work.items() if m.error is None and len(batches) > PROOF_STEPS and m.tier != "new"]
        groups = group_alike(ready) if self.allowed else []
        for stack, track in list(self.proven.items()):
            moved = self.graphs is not None and track.generation != self.device_data.generation
            if moved or stack.members not in groups:
                self._dissolve(stack)
        present = [stack.members for stack in self.proven]
        for group in groups:
            if group not in present and tuple(group) not in self._refused and self._small_enough(group):
                reason = self._try(group, work)
                if reason is not None:
                    self._refused[tuple(group)] = reason

    def _small_enough(self, group: Sequence[Member]) -> bool:
        if self.device_data.device.type != "cuda":
            return True
        size = sum(parameter.numel() for parameter in group[0].model.parameters())
        return size <= MAX_STACKED_PARAMETERS and len(group) >= MIN_MEMBERS_ON_GPU

    def _try(self, group: list[Member], work: Work) -> str | None:
        """Stack a group if that works and is exact, or need not be; otherwise return why not."""
        try:
            stack = Stack(group)
        except NotStackable as error:
            return str(error)
        batches = _common_batches(group, work, PROOF_STEPS)
        reason = "the members' batches have different sizes" if len(batches) < PROOF_STEPS else None
        equal = False
        if reason is None:
            try:
                equal = self._prove(stack, batches)
            except NotStackable as error:
                reason = str(error)
            else:
                _consume(group, work, len(batches))
                if self.exact and not equal:
                    reason = "stacked steps round differently from those alone on this machine"
        if reason is not None:
            stack.release()
            return reason
        self.proven[stack] = Track(group, self.device_data, self.graphs, stack.body)
        for member in group:
            member.tier = "fused"
            member.reason = "exact: proven bit for bit" if equal else "fast: rounds differently from alone"
        return None

    def _prove(self, stack: Stack, batches: Batches) -> bool:
        """Whether a stack's steps equal those of its members alone. The members have taken the steps in any case."""
        equal, losses, seconds = stack.prove(self.device_data, batches)
        for number, member in enumerate(stack.members):
            member.add_losses(losses[number].double(), [len(parts[number]) for parts in batches])
            member.advance(self.device_data.rows, len(batches))
            member.figures = replace(member.figures, alone_seconds=seconds)
        return equal

    def _run(self, stack: Stack, work: Work) -> None:
        going = True
        while going and (batches := _first_size(_common_batches(stack.members, work))):
            try:
                going = self._go_on(stack, batches, work)
            except NotStackable as error:
                self._give_up(stack, work, str(error))
                return
        stack.sync()

    def _go_on(self, stack: Stack, batches: Batches, work: Work) -> bool:
        """Take steps with batches of one size: prove a new size first; take steps alone where the bits differ."""
        size = len(batches[0][0])
        if size not in stack.proven:
            self._prove(stack, batches[:1])
            _consume(stack.members, work, 1)
        elif self.exact and not stack.proven[size]:
            return self._step_alone(stack, work)
        else:
            _consume(stack.members, work, len(batches))
            return self._together(stack, batches, work)
        return True

    def _step_alone(self, stack: Stack, work: Work) -> bool:
        """One step of each member alone, in the stack's memory. A failing member dissolves the stack."""
        stack.sync()
        for member in stack.members:
            with stop_on_error(member):
                self.loop_tier.take_steps(member, work[member], 1)
        stack.update.count(1)
        failed = [member for member in stack.members if member.error is not None]
        if failed:
            self._dissolve(stack)
        return not failed

    def _together(self, stack: Stack, batches: Batches, work: Work) -> bool:
        """Take steps as a stack; dissolve it if it turns out not to pay."""
        track = self.proven[stack]
        stack.update.refresh()
        track.work.extend(batches)
        measured = ticks.run_stack(track, self.rates)
        if measured is None:
            return True
        found = f"{len(stack.members)} stacked: {measured.ratio:.1f}x of one after another"
        for member in stack.members:
            member.reason = f"{member.reason.partition(';')[0]}; {found}"
        if not measured.pays:
            self._give_up(stack, work, found)
        return measured.pays

    def _give_up(self, stack: Stack, work: Work, reason: str) -> None:
        """Dissolve a stack; its members take the remaining steps one by one."""
        for parts in reversed(self.proven[stack].drop()):
            for member, rows in zip(stack.members, parts, strict=True):
                work[member].appendleft(rows)
        self._dissolve(stack)
        self._refused[tuple(stack.members)] = reason

    def _dissolve(self, stack: Stack) -> None:
        stack.release()
        self.proven.pop(stack).close()
        for member in stack.members:
            member.tier = "alone" if member.error is None else member.tier


def _common_batches(group: Sequence[Member], work: Work, limit: int = 1 << 30) -> Batches:
    """The next steps of a group, as long as all members have batches of the same size."""
    found: Batches = []
    for parts in zip(*(work[member] for member in group), strict=False):
        if len(found) == limit or len({len(part) for part in parts}) > 1:
            break
        found.append(list(parts))
    return found


def _first_size(batches: Batches) -> Batches:
    other = (k for k, parts in enumerate(batches) if len(parts[0]) != len(batches[0][0]))
    return batches[: next(other, len(batches))]


def _consume(group: Sequence[Member], work: Work, count: int) -> None:
    for member in group:
        for _ in range(count):
            work[member].popleft()
