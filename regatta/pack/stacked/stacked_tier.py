"""The fused tier: members with the same structure are stacked, proven exact, measured, and stepped together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regatta.pack import ticks
from regatta.pack.checks import check_steps, members_to_check
from regatta.pack.cuda_graphs.capture import CudaGraphs
from regatta.pack.device_data import DeviceData
from regatta.pack.fingerprint import fingerprint
from regatta.pack.loop_tier import train_alone
from regatta.pack.member import Indices, Member, Work
from regatta.pack.rates import Rates
from regatta.pack.stacked import updates
from regatta.pack.stacked.stack import SavedStack, Stack, StackCheck
from regatta.pack.stacked.tensors import NotStackable, RoundsDifferently
from regatta.pack.state.hyperparameters import HyperparameterChanged
from regatta.pack.state.randomness import ProcessStreams
from regatta.pack.state.schedule_guard import TouchesTraining
from regatta.pack.track import Track

PROOF_STEPS = 2  # steps that are taken both ways; a value that was wrongly made constant shows in the second
MAX_STACKED_PARAMETERS = 200_000  # a larger member fills a GPU alone
MIN_MEMBERS_ON_GPU = 8  # with fewer members, concurrent graphs are as fast

Batches = list[list[Indices]]  # by step, then by member


def group_alike(members: Sequence[Member]) -> dict[Any, list[Member]]:
    """Groups of two or more members whose structure allows one stack, by their fingerprint."""
    groups: dict[Any, list[Member]] = {}
    for member in members:
        groups.setdefault(fingerprint(member), []).append(member)
    return {key: group for key, group in groups.items() if len(group) > 1}


@dataclass
class StackedTier:
    """All stacks of a pack. `exact` accepts only stacks proven bit for bit; `graphs` captures them on a GPU."""

    device_data: DeviceData
    rates: Rates
    exact: bool
    graphs: CudaGraphs | None
    allowed: bool
    seed: int = 0

    def __post_init__(self) -> None:
        self.proven: dict[Stack, Track] = {}
        self._fingerprints: dict[Stack, Any] = {}
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
        groups = group_alike(ready) if self.allowed else {}
        for stack, track in list(self.proven.items()):
            if groups.get(self._fingerprints[stack]) != stack.members or track.outdated or not stack.intact:
                self._dissolve(stack)
        present = [stack.members for stack in self.proven]
        for key, group in groups.items():
            if group not in present and tuple(group) not in self._refused and self._small_enough(group):
                reason = self._try(group, key, work)
                if reason is not None:
                    self._refused[tuple(group)] = reason

    def _small_enough(self, group: Sequence[Member]) -> bool:
        if self.device_data.device.type != "cuda":
            return True
        size = sum(parameter.numel() for parameter in group[0].model.parameters())
        return size <= MAX_STACKED_PARAMETERS and len(group) >= MIN_MEMBERS_ON_GPU

    def _try(self, group: list[Member], key: Any, work: Work) -> str | None:
        """Stack a group if that works and is exact, or need not be; otherwise return why not."""
        try:
            stack = Stack(group)
        except NotStackable as error:
            return str(error)
        batches = _common_batches(group, work, PROOF_STEPS)
        reason = "the members' batches have different sizes" if len(batches) < PROOF_STEPS else None
        equal = False
        if reason is None:
            left = _left(group, work)
            try:
                with stack.stepping():
                    saved = stack.save()
                    try:
                        reason = self._prove(stack, batches, work)
                    except Exception:
                        self._go_back(stack, saved, batches, left, work)
                        raise
            except Exception as error:  # noqa: BLE001 (a member's own code may raise anything; it fails again alone)
                reason = _describe(error)
            equal = reason is None
            if not self.exact and stack.proven:
                reason = None
        if reason is not None:
            stack.release()
            return reason
        self._fingerprints[stack] = key
        captured_numbers = self.graphs is not None and group[0].schedule is None
        held = updates.all_held if captured_numbers else updates.held
        self.proven[stack] = Track(
            group, self.device_data, self.graphs, stack.body, updates.numbers, held, stack.advance_schedules
        )
        for member in group:
            member.tier = "fused"
            member.reason = "exact: proven bit for bit" if equal else "fast: rounds differently from alone"
        return None

    def _prove(self, stack: Stack, batches: Batches, work: Work) -> str | None:
        """Compare steps of a stack with those of all members alone, which are kept. Returns what differs, or None."""
        differences = []
        for parts in batches:
            found = stack.check(self.device_data, parts, range(len(stack.members)))
            self._keep(stack, found, parts, work)
            differences.append(found.difference)
            if not self.exact and not found.is_close:
                raise NotStackable(f"{found.difference} by more than a rounding")
            for member in stack.members:
                seconds = min(found.seconds, member.figures.alone_seconds)
                member.figures = replace(member.figures, alone_seconds=seconds)
        difference = next((text for text in differences if text is not None), None)
        stack.proven[len(batches[0][0])] = difference is None
        return difference

    def _keep(self, stack: Stack, found: StackCheck, parts: Sequence[Indices], work: Work) -> None:
        """Count a step that was taken in a comparison."""
        losses = torch.stack(found.losses).double().unsqueeze(1).unbind()
        for member, loss, part in zip(stack.members, losses, parts, strict=True):
            member.add_losses(loss, [len(part)])
            member.advance(self.device_data.rows, 1)
        _consume(stack.members, work, 1)

    def _run(self, stack: Stack, work: Work) -> None:
        """Take the common steps of the members. If the stack fails, its members go back and are trained alone."""
        ahead = _common_batches(stack.members, work)
        try:
            with stack.stepping():
                self._take(stack, ahead, work)
        except (NotStackable, HyperparameterChanged, TouchesTraining, _Differs) as error:
            self._give_up(stack, work, _describe(error))

    def _take(self, stack: Stack, ahead: Batches, work: Work) -> None:
        """Take steps as a stack, and compare some with the step alone. After an error, go back to the last of these."""
        first = stack.members[0]
        draw = random.Random(f"{self.seed} {first.taken}")
        sizes, epoch_steps = [len(parts[0]) for parts in ahead], first.epoch_steps(self.device_data.rows)
        checks = check_steps(sizes, first.batch_size, epoch_steps, draw) if self.exact and ahead else []
        position = proven = 0
        saved, left = stack.save() if checks else None, _left(stack.members, work)
        streams = ProcessStreams()
        try:
            while position < len(ahead):
                until = next((step for step in checks if step >= position), len(ahead))
                stays_exact = stack.proven.get(len(ahead[position][0]), False)
                if saved is not None and until == position and stays_exact:
                    self._check(stack, saved, ahead, position, work, draw)
                    position = proven = position + 1
                    last = position == len(ahead)
                    saved, left = None if last else stack.save(), _left(stack.members, work)
                else:
                    position += self._go_on(stack, _first_size(ahead[position : max(until, position + 1)]), work)
                    disturbed = stack.first_disturbance(streams)
                    if disturbed is not None:
                        raise _Differs(f"a step {disturbed}")
        except Exception as error:
            if saved is None:
                raise
            self.proven[stack].drop()
            self._go_back(stack, saved, ahead[proven:], left, work)
            if isinstance(error, _Differs):
                for member in stack.members:
                    member.notes.append(f"{error}: trained alone from step {member.taken} on")
                raise NotStackable(f"{error} at a later step") from error
            raise NotStackable(_describe(error)) from error

    def _check(
        self, stack: Stack, saved: SavedStack, ahead: Batches, position: int, work: Work, draw: random.Random
    ) -> None:
        """Compare the next step of some members, which is kept. Raises _Differs."""
        changed = saved.change_by_schedule()
        if changed is not None:
            raise _Differs(f"a schedule changes {changed}")
        numbers = members_to_check(len(stack.members), len(ahead), draw)
        found = stack.check(self.device_data, ahead[position], numbers)
        if found.difference is not None:
            for python in found.python:
                python.put_back()
            raise _Differs(found.difference)
        self._keep(stack, found, ahead[position], work)

    def _go_back(self, stack: Stack, saved: SavedStack, taken: Batches, left: Sequence[int], work: Work) -> None:
        """Put the members back to a saved state. There `left` batches were left; `taken` are the first of them."""
        stack.go_back(saved)
        for number, member in enumerate(stack.members):
            missing = left[number] - len(work[member])
            work[member].extendleft(parts[number] for parts in reversed(taken[:missing]))

    def _go_on(self, stack: Stack, batches: Batches, work: Work) -> int:
        """Take steps with batches of one size: prove a new size first; take steps alone where the bits differ.

        Returns the number of steps taken. Raises NotStackable if the stack does not pay.
        """
        size = len(batches[0][0])
        if size not in stack.proven:
            try:
                self._prove(stack, batches[:1], work)
            except RoundsDifferently:
                stack.proven[size] = False
                return self._step_alone(stack, work)
            return 1
        if self.exact and not stack.proven[size]:
            return self._step_alone(stack, work)
        _consume(stack.members, work, len(batches))
        self._together(stack, batches)
        return len(batches)

    def _step_alone(self, stack: Stack, work: Work) -> int:
        """One step of each member alone, in the memory of the stack."""
        with stack.paused():
            for member in stack.members:
                train_alone(member, self.device_data, [work[member].popleft()])
        return 1

    def _together(self, stack: Stack, batches: Batches) -> None:
        """Take steps as a stack. Raises NotStackable if it turns out not to pay."""
        track = self.proven[stack]
        track.work.extend(batches)
        measured = ticks.run_stack(track, self.rates)
        if measured is None:
            return
        found = f"{len(stack.members)} stacked: {measured.ratio:.1f}x of one after another"
        for member in stack.members:
            member.reason = f"{member.reason.partition(';')[0]}; {found}"
        if not measured.pays:
            raise NotStackable(found)

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
        del self._fingerprints[stack]
        for member in stack.members:
            member.tier = "alone" if member.error is None else member.tier


class _Differs(Exception):
    """A step of a stack differs from the step alone."""


def _describe(error: Exception) -> str:
    if isinstance(error, TouchesTraining):
        return f"its schedule {error}"
    known = isinstance(error, NotStackable | HyperparameterChanged | _Differs)
    return str(error) if known else f"a step raises {type(error).__name__}"


def _left(members: Sequence[Member], work: Work) -> list[int]:
    return [len(work[member]) for member in members]


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
