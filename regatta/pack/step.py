"""One optimizer step of one model, in the order of operations of a plain loop."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from regatta.errors import UsageError

if TYPE_CHECKING:
    from regatta.pack.member import Member


def take_step(member: Member, batch: Any) -> torch.Tensor:
    """Forward, backward, clipping, update. Returns the detached loss. The caller advances the schedule."""
    optimizer = member.optimizer
    if needs_closure(optimizer):
        return check_loss(optimizer.step(lambda: _gradients(member, batch))).detach()  # type: ignore[arg-type, return-value]
    loss = _gradients(member, batch)
    if member.scaler is None:
        _clip(member)
        optimizer.step()
    else:
        if member.clip_norm is not None:
            member.scaler.unscale_(optimizer)
            _clip(member)
        member.scaler.step(optimizer)
        member.scaler.update()
    return loss.detach()


def call_loss(member: Member, model: Any, batch: Any) -> Any:
    """Call `loss_fn(model, batch)`, with the configuration as third argument if the member has one."""
    return member.loss_fn(model, batch) if member.config is None else member.loss_fn(model, batch, member.config)


def _gradients(member: Member, batch: Any) -> torch.Tensor:
    member.optimizer.zero_grad(set_to_none=True)
    loss = check_loss(call_loss(member, member.model, batch), needs_gradient=True)
    (loss if member.scaler is None else member.scaler.scale(loss)).backward()
    return loss


def _clip(member: Member) -> None:
    if member.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(member.model.parameters(), member.clip_norm)


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer evaluates the loss by itself, as L-BFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def check_loss(loss: Any, needs_gradient: bool = False) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UsageError(f"loss_fn returned {found}; it must return one number, as a tensor.")
    if needs_gradient and not loss.requires_grad:
        raise UsageError("loss_fn returned a loss without a gradient.", hint="Do not detach it or use no_grad inside.")
    return loss.reshape(())
