"""The steps of a member, or of a stack of members, over its batches.

A lane holds the buffers from which a step reads its batch and to which it writes its losses. All buffers keep their
addresses, and a cursor on the device selects the batch. So a lane's step can be captured and replayed, and the host
need not wait between steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from regatta.pack.cuda_graphs.capture import CudaGraphs, Replay
from regatta.pack.cuda_graphs.optimizers import RatePreview, host_counters, set_rate
from regatta.pack.device_data import DeviceData, take_rows
from regatta.pack.member import Indices, Member
from regatta.pack.step import take_step

LANE_STEPS = 256  # steps in a full lane

Body = Callable[[Any, "torch.Tensor | None"], torch.Tensor]  # (batch, learning rates) -> losses, one per member


class Lane:
    """Steps with batches of one size."""

    def __init__(self, track: Track, batch_size: int) -> None:
        device, count = track.device_data.device, len(track.members)
        self.track, self.batch_size = track, batch_size
        self.table = torch.zeros(LANE_STEPS, count * batch_size, dtype=torch.int64, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = torch.zeros(LANE_STEPS, count, dtype=torch.float64, device=device)
        self.rates: torch.Tensor | None = None
        self.replay: Replay | None = None
        self.runs = 0  # taken without a graph
        self.filled = self.done = self.replayed = 0

    def fill(self, batches: Sequence[Sequence[Indices]], rates: torch.Tensor | None) -> None:
        """Lay out the next steps: for each, the rows of every member."""
        rows = torch.from_numpy(np.stack([np.concatenate(parts) for parts in batches]))
        self.table[: len(batches)].copy_(_pin(rows, self.table), non_blocking=True)
        if rates is not None:
            if self.rates is None:
                self.rates = torch.zeros(LANE_STEPS, *rates.shape[1:], dtype=torch.float64, device=self.table.device)
            self.rates[: len(batches)].copy_(_pin(rates, self.table), non_blocking=True)
        self.cursor.zero_()
        self.filled, self.done = len(batches), 0

    def step(self) -> None:
        """One step, at the cursor. Graphs capture this function."""
        rows = self.table.index_select(0, self.cursor).view(-1)
        rates = None if self.rates is None else self.rates.index_select(0, self.cursor).squeeze(0)
        losses = self.track.body(take_rows(self.track.device_data.data, rows), rates)
        self.losses.index_copy_(0, self.cursor, losses.detach().double().view(1, -1))
        self.cursor.add_(1)

    def step_here(self) -> None:
        """The same without a graph: the host knows the position."""
        rates = None if self.rates is None else self.rates[self.done]
        losses = self.track.body(take_rows(self.track.device_data.data, self.table[self.done]), rates)
        self.losses[self.done].copy_(losses.detach())

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
        self, members: Sequence[Member], device_data: DeviceData, graphs: CudaGraphs | None, body: Body | None = None
    ) -> None:
        self.members, self.device_data, self.graphs = list(members), device_data, graphs
        self.body: Body = body or self._alone
        self.stream: Any = graphs.stream() if graphs is not None else None
        self.generation = device_data.generation
        self.draws = False  # whether its steps draw random numbers on the device
        self.work: deque[list[Indices]] = deque()
        self._lanes: dict[int, Lane] = {}
        self.current: Lane | None = None
        self._previews: list[RatePreview] | None = None

    @property
    def batch_size(self) -> int:
        return self.members[0].batch_size

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
        size = len(self.work[0][0])
        self.current = lane = self.lane(size)
        run: list[list[Indices]] = []
        while self.work and len(run) < LANE_STEPS and len(self.work[0][0]) == size:
            run.append(self.work.popleft())
        lane.fill(run, self._rates(len(run)))
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
        """After the last step: give the losses to the members, and set the learning rates of the next step."""
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

    def _rates(self, steps: int) -> torch.Tensor | None:
        """Learning rates by step, member and parameter group; None if no member has a schedule."""
        if all(member.schedule is None for member in self.members):
            return None
        if self._previews is None:
            self._previews = [RatePreview(member.optimizer, member.schedule) for member in self.members]
        return torch.stack([preview.next(steps) for preview in self._previews], dim=1)

    def _alone(self, batch: Any, rates: torch.Tensor | None) -> torch.Tensor:
        member = self.members[0]
        if rates is not None:
            for group, rate in zip(member.optimizer.param_groups, rates[0], strict=True):
                set_rate(group, rate)
        return take_step(member, batch)

    def own_randomness(self) -> Any:
        return self.members[0].randomness.active_on_device()

    def host_counters(self) -> list[torch.Tensor]:
        return [counter for member in self.members for counter in host_counters(member.optimizer)]
