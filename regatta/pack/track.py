"""The way of a member, or of a stack of members, through its batches.

A lane holds the buffers that one step reads its batch from and writes its losses to; everything in it stays at its
address, and the step finds its place by a cursor on the device. So a lane's step can be captured and replayed, and
the host need not wait between steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from regatta.pack.cuda_graphs.capture import Graphs, Replay
from regatta.pack.cuda_graphs.optimizers import RatePreview, host_counters, set_rate
from regatta.pack.device_data import Resident, take
from regatta.pack.member import Indices, Member
from regatta.pack.step import take_step

CAPACITY = 256  # steps that a lane is filled with at a time

Body = Callable[[Any, "torch.Tensor | None"], torch.Tensor]  # (batch, learning rates) -> losses, one per member


class Lane:
    """Steps with batches of one size."""

    def __init__(self, track: Track, batch_size: int) -> None:
        device, count = track.resident.device, len(track.members)
        self.track, self.batch_size = track, batch_size
        self.table = torch.zeros(CAPACITY, count * batch_size, dtype=torch.int64, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = torch.zeros(CAPACITY, count, dtype=torch.float64, device=device)
        self.rates: torch.Tensor | None = None
        self.replay: Replay | None = None
        self.runs = 0  # taken without a graph
        self.filled = self.done = self.replayed = 0

    def fill(self, batches: Sequence[Sequence[Indices]], rates: torch.Tensor | None) -> None:
        """Lay out the next steps: for each, the rows of every member."""
        rows = torch.from_numpy(np.stack([np.concatenate(parts) for parts in batches]))
        self.table[: len(batches)].copy_(_staged(rows, self.table), non_blocking=True)
        if rates is not None:
            if self.rates is None:
                self.rates = torch.zeros(CAPACITY, *rates.shape[1:], dtype=torch.float64, device=self.table.device)
            self.rates[: len(batches)].copy_(_staged(rates, self.table), non_blocking=True)
        self.cursor.zero_()
        self.filled, self.done = len(batches), 0

    def step(self) -> None:
        """One step, wherever the cursor stands. What is captured is this very function."""
        rows = self.table.index_select(0, self.cursor).view(-1)
        rates = None if self.rates is None else self.rates.index_select(0, self.cursor).squeeze(0)
        losses = self.track.body(take(self.track.resident.data, rows), rates)
        self.losses.index_copy_(0, self.cursor, losses.detach().double().view(1, -1))
        self.cursor.add_(1)

    def step_here(self) -> None:
        """The same where no graph is made of it: the host knows the place."""
        rates = None if self.rates is None else self.rates[self.done]
        losses = self.track.body(take(self.track.resident.data, self.table[self.done]), rates)
        self.losses[self.done].copy_(losses.detach())

    def go(self) -> None:
        """Take one of the steps laid out: from the graph, when there is one."""
        if self.replay is None and self.track.graphs is not None and self.runs:
            self.capture()
        if self.replay is not None:
            self.replay.replay()
            self.replayed += 1
        elif self.track.graphs is None:
            self.step_here()
        else:
            with self.track.randomly():
                self.step()
            self.runs += 1
        self.done += 1

    def capture(self) -> None:
        assert self.track.graphs is not None
        counters = self.track.host_counters()
        before = [counter.clone() for counter in counters]
        with self.track.randomly():
            self.replay = self.track.graphs.capture(self.track.stream, self.step)
        for counter, value in zip(counters, before, strict=True):  # the host's part of a step does run under capture
            counter.copy_(value)

    def read(self) -> None:
        """Give the losses of the steps taken to the members; nothing waits for them."""
        count, track = self.done, self.track
        if not count:
            return
        losses = self.losses[:count].clone()
        for number, member in enumerate(track.members):
            member.note(losses[:, number], [self.batch_size] * count)
            member.advance(track.resident.rows, count)
        for counter in track.host_counters():  # a replayed step does not count on the host
            counter += self.replayed
        self.filled = self.done = self.replayed = 0


def _staged(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Pinned, so that the copy to a device does not hold the host up."""
    return tensor.pin_memory() if target.is_cuda else tensor


class Track:
    """A member's steps, or a stack's, one after another; tracks of a pack advance side by side."""

    def __init__(
        self, members: Sequence[Member], resident: Resident, graphs: Graphs | None, body: Body | None = None
    ) -> None:
        self.members, self.resident, self.graphs = list(members), resident, graphs
        self.body: Body = body or self._alone
        self.stream = graphs.stream() if graphs is not None else None
        self.generation = resident.generation
        self.draws = False  # random numbers on the device
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
            lane.read()
        size = len(self.work[0][0])
        self.current = lane = self.lane(size)
        run: list[list[Indices]] = []
        while self.work and len(run) < CAPACITY and len(self.work[0][0]) == size:
            run.append(self.work.popleft())
        lane.fill(run, self._rates(len(run)))
        return lane

    @property
    def left(self) -> int:
        """Steps that are still to be taken."""
        lane = self.current
        return len(self.work) + (0 if lane is None else lane.filled - lane.done)

    def advance(self, steps: int) -> None:
        for _ in range(min(steps, self.left)):
            self.ready().go()

    def finish(self) -> None:
        """All steps are taken: hand the losses on, leave learning rates as they stand now."""
        if self.current is not None:
            self.current.read()
            self.current = None
        for preview in self._previews or ():
            preview.finish()
        self._previews = None

    def drop(self) -> list[list[Indices]]:
        """Give up the steps laid out but not taken; they are returned, to be taken otherwise."""
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
        """Its captured steps, one for each size of batches."""
        return [lane.replay for lane in self._lanes.values() if lane.replay is not None]

    def close(self) -> None:
        """Let go of graphs and buffers at once: lanes and tracks hold each other, and memory cannot wait for that."""
        for lane in self._lanes.values():
            lane.replay = None
        self._lanes.clear()
        self.current = None

    def _rates(self, steps: int) -> torch.Tensor | None:
        """Learning rates by step, member and parameter group, where a member has a schedule."""
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

    def randomly(self) -> Any:
        return self.members[0].randomness.active_on_device()

    def host_counters(self) -> list[torch.Tensor]:
        return [counter for member in self.members for counter in host_counters(member.optimizer)]
