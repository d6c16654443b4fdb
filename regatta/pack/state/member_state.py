"""All tensors that a step of a member may change: find them, copy them, write them back, compare them bit for bit."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from regatta.frameworks.torch.state import copy_tree, unsaved_buffers
from regatta.pack.state.hyperparameters import Group, copy_hyperparameters, put_back, runs_own_code
from regatta.pack.state.python_state import PythonState
from regatta.pack.state.schedule_guard import OptimizerStates

if TYPE_CHECKING:
    from regatta.pack.member import Member

MAX_SMALL_BYTES = 1 << 20  # larger tensors are worth a launch of their own
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


def changing_tensors(member: Member) -> dict[str, torch.Tensor]:
    """Every parameter, buffer and optimizer tensor by name, including those that a state_dict leaves out."""
    found: dict[str, torch.Tensor] = dict(member.model.named_parameters())
    found |= dict(member.model.named_buffers())
    names: dict[Any, str] = {parameter: name for name, parameter in member.model.named_parameters()}
    for number, (parameter, values) in enumerate(member.optimizer.state.items()):
        found |= dict(_walk_tensors(values, f"optimizer/{names.get(parameter, f'state {number}')}"))
    for number, group in enumerate(member.optimizer.param_groups):
        found |= dict(_walk_tensors({k: v for k, v in group.items() if k != "params"}, f"group{number}"))
    if member.scaler is not None:
        found |= dict(_walk_tensors(vars(member.scaler), "scaler"))
    return found


def addresses(member: Member) -> list[int]:
    """Where the tensors are that a captured step reads: parameters, buffers, optimizer tensors."""
    tensors = [*member.model.parameters(), *member.model.buffers()]
    trees = (list(member.optimizer.state.values()), [list(group.values()) for group in member.optimizer.param_groups])
    tensors += [tensor for tree in trees for _, tensor in _walk_tensors(tree, "")]
    return [tensor.data_ptr() if tensor.layout is torch.strided else id(tensor) for tensor in tensors]


def _walk_tensors(tree: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        yield place, tree
    elif isinstance(tree, dict):
        for name, part in tree.items():
            yield from _walk_tensors(part, f"{place}/{name}")
    elif isinstance(tree, list | tuple):
        for number, part in enumerate(tree):
            yield from _walk_tensors(part, f"{place}/{number}")


def copy_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies. Small ones of one kind share a block of memory: on a GPU, a launch for each would take longer."""
    found: dict[str, torch.Tensor] = {}
    for names in _small_by_kind(tensors):
        parts = [tensors[name] for name in names]
        blocks = torch.split(_flat(parts), [part.numel() for part in parts])
        found |= {name: block.view(part.shape) for name, block, part in zip(names, blocks, parts, strict=True)}
    return {name: found[name] if name in found else tensor.detach().clone() for name, tensor in tensors.items()}


def write_back(tensors: dict[str, torch.Tensor], saved: dict[str, torch.Tensor]) -> None:
    """Write copies back in place, because captured steps need the addresses."""
    with torch.no_grad():
        small = list(_small_by_kind(saved))
        for names in small:
            torch._foreach_copy_([tensors[name] for name in names], [saved[name] for name in names])
        for name in saved.keys() - set(itertools.chain(*small)):
            tensors[name].copy_(saved[name])


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equality of bits: NaN equals itself, and 0 is not -0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(_bits(tensor.detach().contiguous().reshape(-1)) for tensor in (one, other)))


class BitDifferences:
    """Which tensors of two sets differ in any bit: computed on the device, while the host goes on."""

    def __init__(self, ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
        self._unlike = min(ours.keys() ^ theirs.keys(), default=None) or next(
            (name for name in ours if _form(ours[name]) != _form(theirs[name])), None
        )
        self._blocks: list[tuple[list[str], list[int], torch.Tensor]] = []  # names, where each ends, equal numbers
        self._single: list[tuple[str, torch.Tensor]] = []  # whether a tensor is equal
        if self._unlike is not None:
            return
        small = list(_small_by_kind(ours))
        for names in small:
            one, other = (_bits(_flat([side[name] for name in names])) for side in (ours, theirs))
            ends = list(itertools.accumulate(ours[name].numel() for name in names))
            self._blocks.append((names, ends, one == other))
        for name in ours.keys() - set(itertools.chain(*small)):
            one, other = (_bits(side[name].detach().contiguous().reshape(-1)) for side in (ours, theirs))
            self._single.append((name, (one == other).all()))
        self._all_equal = [equal.all() for _, _, equal in self._blocks]

    def first(self) -> str | None:
        """The name of a tensor that differs, or None. Waits for the device."""
        if self._unlike is not None:
            return self._unlike
        for (names, ends, equal), all_equal in zip(self._blocks, self._all_equal, strict=True):
            if not all_equal:
                return names[bisect.bisect_right(ends, int(equal.logical_not().nonzero()[0]))]
        return next((name for name, equal in self._single if not equal), None)


def _form(tensor: torch.Tensor) -> object:
    return tensor.shape, tensor.dtype, tensor.layout


def _small_by_kind(tensors: dict[str, torch.Tensor]) -> Iterable[list[str]]:
    """The names of small dense tensors, those of one device and type together."""
    found: dict[object, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.layout is torch.strided and tensor.nbytes <= MAX_SMALL_BYTES:
            found.setdefault(_kind(tensor), []).append(name)
    return found.values()


def _kind(tensor: torch.Tensor) -> object:
    return tensor.device, tensor.dtype, tensor.layout


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The numbers of tensors of one kind, one tensor after another, in memory of their own."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _bits(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(_INTEGERS.get(flat.itemsize, torch.uint8))


class HostState:
    """What steps of a stack change besides tensors: random streams, schedule, hyperparameters, position."""

    def __init__(self, member: Member) -> None:
        self._member, self._mark, self._position = member, member.randomness.mark(), member.position()
        self._hyperparameters: list[Group] | None = None
        self._schedule = self._model = self._states = None
        if member.schedule is not None:
            self._hyperparameters = copy_hyperparameters(member.optimizer)
            tensors = (*member.model.parameters(), *member.model.buffers())
            self._schedule = PythonState(code=[("the schedule", member.schedule)], ignored=[member.optimizer, *tensors])
            if runs_own_code(member.schedule):
                self._model, self._states = PythonState(member.model), OptimizerStates(member.optimizer)

    def change_by_schedule(self) -> str | None:
        """What the schedule has changed besides hyperparameters, or None."""
        return None if self._model is None else self._model.first_change()

    def put_back(self) -> None:
        member = self._member
        member.randomness.go_back(self._mark)
        if self._hyperparameters is not None:
            put_back(member.optimizer, self._hyperparameters)
        for state in (self._schedule, self._model, self._states):
            if state is not None:
                state.put_back()
        member.go_back(self._position)


class SavedMember:
    """The whole state of a member, to go back to. Its tensors are written back where they are."""

    def __init__(self, member: Member) -> None:
        self._member, self._tensors = member, copy_tensors(changing_tensors(member))
        code = [("loss_fn", member.loss_fn), ("the schedule", member.schedule)]
        self._host, self._python = HostState(member), PythonState(member.model, member.optimizer, code)

    def put_back(self) -> None:
        write_back(changing_tensors(self._member), self._tensors)
        self._host.put_back()
        self._python.put_back()


def export_member(member: Member) -> dict[str, Any]:
    """The result of `free`: state_dicts with their own tensors, the position in the data, and the random streams."""
    state: dict[str, Any] = {
        "model": copy_tree(member.model.state_dict()),
        "buffers": copy_tree(unsaved_buffers(member.model)),
        "optimizer": copy_tree(member.optimizer.state_dict()),
        "epoch": member.epoch,
        "batch": member.batch,
        "steps": member.taken,
        "random": member.randomness.state_dict(),
    }
    if member.schedule is not None:
        state["schedule"] = copy_tree(member.schedule.state_dict())
    if member.scaler is not None:
        state["scaler"] = member.scaler.state_dict()
    return state


def restore_member(member: Member, state: dict[str, Any]) -> None:
    """Restore a member from the result of `free`."""
    member.model.load_state_dict(state["model"])
    present = dict(member.model.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, value in state["buffers"].items():
            present[name].copy_(value)
    member.optimizer.load_state_dict(copy_tree(state["optimizer"]))
    if member.schedule is not None:
        member.schedule.load_state_dict(copy_tree(state["schedule"]))
    if member.scaler is not None:
        member.scaler.load_state_dict(state["scaler"])
    member.epoch, member.batch, member.taken = state["epoch"], state["batch"], state["steps"]
    if "random" in state:
        member.randomness.load_state_dict(state["random"])
