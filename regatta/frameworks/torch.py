"""PyTorch: any module, any optimizer, any learning-rate schedule.

A saved state is a safetensors file: the module's state_dict under `model/`, buffers that a state_dict leaves out
under `buffers/`, the optimizer's tensors under `optimizer/`, and the rest as JSON in the file's metadata.
"""

from __future__ import annotations

import inspect
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regatta.configuration import Scalar
from regatta.errors import UsageError
from regatta.frameworks.base import Indices, LossFunction, described
from regatta.frameworks.tree import flatten, unflatten
from regatta.store.states import read_state, state_metadata

if TYPE_CHECKING:
    import torch

NAME = "torch"


@dataclass
class TorchTrainee:
    """A module, its optimizer and its schedules by how often they advance: "step" or "epoch"."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None = None
    schedules: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"


def owns(model: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def assemble(built: Any, device: str) -> TorchTrainee:
    parts = built if isinstance(built, tuple) else (built,)
    if not 1 <= len(parts) <= 3:
        raise UsageError(f"model_fn returned {len(parts)} things; it returns module, optimizer and schedule at most.")
    model, optimizer, schedule = (*parts, None, None)[:3]
    _check_parts(model, optimizer)
    return TorchTrainee(model.to(device), optimizer, _schedules(schedule), device)


def _check_parts(model: object, optimizer: object) -> None:
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model_fn returned {described(model)}, where a torch.nn.Module belongs.")
    if optimizer is None:
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"model_fn returned (module, {described(optimizer)}); the second is a torch.optim.Optimizer.")
    owned = {id(p) for p in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    strange = sum(id(p) not in owned for p in held)
    if strange:
        raise UsageError(
            f"Of the {len(held)} parameters of the optimizer that model_fn returned, the module beside it has not "
            f"{strange}, which would be lost at each hop.",
            hint="Make the optimizer from the parameters of the very module that is returned; what else learns, such "
            "as a loss with weights, belongs into that module too.",
        )


def _schedules(schedule: object) -> dict[str, Any]:
    import torch

    if schedule is None:
        return {}
    named = schedule if isinstance(schedule, dict) else {"epoch": schedule}
    for every, scheduler in named.items():
        if every not in ("step", "epoch"):
            raise UsageError(f"A schedule advances every 'step' or every 'epoch', not every {every!r}.")
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise UsageError(
                "ReduceLROnPlateau waits for a metric, which a unit does not have; choose another schedule."
            )
        if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
            raise UsageError(f"model_fn returned {described(scheduler)}, where a learning-rate schedule belongs.")
    return named


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    import torch

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed would also queue seeds for devices that are never used, a little more memory each time
    torch.default_generator.manual_seed(seed)
    if cuda is not None:
        torch.cuda.manual_seed_all(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def contained() -> Iterator[None]:
    import torch

    settings: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    )
    before = [get() for get, _ in settings]
    try:
        yield
    finally:
        for (get, put), value in zip(settings, before, strict=True):
            if get() != value:
                put(value)


def prepare(data: Any, device: str) -> Any:
    import torch

    if isinstance(data, tuple | list):
        return tuple(prepare(part, device) for part in data)
    if isinstance(data, dict):
        return {name: prepare(part, device) for name, part in data.items()}
    if isinstance(data, np.ndarray) and data.dtype.kind in "biufc":
        with warnings.catch_warnings():  # a mapped file is read-only, and training only reads it
            warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
            backwards = any(stride < 0 for stride in data.strides)  # which tensors cannot be
            return torch.from_numpy(data.copy() if backwards else data).to(device)
    return data.to(device) if isinstance(data, torch.Tensor) else data


@contextmanager
def untouched(data: Any) -> Iterator[None]:
    before = [tensor._version for tensor in _tensors(data)]
    yield
    if before != [tensor._version for tensor in _tensors(data)]:
        raise UsageError(
            "train_fn or eval_fn changed its data in place, which other models are to see as it was.",
            hint="Work on a copy: x = x * 2 instead of x.mul_(2). What is done to all data belongs into input_fn.",
        )


def _tensors(data: Any) -> Iterator[torch.Tensor]:
    if isinstance(data, tuple | dict):
        for part in data if isinstance(data, tuple) else data.values():
            yield from _tensors(part)
    elif _is_tensor(data):
        yield data


def rows(data: Any) -> int:
    while isinstance(data, tuple | dict):
        data = data[0] if isinstance(data, tuple) else next(iter(data.values()))
    return len(data)


def _take(data: Any, indices: torch.Tensor) -> Any:
    if isinstance(data, tuple):
        return tuple(_take(part, indices) for part in data)
    if isinstance(data, dict):
        return {name: _take(part, indices) for name, part in data.items()}
    return data[indices]


def train(
    trainee: TorchTrainee,
    data: Any,
    batches: Iterable[Indices],
    loss_fn: LossFunction,
    config: Mapping[str, Scalar],
) -> float:
    import torch

    total = torch.zeros((), dtype=torch.float64, device=trainee.device)
    seen = 0
    trainee.model.train()
    step = _stepper(trainee, loss_fn, config)
    for indices in batches:
        loss = step(_take(data, torch.from_numpy(indices).to(trainee.device)))
        total += loss.double() * len(indices)
        seen += len(indices)
    return total.item() / max(1, seen)


def _stepper(
    trainee: TorchTrainee, loss_fn: LossFunction, config: Mapping[str, Scalar]
) -> Callable[[Any], torch.Tensor]:
    """The function that takes one optimizer step on a batch and returns its loss."""
    model, optimizer, schedule = trainee.model, trainee.optimizer, trainee.schedules.get("step")
    if optimizer is None:
        raise UsageError("loss_fn needs an optimizer, and model_fn returned none.", hint="Return (module, optimizer).")

    def gradients(batch: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = _check_loss(loss_fn(model, batch, config))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def step(batch: Any) -> torch.Tensor:
        if wants_closure:
            loss: Any = optimizer.step(lambda: gradients(batch))  # type: ignore[arg-type, return-value]
        else:
            loss = gradients(batch)
            optimizer.step()
        if schedule is not None:
            schedule.step()
        return _check_loss(loss.detach(), needs_gradient=False)

    closure = inspect.signature(optimizer.step).parameters.get("closure")
    wants_closure = closure is not None and closure.default is inspect.Parameter.empty
    return step


def _check_loss(loss: Any, needs_gradient: bool = True) -> torch.Tensor:
    import torch

    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        is_tensor = isinstance(loss, torch.Tensor)
        found = f"shape {tuple(loss.shape)}" if is_tensor else type(loss).__name__
        hint = "Take its mean." if is_tensor else "Return the tensor itself, without .item()."
        raise UsageError(f"loss_fn returned {found}; it returns one number, as a tensor.", hint=hint)
    if needs_gradient and not loss.requires_grad:
        raise UsageError("loss_fn returned a loss without a gradient.", hint="Do not detach it or use no_grad inside.")
    return loss.reshape(())


def end_epoch(trainee: TorchTrainee) -> None:
    schedule = trainee.schedules.get("epoch")
    if schedule is not None:
        schedule.step()


@contextmanager
def evaluating(trainee: TorchTrainee) -> Iterator[None]:
    import torch

    modes = {module: module.training for module in trainee.model.modules()}
    trainee.model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def evaluate(
    trainee: TorchTrainee,
    data: Any,
    batches: Iterable[Indices],
    loss_fn: LossFunction,
    config: Mapping[str, Scalar],
) -> float:
    import torch

    total = torch.zeros((), dtype=torch.float64, device=trainee.device)
    seen = 0
    with evaluating(trainee):
        for indices in batches:
            batch = _take(data, torch.from_numpy(indices).to(trainee.device))
            loss = _check_loss(loss_fn(trainee.model, batch, config), needs_gradient=False)
            total += loss.double() * len(indices)
            seen += len(indices)
    return total.item() / max(1, seen)


def save(trainee: TorchTrainee, path: Path) -> None:
    from safetensors.torch import save_file

    tree: dict[str, Any] = {
        "model": trainee.model.state_dict(),
        "buffers": _unsaved_buffers(trainee.model),
        "schedules": {every: schedule.state_dict() for every, schedule in trainee.schedules.items()},
    }
    if trainee.optimizer is not None:
        tree["optimizer"] = trainee.optimizer.state_dict()
    skeleton, tensors = {}, {}
    for part, value in tree.items():
        skeleton[part], found = flatten(value, part, _is_tensor)
        tensors.update(found)
    own, same_as = _own_storage(tensors)
    on_device = sorted(name for name, tensor in tensors.items() if tensor.device.type != "cpu")
    save_file(own, path, state_metadata(NAME, skeleton, same_as=same_as, on_device=on_device))


def loose(trainee: TorchTrainee) -> dict[str, Any]:
    import torch

    own = torch.nn.Module.get_extra_state  # a module that overrides it keeps more than its tensors
    owners = [(name, m) for name, m in trainee.model.named_modules() if type(m).get_extra_state is own]
    found = {f"{prefix}.{name}".lstrip("."): value for prefix, m in owners for name, value in vars(m).items()}
    if trainee.optimizer is not None and type(trainee.optimizer).state_dict is torch.optim.Optimizer.state_dict:
        found |= {f"optimizer.{name}": value for name, value in vars(trainee.optimizer).items()}
    public = {name: value for name, value in found.items() if not name.rpartition(".")[2].startswith("_")}
    plain = {name: _comparable(value) for name, value in public.items() if not name.endswith("training")}
    return {name: value for name, value in plain.items() if value is not None}


def _comparable(value: object) -> object:
    """A number, a text, or the state of a random generator; None for anything else."""
    import torch

    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    return value.getstate() if isinstance(value, random.Random) else None


def _unsaved_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    saved = model.state_dict(keep_vars=True)
    buffers = model.named_buffers(remove_duplicate=False)
    return {name: buffer for name, buffer in buffers if name not in saved}


def _own_storage(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors that share no memory, ready for a file; tied ones are written once, under their first name."""
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
        """A part of the state; tensors that were on a device are on it again, the others still the file's own."""
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
    weights = {name: _copied(part) if name.endswith("_extra_state") else part for name, part in weights.items()}
    with torch.no_grad():
        _match_buffers(model, {**weights, **buffers})
        model.load_state_dict(weights, strict=True)
        present = dict(model.named_buffers(remove_duplicate=False))
        for name, value in buffers.items():
            present[name].copy_(value)
    if trainee.optimizer is not None:
        _restore_optimizer(trainee.optimizer, state.tree("optimizer", device))
    for every, saved in state.tree("schedules", device).items():
        trainee.schedules[every].load_state_dict(_copied(saved))


def _match_buffers(model: torch.nn.Module, saved: Mapping[str, Any]) -> None:
    """Buffers come, go and grow while a model trains: give a fresh module those that were saved, to be filled."""
    import torch

    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            value = saved.get(f"{prefix}.{name}" if prefix else name)
            if torch.nn.parameter.is_lazy(buffer):
                continue  # takes its shape when it is loaded
            if value is None or buffer is None or (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
                module._buffers[name] = None if value is None else torch.empty_like(value)


def _restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """As load_state_dict, but without its cast of the state to the type of the parameter, which loses bits."""
    import torch

    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        optimizer.load_state_dict(saved)
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.state.clear()
    for key, values in saved["state"].items():  # the number of a parameter, or a name of the optimizer's own
        optimizer.state[parameters[key] if isinstance(key, int) else key] = _copied(values)
    for group, values in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        group.update({name: _copied(value) for name, value in values.items() if name != "params"})


def _copied(value: Any) -> Any:
    """The same tree with tensors of its own: what was read may be a mapped file, or be restored again."""
    if isinstance(value, dict):
        return type(value)({key: _copied(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    return value.clone() if _is_tensor(value) else value


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
