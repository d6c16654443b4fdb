"""One model in a pack: its position in the data, its losses, its measured costs."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from regatta.frameworks.torch.framework import needs_closure
from regatta.pack.fingerprint import step_signature, structure
from regatta.pack.state.randomness import Randomness

Indices = npt.NDArray[np.int64]
Order = Callable[[int, int], Sequence[Indices]]  # (rows, epoch) -> the batches of that epoch


@dataclass(frozen=True)
class Amount:
    """How much to train: exactly one of these."""

    steps: int | None = None
    samples: int | None = None
    epochs: int | None = None

    def reached(self, steps: int, samples: int, epochs: int) -> bool:
        if self.steps is not None:
            return steps >= self.steps
        if self.samples is not None:
            return samples >= self.samples
        return epochs >= (self.epochs or 0)


@dataclass(frozen=True)
class Figures:
    """The measured costs of a member: alone, and in the group that it last trained in."""

    state_bytes: int = 0  # parameters, buffers and optimizer
    peak_bytes: int = 0  # additional memory of a step
    alone_seconds: float = float("nan")  # one step alone
    packed_seconds: float = float("nan")  # its share of a step of the group
    samples_per_second: float = float("nan")


@dataclass(eq=False, repr=False)
class Member:
    """A model that a pack trains; read its losses and figures here, and stop it with `Pack.free`."""

    name: str
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable[..., Any]
    batch_size: int
    order: Order
    randomness: Randomness
    config: Mapping[str, Any] | None = None
    schedule: Any = None  # a learning-rate schedule that advances with each step
    clip_norm: float | None = None
    scaler: Any = None  # its own torch.amp.GradScaler
    limit: int | None = None  # steps after which it is done

    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    taken: int = 0  # steps taken in total
    tier: str = "new"
    reason: str = "not trained yet"
    error: BaseException | None = None
    figures: Figures = field(default_factory=Figures)
    notes: list[str] = field(default_factory=list)  # why it was put back to an earlier step, if it was

    _log: list[tuple[torch.Tensor, list[int]]] = field(default_factory=list)
    _since: int = 0  # where the last call of `train` begins in the log
    _epoch_batches: tuple[int, int, list[Indices]] | None = None

    def __repr__(self) -> str:
        return f"Member({self.name!r}, {self.tier}, {self.taken} steps)"

    @functools.cached_property
    def kind(self) -> Hashable:
        """A key for the cost of a step, equal for members that differ only in hyperparameters."""
        return step_signature(self)

    @functools.cached_property
    def architecture(self) -> Hashable:
        return structure(self.model)

    @functools.cached_property
    def evaluates_loss(self) -> bool:
        """Whether its optimizer evaluates the loss by itself."""
        return needs_closure(self.optimizer)

    @property
    def done(self) -> bool:
        """Whether it takes no further steps, because it failed, diverged or has reached its limit."""
        return self._done_after(0) or self.diverged

    def _done_after(self, steps: int) -> bool:
        return self.error is not None or (self.limit is not None and self.taken + steps >= self.limit)

    @property
    def losses(self) -> npt.NDArray[np.float64]:
        """The loss of every step so far; waits for the device."""
        parts = [losses.detach().cpu().numpy() for losses, _ in self._log]
        return np.concatenate(parts) if parts else np.zeros(0)

    @property
    def mean_loss(self) -> float:
        """The mean over the rows of the last call of `train`, summed step by step as in a plain loop."""
        total, seen = 0.0, 0
        for losses, sizes in self._log[self._since :]:
            for loss, size in zip(losses.tolist(), sizes, strict=True):
                total += loss * size
                seen += size
        return total / max(1, seen)

    @property
    def diverged(self) -> bool:
        """Whether its last loss was not finite; waits for the device."""
        return bool(self._log) and not math.isfinite(float(self._log[-1][0][-1]))

    def start_again(self, seed: int) -> None:
        """Begin a unit: reset its random streams, the order of its batches and its losses."""
        self.randomness.seed(seed)
        self._epoch_batches = None
        self._log.clear()

    def begin(self) -> None:
        """Begin a call of `train`: `mean_loss` counts from here."""
        self._since = len(self._log)
        self.model.train()

    def advance_schedule(self) -> None:
        if self.schedule is not None:
            self.schedule.step()

    def add_losses(self, losses: torch.Tensor, sizes: list[int]) -> None:
        """Keep the losses of some steps, as a tensor that the device may still be computing."""
        self._log.append((losses, sizes))

    def position(self) -> tuple[int, int, int, int]:
        """Where it is in the data and in its losses, to go back to."""
        return self.epoch, self.batch, self.taken, len(self._log)

    def go_back(self, position: tuple[int, int, int, int]) -> None:
        self.epoch, self.batch, self.taken, length = position
        del self._log[length:]

    def upcoming(self, rows: int, amount: Amount) -> list[Indices]:
        """The next batches, without taking them."""
        found: list[Indices] = []
        epoch, batch, samples, epochs = self.epoch, self.batch, 0, 0
        while not amount.reached(len(found), samples, epochs) and not self._done_after(len(found)):
            batches = self._batches(rows, epoch)
            part = batches[batch : batch + self._countable(amount, len(found))]
            if part:
                found += part
                samples += sum(map(len, part))
                batch += len(part)
                epochs += batch == len(batches)
            else:
                epoch, batch = epoch + 1, 0
        return found

    def _countable(self, amount: Amount, planned: int) -> int:
        """How many more batches can be added before `Amount.reached` must be checked again."""
        most = [1 << 62]
        if amount.samples is not None:
            most.append(1)
        if amount.steps is not None:
            most.append(amount.steps - planned)
        if self.limit is not None:
            most.append(self.limit - self.taken - planned)
        return min(most)

    def advance(self, rows: int, count: int) -> None:
        """Count steps as taken."""
        self.taken += count
        self.batch += count
        while self.batch >= len(self._batches(rows, self.epoch)):
            self.batch -= len(self._batches(rows, self.epoch))
            self.epoch += 1

    def epoch_steps(self, rows: int) -> int:
        return len(self._batches(rows, self.epoch))

    def _batches(self, rows: int, epoch: int) -> list[Indices]:
        if self._epoch_batches is None or self._epoch_batches[:2] != (rows, epoch):
            batches = [np.asarray(batch, np.int64) for batch in self.order(rows, epoch)]
            self._epoch_batches = rows, epoch, batches
        return self._epoch_batches[2]


Work = dict[Member, deque[Indices]]  # the batches that each member still has to take in a call of `train`
