"""Models that a worker keeps from one unit to the next, where building and compiling them is expensive.

A cached model is as good as a new one: the next unit restores its whole state into it. A model that changed anything
its state does not cover is not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from regatta.frameworks import Framework

MAX_MODELS = 64
MAX_STATE_BYTES = 2**30


@dataclass
class CachedModel:
    """A model with all that trains it: in use by a unit, or waiting in the cache for the next one."""

    framework: Framework
    trainee: Any
    unsaved_values: dict[str, Any]  # as they were when the model was built
    changed_settings: tuple[str, ...] = ()  # of the process, by model_fn
    bytes: int = 0  # of its state


@dataclass
class ModelCache:
    """Models by configuration; the least recently used are dropped first."""

    _models: OrderedDict[str, CachedModel] = field(default_factory=OrderedDict)

    def take(self, config: str) -> CachedModel | None:
        return self._models.pop(config, None)

    def put(self, config: str, cached: CachedModel) -> None:
        """Keep a model for the next unit of its configuration, if it may be reused."""
        framework, trainee = cached.framework, cached.trainee
        if not framework.COMPILES or framework.unsaved_values(trainee) != cached.unsaved_values:
            return
        if cached.changed_settings:  # the next unit needs them too, so model_fn must run again
            return
        self._models[config] = cached
        while len(self._models) > MAX_MODELS or sum(m.bytes for m in self._models.values()) > MAX_STATE_BYTES:
            self._models.popitem(last=False)
