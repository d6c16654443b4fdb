"""Tensors that hold one value per member, and the operations on them.

To the code of a model, a `Stacked` looks like the tensor of one member: it has that member's shape. Underneath, the
members lie along a first dimension, and an operation runs once for all of them. Only operations with a rule here are
known to keep members apart. Any other operation raises `NotStackable`, and the members are trained in another way.

A rule computes the same result as the operation alone, in the same order of roundings. Kernels may round differently
for a stack than for one member: at the end of a tensor that does not fill a register, or for small matrices. So each
kernel is first tested on random numbers of the shape in question. A comparison of real steps alone would miss
differences that only some values show.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F


class NotStackable(Exception):
    """A model's computation has no stacked form."""


class RoundsDifferently(NotStackable):
    """A kernel rounds differently for a stack than for one member, for tensors of this shape."""


class Stacked(torch.Tensor):
    """One tensor per member, with the members along the first dimension of the underlying tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = RULES.get(func)
        if rule is None:
            raise NotStackable(f"{getattr(func, '__qualname__', None) or func} has no stacked form")
        with without_rules():
            return rule(*args, **kwargs) if kwargs else rule(*args)


def without_rules() -> AbstractContextManager[Any]:
    """Inside, stacked tensors behave like the tensors underneath. Rules run this way."""
    return torch._C.DisableTorchFunctionSubclass()


def stacked(base: torch.Tensor) -> Stacked:
    """Turn the tensor itself into a stacked one: a new tensor would add a step to autograd's backward pass."""
    base.__class__ = Stacked
    return base  # type: ignore[return-value]


def leaf(base: torch.Tensor) -> Stacked:
    """A stacked tensor that shares the memory of another and has its own gradients."""
    return stacked(base.detach().requires_grad_())


def underlying(value: torch.Tensor) -> torch.Tensor:
    """The tensor underneath, for code outside of rules."""
    with without_rules():
        return value.as_subclass(torch.Tensor)


Draw = Callable[[torch.Tensor, float], torch.Tensor]
_draw: list[Draw] = []


@contextmanager
def drawing_masks(draw: Draw) -> Iterator[None]:
    """Inside, dropout draws its masks with `draw(like, keep)`, for each member from its own stream."""
    _draw.append(draw)
    try:
        yield
    finally:
        _draw.pop()


class _Linear(torch.autograd.Function):
    """F.linear for each member; products and their operands have the memory layout of one member's backward pass."""

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


KernelSettings = tuple[torch.dtype, int, str]  # on which the choice of a kernel depends, besides shapes


def kernel_settings(tensor: torch.Tensor) -> KernelSettings:
    """The type of the numbers, the threads, and the precision that products may have."""
    return tensor.dtype, torch.get_num_threads(), torch.get_float32_matmul_precision()


def _random(made: torch.Generator, settings: KernelSettings, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=made, dtype=settings[0])


TESTED = 64  # members with random numbers, for which a kernel must give the bits of one member


@functools.cache
def _products_round_alike(
    members: int, rows: int, inputs: int, outputs: int, bias: bool, settings: KernelSettings
) -> bool:
    """Whether the products of `_Linear` equal those of each member alone, tested on random numbers."""
    made = torch.Generator().manual_seed(rows)
    for _ in range(-(-TESTED // members)):
        x, grad = (_random(made, settings, members, rows, size) for size in (inputs, outputs))
        weight, shift = (_random(made, settings, members, *size) for size in ((outputs, inputs), (outputs,)))
        parts: list[torch.Tensor | None] = [x, weight, shift if bias else None]
        if not _equals_in_parts(lambda a, b, c: _Linear.apply(a, b, c), F.linear, parts, grad):  # type: ignore[no-untyped-call]
            return False
    return True


@functools.cache
def _rounds_alike(
    function: Callable[..., torch.Tensor], options: tuple[Any, ...], shape: Any, settings: KernelSettings
) -> bool:
    """Whether an operation on all members at once equals that on each, tested on random numbers."""
    made = torch.Generator().manual_seed(len(shape))
    x, grad = (3 * _random(made, settings, TESTED, *shape) for _ in range(2))
    names = dict(options[1])

    def call(given: torch.Tensor) -> torch.Tensor:
        return function(given, *options[0], **names)

    return _equals_in_parts(call, call, [x], grad)


def _equals_in_parts(
    together: Callable[..., torch.Tensor],
    alone: Callable[..., torch.Tensor],
    given: Sequence[torch.Tensor | None],
    grad: torch.Tensor,
) -> bool:
    """Whether results and gradients of all members at once have the bits of those of each member."""

    def results(function: Any, tensors: Sequence[torch.Tensor | None], grad: torch.Tensor) -> list[torch.Tensor]:
        leaves = [None if t is None else t.clone().requires_grad_() for t in tensors]
        out = function(*leaves)
        return [out.detach(), *torch.autograd.grad(out, [t for t in leaves if t is not None], grad.clone())]

    whole = results(together, given, grad)
    for number in range(len(grad)):
        parts = results(alone, [None if t is None else t[number] for t in given], grad[number])
        for one, other in zip(whole, parts, strict=True):
            if not torch.equal(one[number].view(torch.uint8), other.view(torch.uint8)):
                return False
    return True


class _CrossEntropy(torch.autograd.Function):
    """The mean of F.cross_entropy for each member: log_softmax and nll_loss in one function."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, target: torch.Tensor, ignored: int) -> torch.Tensor:
        scores = torch.log_softmax(x, 2)
        whole = not x.is_cuda and int(target.min()) >= 0 > ignored
        if whole:
            ctx.save_for_backward(scores, target)
            return _mean_as_alone(scores, target)
        kept = target != ignored
        safe = target.masked_fill(~kept, 0)
        weight = kept.sum(1).to(x.dtype)
        ctx.save_for_backward(scores, safe, kept, weight)
        if x.is_cuda:
            picked = scores.gather(2, safe.unsqueeze(2)).squeeze(2)
            losses: torch.Tensor = -torch.where(kept, picked, 0.0).sum(1) / weight
            return losses
        return _means_in_turn(scores, target, ignored)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        scores, target, *partly = ctx.saved_tensors
        if partly:
            kept, weight = partly
            each = torch.where(kept, -(grads[0] / weight).unsqueeze(1), 0.0)
        else:
            each = (grads[0] / -float(target.shape[1])).unsqueeze(1).expand(target.shape)
        grad = torch.zeros_like(scores).scatter_(2, target.unsqueeze(2), each.unsqueeze(2))
        return torch._log_softmax_backward_data(grad, scores, 2, scores.dtype), None, None


def _mean_as_alone(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    count = target.shape[1]
    if not _sum_order_is_known(count, kernel_settings(scores)):
        return _means_in_turn(scores, target)
    losses = _sum_as_alone(scores.gather(2, target.unsqueeze(2)).squeeze(2)).div_(float(count))
    if math.isnan(float(losses.sum())):  # it is not known which of several NaNs a sum propagates
        for number in losses.isnan().nonzero().view(-1).tolist():
            losses[number] = F.nll_loss(scores[number], target[number])
    return losses


def _means_in_turn(scores: torch.Tensor, target: torch.Tensor, ignored: int = -100) -> torch.Tensor:
    pairs = zip(scores.unbind(), target.unbind(), strict=True)
    return torch.stack([F.nll_loss(one, rows, ignore_index=ignored) for one, rows in pairs])


def _sum_as_alone(picked: torch.Tensor) -> torch.Tensor:
    """Minus the sum of each row, rounded in the order of F.nll_loss on the CPU.

    That function sums in cascades of at least sixteen, like a sum over whole blocks of columns. Its first cascade ends
    with the first element, so that element is added last.
    """
    members, count = picked.shape
    columns = picked.new_zeros(count, -(-members // _BLOCK) * _BLOCK)
    columns[:, :members].sub_(picked.t())
    return columns[1:].sum(0).add_(columns[0])[:members]


_BLOCK = 64  # columns that PyTorch sums side by side: four of the widest registers


@functools.cache
def _sum_order_is_known(count: int, settings: KernelSettings) -> bool:
    """Whether this PyTorch sums in the order of `_sum_as_alone`, tested on random numbers."""
    scores = _random(torch.Generator().manual_seed(count), settings, 64, count, 3).log_softmax(2)
    target = torch.zeros(64, count, dtype=torch.int64)
    found = _sum_as_alone(scores[:, :, 0]) / float(count)
    return torch.equal(found, _means_in_turn(scores, target))


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


FUNCTIONS = (_Linear, _CrossEntropy, _SquaredError)  # the autograd functions that keep members apart


def _linear(x: Any, weight: Any, bias: Any = None) -> Stacked:
    if x.dim() < 3:
        raise NotStackable("a linear layer on single rows has no stacked form")
    shape = len(x), x[0].numel() // max(1, x.shape[-1]), x.shape[-1], weight.shape[1]
    if torch.is_autocast_enabled(x.device.type):
        raise NotStackable("autocast has no stacked form")
    if not x.is_cuda and not _products_round_alike(*shape, bias is not None, kernel_settings(x)):
        raise RoundsDifferently(f"stacked layers of {shape[2]} by {shape[3]} on {shape[1]} rows round differently here")
    if x.dim() == 3:
        return stacked(_Linear.apply(x, weight, bias))  # type: ignore[no-untyped-call]
    out = _Linear.apply(x.reshape(x.shape[0], -1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]
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
    plain = weight is None and size_average is None and reduce is None and reduction == "mean" and not label_smoothing
    if not plain or x.dim() != 3 or target.dtype != torch.int64:
        raise NotStackable("this form of cross_entropy has no stacked form")
    if not x.is_cuda and not _rounds_alike(torch.log_softmax, ((-1,), ()), tuple(x.shape[1:]), kernel_settings(x)):
        raise RoundsDifferently(f"stacked losses of {x.shape[2]} classes on {x.shape[1]} rows round differently here")
    return stacked(_CrossEntropy.apply(x, target, ignore_index))  # type: ignore[no-untyped-call]


def _mse_loss(
    x: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean", weight: Any = None
) -> Stacked:
    plain = weight is None and size_average is None and reduce is None and reduction == "mean"
    if not plain or x.shape != target.shape or target.requires_grad:
        raise NotStackable("this form of mse_loss has no stacked form")
    return stacked(_SquaredError.apply(x, target))  # type: ignore[no-untyped-call]


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0.0:
        return x
    if inplace or p == 1.0:
        raise NotStackable("dropout in place has no stacked form")
    noise = _draw[-1](x, 1 - p)
    return stacked(x * noise.div_(1 - p))


def _elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Stacked]:
    """The rule for an elementwise operation that rounds each element alike: the same operation on all members."""

    def rule(*args: Any, **kwargs: Any) -> Stacked:
        if kwargs.get("inplace"):
            raise NotStackable("operations in place have no stacked form")
        if any(isinstance(value, torch.Tensor) for value in kwargs.values()):
            raise NotStackable(f"{function.__name__} with a tensor by name has no stacked form")
        return stacked(function(*(args if len(args) == 1 else _aligned(args)), **kwargs))

    return rule


def _tested(function: Callable[..., torch.Tensor]) -> Callable[..., Stacked]:
    """The rule for an elementwise operation whose last elements may round differently: then member by member."""
    whole, parts = _elementwise(function), _in_turn(function)

    def rule(x: Any, *args: Any, **kwargs: Any) -> Stacked:
        if not isinstance(x, Stacked) or any(isinstance(arg, torch.Tensor) for arg in (*args, *kwargs.values())):
            raise NotStackable(f"{function.__name__} of two tensors has no stacked form")
        options = args, tuple(sorted(kwargs.items()))
        if x.is_cuda or _rounds_alike(function, options, tuple(x.shape[1:]), kernel_settings(x)):
            return whole(x, *args, **kwargs)
        return parts(x, *args, **kwargs)

    return rule


def _aligned(args: Sequence[Any]) -> list[Any]:
    """Align operands for broadcasting: members first, the dimensions of one member to the right."""
    depth = max(arg.dim() for arg in args if isinstance(arg, Stacked))
    found = []
    for arg in args:
        if isinstance(arg, Stacked):
            found.append(arg.reshape(arg.shape[0], *[1] * (depth - arg.dim()), *arg.shape[1:]))
        elif isinstance(arg, torch.Tensor) and arg.dim() >= depth:
            raise NotStackable("a tensor with more dimensions than a member's has no stacked form")
        else:
            found.append(arg)
    return found


def _reduced(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Stacked]:
    """The rule for a sum or mean over all elements: for each member alone, in its own order of roundings."""

    def rule(x: Any, *args: Any, **kwargs: Any) -> Stacked:
        if args or kwargs:
            raise NotStackable("sums over some dimensions have no stacked form")
        return stacked(torch.stack([function(part) for part in x.unbind()]))

    return rule


def _in_turn(function: Callable[..., torch.Tensor]) -> Callable[..., Stacked]:
    """The rule for operations without a stacked kernel of equal rounding: they run member by member."""

    def rule(*args: Any, **kwargs: Any) -> Stacked:
        given = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Stacked)]
        if kwargs.get("inplace") or given[0].is_cuda:
            raise NotStackable(f"{function.__name__} has no stacked form there")

        def member_value(value: Any, number: int) -> Any:
            return value[number] if isinstance(value, Stacked) else value

        parts = [
            function(
                *(member_value(arg, number) for arg in args),
                **{name: member_value(arg, number) for name, arg in kwargs.items()},
            )
            for number in range(given[0].shape[0])
        ]
        return stacked(torch.stack(parts))

    return rule


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Stacked:
    dims = x.dim() - 1
    return stacked(x.flatten(start_dim % max(1, dims) + 1, end_dim % max(1, dims) + 1))


def _view(x: Any, *shape: Any) -> Stacked:
    wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list | torch.Size) else shape
    return stacked(x.reshape(x.shape[0], *wanted))


def _unflatten(x: Any, dim: int, sizes: Sequence[int]) -> Stacked:
    return stacked(torch.unflatten(x, dim if dim < 0 else dim + 1, sizes))


def _size(x: Any, dim: int | None = None) -> Any:
    shape = x.shape[1:]
    return shape if dim is None else shape[dim]


def _squeeze(x: Any, dim: int) -> Stacked:
    return stacked(x.squeeze(dim if dim < 0 else dim + 1))


_UNARY = (
    torch.relu, F.relu, F.leaky_relu, F.hardtanh, torch.neg, torch.abs, torch.square, torch.sqrt, torch.clamp,
    torch.Tensor.relu, torch.Tensor.neg, torch.Tensor.__neg__, torch.Tensor.abs, torch.Tensor.square, torch.Tensor.sqrt,
    torch.Tensor.clamp, torch.Tensor.float, torch.Tensor.double, torch.Tensor.to, torch.Tensor.detach,
    torch.Tensor.contiguous,
)  # fmt: skip
_TESTED = (
    torch.tanh, F.tanh, torch.sigmoid, F.sigmoid, F.gelu, F.elu, F.selu, F.silu, F.softplus, F.mish, torch.exp,
    torch.log, torch.Tensor.tanh, torch.Tensor.sigmoid, torch.Tensor.exp, torch.Tensor.log, torch.Tensor.__pow__,
)  # fmt: skip
_BINARY = (
    torch.add, torch.sub, torch.mul, torch.div, torch.Tensor.add, torch.Tensor.sub, torch.Tensor.mul, torch.Tensor.div,
    torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__sub__, torch.Tensor.__rsub__, torch.Tensor.__mul__,
    torch.Tensor.__rmul__, torch.Tensor.__truediv__, torch.Tensor.__rtruediv__,
)  # fmt: skip

_ONE_BY_ONE = (
    F.layer_norm, torch.layer_norm, F.group_norm, F.softmax, torch.softmax, F.log_softmax, F.embedding, F.conv1d,
    F.conv2d, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.nll_loss, F.l1_loss, F.smooth_l1_loss,
    F.binary_cross_entropy_with_logits,
)  # fmt: skip


def _rules() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {function: _elementwise(function) for function in (*_UNARY, *_BINARY)}
    found |= {function: _tested(function) for function in _TESTED}
    found |= {F.linear: _linear, torch._C._nn.linear: _linear, F.cross_entropy: _cross_entropy, F.mse_loss: _mse_loss}
    found |= {F.dropout: _dropout, torch.flatten: _flatten, torch.Tensor.flatten: _flatten}
    found |= dict.fromkeys((torch.Tensor.unflatten, torch.unflatten), _unflatten)
    found |= dict.fromkeys((torch.Tensor.view, torch.Tensor.reshape, torch.reshape), _view)
    found |= dict.fromkeys((torch.Tensor.squeeze, torch.squeeze), _squeeze)
    found |= {function: _reduced(torch.mean) for function in (torch.mean, torch.Tensor.mean)}
    found |= {function: _reduced(torch.sum) for function in (torch.sum, torch.Tensor.sum)}
    found |= {torch.Tensor.shape.__get__: _size, torch.Tensor.size: _size}  # type: ignore[attr-defined]
    found |= {torch.Tensor.dim: lambda x: x.dim() - 1, torch.Tensor.__len__: lambda x: x.shape[1]}
    found |= {torch.Tensor.numel: lambda x: math.prod(x.shape[1:])}
    found |= {function: _in_turn(function) for function in _ONE_BY_ONE}
    for name in ("dtype", "device", "requires_grad", "is_cuda"):
        getter = getattr(torch.Tensor, name).__get__
        found[getter] = lambda x, name=name: getattr(x, name)
    return found


RULES = _rules()
