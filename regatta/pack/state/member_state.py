"""All tensors that a step of a member may change: find them, copy them, write them back, compare them bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from regatta.frameworks.torch.state import copy_tree, unsaved_buffers
from regatta.pack.state.hyperparameters import Group, copy_hyperparameters, put_back, runs_own_code
from regatta.pack.state.python_state import PythonState

if TYPE_CHECKING:
    from regatta.pack.member import Member


def changing_tensors(member: Member) -> dict[str, torch.Tensor]:
    """Every parameter, buffer and optimizer tensor by name, including those that a state_dict leaves out."""
    found: dict[str, torch.Tensor] = dict(member.model.named_parameters())
    found |= dict(member.model.named_buffers())
    names: dict[Any, str] = {parameter: name for name, parameter in member.model.named_parameters()}
    for parameter, values in member.optimizer.state.items():
        found |= dict(_walk_tensors(values, f"optimizer/{names.get(parameter, 'shared')}"))
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
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def write_back(tensors: dict[str, torch.Tensor], saved: dict[str, torch.Tensor]) -> None:
    """Write copies back in place, because captured steps need the addresses."""
    with torch.no_grad():
        for name, value in saved.items():
            tensors[name].copy_(value)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equality of bits: NaN equals itself, and 0 is not -0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def first_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> str | None:
    """The name of a tensor that differs, or None."""
    if ours.keys() != theirs.keys():
        return min(ours.keys() ^ theirs.keys())
    return next((name for name in ours if not same_bits(ours[name], theirs[name])), None)


class HostState:
    """What steps of a stack change besides tensors: random streams, schedule, hyperparameters, position."""

    def __init__(self, member: Member) -> None:
        self._member, self._mark, self._position = member, member.randomness.mark(), member.position()
        self._hyperparameters: list[Group] | None = None
        self._schedule = self._model = None
        if member.schedule is not None:
            self._hyperparameters = copy_hyperparameters(member.optimizer)
            self._schedule = PythonState(code=[("the schedule", member.schedule)], ignored=[member.optimizer])
            if runs_own_code(member.schedule):
                self._model = PythonState(member.model)

    def change_by_schedule(self) -> str | None:
        """What the schedule has changed besides hyperparameters, or None."""
        return None if self._model is None else self._model.first_change()

    def put_back(self) -> None:
        member = self._member
        member.randomness.go_back(self._mark)
        if self._hyperparameters is not None:
            put_back(member.optimizer, self._hyperparameters)
        for state in (self._schedule, self._model):
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
