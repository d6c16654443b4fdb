"""The state of a PyTorch trainee: saved to a file, restored without loss, and what no state contains.

A saved state is a safetensors file: the module's state_dict under `model/`, buffers that a state_dict leaves out
under `buffers/`, the optimizer's tensors under `optimizer/`, and the rest as JSON in the file's metadata.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regatta.errors import UsageError
from regatta.frameworks.state_tree import flatten, unflatten
from regatta.store.states.state_files import read_state, state_metadata

if TYPE_CHECKING:
    import torch

    from regatta.frameworks.torch.framework import TorchTrainee

NAME = "torch"


def save(trainee: TorchTrainee, path: Path) -> None:
    from safetensors.torch import save_file

    tree: dict[str, Any] = {
        "model": trainee.model.state_dict(),
        "buffers": unsaved_buffers(trainee.model),
        "schedules": {every: schedule.state_dict() for every, schedule in trainee.schedules.items()},
    }
    if trainee.optimizer is not None:
        tree["optimizer"] = trainee.optimizer.state_dict()
    skeleton, tensors = flatten(tree, is_tensor)
    own, same_as = _own_storage(tensors)
    on_device = sorted(name for name, tensor in tensors.items() if tensor.device.type != "cpu")
    save_file(own, path, state_metadata(NAME, skeleton, same_as=same_as, on_device=on_device))


def unsaved_values(trainee: TorchTrainee) -> dict[str, Any]:
    import torch

    own = torch.nn.Module.get_extra_state  # a module that overrides it saves more than tensors
    owners = [(name, m) for name, m in trainee.model.named_modules() if type(m).get_extra_state is own]
    found = {f"{prefix}.{name}".lstrip("."): value for prefix, m in owners for name, value in vars(m).items()}
    if trainee.optimizer is not None and type(trainee.optimizer).state_dict is torch.optim.Optimizer.state_dict:
        found |= {f"optimizer.{name}": value for name, value in vars(trainee.optimizer).items()}
    public = {name: value for name, value in found.items() if not name.rpartition(".")[2].startswith("_")}
    plain = {name: _comparable(value) for name, value in public.items() if not name.endswith("training")}
    return {name: value for name, value in plain.items() if value is not None}


def _comparable(value: object) -> object:
    """A number, a string, or the state of a random generator; None for anything else."""
    import torch

    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    return value.getstate() if isinstance(value, random.Random) else None


def unsaved_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that a state_dict leaves out."""
    saved = model.state_dict(keep_vars=True)
    buffers = model.named_buffers(remove_duplicate=False)
    return {name: buffer for name, buffer in buffers if name not in saved}


def _own_storage(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors that share no memory, as a file needs them; tied tensors are written once, under their first name."""
    own: dict[str, torch.Tensor] = {}
    same_as: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        _check_storable(name, tensor)
        tensor = tensor.detach().resolve_conj().resolve_neg()
        storage = tensor.untyped_storage().data_ptr()
        key = (storage, tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and key in first:
            same_as[name] = first[key]
            continue
        first[key] = name
        own[name] = tensor.cpu().clone() if tensor.numel() and storage in storages else tensor.cpu().contiguous()
        storages.add(storage)
    return own, same_as


def _check_storable(name: str, tensor: torch.Tensor) -> None:
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.dtype in (torch.complex32, torch.complex128):
        raise UsageError(f"{name} is a tensor of {tensor.dtype}, {tensor.layout}, which cannot travel with the model.")


@dataclass
class TorchState:
    """A saved state in memory: tensors on the CPU, and the tree they belong to."""

    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]

    def tree(self, part: str, device: str) -> Any:
        """A part of the state; tensors that were on a device are moved to it, the others still belong to the file."""
        moved = set(self.meta["on_device"])

        def tensor(name: str) -> torch.Tensor:
            found = self.tensors[self.meta["same_as"].get(name, name)]
            return found.to(device) if name in moved else found

        return unflatten(self.meta["tree"][part], tensor)


def read(path: Path) -> TorchState:
    return TorchState(*read_state(path, "pt"))


def restore(trainee: TorchTrainee, state: TorchState) -> None:
    import torch

    model, device = trainee.model, trainee.device
    weights, buffers = state.tree("model", device), state.tree("buffers", device)
    weights = {name: copy_tree(part) if name.endswith("_extra_state") else part for name, part in weights.items()}
    with torch.no_grad():
        _match_buffers(model, {**weights, **buffers})
        model.load_state_dict(weights, strict=True)
        present = dict(model.named_buffers(remove_duplicate=False))
        for name, value in buffers.items():
            present[name].copy_(value)
    if trainee.optimizer is not None:
        _restore_optimizer(trainee.optimizer, state.tree("optimizer", device))
    for every, saved in state.tree("schedules", device).items():
        trainee.schedules[every].load_state_dict(copy_tree(saved))


def _match_buffers(model: torch.nn.Module, saved: Mapping[str, Any]) -> None:
    """Give a fresh module the buffers that were saved: buffers may appear, disappear and grow in training."""
    import torch

    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            value = saved.get(f"{prefix}.{name}" if prefix else name)
            if torch.nn.parameter.is_lazy(buffer):
                continue  # takes its shape when it is loaded
            if value is None or buffer is None or (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
                module._buffers[name] = None if value is None else torch.empty_like(value)


def _restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Like load_state_dict, but without its cast of the state to the parameter's dtype, which loses bits."""
    import torch

    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        optimizer.load_state_dict(saved)
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.state.clear()
    for key, values in saved["state"].items():  # the number of a parameter, or a name of the optimizer's own
        optimizer.state[parameters[key] if isinstance(key, int) else key] = copy_tree(values)
    for group, values in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        group.update({name: copy_tree(value) for name, value in values.items() if name != "params"})


def copy_tree(value: Any) -> Any:
    """A copy of a tree with its tensors: what was read may be a mapped file, or be restored again."""
    if isinstance(value, dict):
        return type(value)({key: copy_tree(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(copy_tree(item) for item in value)
    return value.detach().clone() if is_tensor(value) else value


def is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
