"""Tensors that hold one value per member, and what may be computed with them.

To the code of a model a `Stacked` looks like the tensor of one member: it has that member's shape. Below, the members
lie along a first dimension, and an operation runs once for all of them. Only operations with a rule here are known to
treat members apart; any other raises `NotStackable`, and the members are trained another way. A rule computes what
the operation computes alone, in the same order of roundings where that is known; whether the bits agree is tried out
for each group before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F


class NotStackable(Exception):
    """There is no stacked form of what a model computes."""


class Stacked(torch.Tensor):
    """One tensor per member, with the members along the first dimension of the underlying tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = RULES.get(func)
        if rule is None:
            raise NotStackable(f"{getattr(func, '__qualname__', None) or func} has no stacked form")
        with torch._C.DisableTorchFunctionSubclass():
            return rule(*args, **(kwargs or {}))


def stacked(base: torch.Tensor) -> Stacked:
    with torch._C.DisableTorchFunctionSubclass():
        return base.as_subclass(Stacked)


def base_of(value: Any) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


Draw = Callable[[torch.Tensor, float], torch.Tensor]
_draw: list[Draw] = []


@contextmanager
def drawing(draw: Draw) -> Iterator[None]:
    """Inside, dropout draws its masks by `draw(like, keep)`, for each member from its own stream."""
    _draw.append(draw)
    try:
        yield
    finally:
        _draw.pop()


class _Linear(torch.autograd.Function):
    """F.linear for each member; products and their operands are laid out as one member's backward has them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        turned = weight.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, turned)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if needs_x else None,
            torch.bmm(grad.transpose(1, 2), x) if needs_weight else None,
            grad.sum(1) if needs_bias else None,
        )


class _NegativeLogLikelihood(torch.autograd.Function):
    """The mean of F.nll_loss for each member."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, target: torch.Tensor, ignored: int) -> torch.Tensor:
        kept = target != ignored
        if scores.is_cuda:
            weight = kept.sum(1).to(scores.dtype)
            picked = scores.gather(2, target.clamp_min(0).unsqueeze(2)).squeeze(2)
            losses = -torch.where(kept, picked, 0.0).sum(1) / weight
        else:  # one member's sum is rounded in an order of its own
            forward = torch.ops.aten.nll_loss_forward
            found = [forward(s, t, None, 1, ignored) for s, t in zip(scores.unbind(), target.unbind(), strict=True)]
            losses, weight = (torch.stack(parts) for parts in zip(*found, strict=True))
        ctx.save_for_backward(target, kept, weight)
        ctx.like = scores
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        target, kept, weight = ctx.saved_tensors
        each = torch.where(kept, -(grads[0] / weight).unsqueeze(1), 0.0)
        grad = torch.zeros_like(ctx.like).scatter_(2, target.clamp_min(0).unsqueeze(2), each.unsqueeze(2))
        return grad, None, None


class _SquaredError(torch.autograd.Function):
    """The mean of F.mse_loss for each member."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, target)
        if x.is_cuda:
            return (x - target).square().flatten(1).mean(1)
        return torch.stack([F.mse_loss(a, b) for a, b in zip(x.unbind(), target.unbind(), strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, target = ctx.saved_tensors
        scale = grads[0].view(-1, *[1] * (x.dim() - 1))
        return (x - target) * (2.0 / x[0].numel()) * scale, None


def _linear(x: Any, weight: Any, bias: Any = None) -> Stacked:
    x, weight = base_of(x), base_of(weight)
    if x.dim() < 3:
        raise NotStackable("a linear layer on single rows has no stacked form")
    rows = x.reshape(x.shape[0], -1, x.shape[-1])
    out = _Linear.apply(rows, weight, None if bias is None else base_of(bias))  # type: ignore[no-untyped-call]
    return stacked(out.view(*x.shape[:-1], -1))


def _cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Stacked:
    x, target = base_of(x), base_of(target)
    plain = weight is None and size_average is None and reduce is None and reduction == "mean" and not label_smoothing
    if not plain or x.dim() != 3 or target.dtype != torch.int64:
        raise NotStackable("this form of cross_entropy has no stacked form")
    scores = F.log_softmax(x, 2)
    return stacked(_NegativeLogLikelihood.apply(scores, target, ignore_index))  # type: ignore[no-untyped-call]


def _mse_loss(
    x: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean", weight: Any = None
) -> Stacked:
    x, target = base_of(x), base_of(target)
    plain = weight is None and size_average is None and reduce is None and reduction == "mean"
    if not plain or x.shape != target.shape or target.requires_grad:
        raise NotStackable("this form of mse_loss has no stacked form")
    return stacked(_SquaredError.apply(x, target))  # type: ignore[no-untyped-call]


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0.0:
        return x
    if inplace or p == 1.0:
        raise NotStackable("dropout in place has no stacked form")
    x = base_of(x)
    noise = _draw[-1](x, 1 - p)
    return stacked(x * noise.div_(1 - p))


def _elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Stacked]:
    """The rule of an operation on single elements: the same operation on all members."""

    def rule(*args: Any, **kwargs: Any) -> Stacked:
        if kwargs.get("inplace"):
            raise NotStackable("operations in place have no stacked form")
        return stacked(function(*_aligned(args), **kwargs))

    return rule


def _aligned(args: Sequence[Any]) -> list[Any]:
    """Operands with members first and the dimensions of one member to the right, as broadcasting wants them."""
    depth = max(base_of(arg).dim() for arg in args if isinstance(arg, Stacked))
    found = []
    for arg in args:
        if isinstance(arg, Stacked):
            base = base_of(arg)
            found.append(base.reshape(base.shape[0], *[1] * (depth - base.dim()), *base.shape[1:]))
        elif isinstance(arg, torch.Tensor) and arg.dim() >= depth:
            raise NotStackable("a tensor with more dimensions than a member's has no stacked form")
        else:
            found.append(arg)
    return found


def _reduced(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Stacked]:
    """The rule of a sum or mean over everything: for each member by itself, in its own order of roundings."""

    def rule(x: Any, *args: Any, **kwargs: Any) -> Stacked:
        if args or kwargs:
            raise NotStackable("sums over some dimensions have no stacked form")
        return stacked(torch.stack([function(part) for part in base_of(x).unbind()]))

    return rule


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Stacked:
    base, dims = base_of(x), base_of(x).dim() - 1
    return stacked(base.flatten(start_dim % max(1, dims) + 1, end_dim % max(1, dims) + 1))


def _view(x: Any, *shape: Any) -> Stacked:
    wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list | torch.Size) else shape
    base = base_of(x)
    return stacked(base.reshape(base.shape[0], *wanted))


def _size(x: Any, dim: int | None = None) -> Any:
    shape = base_of(x).shape[1:]
    return shape if dim is None else shape[dim]


def _squeeze(x: Any, dim: int) -> Stacked:
    base = base_of(x)
    return stacked(base.squeeze(dim if dim < 0 else dim + 1))


_UNARY = (
    torch.relu, F.relu, torch.tanh, F.tanh, torch.sigmoid, F.sigmoid, F.gelu, F.leaky_relu, F.elu, F.selu, F.silu, F.softplus,
    F.hardtanh, F.mish, torch.exp, torch.log, torch.neg, torch.abs, torch.square, torch.sqrt, torch.clamp,
    torch.Tensor.relu, torch.Tensor.tanh, torch.Tensor.sigmoid, torch.Tensor.exp, torch.Tensor.log, torch.Tensor.neg,
    torch.Tensor.__neg__, torch.Tensor.abs, torch.Tensor.square, torch.Tensor.sqrt, torch.Tensor.clamp, torch.Tensor.float,
    torch.Tensor.double, torch.Tensor.to,
)  # fmt: skip
_BINARY = (
    torch.add, torch.sub, torch.mul, torch.div, torch.Tensor.add, torch.Tensor.sub, torch.Tensor.mul, torch.Tensor.div,
    torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__sub__, torch.Tensor.__rsub__, torch.Tensor.__mul__,
    torch.Tensor.__rmul__, torch.Tensor.__truediv__, torch.Tensor.__rtruediv__, torch.Tensor.__pow__,
)  # fmt: skip


def _rules() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {function: _elementwise(function) for function in (*_UNARY, *_BINARY)}
    found |= {F.linear: _linear, torch._C._nn.linear: _linear, F.cross_entropy: _cross_entropy, F.mse_loss: _mse_loss}
    found |= {F.dropout: _dropout, torch.flatten: _flatten, torch.Tensor.flatten: _flatten}
    found |= dict.fromkeys((torch.Tensor.view, torch.Tensor.reshape, torch.reshape), _view)
    found |= dict.fromkeys((torch.Tensor.squeeze, torch.squeeze), _squeeze)
    found |= {function: _reduced(torch.mean) for function in (torch.mean, torch.Tensor.mean)}
    found |= {function: _reduced(torch.sum) for function in (torch.sum, torch.Tensor.sum)}
    found |= {torch.Tensor.shape.__get__: _size, torch.Tensor.size: _size}  # type: ignore[attr-defined]
    found |= {torch.Tensor.dim: lambda x: base_of(x).dim() - 1, torch.Tensor.__len__: lambda x: base_of(x).shape[1]}
    found |= {torch.Tensor.numel: lambda x: math.prod(base_of(x).shape[1:])}
    for name in ("dtype", "device", "requires_grad", "is_cuda"):
        getter = getattr(torch.Tensor, name).__get__
        found[getter] = lambda x, name=name: getattr(base_of(x), name)
    return found


RULES = _rules()
