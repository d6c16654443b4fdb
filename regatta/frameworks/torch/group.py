"""Data-parallel training of PyTorch models by a group of processes.

Each process takes its rows of every batch, and all take the same step. A process weights its loss by its share of the
batch's rows, so the sum over the group is the gradient of the whole batch. The gradients of all parameters travel as
one buffer for each dtype. The loss, and whether any process has failed, travel in the same buffer, so all processes
stop together.

At the end of a unit, buffers that differ become their mean, weighted by rows; the statistics of a BatchNorm are an
example, because each process computes them from its own rows. Integers become the largest. Parameters never differ, and
the end of each unit checks that.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from regatta.configuration import Configuration
from regatta.errors import UsageError
from regatta.frameworks.arrays import take
from regatta.frameworks.base import Indices, LossFunction, bind_optional
from regatta.frameworks.torch.framework import TorchTrainee, check_loss, evaluating, losses, step_function
from regatta.frameworks.torch.rendezvous import PeerFailedError as PeerFailedError
from regatta.frameworks.torch.rendezvous import connect, reaching_peers

if TYPE_CHECKING:
    import torch

# How much the mean loss of the shards may differ from the loss of their batch, by the size of a number in bytes.
LOSS_TOLERANCES = {1: 1.0, 2: 3e-2}
DEFAULT_LOSS_TOLERANCE = 1e-4


@dataclass
class TorchGroup:
    """A process's membership in a group whose processes are connected."""

    rank: int
    width: int
    device: str
    seconds: float = 0.0  # of exchanges, including the wait for other processes

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its sum over all processes; each gets the same bits."""
        self._exchange(tensor, "SUM")

    def all_reduce_max(self, tensor: torch.Tensor) -> None:
        self._exchange(tensor, "MAX")

    def any(self, mine: bool) -> bool:
        """Whether a condition holds in any process."""
        import torch

        found = torch.tensor([float(mine)], device=self.device)
        self.all_reduce_max(found)
        return bool(found.item())

    def shard(self, batch: Indices, min_rows: int = 1) -> Indices:
        """This process's rows of a batch: at least `min_rows`, or none if there are too few rows for all."""
        parts = min(self.width, max(1, len(batch) // min_rows))
        return np.array_split(batch, parts)[self.rank] if self.rank < parts else batch[:0]

    def _exchange(self, tensor: torch.Tensor, operation: str) -> None:
        import torch
        import torch.distributed as dist

        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)  # computation until here does not count as exchange
        start = time.perf_counter()
        with reaching_peers():
            dist.all_reduce(tensor, getattr(dist.ReduceOp, operation))
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
        self.seconds += time.perf_counter() - start


def join(store: Any, rank: int, width: int, backend: str, device: str, address: str | None = None) -> TorchGroup:
    """Connect to the other processes of a group, as `rendezvous.connect` does."""
    connect(store, rank, width, backend, device, address)
    return TorchGroup(rank, width, device)


def agree(group: TorchGroup, trainee: TorchTrainee | None, error: BaseException | None) -> None:
    """Make sure that all processes go on with the same model, or that none does."""
    import torch

    fingerprint = 0 if trainee is None else _fingerprint(trainee)
    found = torch.tensor([error is not None, fingerprint, -fingerprint], dtype=torch.int64, device=group.device)
    group.all_reduce_max(found)
    failed, largest, negated_smallest = found.tolist()
    _raise_failure(error, failed)
    if largest != -negated_smallest:
        raise UsageError(
            "model_fn gave the workers of a group different models.",
            hint="It may depend only on its configuration and on the random numbers of PyTorch, NumPy and Python.",
        )


def _raise_failure(error: BaseException | None, failed: float) -> None:
    """Raise this process's own error, or say that another process has one."""
    if error is not None:
        raise error
    if failed:
        raise PeerFailedError("Another worker of the group failed.")


def _fingerprint(trainee: TorchTrainee) -> int:
    """Equal for trainees whose tensors have the same names, shapes, types and values."""
    model = trainee.model
    tensors = [*model.named_parameters(), *model.named_buffers()]
    parts = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors]
    trained = _trained_parameters(trainee.optimizer)
    whole = (parts, _checksums([tensor for _, tensor in tensors]).tolist(), [tuple(p.shape) for p in trained])
    return int.from_bytes(hashlib.sha256(repr(whole).encode()).digest()[:7])


def _trained_parameters(optimizer: torch.optim.Optimizer | None) -> list[torch.nn.Parameter]:
    groups = [] if optimizer is None else optimizer.param_groups
    return list({id(p): p for group in groups for p in group["params"]}.values())


def _checksums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A checksum of each tensor, which changes with any of its bits."""
    import torch

    views = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = []
    for tensor in tensors:
        plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        bits = plain.contiguous().view(views[plain.element_size()])
        sums.append(bits.sum(dtype=torch.int64) & (2**62 - 1))
    return torch.stack(sums) if sums else torch.zeros(0, dtype=torch.int64)


def train(
    trainee: TorchTrainee,
    data: Any,
    batches: Sequence[Indices],
    loss_fn: LossFunction | None,
    config: Configuration,
    *,
    group: TorchGroup,
) -> dict[str, float]:
    """`framework.train` by all processes of a group; all end with the same parameters."""
    total, seen, mine = 0.0, 0, 0
    trainee.model.train()
    shard = _StepShard(trainee, data, bind_optional(loss_fn, trainee.model, training=True), config, group)
    step = step_function(trainee, shard.gradients)
    for batch in batches:
        total += step(batch).double().item() * len(batch)
        seen += len(batch)
        mine += len(shard.rows(batch))
    _merge_buffers(trainee, group, mine / max(1, seen))
    return {"loss": total / max(1, seen)}


class _StepShard:
    """This process's part of each step."""

    def __init__(
        self, trainee: TorchTrainee, data: Any, loss_fn: LossFunction, config: Configuration, group: TorchGroup
    ) -> None:
        self._trainee, self._data, self._loss_fn, self._config, self._group = trainee, data, loss_fn, config, group
        self._bucket = _GradientBucket(_trained_parameters(trainee.optimizer), group)
        self._min_rows = _min_rows(trainee.model)

    def rows(self, batch: Indices) -> Indices:
        return self._group.shard(batch, self._min_rows)

    def gradients(self, batch: Indices) -> torch.Tensor:
        """Store the gradients of a whole batch in the parameters; returns its loss."""
        import torch

        assert self._trainee.optimizer is not None
        self._trainee.optimizer.zero_grad(set_to_none=True)
        loss, error = torch.zeros((), device=self._trainee.device), None
        rows = self.rows(batch)
        try:
            if len(rows):
                loss = self._backward(rows, len(rows) / len(batch))
            self._bucket.fill(loss)
        except BaseException as raised:  # noqa: BLE001 (user code may raise anything; the other processes must know)
            error = raised
        return self._bucket.exchange(error)

    def _backward(self, rows: Indices, share: float) -> torch.Tensor:
        import torch

        batch = take(self._data, torch.from_numpy(rows).to(self._trainee.device))
        loss = check_loss(self._loss_fn(self._trainee.model, batch, self._config)) * share
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def _min_rows(model: torch.nn.Module) -> int:
    """A BatchNorm cannot be trained on one row."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return 2 if any(isinstance(module, _BatchNorm) for module in model.modules()) else 1


class _GradientBucket:
    """Gradients in one buffer for each dtype.

    One of the buffers also carries the loss, whether a process failed, and which parameters have a gradient.
    A parameter without a gradient in any process has none afterwards, and optimizers skip it as in a single process.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], group: TorchGroup) -> None:
        import torch

        self._parameters, self._group = parameters, group
        types = list(dict.fromkeys(p.dtype for p in parameters))
        exact = (torch.float32, torch.float64)
        carrier = next((dtype for dtype in types if dtype in exact), torch.float32)
        sizes = dict.fromkeys([*types, carrier], 0)
        self._slices = []
        for p in parameters:
            self._slices.append((sizes[p.dtype], sizes[p.dtype] + p.numel()))
            sizes[p.dtype] += p.numel()
        self._buffers = {
            dtype: torch.zeros(size + (dtype == carrier) * (2 + len(parameters)), dtype=dtype, device=group.device)
            for dtype, size in sizes.items()
        }
        self._status = self._buffers[carrier][sizes[carrier] :]  # loss, failures, which parameters have gradients

    def fill(self, loss: torch.Tensor) -> None:
        self._status.zero_()
        present = [p.grad is not None for p in self._parameters]
        for p, (start, end) in zip(self._parameters, self._slices, strict=True):
            piece = self._buffers[p.dtype][start:end]
            if p.grad is None:
                piece.zero_()
            elif p.grad.is_sparse:
                raise UsageError("A group cannot exchange sparse gradients.", hint="Build it with sparse=False.")
            else:
                piece.copy_(p.grad.reshape(-1))
        self._status[0] = loss
        self._status[2:] = self._status.new_tensor(present)

    def exchange(self, error: BaseException | None) -> torch.Tensor:
        """Store the sums in the parameters; returns the loss of the whole batch."""
        if error is not None:
            self._status.zero_()
            self._status[1] = 1.0
        for buffer in self._buffers.values():
            self._group.all_reduce_sum(buffer)
        _, failed, *present = self._status.tolist()
        _raise_failure(error, failed)
        for p, (start, end), found in zip(self._parameters, self._slices, present, strict=True):
            p.grad = self._buffers[p.dtype][start:end].view_as(p) if found else None
        return self._status[0].clone()


def _merge_buffers(trainee: TorchTrainee, group: TorchGroup, weight: float) -> None:
    """Merge buffers that differ between processes; parameters that differ are an error."""
    import torch

    parameters, buffers = dict(trainee.model.named_parameters()), dict(trainee.model.named_buffers())
    tensors = {**parameters, **buffers}
    sums = _checksums(list(tensors.values())).to(group.device)
    both = torch.cat([sums, -sums])
    group.all_reduce_max(both)
    largest, negated_smallest = both.chunk(2)
    differs = (largest != -negated_smallest).tolist()
    different = [name for name, is_different in zip(tensors, differs, strict=True) if is_different]
    wrong = [name for name in different if name in parameters]
    if wrong:
        raise UsageError(
            f"The workers of a group came to different values of {', '.join(wrong[:3])}.",
            hint="Something besides gradients changes them, such as an optimizer that draws random numbers: train it "
            "without group=.",
        )
    with torch.no_grad():
        for name in different:
            _merge(buffers[name], group, weight)


def _merge(buffer: torch.Tensor, group: TorchGroup, weight: float) -> None:
    import torch

    if buffer.is_complex():
        buffer = torch.view_as_real(buffer)
    if buffer.is_floating_point():
        mean = buffer.double() * weight
        group.all_reduce_sum(mean)
        buffer.copy_(mean)
    else:
        largest = buffer.to(torch.int64)
        group.all_reduce_max(largest)
        buffer.copy_(largest)


def evaluate(
    trainee: TorchTrainee,
    data: Any,
    batches: Sequence[Indices],
    loss_fn: LossFunction | None,
    config: Configuration,
    *,
    group: TorchGroup,
) -> dict[str, float]:
    """The results of `framework.evaluate`, to the bit; the processes take the batches in turn."""
    import torch

    found = torch.zeros(len(batches) + 1, dtype=torch.float64, device=group.device)
    error = None
    try:
        for place, loss in enumerate(losses(trainee, data, batches[group.rank :: group.width], loss_fn, config)):
            found[group.rank + place * group.width] = loss.double()
    except BaseException as raised:  # noqa: BLE001 (as above)
        error = raised
        found[-1] = 1.0
    group.all_reduce_sum(found)
    *losses_of_batches, failed = found.tolist()
    _raise_failure(error, failed)
    total = 0.0
    for batch_loss, batch in zip(losses_of_batches, batches, strict=True):
        total += batch_loss * len(batch)
    return {"loss": total / max(1, sum(map(len, batches)))}


def check_mean(
    trainee: TorchTrainee,
    data: Any,
    batch: Indices,
    loss_fn: LossFunction | None,
    config: Configuration,
    width: int,
) -> None:
    """Check that the loss is a mean over rows; otherwise a group would optimize another loss than one worker."""
    import torch

    function = bind_optional(loss_fn, trainee.model, training=False)

    def loss_of(rows: Indices) -> float:
        chosen = take(data, torch.from_numpy(rows).to(trainee.device))
        return float(check_loss(function(trainee.model, chosen, config), needs_gradient=False).item())

    with _unchanged(trainee):
        whole, again = loss_of(batch), loss_of(batch)
        shards = [rows for rows in np.array_split(batch, width) if len(rows)]
        parts = sum(loss_of(rows) * len(rows) / len(batch) for rows in shards)
    if whole != again or not np.isfinite(whole):
        return  # it draws random numbers, so it cannot be checked
    size = min((p.element_size() for p in trainee.model.parameters()), default=4)
    tolerance = LOSS_TOLERANCES.get(size, DEFAULT_LOSS_TOLERANCE)
    if abs(whole - parts) > tolerance * max(abs(whole), abs(parts), DEFAULT_LOSS_TOLERANCE):
        raise UsageError(
            f"loss_fn gives {whole:.6g} for a batch of {len(batch)} rows, and the mean over its {len(shards)} parts is "
            f"{parts:.6g}: a group of {width} workers would optimize another loss.",
            hint="Return the mean over the rows of the batch, or train without group=.",
        )


@contextmanager
def _unchanged(trainee: TorchTrainee) -> Iterator[None]:
    """A scope in evaluation mode that restores the buffers; a loss may still use gradients."""
    import torch

    before = [(buffer, buffer.detach().clone()) for buffer in trainee.model.buffers()]
    with evaluating(trainee):
        with torch.enable_grad():
            yield
        for buffer, value in before:
            buffer.copy_(value)
