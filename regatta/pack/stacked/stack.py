"""Members of one architecture in one buffer, stepped together.

Each member's parameters and optimizer states become views of a row of a flat buffer. So the members stay ordinary
modules with ordinary optimizers: a step of one member alone and a step of the stack use the same memory.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from regatta.frameworks.arrays import map_leaves
from regatta.pack.device_data import DeviceData, take_rows
from regatta.pack.fingerprint import first_hook
from regatta.pack.member import Indices, Member
from regatta.pack.stacked import updates
from regatta.pack.stacked.tensors import (
    FUNCTIONS,
    NotStackable,
    drawing_masks,
    leaf,
    stacked,
    underlying,
    without_rules,
)
from regatta.pack.state.hyperparameters import runs_own_code
from regatta.pack.state.member_state import HostState, same_bits
from regatta.pack.state.python_state import PythonState
from regatta.pack.state.randomness import ProcessStreams
from regatta.pack.state.schedule_guard import TensorGuard
from regatta.pack.step import call_loss, take_step

CLOSE = 1e-2  # for losses that are rounded differently, also by half precision
ALIGNMENT = 16  # four-byte numbers in a cache line: the rounding of products depends on the alignment of operands


_MISSING = object()  # of a configuration that has no such value


class RecordingConfig(Mapping[str, Any]):
    """A configuration that records which of its values were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values_, self.read = values, set[str]()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)  # also if there is no such value: `get` and `in` ask for it
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        self.read.update(self.values_)
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


def _copy_with_tensors(
    module: torch.nn.Module, tensors: Mapping[torch.Tensor, torch.Tensor], made: dict[int, torch.nn.Module]
) -> torch.nn.Module:
    """A copy of a module, with the same attributes, that computes with other tensors; `made` holds its parts."""
    if id(module) not in made:
        made[id(module)] = twin = copy.copy(module)
        parameters = {name: None if p is None else tensors[p] for name, p in module._parameters.items()}
        inner = module._modules.items()
        parts = {name: None if part is None else _copy_with_tensors(part, tensors, made) for name, part in inner}
        # set in __dict__, because a module accepts only parameters as attributes
        twin.__dict__["_parameters"], twin.__dict__["_modules"] = parameters, parts
        # lists that the copy appends to must not be the member's, which takes the same steps itself in a proof
        twin.__dict__.update({k: copy.copy(v) for k, v in vars(twin).items() if isinstance(v, list | set | dict)})
    return made[id(module)]


class Stack:
    """A group of members that step together; raises NotStackable where that is not possible."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        first = self.members[0]
        reason = _why_not_stackable(self.members)
        if reason is not None:
            raise NotStackable(reason)
        self.shapes = [parameter.shape for parameter in first.model.parameters()]
        self.offsets, self.width = _layout(self.shapes)
        self.device = next(first.model.parameters()).device
        self.params = self._copy_to_rows([[p.data for p in m.model.parameters()] for m in self.members])
        self.states = {name: self._copy_to_rows(self._state(name)) for name in self._state_names()}
        self.pads = self._pads()
        self.update = updates.Update([m.optimizer for m in self.members], self.params, self.states)
        self._make_views()
        self._places = [self._tensors_of(member) for member in self.members]
        self.leaves = [leaf(self._cut(self.params, k)) for k in range(len(self.shapes))]
        self.model = _copy_with_tensors(first.model, dict(zip(first.model.parameters(), self.leaves, strict=True)), {})
        self.grads = torch.empty_like(self.params)
        self.ones = torch.ones(len(self.members), dtype=self.params.dtype, device=self.device)
        self.config = RecordingConfig(first.config) if first.config is not None else None
        clips = [member.clip_norm for member in self.members if member.clip_norm is not None]
        self.clip_norms = torch.tensor(clips, dtype=self.params.dtype, device=self.device)
        self._schedules_are_own = any(runs_own_code(member.schedule) for member in self.members)
        self._guard = self._schedule_guard() if self._schedules_are_own else contextlib.nullcontext()
        self._drawn: list[torch.Tensor] = []  # states of random streams before a step drew from them
        self.proven: dict[int, bool] = {}

    @property
    def intact(self) -> bool:
        """Whether the members still train in the stack's memory. A user may have replaced tensors between two calls."""
        groups = (member.optimizer.param_groups for member in self.members)
        if any(len(own) != 1 or own[0] is not group for own, group in zip(groups, self.update.groups, strict=True)):
            return False
        return all(self._tensors_of(m) == places for m, places in zip(self.members, self._places, strict=True))

    def _schedule_guard(self) -> TensorGuard:
        """In steps of schedules, the members' counters are not yet those of a plain loop."""
        states = [state for member in self.members for state in member.optimizer.state.values()]
        counters = [state["step"] for state in states if isinstance(state.get("step"), torch.Tensor)]
        return TensorGuard([*self._tensors(), *counters])

    def advance_schedules(self) -> None:
        """After a step. Raises TouchesTraining if a user's schedule looks at what is elsewhere in a stack."""
        with self._guard:
            for member in self.members:
                member.advance_schedule()

    def first_disturbance(self, streams: ProcessStreams) -> str | None:
        """What code of a user has done since besides training the members, or None; the streams are put back."""
        if streams.moved():
            streams.put_back()
            return "draws random numbers on the host"
        if self._schedules_are_own and not self.intact:
            return "changes the state of an optimizer"
        return None

    def _tensors_of(self, member: Member) -> list[int]:
        """Where a member's tensors are."""
        found = []
        for parameter in member.model.parameters():
            state = member.optimizer.state.get(parameter, {})
            found += [parameter.data_ptr(), *(id(state.get(name)) for name in self.states)]
        return found

    def body(self, batch: Any, numbers: torch.Tensor | None, is_checked: bool = False) -> torch.Tensor:
        """One step of all members, on a batch that holds their rows one after another.

        `numbers` are the hyperparameters by member. Without them, the members' schedules are advanced after each step.
        A step that `is_checked` also looks for functions that could mix members.
        """
        count = len(self.members)
        if numbers is None and self.members[0].schedule is not None:
            self.update.refresh()
        apart = map_leaves(lambda part: stacked(part.view(count, -1, *part.shape[1:])), batch)
        with self._rewind_on_error(), drawing_masks(self._draw), self._check_config_reads(self.members[0]):
            losses = underlying(call_loss(self.members[0], self.model, apart))
            if losses.shape != (count,):
                raise NotStackable(f"the loss has the shape {tuple(losses.shape[1:])} instead of one number")
            if is_checked:
                _refuse_own_functions(losses)
            with without_rules():
                grads = self._flat(torch.autograd.grad(losses, self.leaves, self.ones))
        with torch.no_grad():
            if len(self.clip_norms):
                self._clip(grads)
            self.update.apply(grads, numbers)
        return losses

    @contextlib.contextmanager
    def _rewind_on_error(self) -> Iterator[None]:
        """Rewind the random streams, so that members can repeat the step alone and show which one fails."""
        self._drawn.clear()
        try:
            yield
        except Exception as error:
            self._rewind_streams()
            if isinstance(error, NotStackable):
                raise
            line = next(iter(str(error).splitlines()), "")
            raise NotStackable(f"the stacked step raises {type(error).__name__}: {line}") from error

    def _rewind_streams(self) -> None:
        for member, state in zip(self.members, self._drawn, strict=False):
            member.randomness.host.set_state(state)
        self._drawn.clear()

    def _clip(self, grads: torch.Tensor) -> None:
        """On the CPU, clip member by member with the function that a step alone uses."""
        if grads.is_cuda:
            norms = torch.linalg.vector_norm(grads, dim=1)
            grads.mul_(torch.clamp(self.clip_norms / (norms + 1e-6), max=1.0).unsqueeze(1))
            return
        cuts = [self._cut(grads, k) for k in range(len(self.shapes))]
        for number, member in enumerate(self.members):
            assert member.clip_norm is not None
            parameters = list(member.model.parameters())
            for parameter, cut in zip(parameters, cuts, strict=True):
                parameter.grad = cut[number]
            torch.nn.utils.clip_grad_norm_(parameters, member.clip_norm)
            for parameter in parameters:
                parameter.grad = None

    def check(self, device_data: DeviceData, parts: Sequence[Indices], numbers: Sequence[int]) -> StackCheck:
        """Take a step as a stack, put some members back, and let them take it alone, to see whether every bit agrees.

        The steps alone are kept. Raises NotStackable if the stack cannot take it; the caller goes back.
        """
        first, counts = self.members[0], self.update.counted()
        before = {number: [t[number].clone() for t in self._tensors()] for number in numbers}
        marks = {number: self.members[number].randomness.mark() for number in numbers}
        python = PythonState(self.model, code=[("loss_fn", first.loss_fn)])
        rows = torch.cat([torch.from_numpy(part) for part in parts]).to(self.device)
        streams = ProcessStreams()
        try:
            losses = self.body(take_rows(device_data.data, rows), None, is_checked=True)
            changed = python.first_change()
            if changed is not None:
                raise NotStackable(f"a step changes {changed}")
            self._refuse_disturbance(streams)
        except NotStackable:
            python.put_back()
            raise
        found = StackCheck(list(losses.detach().clone().unbind()))
        for number in numbers:
            member, ours = self.members[number], [t[number] for t in self._tensors()]
            after, end = [row.clone() for row in ours], member.randomness.mark()
            for row, value in zip(ours, before[number], strict=True):
                row.copy_(value)
            _set_steps(member, counts[number])
            member.randomness.go_back(marks[number])
            found.take_alone(number, member, device_data, parts[number])
            if not all(map(same_bits, ours, after)) or member.randomness.differs(end):
                found.difference = found.difference or f"a stacked step of {member.name} differs from one alone"
        self.advance_schedules()
        self._refuse_disturbance(streams)
        return found

    def _refuse_disturbance(self, streams: ProcessStreams) -> None:
        disturbed = self.first_disturbance(streams)
        if disturbed is not None:
            raise NotStackable(f"a step {disturbed}")

    def _tensors(self) -> list[torch.Tensor]:
        return [self.params, *self.states.values()]

    def save(self) -> SavedStack:
        """The state of all members, to go back to."""
        tensors = [t.clone() for t in self._tensors()]
        code = [("loss_fn", self.members[0].loss_fn)]
        hosts = [HostState(member) for member in self.members]
        return SavedStack(tensors, self.update.counted(), hosts, PythonState(self.model, code=code))

    def go_back(self, saved: SavedStack) -> None:
        for tensor, value in zip(self._tensors(), saved.tensors, strict=True):
            tensor.copy_(value)
        self.update.recount(saved.steps)
        for host in saved.hosts:
            host.put_back()
        saved.python.put_back()

    @contextlib.contextmanager
    def _check_config_reads(self, first: Member) -> Iterator[None]:
        """The values of the configuration that the loss function reads must be the same for all members."""
        if self.config is None:
            yield
            return
        before, first.config = first.config, self.config
        try:
            yield
        finally:
            first.config = before
        for name in self.config.read:
            values = [(m.config or {}).get(name, _MISSING) for m in self.members]
            if any(value is not values[0] and value != values[0] for value in values):
                raise NotStackable(f"loss_fn reads {name!r} of the configuration, in which the members differ")

    def _draw(self, like: torch.Tensor, keep: float) -> torch.Tensor:
        if like.is_cuda:
            raise NotStackable("random numbers on a GPU have no stacked form")
        if not self._drawn:
            self._drawn += [member.randomness.host.get_state() for member in self.members]
        noise = torch.empty_like(like)
        for row, member in zip(noise.unbind(), self.members, strict=True):
            row.bernoulli_(keep, generator=member.randomness.host)
        return noise

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Around steps of the stack: it counts the steps of its members, which may have taken some alone."""
        self.update.refresh()
        self.update.recount([_steps_taken(member) for member in self.members])
        try:
            yield
        finally:
            self.hand_over_steps()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside `stepping`: the members take steps alone."""
        self.hand_over_steps()
        try:
            yield
        finally:
            self.update.recount([_steps_taken(member) for member in self.members])

    def hand_over_steps(self) -> None:
        for member, steps in zip(self.members, self.update.counted(), strict=True):
            _set_steps(member, steps)

    def release(self) -> None:
        """Give every member its own memory again. Tensors that a user has replaced stay as they are."""
        for member in self.members:
            for parameter in member.model.parameters():
                if _same_memory(parameter, self.params):
                    parameter.data = parameter.data.clone()
                state = member.optimizer.state.get(parameter, {})
                for name, rows in self.states.items():
                    if name in state and _same_memory(state[name], rows):
                        state[name] = state[name].clone()

    def _copy_to_rows(self, values: list[list[torch.Tensor]]) -> torch.Tensor:
        """Copy one tensor list per member into rows of a flat buffer."""
        like = values[0][0]
        flat = torch.zeros(len(values), self.width, dtype=like.dtype, device=like.device)
        for row, parts in zip(flat, values, strict=True):
            for part, offset in zip(parts, self.offsets, strict=True):
                row[offset : offset + part.numel()].copy_(part.reshape(-1))
        return flat

    def _make_views(self) -> None:
        """Make the members' tensors views of their rows."""
        for number, member in enumerate(self.members):
            for k, parameter in enumerate(member.model.parameters()):
                parameter.grad = None
                parameter.data = self._cut(self.params, k)[number]
                for name, flat in self.states.items():
                    member.optimizer.state[parameter][name] = self._cut(flat, k)[number]

    def _cut(self, flat: torch.Tensor, k: int) -> torch.Tensor:
        shape, offset = self.shapes[k], self.offsets[k]
        return flat[:, offset : offset + shape.numel()].view(len(flat), *shape) if shape else flat[:, offset]

    def _state_names(self) -> list[str]:
        first = self.members[0].optimizer
        momentum = first.param_groups[0].get("momentum")
        return [name for name in updates.STATES[type(first)] if name != "momentum_buffer" or momentum]

    def _state(self, name: str) -> list[list[torch.Tensor]]:
        try:
            return [[m.optimizer.state[p][name] for p in m.model.parameters()] for m in self.members]
        except KeyError:
            raise NotStackable(f"a parameter has no {name} yet: it got no gradient in the first step") from None

    def _pads(self) -> list[torch.Tensor]:
        ends = [*self.offsets[1:], self.width]
        gaps = [e - o - s.numel() for o, s, e in zip(self.offsets, self.shapes, ends, strict=True)]
        return [torch.zeros(len(self.members), gap, dtype=self.params.dtype, device=self.device) for gap in gaps]

    def _flat(self, grads: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = []
        for grad, pad in zip(grads, self.pads, strict=True):
            parts.append(grad.reshape(len(self.members), -1))
            if pad.shape[1]:
                parts.append(pad)
        return torch.cat(parts, 1, out=self.grads)


def _layout(shapes: Sequence[torch.Size]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for shape in shapes:
        offsets.append(end)
        end += -(-shape.numel() // ALIGNMENT) * ALIGNMENT
    return offsets, end


def _steps_taken(member: Member) -> float:
    found = [state["step"] for state in member.optimizer.state.values() if "step" in state]
    return float(found[0]) if found else 0.0


def _set_steps(member: Member, steps: float) -> None:
    for state in member.optimizer.state.values():
        if "step" in state:
            state["step"].fill_(steps)


@dataclass
class StackCheck:
    """What a step of a stack has shown: the losses, and where it differs from the same step alone."""

    losses: list[torch.Tensor]
    difference: str | None = None
    is_close: bool = True  # the losses differ by roundings at most
    seconds: float = float("inf")  # of a step alone
    python: list[PythonState] = field(default_factory=list)  # before the steps alone

    def take_alone(self, number: int, member: Member, device_data: DeviceData, part: Indices) -> None:
        """Take the step of one member alone; its loss is that of the step alone."""
        python = PythonState(member.model, member.optimizer, [("loss_fn", member.loss_fn)])
        self.python.append(python)
        rows = torch.from_numpy(part).to(device_data.device)
        start = time.perf_counter()
        with member.randomness.active():
            loss = take_step(member, take_rows(device_data.data, rows))
        self.seconds = min(self.seconds, time.perf_counter() - start)  # other programs may delay some
        if not same_bits(loss, self.losses[number]):
            self.is_close &= torch.allclose(loss, self.losses[number], CLOSE, CLOSE, equal_nan=True)
            self.difference = f"the loss of a stacked step of {member.name} differs from that of the step alone"
        changed = python.first_change()
        if changed is not None:
            self.difference = f"a step changes {changed}"
        self.losses[number] = loss


@dataclass(frozen=True)
class SavedStack:
    """The state of a stack's members at one step."""

    tensors: list[torch.Tensor]
    steps: list[float]
    hosts: list[HostState]
    python: PythonState  # of the loss function that the stack calls

    def change_by_schedule(self) -> str | None:
        """What schedules have changed since, besides hyperparameters, or None."""
        return next(filter(None, (host.change_by_schedule() for host in self.hosts)), None)


def _same_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _has_special_memory(member: Member) -> bool:
    """Whether a copy of the parameters in one row would compute differently: a comparison in the row cannot show it.

    Two parameters may share memory, or a parameter may be a view, transposed, or used by another process.
    """
    parameters = list(member.model.parameters())
    storages = [parameter.untyped_storage() for parameter in parameters]
    if len({storage.data_ptr() for storage in storages}) < len(storages):
        return True
    return any(
        not parameter.is_contiguous()
        or (not parameter.is_cuda and storage.is_shared())  # PyTorch calls all memory of a GPU shared
        or storage.nbytes() != parameter.nbytes
        for parameter, storage in zip(parameters, storages, strict=True)
    )


def _refuse_own_functions(losses: torch.Tensor) -> None:
    """The backward pass of a user's autograd function does not know that its tensors hold several members."""
    waiting, seen = [losses.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [after for after, _ in node.next_functions]
        function = getattr(node, "_forward_cls", None)  # of an autograd function that is written in Python
        if function is not None and function not in FUNCTIONS:
            raise NotStackable(f"the autograd function {function.__name__} has no stacked form")


def _why_not_stackable(members: Sequence[Member]) -> str | None:
    first = members[0]
    hook = first_hook(first)
    if hook is not None:
        return f"a hook of {hook} has no stacked form"
    if first.scaler is not None:
        return "loss scaling has no stacked form"
    parameters = list(first.model.parameters())
    if any(_has_special_memory(member) for member in members):
        return "parameters that share memory, or have their own order in it, have no stacked form"
    if not parameters or any(not p.requires_grad for p in parameters):
        return "frozen parameters have no stacked form"
    if len({(p.dtype, p.device) for p in parameters}) > 1 or not parameters[0].is_floating_point():
        return "parameters of several types have no stacked form"
    if any(True for _ in first.model.buffers()):
        return "buffers have no stacked form"
    for member in members:
        held = {id(p) for group in member.optimizer.param_groups for p in group["params"]}
        if held != {id(p) for p in member.model.parameters()}:
            return "an optimizer that holds only some parameters has no stacked form"
    counters = [{float(s["step"]) for s in m.optimizer.state.values() if "step" in s} for m in members]
    if any(len(found) > 1 for found in counters):
        return "parameters with different numbers of steps have no stacked form"
    return updates.why_not_stackable([m.optimizer for m in members])
