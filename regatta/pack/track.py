"""The steps of a member, or of a stack of members, over its batches.

A lane holds the buffers from which a step reads its batch and to which it writes its losses. All buffers keep their
addresses, and a cursor on the device selects the batch. So a lane's step can be captured and replayed, and the host
need not wait between steps.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from regatta.frameworks.torch.capturable import host_counters
from regatta.pack.cuda_graphs.capture import CudaGraphs, Replay
from regatta.pack.device_data import DeviceData, take_rows
from regatta.pack.fingerprint import first_hook, structure
from regatta.pack.member import Indices, Member
from regatta.pack.state.hyperparameters import (
    Constants,
    HyperparameterChanged,
    HyperparameterPreview,
    Numbers,
    constants,
    set_tensors,
    tensor_numbers,
)
from regatta.pack.state.member_state import addresses
from regatta.pack.step import take_step

LANE_STEPS = 256  # steps in a full lane

Body = Callable[[Any, "torch.Tensor | None"], torch.Tensor]  # (batch, hyperparameters) -> losses, one per member


class Lane:
    """Steps with batches of one size."""

    def __init__(self, track: Track, batch_size: int) -> None:
        device, count = track.device_data.device, len(track.members)
        self.track, self.batch_size = track, batch_size
        self.table = torch.zeros(LANE_STEPS, count * batch_size, dtype=torch.int64, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = torch.zeros(LANE_STEPS, count, dtype=torch.float64, device=device)
        self.numbers: torch.Tensor | None = None
        self.replay: Replay | None = None
        self.runs = 0  # taken without a graph
        self.filled = self.done = self.replayed = 0

    def fill(self, batches: Sequence[Sequence[Indices]], numbers: torch.Tensor | None) -> None:
        """Lay out the next steps: for each, the rows and the hyperparameters of every member."""
        rows = torch.from_numpy(np.stack([np.concatenate(parts) for parts in batches]))
        self.table[: len(batches)].copy_(_pin(rows, self.table), non_blocking=True)
        if numbers is not None:
            if self.numbers is None:
                shape = LANE_STEPS, *numbers.shape[1:]
                self.numbers = torch.zeros(shape, dtype=torch.float64, device=self.table.device)
            self.numbers[: len(batches)].copy_(_pin(numbers, self.table), non_blocking=True)
        self.cursor.zero_()
        self.filled, self.done = len(batches), 0

    def step(self) -> None:
        """One step, at the cursor. Graphs capture this function."""
        rows = self.table.index_select(0, self.cursor).view(-1)
        numbers = None if self.numbers is None else self.numbers.index_select(0, self.cursor).squeeze(0)
        losses = self.track.body(take_rows(self.track.device_data.data, rows), numbers)
        self.losses.index_copy_(0, self.cursor, losses.detach().double().view(1, -1))
        self.cursor.add_(1)

    def step_here(self) -> None:
        """The same without graphs: the host knows the position, and advances the schedules."""
        losses = self.track.body(take_rows(self.track.device_data.data, self.table[self.done]), None)
        self.losses[self.done].copy_(losses.detach())
        self.track.advance_schedules()

    def advance(self) -> None:
        """Take the next step, from the graph if there is one."""
        if self.replay is None and self.track.graphs is not None and self.runs:
            self.capture()
        if self.replay is not None:
            self.replay.replay()
            self.replayed += 1
        elif self.track.graphs is None:
            self.step_here()
        else:
            with self.track.own_randomness():
                self.step()
            self.runs += 1
        self.done += 1

    def capture(self) -> None:
        assert self.track.graphs is not None
        counters = self.track.host_counters()
        before = [counter.clone() for counter in counters]
        with self.track.own_randomness():
            self.replay = self.track.graphs.capture(self.track.stream, self.step)
        for counter, value in zip(counters, before, strict=True):  # capturing runs the host's part of a step
            counter.copy_(value)

    def flush_losses(self) -> None:
        """Give the losses of the steps taken to the members, without waiting for the device."""
        count, track = self.done, self.track
        if not count:
            return
        losses = self.losses[:count].clone()
        for number, member in enumerate(track.members):
            member.add_losses(losses[:, number], [self.batch_size] * count)
            member.advance(track.device_data.rows, count)
        for counter in track.host_counters():  # a replayed step does not count on the host
            counter += self.replayed
        self.filled = self.done = self.replayed = 0


def _pin(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Pin the memory, so that the copy to a device does not block the host."""
    return tensor.pin_memory() if target.is_cuda else tensor


class Track:
    """The steps of a member or a stack, one after another. The tracks of a pack advance concurrently."""

    def __init__(
        self,
        members: Sequence[Member],
        device_data: DeviceData,
        graphs: CudaGraphs | None,
        body: Body | None = None,
        numbers: Numbers = tensor_numbers,
        held: Constants = constants,
        advance_schedules: Callable[[], None] | None = None,
    ) -> None:
        """`body` takes one step; its hyperparameters are `numbers`, which may change, and `held`, which may not.

        `advance_schedules` comes after each step that was not captured.
        """
        self.members, self.device_data, self.graphs = list(members), device_data, graphs
        self.body: Body = body or self._alone
        self.advance_schedules = advance_schedules or self._advance_schedules
        self._numbers, self._held = numbers, held
        self.made_for = self._what_steps_hold()
        self.stream: Any = graphs.stream() if graphs is not None else None
        self.generation = device_data.generation
        self.draws = False  # whether its steps draw random numbers on the device
        self.work: deque[list[Indices]] = deque()
        self._lanes: dict[int, Lane] = {}
        self.current: Lane | None = None
        self._previews: list[HyperparameterPreview] | None = None

    @property
    def batch_size(self) -> int:
        return self.members[0].batch_size

    @property
    def outdated(self) -> bool:
        """Whether captured steps hold what has changed since: addresses, hyperparameters, attributes, functions."""
        moved = self.graphs is not None and self.generation != self.device_data.generation
        return moved or self.made_for != self._what_steps_hold()

    def _what_steps_hold(self) -> object:
        held = [self._held(member.optimizer.param_groups) for member in self.members]
        if len(self.members) > 1:  # a stack is dissolved when the fingerprint of its members changes
            return held
        member = self.members[0]
        parts = id(member.optimizer), id(member.loss_fn), member.clip_norm
        return held, structure(member.model), first_hook(member), addresses(member), parts

    def lane(self, batch_size: int) -> Lane:
        if batch_size not in self._lanes:
            self._lanes[batch_size] = Lane(self, batch_size)
        return self._lanes[batch_size]

    def ready(self) -> Lane:
        """The lane of the next step, filled."""
        lane = self.current
        if lane is not None and lane.done < lane.filled:
            return lane
        if lane is not None:
            lane.flush_losses()
            self.current = None
        size = len(self.work[0][0])
        same = itertools.takewhile(lambda parts: len(parts[0]) == size, self.work)
        run = list(itertools.islice(same, LANE_STEPS))
        numbers = self._preview(len(run))
        run = run if numbers is None else run[: len(numbers)]
        self.current = lane = self.lane(size)
        lane.fill(run, numbers)
        for _ in run:
            self.work.popleft()
        return lane

    @property
    def left(self) -> int:
        """The number of steps left."""
        lane = self.current
        return len(self.work) + (0 if lane is None else lane.filled - lane.done)

    def advance(self, steps: int) -> None:
        for _ in range(min(steps, self.left)):
            self.ready().advance()

    def finish(self) -> None:
        """After the last step: give the losses to the members, and set the hyperparameters of the next step."""
        if self.current is not None:
            self.current.flush_losses()
            self.current = None
        for preview in self._previews or ():
            preview.finish()
        self._previews = None

    def drop(self) -> list[list[Indices]]:
        """Drop the steps that were prepared but not taken, and return their batches."""
        lane, rest = self.current, list(self.work)
        if lane is not None:
            table = lane.table[lane.done : lane.filled].cpu().numpy()
            rest = [np.split(row, len(self.members)) for row in table] + rest
            for preview in self._previews or ():
                preview.rewind(lane.done)
        self.work.clear()
        self.finish()
        return rest

    def replays(self) -> list[Replay]:
        """Its captured steps, one for each batch size."""
        return [lane.replay for lane in self._lanes.values() if lane.replay is not None]

    def close(self) -> None:
        """Free graphs and buffers at once: lanes and tracks refer to each other and would wait for the collector."""
        for lane in self._lanes.values():
            lane.replay = None
        self._lanes.clear()
        self.current = None

    def _preview(self, steps: int) -> torch.Tensor | None:
        """Hyperparameters by step, member and number, for this many steps or fewer; None without a schedule."""
        if self.graphs is None or all(member.schedule is None for member in self.members):
            return None
        if self._previews is None:
            self._previews = [HyperparameterPreview(member, self._numbers, self._held) for member in self.members]
        found: list[torch.Tensor] = []
        try:
            for preview in self._previews:
                found.append(preview.next(steps))
        except HyperparameterChanged:
            for preview in self._previews[: len(found)]:
                preview.rewind(0)
            raise
        fewest = min(map(len, found))
        for preview, numbers in zip(self._previews, found, strict=True):
            if len(numbers) > fewest:
                preview.rewind(fewest)
        return torch.stack([numbers[:fewest] for numbers in found], dim=1)

    def _alone(self, batch: Any, numbers: torch.Tensor | None) -> torch.Tensor:
        member = self.members[0]
        if numbers is not None:
            set_tensors(member.optimizer.param_groups, numbers[0])
        return take_step(member, batch)

    def _advance_schedules(self) -> None:
        for member in self.members:
            member.advance_schedule()

    def own_randomness(self) -> Any:
        return self.members[0].randomness.active_on_device()

    def host_counters(self) -> list[torch.Tensor]:
        return [counter for member in self.members for counter in host_counters(member.optimizer)]
