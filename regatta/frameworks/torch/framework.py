"""PyTorch: any module, any optimizer, any learning-rate schedule; `state.py` saves and restores them."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from regatta.configuration import Configuration
from regatta.errors import UsageError
from regatta.frameworks import arrays
from regatta.frameworks.arrays import leaves, map_leaves, rows, take  # noqa: F401 (verbs)
from regatta.frameworks.base import Indices, LossFunction, bind_optional, describe, wrong_loss
from regatta.frameworks.torch.settings import settings  # noqa: F401 (a verb)
from regatta.frameworks.torch.state import NAME, is_tensor, read, restore, save, unsaved_values  # noqa: F401 (verbs)

if TYPE_CHECKING:
    import torch

COMPILES = False


@dataclass
class TorchTrainee:
    """A module, its optimizer and its schedules, by when they advance: every "step" or every "epoch"."""

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
    trainee = TorchTrainee(model.to(device), optimizer, _schedules(schedule), device)
    if device.startswith("cuda") and optimizer is not None:
        from regatta.frameworks.torch.capturable import capturable

        capturable(optimizer, "step" in trainee.schedules)  # so that it rounds the same way in a pack or not
    return trainee


def _check_parts(model: object, optimizer: object) -> None:
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model_fn returned {describe(model)}, where a torch.nn.Module belongs.")
    if optimizer is None:
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"model_fn returned (module, {describe(optimizer)}); the second is a torch.optim.Optimizer.")
    owned = {id(p) for p in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    foreign = sum(id(p) not in owned for p in held)
    if foreign:
        raise UsageError(
            f"model_fn returned an optimizer of {len(held)} parameters, and the module beside it lacks {foreign} of "
            "them, which would be lost at each hop.",
            hint="Make the optimizer from the parameters of the returned module; anything else that learns, such as a "
            "loss with weights, belongs into that module too.",
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
            raise UsageError(f"model_fn returned {describe(scheduler)}, where a learning-rate schedule belongs.")
    return named


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    import torch

    before = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    # torch.manual_seed would also queue seeds for unused devices, and take a little more memory each time
    torch.default_generator.manual_seed(seed)
    if cuda is not None:
        torch.cuda.manual_seed_all(seed)
    try:
        with arrays.seeded(seed):
            yield
    finally:
        torch.set_rng_state(before)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def prepare(data: Any, device: str) -> Any:
    import torch

    def to_tensor(part: Any) -> Any:
        if isinstance(part, np.ndarray) and part.dtype.kind in "biufc":
            with warnings.catch_warnings():  # a mapped file is read-only, and training only reads it
                warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
                backwards = any(stride < 0 for stride in part.strides)  # not possible in tensors
                return torch.from_numpy(part.copy() if backwards else part).to(device)
        return part.to(device) if isinstance(part, torch.Tensor) else part

    return map_leaves(to_tensor, data)


@contextmanager
def check_unmodified(data: Any) -> Iterator[None]:
    before = [part._version for part in leaves(data) if is_tensor(part)]
    yield
    if before != [part._version for part in leaves(data) if is_tensor(part)]:
        raise UsageError(
            "train_fn or eval_fn changed its data in place, but other models use the same data.",
            hint="Work on a copy: x = x * 2 instead of x.mul_(2). Changes to all data belong into input_fn.",
        )


def train(
    trainee: TorchTrainee, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
) -> dict[str, float]:
    import torch

    total = torch.zeros((), dtype=torch.float64, device=trainee.device)
    seen = 0
    trainee.model.train()
    step = step_function(trainee, _gradients(trainee, bind_optional(loss_fn, trainee.model, training=True), config))
    for indices in batches:
        loss = step(take(data, torch.from_numpy(indices).to(trainee.device)))
        total += loss.double() * len(indices)
        seen += len(indices)
    return {"loss": total.item() / max(1, seen)}


def _gradients(trainee: TorchTrainee, loss_fn: LossFunction, config: Configuration) -> Callable[[Any], torch.Tensor]:
    """A function that stores the gradients of a batch in the parameters, and returns its loss."""
    model, optimizer = trainee.model, _optimizer(trainee)

    def gradients(batch: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = check_loss(loss_fn(model, batch, config))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return gradients


def _optimizer(trainee: TorchTrainee) -> torch.optim.Optimizer:
    if trainee.optimizer is None:
        raise UsageError("loss_fn needs an optimizer, and model_fn returned none.", hint="Return (module, optimizer).")
    return trainee.optimizer


def step_function(trainee: TorchTrainee, gradients: Callable[[Any], torch.Tensor]) -> Callable[[Any], torch.Tensor]:
    """A function that takes an optimizer step on a batch, and returns its loss."""
    optimizer, schedule = _optimizer(trainee), trainee.schedules.get("step")
    evaluates_loss = needs_closure(optimizer)

    def step(batch: Any) -> torch.Tensor:
        if evaluates_loss:
            loss: Any = optimizer.step(lambda: gradients(batch))  # type: ignore[arg-type, return-value]
        else:
            loss = gradients(batch)
            optimizer.step()
        if schedule is not None:
            schedule.step()
        return check_loss(loss.detach(), needs_gradient=False)

    return step


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer evaluates the loss by itself, as L-BFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def check_loss(loss: Any, needs_gradient: bool = True) -> torch.Tensor:
    import torch

    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise wrong_loss(loss)
    if needs_gradient and not loss.requires_grad:
        raise UsageError("loss_fn returned a loss without a gradient.", hint="Do not detach it or use no_grad inside.")
    return loss.reshape(())


def train_fn_arguments(trainee: TorchTrainee) -> tuple[torch.nn.Module, torch.optim.Optimizer | None, Any]:
    return trainee.model, trainee.optimizer, trainee.schedules.get("step")


def schedule_position(trainee: TorchTrainee) -> object:
    schedule = trainee.schedules.get("step")
    return None if schedule is None else repr(schedule.state_dict())


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
    trainee: TorchTrainee, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
) -> dict[str, float]:
    import torch

    total = torch.zeros((), dtype=torch.float64, device=trainee.device)
    batches = list(batches)
    for indices, loss in zip(batches, losses(trainee, data, batches, loss_fn, config), strict=True):
        total += loss.double() * len(indices)
    return {"loss": total.item() / max(1, sum(map(len, batches)))}


def losses(
    trainee: TorchTrainee, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
) -> Iterator[torch.Tensor]:
    """The loss of each batch, in evaluation mode."""
    import torch

    loss_fn = bind_optional(loss_fn, trainee.model, training=False)
    with evaluating(trainee):
        for indices in batches:
            batch = take(data, torch.from_numpy(indices).to(trainee.device))
            yield check_loss(loss_fn(trainee.model, batch, config), needs_gradient=False)
