"""Trainees that a worker keeps from one unit to the next, where building and compiling them is dear.

A kept trainee is as good as a new one: the whole state of the next unit is put into it, and one that changed in a way
that no state covers is not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from regatta.frameworks import Framework

MOST = 64
MOST_BYTES = 2**30  # of their states


@dataclass
class CachedModel:
    """One trainee, on loan to a unit or waiting for the next."""

    framework: Framework
    trainee: Any
    unsaved_values: dict[str, Any]  # as it was when it was built
    bytes: int = 0


@dataclass
class ModelCache:
    """Trainees by configuration; those not used for longest go first."""

    _waiting: OrderedDict[str, CachedModel] = field(default_factory=OrderedDict)

    def take(self, config: str) -> CachedModel | None:
        return self._waiting.pop(config, None)

    def put(self, config: str, cached: CachedModel) -> None:
        """Keep a trainee for the next unit of its configuration, if it may be."""
        if not cached.framework.COMPILES or cached.framework.unsaved_values(cached.trainee) != cached.unsaved_values:
            return
        self._waiting[config] = cached
        while len(self._waiting) > MOST or sum(kept.bytes for kept in self._waiting.values()) > MOST_BYTES:
            self._waiting.popitem(last=False)
