"""What was measured, remembered by the fingerprint of what was measured."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Measured:
    """Seconds for one tick of every member of a group: together, and one after another."""

    together: float
    in_turn: float
    joint: bool = False  # as one graph; otherwise each on its own stream
    members: int = 0
    steps: int = 0  # in all, in that time: members with small batches take several

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

    def points(self, kind: str = "") -> dict[tuple[str, int], float]:
        """What a step of n members takes, as measured so far on steps that counted; for `grouping.measured_seconds`."""
        found = {}
        for measured in self.known.values():
            if measured.steps:
                found[kind, 1] = measured.in_turn / measured.steps
                together = min(measured.together, measured.in_turn)
                found[kind, measured.members] = together / measured.steps * measured.members
        return found
