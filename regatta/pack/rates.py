"""Measured times of packs, by the fingerprint of their members."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PackTiming:
    """Seconds for one tick of every member of a group: together, and one after another."""

    together: float
    in_turn: float
    joint: bool = False  # as one graph; otherwise each member on its own stream
    members: int = 0
    steps: int = 0  # in total in that time; members with small batches take several

    @property
    def pays(self) -> bool:
        return self.together < self.in_turn

    @property
    def ratio(self) -> float:
        return self.in_turn / self.together


@dataclass
class Rates:
    """Measured times of groups. Packs that share one object measure equal groups only once."""

    known: dict[Hashable, PackTiming] = field(default_factory=dict)

    def get(self, key: Hashable) -> PackTiming | None:
        return self.known.get(key)

    def put(self, key: Hashable, measured: PackTiming) -> PackTiming:
        self.known[key] = measured
        return measured

    def points(self, kind: str = "") -> dict[tuple[str, int], float]:
        """The seconds of a step of n members, as measured so far; for `pack_grouping.measured_seconds`."""
        found = {}
        for measured in self.known.values():
            if measured.steps:
                found[kind, 1] = measured.in_turn / measured.steps
                together = min(measured.together, measured.in_turn)
                found[kind, measured.members] = together / measured.steps * measured.members
        return found
