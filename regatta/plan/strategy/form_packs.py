"""Which models to train as packs: as large as they pay, and as many as keep every worker busy. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

MAX_PACK_MEMBERS = 64  # members of one pack
ANY_CUDA_BUILD = "cuda"  # the build of all models on a GPU: it says nothing of their structure
MIN_PACK_GAIN = 1.15  # a pack must be so many times as fast as its members one after another


@dataclass(frozen=True)
class PackRate:
    """What was measured of some models of one build: so many side by side are `gain` times as fast as in turn.

    To put a member among the others takes `fixed` seconds of each unit.
    """

    members: int
    gain: float
    reason: str = ""
    fixed: float = 0.0

    def gain_of(self, members: int) -> float:
        """By a straight line: a step of n models takes a fixed part and a part for each of them."""
        if self.members < 2 or members < 2:
            return 1.0
        each = max(0.0, (self.members / self.gain - 1.0) / (self.members - 1))
        return members / (1.0 + each * (members - 1))


@dataclass(frozen=True)
class PackCandidate:
    """A model that could be in a pack with others that are alike: of one build, and at one point of their way."""

    name: str
    build: str
    alike: Hashable = None


def form_packs(candidates: Sequence[PackCandidate], sizes: Mapping[str, int], idle: int) -> list[list[str]]:
    """The candidates in packs, most of them of one: at least `idle` in all, for so many workers have nothing to do.

    `sizes` says by build how many a pack may have, as the plan has it.
    """
    classes: dict[Hashable, list[str]] = {}
    most: dict[Hashable, int] = {}
    for candidate in candidates:
        size = sizes.get(candidate.build, 1) if candidate.build else 1
        key = (candidate.build, candidate.alike) if size > 1 else candidate.name
        classes.setdefault(key, []).append(candidate.name)
        most[key] = size
    groups = [part for key, names in classes.items() for part in _cut(names, -(-len(names) // most[key]))]
    while len(groups) < min(idle, len(candidates)):
        largest = max(range(len(groups)), key=lambda number: (len(groups[number]), -number))
        groups[largest : largest + 1] = _cut(groups[largest], 2)
    return groups


def _cut(names: list[str], parts: int) -> list[list[str]]:
    """In so many parts whose sizes differ by one at most."""
    return [names[len(names) * k // parts : len(names) * (k + 1) // parts] for k in range(parts)]


class Builds:
    """The build of each configuration: as its pilot found it, or that of another whose decisive values are the same.

    A value is decisive if the builds that are known cannot be told apart without it. A guess that is wrong makes a pack
    slower, not wrong.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mapping[str, object], str]] = {}
        self._decisive: tuple[str, ...] | None = None

    def learn(self, name: str, values: Mapping[str, object], build: str) -> None:
        self._known[name] = values, build
        self._decisive = None

    def of(self, name: str, values: Mapping[str, object]) -> str:
        if name in self._known:
            return self._known[name][1]
        if self._decisive is None:
            self._decisive = self._find_decisive()
        wanted = _chosen(values, self._decisive)
        return next((build for known, build in self._known.values() if _chosen(known, self._decisive) == wanted), "")

    def _find_decisive(self) -> tuple[str, ...]:
        distinct: dict[str, set[str]] = {}
        for values, _ in self._known.values():
            for name, value in values.items():
                distinct.setdefault(name, set()).add(repr(value))
        broken = {name for values, _ in self._known.values() for name, v in values.items() if isinstance(v, float)}
        # few pilots may leave several explanations: batches of other sizes never go together, rates always do
        names = sorted(distinct, key=lambda k: (k == "batch_size", k not in broken, -len(distinct[k]), k))
        for name in list(names):
            rest = tuple(other for other in names if other != name)
            if self._tells_apart(rest):
                names.remove(name)
        return tuple(names)

    def _tells_apart(self, names: tuple[str, ...]) -> bool:
        found: dict[tuple[str, ...], str] = {}
        return all(found.setdefault(_chosen(values, names), build) == build for values, build in self._known.values())


def _chosen(values: Mapping[str, object], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(repr(values.get(name)) for name in names)
