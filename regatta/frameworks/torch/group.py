"""PyTorch models trained by a group of processes: each takes its rows of every batch, and all take the same step.

A process weighs its loss by its share of the batch's rows, so that the sum over the group is the gradient of the whole
batch; the gradients of all parameters travel as one piece for each type of number, with the loss and with what went
wrong anywhere, so that all stop when one has to. Buffers that came out differently, such as the statistics of
a BatchNorm, which sees the rows of its process, become their mean at the end of a unit, weighed by rows; whole numbers
become the largest. Parameters never differ, and the end of each unit looks whether that is so.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from regatta.configuration import Scalar
from regatta.errors import UsageError
from regatta.frameworks.base import Indices, LossFunction, bind_optional
from regatta.frameworks.torch.framework import (
    TorchTrainee,
    check_loss,
    evaluating,
    losses,
    stepper,
    take,
)
from regatta.frameworks.torch.rendezvous import PeerFailedError as PeerFailedError
from regatta.frameworks.torch.rendezvous import meet, reaching

if TYPE_CHECKING:
    import torch

SAME_LOSS = {1: 1.0, 2: 3e-2}  # by bytes of a number: how far shards may come to another loss than their batch
USUAL = 1e-4


@dataclass
class TorchGroup:
    """One process's place in its group, once they have met."""

    rank: int
    width: int
    device: str
    seconds: float = 0.0  # that exchanges took, with waiting for the others

    def add(self, tensor: torch.Tensor) -> None:
        """The sum over all processes, in place, with the same bits in each."""
        import torch.distributed as dist

        self._exchange(tensor, dist.ReduceOp.SUM)

    def greatest(self, tensor: torch.Tensor) -> None:
        import torch.distributed as dist

        self._exchange(tensor, dist.ReduceOp.MAX)

    def any(self, mine: bool) -> bool:
        import torch

        found = torch.tensor([float(mine)], device=self.device)
        self.greatest(found)
        return bool(found.item())

    def shard(self, batch: Indices, least: int = 1) -> Indices:
        """The rows of a batch that are this process's: so many at least, or none where there are too few for all."""
        parts = min(self.width, max(1, len(batch) // least))
        return np.array_split(batch, parts)[self.rank] if self.rank < parts else batch[:0]

    def _exchange(self, tensor: torch.Tensor, operation: Any) -> None:
        import torch
        import torch.distributed as dist

        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)  # what is computed until here is no exchange
        start = time.perf_counter()
        with reaching():
            dist.all_reduce(tensor, operation)
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
        self.seconds += time.perf_counter() - start


def join(store: Any, rank: int, width: int, backend: str, device: str, address: str | None = None) -> TorchGroup:
    """Meet the others of a group, as `torch_meeting.meet` does."""
    meet(store, rank, width, backend, device, address)
    return TorchGroup(rank, width, device)


def agree(group: TorchGroup, trainee: TorchTrainee | None, error: BaseException | None) -> None:
    """All go on, with the same model, or none does."""
    import torch

    outline = 0 if trainee is None else _outline(trainee)
    found = torch.tensor([error is not None, outline, -outline], dtype=torch.int64, device=group.device)
    group.greatest(found)
    failed, most, least = found.tolist()
    if error is not None:
        raise error
    if failed:
        raise PeerFailedError("Another worker of the group failed.")
    if most != -least:
        raise UsageError(
            "model_fn gave the workers of a group different models.",
            hint="It may depend on nothing but its configuration and the random numbers of PyTorch, NumPy and Python.",
        )


def _outline(trainee: TorchTrainee) -> int:
    """Equal for trainees whose numbers have the same names, shapes and types, and the same values."""
    model = trainee.model
    tensors = [*model.named_parameters(), *model.named_buffers()]
    parts = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors]
    held = _held(trainee.optimizer)
    whole = (parts, _marks([tensor for _, tensor in tensors]).tolist(), [tuple(p.shape) for p in held])
    return int.from_bytes(hashlib.sha256(repr(whole).encode()).digest()[:7])


def _held(optimizer: torch.optim.Optimizer | None) -> list[torch.nn.Parameter]:
    groups = [] if optimizer is None else optimizer.param_groups
    return list({id(p): p for group in groups for p in group["params"]}.values())


def _marks(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A number for each tensor that changes with any of its bits."""
    import torch

    views = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    marks = []
    for tensor in tensors:
        plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        bits = plain.contiguous().view(views[plain.element_size()])
        marks.append(bits.sum(dtype=torch.int64) & (2**62 - 1))
    return torch.stack(marks) if marks else torch.zeros(0, dtype=torch.int64)


def train(
    trainee: TorchTrainee,
    data: Any,
    batches: Sequence[Indices],
    loss_fn: LossFunction | None,
    config: Mapping[str, Scalar],
    *,
    group: TorchGroup,
) -> dict[str, float]:
    """What `torch.train` does, by all processes of a group at once; all come to the same parameters."""
    total, seen, mine = 0.0, 0, 0
    trainee.model.train()
    share = _StepShard(trainee, data, bind_optional(loss_fn, trainee.model, training=True), config, group)
    step = stepper(trainee, share.gradients)
    for batch in batches:
        total += step(batch).double().item() * len(batch)
        seen += len(batch)
        mine += len(share.rows(batch))
    _settle(trainee, group, mine / max(1, seen))
    return {"loss": total / max(1, seen)}


class _StepShard:
    """This process's part in a step."""

    def __init__(
        self, trainee: TorchTrainee, data: Any, loss_fn: LossFunction, config: Mapping[str, Scalar], group: TorchGroup
    ) -> None:
        self._trainee, self._data, self._loss_fn, self._config, self._group = trainee, data, loss_fn, config, group
        self._bucket = _GradientBucket(_held(trainee.optimizer), group)
        self._least = _least_rows(trainee.model)

    def rows(self, batch: Indices) -> Indices:
        return self._group.shard(batch, self._least)

    def gradients(self, batch: Indices) -> torch.Tensor:
        """The gradients of a whole batch go into the parameters; its loss."""
        import torch

        assert self._trainee.optimizer is not None
        self._trainee.optimizer.zero_grad(set_to_none=True)
        loss, error = torch.zeros((), device=self._trainee.device), None
        rows = self.rows(batch)
        try:
            if len(rows):
                loss = self._backward(rows, len(rows) / len(batch))
            self._bucket.fill(loss)
        except BaseException as raised:  # noqa: BLE001 (the user's code may raise anything; the others must hear of it)
            error = raised
        return self._bucket.exchange(error)

    def _backward(self, rows: Indices, share: float) -> torch.Tensor:
        import torch

        batch = take(self._data, torch.from_numpy(rows).to(self._trainee.device))
        loss = check_loss(self._loss_fn(self._trainee.model, batch, self._config)) * share
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def _least_rows(model: torch.nn.Module) -> int:
    """A BatchNorm cannot be trained on one row."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return 2 if any(isinstance(module, _BatchNorm) for module in model.modules()) else 1


class _GradientBucket:
    """Gradients as one piece for each type; one of them has the loss, what went wrong, and who has a gradient at all.

    A parameter without a gradient in any process has none afterwards: optimizers pass it over, as they would in one.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], group: TorchGroup) -> None:
        import torch

        self._parameters, self._group = parameters, group
        types = list(dict.fromkeys(p.dtype for p in parameters))
        exact = (torch.float32, torch.float64)
        carrier = next((dtype for dtype in types if dtype in exact), torch.float32)
        sizes = dict.fromkeys([*types, carrier], 0)
        self._places = []
        for p in parameters:
            self._places.append((sizes[p.dtype], sizes[p.dtype] + p.numel()))
            sizes[p.dtype] += p.numel()
        self._whole = {
            dtype: torch.zeros(size + (dtype == carrier) * (2 + len(parameters)), dtype=dtype, device=group.device)
            for dtype, size in sizes.items()
        }
        self._news = self._whole[carrier][sizes[carrier] :]  # loss, whether anything went wrong, who has a gradient

    def fill(self, loss: torch.Tensor) -> None:
        self._news.zero_()
        present = [p.grad is not None for p in self._parameters]
        for p, (start, end) in zip(self._parameters, self._places, strict=True):
            piece = self._whole[p.dtype][start:end]
            if p.grad is None:
                piece.zero_()
            elif p.grad.is_sparse:
                raise UsageError("Sparse gradients do not travel in a group.", hint="Build it with sparse=False.")
            else:
                piece.copy_(p.grad.reshape(-1))
        self._news[0] = loss
        self._news[2:] = self._news.new_tensor(present)

    def exchange(self, error: BaseException | None) -> torch.Tensor:
        """The sums go into the parameters; the loss of the whole batch."""
        if error is not None:
            self._news.zero_()
            self._news[1] = 1.0
        for whole in self._whole.values():
            self._group.add(whole)
        _, failed, *present = self._news.tolist()
        if error is not None:
            raise error
        if failed:
            raise PeerFailedError("Another worker of the group failed.")
        for p, (start, end), found in zip(self._parameters, self._places, present, strict=True):
            p.grad = self._whole[p.dtype][start:end].view_as(p) if found else None
        return self._news[0].clone()


def _settle(trainee: TorchTrainee, group: TorchGroup, weight: float) -> None:
    """Buffers that differ become one; parameters that do are an error."""
    import torch

    parameters, buffers = dict(trainee.model.named_parameters()), dict(trainee.model.named_buffers())
    tensors = {**parameters, **buffers}
    marks = _marks(list(tensors.values())).to(group.device)
    both = torch.cat([marks, -marks])
    group.greatest(both)
    most, least = both.chunk(2)
    apart = [name for name, differs in zip(tensors, (most != -least).tolist(), strict=True) if differs]
    strange = [name for name in apart if name in parameters]
    if strange:
        raise UsageError(
            f"The workers of a group came to different values of {', '.join(strange[:3])}.",
            hint="Something besides gradients changes them, such as an optimizer that draws random numbers: train it "
            "without group=.",
        )
    with torch.no_grad():
        for name in apart:
            _unite(buffers[name], group, weight)


def _unite(buffer: torch.Tensor, group: TorchGroup, weight: float) -> None:
    import torch

    if buffer.is_complex():
        buffer = torch.view_as_real(buffer)
    if buffer.is_floating_point():
        mean = buffer.double() * weight
        group.add(mean)
        buffer.copy_(mean)
    else:
        largest = buffer.to(torch.int64)
        group.greatest(largest)
        buffer.copy_(largest)


def evaluate(
    trainee: TorchTrainee,
    data: Any,
    batches: Sequence[Indices],
    loss_fn: LossFunction | None,
    config: Mapping[str, Scalar],
    *,
    group: TorchGroup,
) -> dict[str, float]:
    """What `torch.evaluate` gives, to the bit; each process takes every so many batches."""
    import torch

    found = torch.zeros(len(batches) + 1, dtype=torch.float64, device=group.device)
    error = None
    try:
        for place, loss in enumerate(losses(trainee, data, batches[group.rank :: group.width], loss_fn, config)):
            found[group.rank + place * group.width] = loss.double()
    except BaseException as raised:  # noqa: BLE001 (as above)
        error = raised
        found[-1] = 1.0
    group.add(found)
    *each, failed = found.tolist()
    if error is not None:
        raise error
    if failed:
        raise PeerFailedError("Another worker of the group failed.")
    total = 0.0
    for loss_of_one, batch in zip(each, batches, strict=True):
        total += loss_of_one * len(batch)
    return {"loss": total / max(1, sum(map(len, batches)))}


def check_mean(
    trainee: TorchTrainee,
    data: Any,
    batch: Indices,
    loss_fn: LossFunction | None,
    config: Mapping[str, Scalar],
    width: int,
) -> None:
    """A loss must be the mean over rows, or a group would train for something else than one worker does."""
    import torch

    function = bind_optional(loss_fn, trainee.model, training=False)

    def of(rows: Indices) -> float:
        chosen = take(data, torch.from_numpy(rows).to(trainee.device))
        return float(check_loss(function(trainee.model, chosen, config), needs_gradient=False).item())

    with _unchanged(trainee):
        whole, again = of(batch), of(batch)
        shards = [rows for rows in np.array_split(batch, width) if len(rows)]
        parts = sum(of(rows) * len(rows) / len(batch) for rows in shards)
    if whole != again or not np.isfinite(whole):
        return  # it draws random numbers: nothing can be told
    size = min((p.element_size() for p in trainee.model.parameters()), default=4)
    if abs(whole - parts) > SAME_LOSS.get(size, USUAL) * max(abs(whole), abs(parts), USUAL):
        raise UsageError(
            f"loss_fn gives {whole:.6g} for a batch of {len(batch)} rows, and the mean over its {len(shards)} parts is "
            f"{parts:.6g}: a group of {width} workers would train for something else.",
            hint="Return the mean over the rows of the batch, or train without group=.",
        )


@contextmanager
def _unchanged(trainee: TorchTrainee) -> Iterator[None]:
    """A scope in evaluation mode after which buffers are as they were; a loss may still ask for gradients."""
    import torch

    before = [(buffer, buffer.detach().clone()) for buffer in trainee.model.buffers()]
    with evaluating(trainee):
        with torch.enable_grad():
            yield
        for buffer, value in before:
            buffer.copy_(value)
