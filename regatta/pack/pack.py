"""Pack: load models, train them together, free them; each as if it had been alone."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from regatta.errors import ConflictError, NotFoundError, UsageError
from regatta.frameworks.settings import KeptSettings
from regatta.frameworks.torch.capturable import capturable
from regatta.frameworks.torch.settings import settings
from regatta.pack.cuda_graphs.capture import CudaGraphs
from regatta.pack.cuda_graphs.graph_tier import GraphTier
from regatta.pack.device_data import DeviceData
from regatta.pack.loop_tier import LoopTier
from regatta.pack.member import Amount, Figures, Indices, Member, Order, Work
from regatta.pack.rates import Rates
from regatta.pack.stacked.stacked_tier import StackedTier
from regatta.pack.state.member_state import export_member, restore_member
from regatta.pack.state.randomness import Randomness

Tier = Literal["fused", "graph", "alone"]
ALL: tuple[Tier, ...] = ("fused", "graph", "alone")


@dataclass(frozen=True)
class Placement:
    """How a member is trained, and why."""

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

    Members may differ in everything and may be loaded and freed between calls of `train`. Each is trained exactly as
    alone, unless `numerics="fast"` allows stacked kernels that round differently.
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
        graphs: CudaGraphs | None = None,
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
        self.device_data = DeviceData(self.device, transform)
        on_gpu = self.device.type == "cuda" and "graph" in tiers
        self.graphs = graphs if graphs is not None else CudaGraphs(self.device) if on_gpu else None
        self.members: list[Member] = []
        self._process = KeptSettings()  # in the last call of `train`
        self._default_names = (f"member-{number}" for number in itertools.count())
        self.graph_tier = GraphTier(self.device_data, self.rates, self.graphs, memory_limit, seed)
        self.loop_tier = LoopTier(self.device_data, self.graph_tier.make_room)
        stackable = "fused" in tiers and (self.device.type != "cuda" or numerics == "fast")
        captures = self.graphs if self.device.type == "cuda" else None
        self.stacked_tier = StackedTier(self.device_data, self.rates, numerics == "exact", captures, stackable, seed)

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
        """Add a model. It trains from the next call of `train` on, and continues from `state` if that is given.

        `loss_fn(model, batch)` gets `config` as a third argument if there is one. `schedule` advances with every step.
        `seed` starts the member's own random streams. `order(rows, epoch)` returns the batches of an epoch; without it,
        all members use the same permutation. `clip_norm` and `scaler` (a GradScaler) apply to this member. `steps` is a
        limit.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"batch_size is {batch_size!r}; it must be a whole number from 1.")
        _check_parts(model, optimizer, schedule)
        self._check_not_shared(model)
        taken = {member.name for member in self.members}
        name = name if name is not None else next(n for n in self._default_names if n not in taken)
        if name in taken:
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
            restore_member(member, state)
        if self.graphs is not None:
            capturable(optimizer, schedule is not None)
        self.members.append(member)
        return member

    def free(self, member: Member | str) -> dict[str, Any]:
        """Remove a member and return its whole state, with its own tensors. The others are not affected."""
        found = next((m for m in self.members if m is member or m.name == member), None)
        if found is None:
            raise NotFoundError(f"There is no member {getattr(member, 'name', member)!r} in the pack.")
        self.stacked_tier.remove_member(found)
        self.graph_tier.remove_member(found)
        self.members.remove(found)
        return export_member(found)

    def train(
        self,
        data: Any,
        *,
        steps: int | Mapping[Member, int] | None = None,
        samples: int | Mapping[Member, int] | None = None,
        epochs: int | Mapping[Member, int] | None = None,
    ) -> None:
        """Train each member for a number of steps, samples or epochs; `epochs=1` goes to the end of the current one.

        A number applies to all members. A mapping gives a number for each of its members, and the others do not train.
        A member whose last loss is not finite has diverged: later calls do not train it.
        """
        amounts = self._amounts(steps=steps, samples=samples, epochs=epochs)
        self.device_data.place(data)
        self._look_at_process()
        for member in amounts:
            if member.error is None and member.diverged:
                member.reason = f"stopped: its loss was {member.losses[-1]} at step {member.taken}"
        work: Work = {
            m: deque(m.upcoming(self.device_data.rows, amount)) for m, amount in amounts.items() if not m.done
        }
        for member in work:
            member.begin()
        self.graph_tier.drop_outdated(work)
        with self._settings():
            self.loop_tier.take_first_steps(work)
            self.stacked_tier.run(work)
            self.graph_tier.run(work)
            self.loop_tier.run(work, self._why_alone)

    def plan(self) -> list[Placement]:
        """How each member is trained, why, and what was measured."""
        return [Placement(m.name, m.tier, m.reason, m.figures) for m in self.members]

    def _look_at_process(self) -> None:
        """Captured steps hold settings of the process, such as autocast; after a change they are captured again."""
        if self.graphs is not None:
            if self._process.changed():
                self.device_data.generation += 1
            self._process = KeptSettings(settings())

    def _check_not_shared(self, model: torch.nn.Module) -> None:
        """Members that train the same parameters would change one another."""
        held = {id(p): m.name for m in self.members for p in m.model.parameters() if p.requires_grad}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) in held:
                raise ConflictError(
                    f"The parameter {name!r} is trained by the member {held[id(parameter)]!r} already.",
                    hint="Load a copy of the model (copy.deepcopy), with an optimizer of its own.",
                )

    def _amounts(self, **given: int | Mapping[Member, int] | None) -> dict[Member, Amount]:
        amounts = {unit: value for unit, value in given.items() if value is not None}
        if len(amounts) != 1:
            raise UsageError("Say how much to train with exactly one of steps, samples and epochs.")
        ((unit, value),) = amounts.items()
        if not isinstance(value, Mapping):
            return {member: Amount(**{unit: value}) for member in self.members}
        unknown = [member.name for member in value if member not in self.members]
        if unknown:
            raise NotFoundError(f"There is no member {unknown[0]!r} in the pack.")
        return {member: Amount(**{unit: count}) for member, count in value.items()}

    def _why_alone(self, member: Member) -> str:
        refused = self.stacked_tier.why_not(member)
        if refused is not None:
            return f"do not pack: {refused}"
        if self.graphs is not None:
            return "too few steps to capture"
        return "no other member is built alike" if self.stacked_tier.allowed else "no graphs on this device"

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Use deterministic kernels where `numerics` is "exact"."""
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


def _check_parts(model: object, optimizer: object, schedule: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"load got {type(model).__name__} as a model; it must be a torch.nn.Module.")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"load got {type(optimizer).__name__} as an optimizer; it must be a torch.optim.Optimizer.")
    if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UsageError("ReduceLROnPlateau waits for a metric, which a step does not have; choose another schedule.")
    owned = {id(p) for p in model.parameters()}
    foreign = sum(id(p) not in owned for group in optimizer.param_groups for p in group["params"])
    if foreign:
        raise UsageError(f"The optimizer holds {foreign} parameters that are not the model's.")
