"""The fused tier: members that are built alike are stacked, proven, measured, and stepped together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from regatta.pack import ticks
from regatta.pack.cuda_graphs.capture import Graphs
from regatta.pack.device_data import Resident
from regatta.pack.fingerprint import fingerprint
from regatta.pack.loop_tier import Alone, own_fault
from regatta.pack.member import Indices, Member, Work
from regatta.pack.rates import Rates
from regatta.pack.stacked.stack import Stack
from regatta.pack.stacked.tensors import NotStackable
from regatta.pack.track import Track

PROOF = 2  # steps that are taken both ways; a number that was wrongly fixed shows in the second
SMALL = 200_000  # parameters above which a member fills a GPU by itself
FEWEST_ON_GPU = 8  # members below which graphs side by side are as fast there

Batches = list[list[Indices]]  # by step, then by member


def alike(members: Sequence[Member]) -> list[list[Member]]:
    """Groups of two or more that one stack could hold, as far as their structure tells."""
    groups: dict[Any, list[Member]] = {}
    for member in members:
        groups.setdefault(fingerprint(member), []).append(member)
    return [group for group in groups.values() if len(group) > 1]


class Standing(NamedTuple):
    """A stack that has been proven, and its way through the batches."""

    stack: Stack
    track: Track


@dataclass
class Stacks:
    """All stacks of a pack. `exact` takes only those that are proven bit for bit; `graphs` captures them, on a GPU."""

    resident: Resident
    rates: Rates
    alone: Alone
    exact: bool
    graphs: Graphs | None
    allowed: bool

    def __post_init__(self) -> None:
        self.standing: list[Standing] = []
        self._refused: dict[tuple[Member, ...], str] = {}

    def why_not(self, member: Member) -> str | None:
        """Why a member that has its like is not in a stack."""
        return next((reason for group, reason in self._refused.items() if member in group), None)

    def run(self, work: Work) -> None:
        """Steps of members that are alike, as far as they have batches of equal sizes."""
        self._form(work)
        for standing in list(self.standing):
            self._run(standing, work)

    def let_go(self, member: Member) -> None:
        """Dissolve the stack of a member; the others may form another one."""
        for stack, _ in list(self.standing):
            if member in stack.members:
                self._dissolve(stack)
        self._refused = {group: reason for group, reason in self._refused.items() if member not in group}

    # to form stacks

    def _form(self, work: Work) -> None:
        """Stacks that stand are kept, those whose members changed are made anew."""
        ready = [m for m, batches in work.items() if m.error is None and len(batches) > PROOF and m.tier != "new"]
        groups = alike(ready) if self.allowed else []
        for stack, track in list(self.standing):
            moved = self.graphs is not None and track.generation != self.resident.generation
            if moved or stack.members not in groups:
                self._dissolve(stack)
        present = [stack.members for stack, _ in self.standing]
        for group in groups:
            if group not in present and tuple(group) not in self._refused and self._small_enough(group):
                reason = self._try(group, work)
                if reason is not None:
                    self._refused[tuple(group)] = reason

    def _small_enough(self, group: Sequence[Member]) -> bool:
        size = sum(parameter.numel() for parameter in group[0].model.parameters())
        return self.resident.device.type != "cuda" or (size <= SMALL and len(group) >= FEWEST_ON_GPU)

    def _try(self, group: list[Member], work: Work) -> str | None:
        """Stack a group if that works and is exact, or allowed not to be; otherwise say why not."""
        try:
            stack = Stack(group)
        except NotStackable as error:
            return str(error)
        batches = _common(group, work, PROOF)
        reason = "the members' batches have different sizes" if len(batches) < PROOF else None
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
        self.standing.append(Standing(stack, Track(group, self.resident, self.graphs, stack.body)))
        for member in group:
            member.tier = "fused"
            member.reason = "exact: proven bit for bit" if equal else "fast: rounds differently from alone"
        return None

    def _prove(self, stack: Stack, batches: Batches) -> bool:
        """Whether a stack's steps are those of its members alone; the members have taken the steps in any case."""
        equal, losses, seconds = stack.prove(self.resident, batches)
        for number, member in enumerate(stack.members):
            member.note(losses[number].double(), [len(parts[number]) for parts in batches])
            member.advance(self.resident.rows, len(batches))
            member.figures = replace(member.figures, alone_seconds=seconds)
        return equal

    # to run them

    def _run(self, standing: Standing, work: Work) -> None:
        stack, going = standing.stack, True
        while going and (batches := _of_one_size(_common(stack.members, work))):
            try:
                going = self._go_on(standing, batches, work)
            except NotStackable as error:
                self._give_up(standing, work, str(error))
                return
        stack.sync()

    def _go_on(self, standing: Standing, batches: Batches, work: Work) -> bool:
        """Steps with batches of one size: proven first where the size is new, alone where it does not round alike."""
        stack, size = standing.stack, len(batches[0][0])
        if size not in stack.proven:
            self._prove(stack, batches[:1])
            _consume(stack.members, work, 1)
        elif self.exact and not stack.proven[size]:
            return self._step_alone(stack, work)
        else:
            _consume(stack.members, work, len(batches))
            return self._together(standing, batches, work)
        return True

    def _step_alone(self, stack: Stack, work: Work) -> bool:
        """One step of each member by itself, on the stack's memory; one that fails dissolves the stack."""
        stack.sync()
        for member in stack.members:
            with own_fault(member):
                self.alone.take(member, work[member], 1)
        stack.recount(1)
        failed = [member for member in stack.members if member.error is not None]
        if failed:
            self._dissolve(stack)
        return not failed

    def _together(self, standing: Standing, batches: Batches, work: Work) -> bool:
        """Take steps as a stack; where that turns out not to pay, give it up."""
        stack, track = standing
        stack.update.refresh()
        track.work.extend(batches)
        measured = ticks.run_stack(track, self.rates)
        if measured is None:
            return True
        found = f"{len(stack.members)} stacked: {measured.ratio:.1f}x of one after another"
        for member in stack.members:
            member.reason = f"{member.reason.partition(';')[0]}; {found}"
        if not measured.pays:
            self._give_up(standing, work, found)
        return measured.pays

    def _give_up(self, standing: Standing, work: Work, reason: str) -> None:
        """Members go on one by one with the steps that the stack did not take."""
        group = standing.stack.members
        for parts in reversed(standing.track.drop()):
            for member, rows in zip(group, parts, strict=True):
                work[member].appendleft(rows)
        self._dissolve(standing.stack)
        self._refused[tuple(group)] = reason

    def _dissolve(self, stack: Stack) -> None:
        stack.release()
        for track in (t for s, t in self.standing if s is stack):
            track.close()
        self.standing = [standing for standing in self.standing if standing.stack is not stack]
        for member in stack.members:
            member.tier = "alone" if member.error is None else member.tier


def _common(group: Sequence[Member], work: Work, limit: int = 1 << 30) -> Batches:
    """The next steps of a group as far as all members have batches of the same size."""
    found: Batches = []
    for parts in zip(*(work[member] for member in group), strict=False):
        if len(found) == limit or len({len(part) for part in parts}) > 1:
            break
        found.append(list(parts))
    return found


def _of_one_size(batches: Batches) -> Batches:
    other = (k for k, parts in enumerate(batches) if len(parts[0]) != len(batches[0][0]))
    return batches[: next(other, len(batches))]


def _consume(group: Sequence[Member], work: Work, count: int) -> None:
    for member in group:
        for _ in range(count):
            work[member].popleft()
