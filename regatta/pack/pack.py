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
from regatta.pack import memory, ticks, tiers
from regatta.pack.graphs import CudaGraphs, Graphs
from regatta.pack.member import Amount, Figures, Indices, Member, Order
from regatta.pack.optimizers import capturable
from regatta.pack.randomness import Randomness
from regatta.pack.rates import Measured, Rates
from regatta.pack.resident import Resident
from regatta.pack.stack import Stack
from regatta.pack.stacked import NotStackable
from regatta.pack.state import copied, portable, put_back, restore
from regatta.pack.track import Track

Tier = Literal["fused", "graph", "alone"]
Work = dict[Member, deque[Indices]]
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
        self._tracks: dict[Member, Track] = {}
        self._stacks: list[tuple[Stack, Track]] = []
        self._unstackable: dict[tuple[Member, ...], str] = {}

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
        self._unstack(found)
        self._close_track(found)
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
        self._keep_tracks([m for m, t in self._tracks.items() if t.generation == self.resident.generation])
        work: Work = {m: deque(m.upcoming(self.resident.rows, amount)) for m, amount in amounts.items() if not m.done}
        for member in work:
            member.begin()
        with self._settings():
            self._introduce(work)
            stacks = self._form_stacks(work)
            self._run_stacks(stacks, work)
            if self.graphs is not None:
                self._run_graphs(work, self.graphs)
            self._run_alone(work)

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

    # newcomers

    def _introduce(self, work: Work) -> None:
        """The first step of a member, alone: it makes the optimizer's state and shows what a step takes."""
        for member, batches in work.items():
            if member.tier == "new" and batches:
                with self._own_fault(member), memory.weighed(member, self.device):
                    self._take(member, batches, 1, again=True)
                if member.tier == "new":
                    member.tier, member.reason = "alone", "no other way to train it was tried yet"

    def _take(self, member: Member, batches: deque[Indices], count: int, again: bool = False) -> None:
        """Steps by a plain loop; where memory is short, graphs of others are given up for it, once."""
        before = copied(dict(member.model.named_buffers())), member.randomness.mark(), member.taken
        try:
            tiers.take_alone(member, self.resident, [batches[k] for k in range(min(count, len(batches)))])
        except torch.OutOfMemoryError:
            if not again or not self._tracks or member.taken != before[2]:
                raise
            self._release_graphs()
            put_back(dict(member.model.named_buffers()), before[0])
            member.randomness.go_back(before[1])
            self._take(member, batches, count)
            return
        finally:
            for _ in range(member.taken - before[2]):
                batches.popleft()

    @contextlib.contextmanager
    def _own_fault(self, member: Member) -> Iterator[None]:
        """What a member's own code raises stops that member, and no other."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (it may raise anything)
            member.error, member.tier = error, "failed"
            member.reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            self._close_track(member)

    # stacks

    def _form_stacks(self, work: Work) -> list[tuple[Stack, Track]]:
        """Stacks for members that are alike; those that stand are kept, those whose members changed are made anew."""
        ready = [m for m, batches in work.items() if m.error is None and len(batches) > tiers.PROOF and m.tier != "new"]
        groups = tiers.alike(ready) if self._may_stack() else []
        for stack, _ in list(self._stacks):
            if stack.members not in groups:
                self._dissolve(stack)
        self._stacks = [(s, t) for s, t in self._stacks if t.generation == self.resident.generation]
        standing = [stack.members for stack, _ in self._stacks]
        for group in groups:
            if group not in standing and tuple(group) not in self._unstackable and self._small_enough(group):
                reason = self._try_stack(group, work)
                if reason is not None:
                    self._unstackable[tuple(group)] = reason
        return list(self._stacks)

    def _may_stack(self) -> bool:
        return "fused" in self.tiers and (self.device.type != "cuda" or self.numerics == "fast")

    def _small_enough(self, group: Sequence[Member]) -> bool:
        size = sum(parameter.numel() for parameter in group[0].model.parameters())
        return self.device.type != "cuda" or (size <= tiers.SMALL and len(group) >= 8)

    def _try_stack(self, group: list[Member], work: Work) -> str | None:
        """Stack a group if that works, is exact or allowed not to be, and pays; otherwise say why not."""
        try:
            stack = Stack(group)
        except NotStackable as error:
            return str(error)
        batches = self._common(group, work, tiers.PROOF)
        if len(batches) < tiers.PROOF:
            return self._not_stacked(stack, "the members' batches have different sizes")
        try:
            equal = tiers.prove_stack(stack, self.resident, batches)
        except NotStackable as error:
            return self._not_stacked(stack, str(error))
        self._consume(group, work, len(batches))
        if not equal and self.numerics == "exact":
            return self._not_stacked(stack, "stacked steps round differently from those alone on this machine")
        track = Track(group, self.resident, self.graphs if self.device.type == "cuda" else None, stack.body)
        self._stacks.append((stack, track))
        for member in group:
            member.tier = "fused"
            member.reason = "exact: proven bit for bit" if equal else "fast: rounds differently from alone"
        return None

    def _not_stacked(self, stack: Stack, reason: str) -> str:
        stack.release()
        return reason

    def _common(self, group: Sequence[Member], work: Work, limit: int) -> list[list[Indices]]:
        """The next steps of a group as far as all members have batches of the same size."""
        found: list[list[Indices]] = []
        for k in range(min(limit, *(len(work[m]) for m in group))):
            parts = [work[m][k] for m in group]
            if len({len(part) for part in parts}) > 1:
                break
            found.append(parts)
        return found

    def _consume(self, group: Sequence[Member], work: Work, count: int) -> None:
        for member in group:
            for _ in range(count):
                work[member].popleft()

    def _run_stacks(self, stacks: list[tuple[Stack, Track]], work: Work) -> None:
        for stack, track in stacks:
            group = stack.members
            while batches := self._runnable(stack, work):
                size = len(batches[0][0])
                if size not in stack.proven:
                    tiers.prove_stack(stack, self.resident, batches[:1])
                    self._consume(group, work, 1)
                elif not stack.proven[size] and self.numerics == "exact":
                    stack.sync()
                    for member in group:
                        self._take(member, work[member], 1)
                    stack.reread(1)
                else:
                    self._consume(group, work, len(batches))
                    if not self._run_stack(stack, track, batches, work):
                        break
            stack.sync()

    def _runnable(self, stack: Stack, work: Work) -> list[list[Indices]]:
        batches = self._common(stack.members, work, 1 << 30)
        same = (k for k, parts in enumerate(batches) if len(parts[0]) != len(batches[0][0]))
        return batches[: next(same, len(batches))]

    def _run_stack(self, stack: Stack, track: Track, batches: list[list[Indices]], work: Work) -> bool:
        """Take steps as a stack; where that turns out not to pay, give the stack up and the rest of the steps back."""
        stack.update.refresh()
        track.work.extend(batches)
        measured = ticks.run_stack(track, self.rates)
        if measured is None:
            return True
        group = stack.members
        found = f"{len(group)} stacked: {measured.ratio:.1f}x of one after another"
        for member in group:
            member.reason = f"{member.reason.partition(';')[0]}; {found}"
        if measured.pays:
            return True
        for parts in reversed(track.drop()):
            for member, rows in zip(group, parts, strict=True):
                work[member].appendleft(rows)
        self._dissolve(stack)
        self._unstackable[tuple(group)] = found
        return False

    def _dissolve(self, stack: Stack) -> None:
        stack.release()
        for track in (t for s, t in self._stacks if s is stack):
            track.close()
        self._stacks = [(s, t) for s, t in self._stacks if s is not stack]
        for member in stack.members:
            member.tier = "alone"

    def _unstack(self, member: Member) -> None:
        for stack, _ in list(self._stacks):
            if member in stack.members:
                self._dissolve(stack)

    # graphs

    def _run_graphs(self, work: Work, graphs: Graphs) -> None:
        """Members under graphs, in waves that fit into memory; a wave that does not fit after all is halved."""
        wanted = [m for m, batches in work.items() if self._worth_capture(m, batches)]
        waves = deque(memory.waves(wanted, lambda m: m.figures.peak_bytes, memory.room(self.device, self.memory_limit)))
        several = len(waves) > 1
        while waves:
            wave = waves.popleft()
            if several:
                self._release_graphs(but=wave)
            try:
                self._capture(wave, work, graphs)
            except torch.OutOfMemoryError as error:
                if len(wave) == 1 and not self._tracks:
                    with self._own_fault(wave[0]):
                        raise error
                else:
                    half = (len(wave) + 1) // 2
                    waves.extendleft(part for part in (wave[half:], wave[:half]) if part)
                several = True
            else:
                self._run_wave(wave, work, graphs)
                continue
            self._release_graphs()  # here the error and what its traceback holds are gone

    def _worth_capture(self, member: Member, batches: Sequence[Indices]) -> bool:
        if member in self._tracks:
            return bool(batches) and member.error is None
        ahead = [len(batches[k]) for k in range(min(len(batches), tiers.PROOF + 1))]
        whole = len(ahead) > tiers.PROOF and set(ahead) == {member.batch_size}
        return member.error is None and member.tier == "alone" and whole and len(batches) >= tiers.WORTH_CAPTURE

    def _capture(self, wave: Sequence[Member], work: Work, graphs: Graphs) -> None:
        for member in wave:
            if member in self._tracks or member.error is not None:
                continue
            batches, taken = work[member], member.taken
            with self._own_fault(member):
                ahead = [batches[k] for k in range(1 + tiers.PROOF)]
                try:
                    self._tracks[member] = tiers.graph_track(member, self.resident, graphs, ahead)
                    member.tier, member.reason = "graph", "exact: a captured step equals the step alone"
                except tiers.CannotCapture as error:
                    member.tier, member.reason = "held back", str(error)
            for _ in range(member.taken - taken):
                batches.popleft()
            failure: BaseException | None = vars(member)["error"]  # which the scope above may have set
            if isinstance(failure, torch.OutOfMemoryError):
                member.error, member.tier = None, "alone"
                raise failure

    def _run_wave(self, wave: Sequence[Member], work: Work, graphs: Graphs) -> None:
        tracks = [self._tracks[m] for m in wave if m in self._tracks]
        for track in tracks:
            batches = work[track.members[0]]
            track.work.extend([rows] for rows in batches)
            batches.clear()
        measured = ticks.run(tracks, graphs, self.rates, self._failed)
        if measured is not None:
            self._explain(tracks, measured)

    def _explain(self, tracks: Sequence[Track], measured: Measured) -> None:
        found = f"{len(tracks)} side by side: {measured.ratio:.1f}x of one after another under graphs"
        text = found if measured.pays else f"do not pack: {found}"
        for track in tracks:
            member = track.members[0]
            if member.error is None:
                member.reason = f"exact: a captured step equals the step alone; {text}"

    def _failed(self, track: Track, error: Exception) -> None:
        track.drop()
        for member in track.members:
            with self._own_fault(member):
                raise error

    def _release_graphs(self, but: Sequence[Member] = ()) -> None:
        self._keep_tracks(but)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()

    def _close_track(self, member: Member) -> None:
        track = self._tracks.pop(member, None)
        if track is not None:
            track.close()

    def _keep_tracks(self, kept: Sequence[Member]) -> None:
        for member in [m for m in self._tracks if m not in kept]:
            self._close_track(member)
        for member in self.members:
            if member.tier == "graph" and member not in self._tracks:
                member.tier = "alone"

    # alone

    def _run_alone(self, work: Work) -> None:
        for member, batches in work.items():
            if batches and member.error is None:
                with self._own_fault(member):
                    self._take(member, batches, len(batches), again=True)
                if member.tier == "alone":
                    member.reason = self._why_alone(member)
                elif member.tier == "held back":
                    member.tier = "alone"

    def _why_alone(self, member: Member) -> str:
        for group, reason in self._unstackable.items():
            if member in group:
                return f"do not pack: {reason}"
        if self.graphs is not None:
            return "too few steps to capture"
        return "no other member is built alike" if self._may_stack() else "no graphs on this device"

    # the rest

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
