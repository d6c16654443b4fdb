"""Pack: load models, train them together, free them; each as if it had been alone."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from regatta.errors import ConflictError, NotFoundError, UsageError
from regatta.pack.cuda_graphs.capture import CudaGraphs, Graphs
from regatta.pack.cuda_graphs.graph_tier import Captured
from regatta.pack.cuda_graphs.optimizers import capturable
from regatta.pack.device_data import Resident
from regatta.pack.loop_tier import Alone
from regatta.pack.member import Amount, Figures, Indices, Member, Order, Work
from regatta.pack.member_state import portable, restore
from regatta.pack.randomness import Randomness
from regatta.pack.rates import Rates
from regatta.pack.stacked.stacked_tier import Stacks

Tier = Literal["fused", "graph", "alone"]
ALL: tuple[Tier, ...] = ("fused", "graph", "alone")


@dataclass(frozen=True)
class Placement:
    """How a member is trained, and why so."""

    name: str
    tier: str
    reason: str
    figures: Figures


class Pack:
    """Many models on one device.

        pack = regatta.Pack(device="cuda")
        member = pack.load(model, optimizer, loss_fn, batch_size=64)
        pack.train((x, y), epochs=1)
        member.losses, pack.free(member)

    Members may differ in everything, come and go between calls of `train`, and are each trained exactly as alone,
    unless `numerics="fast"` allows stacked kernels that round differently.
    """

    def __init__(
        self,
        device: str | torch.device = "auto",
        *,
        numerics: Literal["exact", "fast"] = "exact",
        tiers: Sequence[Tier] = ALL,
        seed: int = 0,
        transform: Callable[[Any], Any] | None = None,
        memory_limit: int | None = None,
        rates: Rates | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        """`transform` prepares data once, on the device, for all members; `memory_limit` is in bytes.

        `tiers` leaves out ways to train, `rates` shares measurements between packs, `graphs` replaces CUDA graphs.
        """
        if numerics not in ("exact", "fast"):
            raise UsageError(f"numerics is {numerics!r}; it is 'exact' or 'fast'.")
        if not set(tiers) <= set(ALL) or "alone" not in tiers:
            raise UsageError(f"tiers are {tiers!r}; they are some of {ALL}, always with 'alone'.")
        self.device = _device(device)
        self.numerics, self.tiers, self.seed, self.memory_limit = numerics, tuple(tiers), seed, memory_limit
        self.rates = rates if rates is not None else Rates()
        self.resident = Resident(self.device, transform)
        on_gpu = self.device.type == "cuda" and "graph" in tiers
        self.graphs = graphs if graphs is not None else CudaGraphs(self.device) if on_gpu else None
        self.members: list[Member] = []
        self.captured = Captured(self.resident, self.rates, self.graphs, memory_limit)
        self.alone = Alone(self.resident, self.captured.release)
        stackable = "fused" in tiers and (self.device.type != "cuda" or numerics == "fast")
        captures = self.graphs if self.device.type == "cuda" else None
        self.stacks = Stacks(self.resident, self.rates, self.alone, numerics == "exact", captures, stackable)

    def load(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: Callable[..., Any],
        batch_size: int,
        *,
        config: Mapping[str, Any] | None = None,
        schedule: Any = None,
        seed: int = 0,
        order: Order | None = None,
        clip_norm: float | None = None,
        scaler: Any = None,
        steps: int | None = None,
        state: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> Member:
        """Take a model in; it trains from the next call of `train` on, and goes on from `state` if that is given.

        `loss_fn(model, batch)` gets `config` as a third argument where there is one. `schedule` advances with every
        step. `seed` starts the member's own random streams. `order(rows, epoch)` gives the batches of an epoch; without
        it, all members follow one permutation. `clip_norm` and `scaler` (a GradScaler) are the member's own. `steps` is
        a limit.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"batch_size is {batch_size!r}; it is a whole number from 1.")
        _check_parts(model, optimizer)
        name = name if name is not None else f"member-{len(self.members)}"
        if any(member.name == name for member in self.members):
            raise ConflictError(
                f"There is a member named {name!r} already.", hint="Free it first, or choose another name."
            )
        model.to(self.device)
        order = order if order is not None else self._shared_order(batch_size)
        randomness = Randomness(seed, self.device)
        member = Member(
            name, model, optimizer, loss_fn, batch_size, order, randomness, config, schedule, clip_norm, scaler, steps
        )
        if state is not None:
            restore(member, state)
        if self.graphs is not None:
            capturable(optimizer, schedule is not None)
        self.members.append(member)
        return member

    def free(self, member: Member | str) -> dict[str, Any]:
        """Let a member go: its whole state, with tensors of its own; the others stay as they are."""
        found = next((m for m in self.members if m is member or m.name == member), None)
        if found is None:
            raise NotFoundError(f"There is no member {getattr(member, 'name', member)!r} in the pack.")
        self.stacks.let_go(found)
        self.captured.let_go(found)
        self.members.remove(found)
        return portable(found)

    def train(
        self,
        data: Any,
        *,
        steps: int | Mapping[Member, int] | None = None,
        samples: int | Mapping[Member, int] | None = None,
        epochs: int | Mapping[Member, int] | None = None,
    ) -> None:
        """Train members: so many steps, samples or epochs each; `epochs=1` goes to the end of the present one.

        A number holds for all members; a mapping says how much for whom, and the others rest. The call returns when all
        work has been handed to the device; reading losses waits for it.
        """
        amounts = self._amounts(steps=steps, samples=samples, epochs=epochs)
        self.resident.place(data)
        self.captured.keep_present()
        work: Work = {m: deque(m.upcoming(self.resident.rows, amount)) for m, amount in amounts.items() if not m.done}
        for member in work:
            member.begin()
        with self._settings():
            self.alone.introduce(work)
            self.stacks.run(work)
            self.captured.run(work)
            self.alone.run(work, self._why_alone)

    def plan(self) -> list[Placement]:
        """How each member is trained, why, and what was measured."""
        return [Placement(m.name, m.tier, m.reason, m.figures) for m in self.members]

    def _amounts(self, **given: int | Mapping[Member, int] | None) -> dict[Member, Amount]:
        said = {unit: value for unit, value in given.items() if value is not None}
        if len(said) != 1:
            raise UsageError("Say how much to train with exactly one of steps, samples and epochs.")
        ((unit, value),) = said.items()
        if not isinstance(value, Mapping):
            return {member: Amount(**{unit: value}) for member in self.members}
        strange = [member.name for member in value if member not in self.members]
        if strange:
            raise NotFoundError(f"There is no member {strange[0]!r} in the pack.")
        return {member: Amount(**{unit: count}) for member, count in value.items()}

    def _why_alone(self, member: Member) -> str:
        refused = self.stacks.why_not(member)
        if refused is not None:
            return f"do not pack: {refused}"
        if self.graphs is not None:
            return "too few steps to capture"
        return "no other member is built alike" if self.stacks.allowed else "no graphs on this device"

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Kernels that give the same bits each time, where exactness was asked for."""
        cudnn = torch.backends.cudnn
        before = cudnn.deterministic, cudnn.benchmark
        if self.numerics == "exact":
            cudnn.deterministic, cudnn.benchmark = True, False
        try:
            yield
        finally:
            cudnn.deterministic, cudnn.benchmark = before

    def _shared_order(self, batch_size: int) -> Order:
        def order(rows: int, epoch: int) -> Sequence[Indices]:
            from regatta.data.order import batch_order

            seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0])
            return batch_order(rows, batch_size, seed)

        return order


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def _check_parts(model: object, optimizer: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"load got {type(model).__name__} as a model, where a torch.nn.Module belongs.")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"load got {type(optimizer).__name__} as an optimizer, where a torch.optim.Optimizer belongs.")
    owned = {id(p) for p in model.parameters()}
    strange = sum(id(p) not in owned for group in optimizer.param_groups for p in group["params"])
    if strange:
        raise UsageError(f"The optimizer holds {strange} parameters that are not the model's.")
