"""What was measured, remembered by the fingerprint of what was measured."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Measured:
    """Seconds for one step of every member of a group: together, and one after another."""

    together: float
    in_turn: float
    joint: bool = False  # as one graph; otherwise each on its own stream

    @property
    def pays(self) -> bool:
        return self.together < self.in_turn

    @property
    def ratio(self) -> float:
        return self.in_turn / self.together


@dataclass
class Rates:
    """Measurements of groups; share one among the packs of a process, and equal groups are measured once."""

    known: dict[Hashable, Measured] = field(default_factory=dict)

    def get(self, key: Hashable) -> Measured | None:
        return self.known.get(key)

    def put(self, key: Hashable, measured: Measured) -> Measured:
        self.known[key] = measured
        return measured
