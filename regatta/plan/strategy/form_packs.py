"""Forms packs of models of one build: as large as the plan says, and as many as keep every worker busy. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

MAX_PACK_MEMBERS = 64
MIN_PACK_GAIN = 1.15  # a pack must be at least this many times as fast as its members one after another
ANY_CUDA_BUILD = "cuda"  # the build of all models on a GPU: it says nothing about their structure


@dataclass(frozen=True)
class PackRate:
    """Measured on models of one build: `members` side by side are `gain` times as fast as one after another.

    Putting a member into the pack takes `fixed` seconds of each unit.
    """

    members: int
    gain: float
    reason: str = ""
    fixed: float = 0.0

    def gain_of(self, members: int) -> float:
        """The gain of another size: a step takes a fixed time and a time for each member, so it is linear in them."""
        if self.members < 2 or members < 2:
            return 1.0
        per_member = max(0.0, (self.members / self.gain - 1.0) / (self.members - 1))
        return members / (1.0 + per_member * (members - 1))


@dataclass(frozen=True)
class PackCandidate:
    """A model that may be packed with others of the same build and an equal `alike`."""

    name: str
    build: str  # empty: it cannot be packed
    alike: Hashable = None  # its progress, and the units that it has left


def form_packs(candidates: Sequence[PackCandidate], sizes: Mapping[str, int], idle: int) -> list[list[str]]:
    """The candidates in packs, or singly: at least `idle` of these, so that each idle worker gets one.

    `sizes` is the plan's largest size of a pack, by build.
    """
    classes: dict[Hashable, list[str]] = {}
    max_size: dict[Hashable, int] = {}
    for candidate in candidates:
        size = sizes.get(candidate.build, 1) if candidate.build else 1
        key = (candidate.build, candidate.alike) if size > 1 else candidate.name
        classes.setdefault(key, []).append(candidate.name)
        max_size[key] = size
    packs = [part for key, names in classes.items() for part in _split(names, -(-len(names) // max_size[key]))]
    while len(packs) < min(idle, len(candidates)):
        largest = max(range(len(packs)), key=lambda number: (len(packs[number]), -number))
        packs[largest : largest + 1] = _split(packs[largest], 2)
    return packs


def _split(names: list[str], parts: int) -> list[list[str]]:
    """In parts whose sizes differ by at most one."""
    return [names[len(names) * k // parts : len(names) * (k + 1) // parts] for k in range(parts)]
