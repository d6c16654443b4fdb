"""Many models, one device, one step: models enter with their optimizers, and leave as if each had been trained alone.

    pack.py          Pack: load, train, free, plan
    member.py        one model in a pack: its place in the data, its losses, its figures
    step.py          one optimizer step of one model, as a plain loop takes it
    resident.py      the data: on the device once for all members
    randomness.py    each member's own random streams
    state.py         all tensors that a step may change: copied, put back, compared bit for bit
    optimizers.py    optimizers in the form that a CUDA graph can hold
    graphs.py        capture and replay; the side streams
    track.py         the way of a member, or of a stack of them, through its batches
    stack.py         members of one architecture in one memory, stepped together
    lanes.py         tensors that hold one value per member, and what may be computed with them
    updates.py       optimizer updates over a stack, operation by operation as alone
    fingerprint.py   which members are built alike
    tiers.py         which members go together, and why
    memory.py        what a member needs on the device, and what fits
    rates.py         what was measured, remembered by fingerprint
    grouping.py      pack_opt: which configurations to train together; pure

It knows nothing of runs, journals and stores.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regatta.pack.member import Member
    from regatta.pack.optimizers import capturable
    from regatta.pack.pack import Pack
    from regatta.pack.rates import Rates

__all__ = ["Member", "Pack", "Rates", "capturable"]

_HOME = {
    "Member": "regatta.pack.member",
    "Pack": "regatta.pack.pack",
    "Rates": "regatta.pack.rates",
    "capturable": "regatta.pack.optimizers",
}


def __getattr__(name: str) -> Any:
    """Grouping is pure and used without PyTorch, so the rest is imported when it is first used."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'regatta.pack' has no attribute {name!r}")
