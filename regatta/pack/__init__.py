"""Many models, one device, one step: models enter with their optimizers, and leave as if each had been trained alone.

    pack.py          Pack: load, train, free, plan
    member.py        one model in a pack: its place in the data, its losses, its figures
    resident.py      the data: on the device once for all members
    randomness.py    each member's own random streams
    state.py         all tensors that a step may change: copied, put back, compared bit for bit
    fingerprint.py   which members are built alike
    rates.py         what was measured, remembered by fingerprint
    memory.py        what a member needs on the device, and what fits
    grouping.py      pack_opt: which configurations to train together; pure

A call of `train` passes through the tiers in this order:

    alone.py         a plain loop: a newcomer's first step, and all that no other tier takes
      step.py        one optimizer step of one model, as a plain loop takes it
    stacks.py        the fused tier: members that are alike, stepped together
      stack.py       one such group: one memory, one step, and the proof that it is exact
      stacked.py     tensors that hold one value per member, and what may be computed with them
      updates.py     optimizer updates over a stack, operation by operation as alone
    captured.py      the graph tier: captured steps, in waves that fit into memory
      proof.py       a captured step compared with the same step alone
      optimizers.py  optimizers in the form that a CUDA graph can hold
      graphs.py      capture and replay; the side streams
      joint.py       captured steps as branches of one graph
    track.py         the way of a member, or of a stack, through its batches; what is captured is here
    ticks.py         tracks side by side, in the way that was measured to be the fastest

It knows nothing of runs, journals and stores.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regatta.pack.cuda_graphs.optimizers import capturable
    from regatta.pack.member import Member
    from regatta.pack.pack import Pack
    from regatta.pack.rates import Rates

__all__ = ["Member", "Pack", "Rates", "capturable"]

_HOME = {
    "Member": "regatta.pack.member",
    "Pack": "regatta.pack.pack",
    "Rates": "regatta.pack.rates",
    "capturable": "regatta.pack.cuda_graphs.optimizers",
}


def __getattr__(name: str) -> Any:
    """Grouping is pure and used without PyTorch, so the rest is imported when it is first used."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'regatta.pack' has no attribute {name!r}")
