"""Optimizer updates over a stack: the operations of torch.optim's plain loop, in its order, with a value per member.

A hyperparameter that all members share stays a number and goes through the same operation as in the loop. One that
differs becomes a column, and the operation is written so that it rounds in the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from regatta.pack.stacked.tensors import NotStackable

Optimizers = Sequence[torch.optim.Optimizer]
STATES = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    torch.optim.Adagrad: ("sum",),
    torch.optim.RMSprop: ("square_avg", "momentum_buffer"),
}
_NUMBERS = ("lr", "momentum", "weight_decay", "eps", "alpha")
_REFUSED = ("amsgrad", "maximize", "differentiable", "lr_decay", "centered")
_SHARED = ("nesterov", "dampening", "decoupled_weight_decay")


def why_not_stackable(optimizers: Optimizers) -> str | None:
    """Why there is no stacked form of these optimizers, or None."""
    kinds = {type(optimizer) for optimizer in optimizers}
    if len(kinds) > 1 or not kinds <= STATES.keys():
        return f"{' and '.join(sorted(kind.__name__ for kind in kinds))} have no stacked form"
    if any(len(optimizer.param_groups) != 1 for optimizer in optimizers):
        return "several parameter groups have no stacked form"
    groups = [optimizer.param_groups[0] for optimizer in optimizers]
    for name in (*_REFUSED, *_SHARED):
        values = {group.get(name) for group in groups}
        if len(values) > 1 or (name in _REFUSED and any(values)):
            return f"{name} of {sorted(map(str, values))} has no stacked form"
    with_momentum = {bool(group.get("momentum")) for group in groups}
    return "momentum for some members only has no stacked form" if len(with_momentum) > 1 else None


class Update:
    """The update of all members: parameters and states are flat, one row per member."""

    def __init__(
        self, optimizers: Optimizers, params: torch.Tensor, states: dict[str, torch.Tensor], steps: list[float]
    ):
        self.kind = type(optimizers[0])
        self.groups = [optimizer.param_groups[0] for optimizer in optimizers]
        self.params, self.states = params, states
        self.steps = torch.tensor(steps, dtype=torch.float64, device=params.device).unsqueeze(1)
        self.shared_step = steps[0] if len(set(steps)) == 1 and not params.is_cuda else None
        self._scratch = torch.empty_like(params), torch.empty_like(params)  # allocation costs more than the sums
        self._values: dict[str, Any] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the hyperparameters: a number where all members agree, otherwise a column on the device."""
        for name in _NUMBERS:
            if name in self.groups[0]:
                self._set(name, [float(group[name]) for group in self.groups])
        for item, name in enumerate(("beta1", "beta2")):
            if "betas" in self.groups[0]:
                self._set(name, [float(group["betas"][item]) for group in self.groups])

    def _set(self, name: str, numbers: list[float]) -> None:
        if len(set(numbers)) == 1:
            self._values[name] = numbers[0]
            return
        if name == "weight_decay" and 0.0 in numbers:
            raise NotStackable("weight decay for some members only has no stacked form")
        column = torch.tensor(numbers, dtype=torch.float64, device=self.params.device).unsqueeze(1)
        if isinstance(self._values.get(name), torch.Tensor):
            self._values[name].copy_(column)  # in place, because captured steps read it there
        else:
            self._values[name] = column

    def count(self, steps: int) -> None:
        if self.shared_step is not None:
            self.shared_step += steps
        self.steps.add_(steps)

    def apply(self, grads: torch.Tensor, rates: torch.Tensor | None) -> None:
        lr = self._values["lr"] if rates is None else rates
        self.count(1)
        {
            torch.optim.SGD: self._sgd,
            torch.optim.Adam: self._adam,
            torch.optim.AdamW: self._adam,
            torch.optim.Adagrad: self._adagrad,
            torch.optim.RMSprop: self._rmsprop,
        }[self.kind](grads, lr)

    def _sgd(self, grads: torch.Tensor, lr: Any) -> None:
        grads = self._with_weight_decay(grads)
        momentum = self._values["momentum"]
        if _is_used(momentum):
            buffer, group = self.states["momentum_buffer"], self.groups[0]
            buffer.mul_(self._cast(momentum)).add_(grads, alpha=1 - group["dampening"])
            grads = _add_scaled(grads, buffer, momentum, self._cast) if group["nesterov"] else buffer
        _add_(self.params, grads, -lr, self._cast)

    def _adam(self, grads: torch.Tensor, lr: Any) -> None:
        group = self.groups[0]
        if self.kind is torch.optim.AdamW or group.get("decoupled_weight_decay"):
            decay = self._values["weight_decay"]
            if _is_used(decay):
                self.params.mul_(self._cast(1 - lr * decay))
        else:
            grads = self._with_weight_decay(grads)
        beta1, beta2 = self._values["beta1"], self._values["beta2"]
        mean, square = self.states["exp_avg"], self.states["exp_avg_sq"]
        mean.lerp_(grads, self._cast(1 - beta1))
        self._average_squares(square, grads, beta2)
        step = self.steps if self.shared_step is None else self.shared_step
        first, second = 1 - beta1**step, (1 - beta2**step) ** 0.5
        denominator = (
            torch.sqrt(square, out=self._scratch[0]).div_(self._cast(second)).add_(self._cast(self._values["eps"]))
        )
        self._move(mean, denominator, -(lr / first))

    def _adagrad(self, grads: torch.Tensor, lr: Any) -> None:
        grads = self._with_weight_decay(grads)
        total = self.states["sum"]
        total.addcmul_(grads, grads, value=1)
        root = torch.sqrt(total, out=self._scratch[0]).add_(self._cast(self._values["eps"]))
        self._move(grads, root, -lr)

    def _rmsprop(self, grads: torch.Tensor, lr: Any) -> None:
        grads = self._with_weight_decay(grads)
        square, momentum = self.states["square_avg"], self._values["momentum"]
        self._average_squares(square, grads, self._values["alpha"])
        root = torch.sqrt(square, out=self._scratch[0]).add_(self._cast(self._values["eps"]))
        if not _is_used(momentum):
            self._move(grads, root, -lr)
            return
        buffer = self.states["momentum_buffer"]
        buffer.mul_(self._cast(momentum)).addcdiv_(grads, root)
        _add_(self.params, buffer, -lr, self._cast)

    def _average_squares(self, square: torch.Tensor, grads: torch.Tensor, decay: Any) -> None:
        square.mul_(self._cast(decay))
        if isinstance(decay, float):
            square.addcmul_(grads, grads, value=1 - decay)
        else:
            square.addcmul_(grads * self._cast(1 - decay), grads)

    def _move(self, direction: torch.Tensor, divisor: torch.Tensor, factor: Any) -> None:
        if isinstance(factor, float):
            self.params.addcdiv_(direction, divisor, value=factor)
        else:
            self.params.addcdiv_(torch.mul(direction, self._cast(factor), out=self._scratch[1]), divisor)

    def _with_weight_decay(self, grads: torch.Tensor) -> torch.Tensor:
        decay = self._values["weight_decay"]
        if not _is_used(decay):
            return grads
        return _add_scaled(grads, self.params, decay, self._cast)

    def _cast(self, value: Any) -> Any:
        """Columns are computed in double precision, like the loop's numbers, and rounded when combined with tensors."""
        return value.to(self.params.dtype) if isinstance(value, torch.Tensor) else value


def _is_used(value: Any) -> bool:
    return not isinstance(value, float) or value != 0.0


def _add_scaled(one: torch.Tensor, other: torch.Tensor, factor: Any, cast: Any) -> torch.Tensor:
    if isinstance(factor, float):
        return one.add(other, alpha=factor)
    return torch.addcmul(one, other, cast(factor))


def _add_(target: torch.Tensor, other: torch.Tensor, factor: Any, cast: Any) -> None:
    if isinstance(factor, float):
        target.add_(other, alpha=factor)
    else:
        target.addcmul_(other, cast(factor))
