"""One optimizer step of one model, in the order of operations of a plain loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from regatta.frameworks.torch.framework import check_loss

if TYPE_CHECKING:
    from regatta.pack.member import Member


def take_step(member: Member, batch: Any) -> torch.Tensor:
    """Forward, backward, clipping, update. Returns the detached loss. The caller advances the schedule."""
    optimizer = member.optimizer
    if member.evaluates_loss:
        found = optimizer.step(lambda: _gradients(member, batch))  # type: ignore[arg-type, return-value]
        return check_loss(found, needs_gradient=False).detach()
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
    loss = check_loss(call_loss(member, member.model, batch))
    (loss if member.scaler is None else member.scaler.scale(loss)).backward()
    return loss


def _clip(member: Member) -> None:
    if member.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(member.model.parameters(), member.clip_norm)
