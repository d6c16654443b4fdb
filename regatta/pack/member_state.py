"""All tensors that a step of a member may change: find them, copy them, write them back, compare them bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from regatta.frameworks.torch.state import copy_tree, unsaved_buffers
from regatta.pack.hyperparameters import copy_hyperparameters, put_back

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


_INTERNALS = vars(torch.nn.Module()).keys() - {"training"}  # of every module, such as its hooks


class PlainAttributes:
    """Numbers and strings in the attributes of modules, directly or in lists, sets and dicts, as they are now."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._held = [
            (place, vars(module), {name: copy.copy(value) for name, value in _plain(vars(module))})
            for place, module in model.named_modules()
        ]

    def first_change(self) -> str | None:
        """The name of an attribute that has changed since, or None."""
        for place, present, before in self._held:
            for name, value in _plain(present):
                if name not in before or before[name] != value:
                    return f"{place}.{name}".lstrip(".")
        return None

    def put_back(self) -> None:
        for _, present, before in self._held:
            for name in [name for name, _ in _plain(present) if name not in before]:
                del present[name]
            present.update({name: value for name, value in before.items() if present.get(name) != value})


def _plain(attributes: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in attributes.items() if name not in _INTERNALS and _is_plain(value)]


def _is_plain(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else (value,)
    return all(isinstance(part, bool | int | float | str) for part in parts)


class HostState:
    """What a step of a stack changes besides tensors: random streams, schedule, hyperparameters, position."""

    def __init__(self, member: Member) -> None:
        self._member, self._mark = member, member.randomness.mark()
        self._hyperparameters = copy_hyperparameters(member.optimizer)
        self._schedule = None if member.schedule is None else copy.deepcopy(member.schedule.state_dict())
        self._position = member.position()

    def put_back(self) -> None:
        member = self._member
        member.randomness.go_back(self._mark)
        if self._schedule is not None:
            member.schedule.load_state_dict(self._schedule)
        put_back(member.optimizer, self._hyperparameters)
        member.go_back(self._position)


class SavedMember:
    """The whole state of a member, to go back to. Its tensors are written back where they are."""

    def __init__(self, member: Member) -> None:
        self._member, self._tensors = member, copy_tensors(changing_tensors(member))
        self._host, self._attributes = HostState(member), PlainAttributes(member.model)

    def put_back(self) -> None:
        write_back(changing_tensors(self._member), self._tensors)
        self._host.put_back()
        self._attributes.put_back()


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
