"""Many models on one device: models enter with their optimizers, and leave as if each had been trained alone.

    pack.py          Pack: load, train, free, plan
    member.py        one model in a pack: its position in the data, its losses, its costs
    device_data.py   the data, on the device once for all members
    state/           what a step may change: tensors, hyperparameters, Python values, random streams
    fingerprint.py   which members have the same structure
    checks.py        which later steps are compared with the step alone
    rates.py         measured times, kept by fingerprint
    memory.py        what a member needs on the device, and what fits

A call of `train` passes through the tiers in this order:

    loop_tier.py     a plain loop: the first step of a new member, and all steps that no other tier takes
    step.py          one optimizer step of one model
    stacked/         the fused tier: members with the same structure, stepped together
    cuda_graphs/     the graph tier: captured steps, replayed concurrently
    track.py         the steps of a member, or of a stack, over its batches; this is what is captured
    ticks.py         tracks side by side, in the way that was measured to be the fastest

It does not know runs, journals or stores.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regatta.frameworks.torch.capturable import capturable
    from regatta.pack.member import Member
    from regatta.pack.pack import Pack
    from regatta.pack.rates import Rates

__all__ = ["Member", "Pack", "Rates", "capturable"]

_MODULES = {
    "Member": "regatta.pack.member",
    "Pack": "regatta.pack.pack",
    "Rates": "regatta.pack.rates",
    "capturable": "regatta.frameworks.torch.capturable",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: importing this package does not import PyTorch."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'regatta.pack' has no attribute {name!r}")
