"""Optimizer updates over a stack: the operations of torch.optim's plain loop, in its order, with a value per member.

A hyperparameter that all members share stays a number and goes through the same operation as in the loop. One that
differs becomes a column, and the operation is written so that it rounds in the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from regatta.pack.stacked.tensors import NotStackable
from regatta.pack.state.hyperparameters import Group, first_changed, tensors_in

Optimizers = Sequence[torch.optim.Optimizer]
STATES = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    torch.optim.Adagrad: ("sum",),
    torch.optim.RMSprop: ("square_avg", "momentum_buffer"),
}
_NUMBERS = ("lr", "momentum", "weight_decay", "eps", "alpha")
_OTHER_KERNELS = ("foreach", "fused", "capturable")  # they may round differently
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
    on_gpu = groups[0]["params"][0].is_cuda
    for name in _REFUSED if on_gpu else (*_REFUSED, *_OTHER_KERNELS):
        if any(group.get(name) for group in groups):
            return f"{name} has no stacked form"
    if not on_gpu:  # arithmetic with a tensor rounds to its precision, and that with a number does not
        options = [(name, value) for group in groups for name, value in group.items() if name != "params"]
        tensors = [name for name, value in options if tensors_in(value)]
        if tensors:
            return f"{tensors[0]} as a tensor has no stacked form"
    for group in groups:
        different = first_changed(held(groups[:1]), held([group]))
        if different is not None:
            return f"{different.replace('_', ' ')} for some members only has no stacked form"
    return None


def number_names(group: Group) -> list[str]:
    betas = ["beta1", "beta2"] if "betas" in group else []
    return [*(name for name in _NUMBERS if name in group), *betas]


def numbers(groups: Sequence[Group]) -> list[float]:
    """The hyperparameters that a stacked update takes per member, in the order of `number_names`."""
    (group,) = groups
    return [*(float(group[name]) for name in _NUMBERS if name in group), *map(float, group.get("betas", ()))]


def held(groups: Sequence[Group]) -> list[Group]:
    """What a stacked update is written for: it cannot follow a change of these."""
    (group,) = groups
    used = {name: bool(group.get(name)) for name in ("momentum", "weight_decay")}
    options = (*_REFUSED, *_OTHER_KERNELS, *_SHARED)
    tensors = sum(isinstance(group.get(name), torch.Tensor) for name in _NUMBERS) + len(tensors_in(group.get("betas")))
    return [used | {name: group.get(name) for name in options} | {"tensors": tensors}]


def all_held(groups: Sequence[Group]) -> list[Group]:
    """The same for a captured update without a schedule: it holds its numbers too."""
    return [*held(groups), dict(zip(number_names(groups[0]), numbers(groups), strict=True))]


class Update:
    """The update of all members: parameters and states are flat, one row per member."""

    def __init__(self, optimizers: Optimizers, params: torch.Tensor, states: dict[str, torch.Tensor]):
        self.kind = type(optimizers[0])
        self.groups = [optimizer.param_groups[0] for optimizer in optimizers]
        self.params, self.states = params, states
        self._held = [held([group]) for group in self.groups]
        self._decays = self._held[0][0]["weight_decay"]
        self._scratch = torch.empty_like(params), torch.empty_like(params)  # allocation costs more than the sums
        self._names = number_names(self.groups[0])
        self._rows: list[list[float]] = []
        self._values: dict[str, Any] = {}
        self.counts = [0.0] * len(self.groups)
        self._steps = torch.zeros(len(self.groups), 1, dtype=torch.float64, device=params.device)
        self.refresh()

    def refresh(self) -> None:
        """Read the hyperparameters: a number where all members agree, otherwise a column."""
        rows = [numbers([group]) for group in self.groups]
        for group, before in zip(self.groups, self._held, strict=True):
            changed = first_changed(before, held([group]))
            if changed is not None:
                raise NotStackable(f"a change of {changed} in training has no stacked form")
        if rows != self._rows:
            self._rows = rows
            columns = zip(*rows, strict=True)
            self._values = {name: self._value(column) for name, column in zip(self._names, columns, strict=True)}

    def _value(self, column: Sequence[float]) -> Any:
        """Double precision, like the loop's numbers."""
        if len(set(column)) == 1:
            return column[0]
        return torch.tensor(column, dtype=torch.float64, device=self.params.device).unsqueeze(1)

    def recount(self, counts: list[float]) -> None:
        """Set the number of steps that each member has taken."""
        self.counts = counts
        if self.params.is_cuda:
            self._steps.copy_(torch.tensor(counts, dtype=torch.float64).unsqueeze(1))  # captured steps read it there

    def counted(self) -> list[float]:
        return self._steps.view(-1).tolist() if self.params.is_cuda else self.counts

    def apply(self, grads: torch.Tensor, given: torch.Tensor | None) -> None:
        """One update; `given` are the hyperparameters of this step by member, on the device."""
        if given is not None:
            self._values = dict(zip(self._names, given.unsqueeze(2).unbind(1), strict=True))
        if self.params.is_cuda:
            self._steps.add_(1)
        else:
            self.counts = [count + 1 for count in self.counts]
        {
            torch.optim.SGD: self._sgd,
            torch.optim.Adam: self._adam,
            torch.optim.AdamW: self._adam,
            torch.optim.Adagrad: self._adagrad,
            torch.optim.RMSprop: self._rmsprop,
        }[self.kind](grads, self._values["lr"])

    def _sgd(self, grads: torch.Tensor, lr: Any) -> None:
        grads = self._with_weight_decay(grads)
        momentum = self._values["momentum"]
        if "momentum_buffer" in self.states:
            buffer, group = self.states["momentum_buffer"], self.groups[0]
            buffer.mul_(self._cast(momentum)).add_(grads, alpha=1 - group["dampening"])
            grads = _add_scaled(grads, buffer, momentum, self._cast) if group["nesterov"] else buffer
        _add_(self.params, grads, -lr, self._cast)

    def _adam(self, grads: torch.Tensor, lr: Any) -> None:
        group = self.groups[0]
        if self.kind is torch.optim.AdamW or group.get("decoupled_weight_decay"):
            if self._decays:
                self.params.mul_(self._cast(1 - lr * self._values["weight_decay"]))
        else:
            grads = self._with_weight_decay(grads)
        beta1, beta2 = self._values["beta1"], self._values["beta2"]
        mean, square = self.states["exp_avg"], self.states["exp_avg_sq"]
        mean.lerp_(grads, self._cast(1 - beta1))
        self._average_squares(square, grads, beta2)
        first, second = self._bias_corrections(beta1, beta2)
        denominator = (
            torch.sqrt(square, out=self._scratch[0]).div_(self._cast(second)).add_(self._cast(self._values["eps"]))
        )
        self._move(mean, denominator, -(lr / first))

    def _bias_corrections(self, beta1: Any, beta2: Any) -> tuple[Any, Any]:
        """On the CPU computed as in the loop: powers of PyTorch may round differently from those of Python."""
        if self.params.is_cuda:
            return 1 - beta1**self._steps, (1 - beta2**self._steps) ** 0.5
        if isinstance(beta1, float) and isinstance(beta2, float) and len(set(self.counts)) == 1:
            count = self.counts[0]
            return 1 - beta1**count, (1 - beta2**count) ** 0.5
        betas = [row[-2:] for row in self._rows]
        first = [1 - beta**count for (beta, _), count in zip(betas, self.counts, strict=True)]
        second = [(1 - beta**count) ** 0.5 for (_, beta), count in zip(betas, self.counts, strict=True)]
        return self._value(first), self._value(second)

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
        if "momentum_buffer" not in self.states:
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
        if not self._decays:
            return grads
        return _add_scaled(grads, self.params, self._values["weight_decay"], self._cast)

    def _cast(self, value: Any) -> Any:
        """Columns are computed in double precision, like the loop's numbers, and rounded when combined with tensors."""
        return value.to(self.params.dtype) if isinstance(value, torch.Tensor) else value


def _add_scaled(one: torch.Tensor, other: torch.Tensor, factor: Any, cast: Any) -> torch.Tensor:
    if isinstance(factor, float):
        return one.add(other, alpha=factor)
    return torch.addcmul(one, other, cast(factor))


def _add_(target: torch.Tensor, other: torch.Tensor, factor: Any, cast: Any) -> None:
    if isinstance(factor, float):
        target.add_(other, alpha=factor)
    else:
        target.addcmul_(other, cast(factor))
