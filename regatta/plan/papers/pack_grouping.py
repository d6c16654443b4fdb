"""pack_opt: which configurations to train together under a memory limit. Pure: no clock, no device, no PyTorch.

`by_batch_size`, `at_random` and `nearest` are three heuristics of the packed-training paper (Liu et al., section 5).
`by_rate` uses measured rates.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PackingCandidate:
    """A configuration to be trained: its memory, and the steps that it has left."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    peak_bytes: int = 0
    steps: int = 1
    kind: str = ""  # candidates of one kind cost the same per step


Groups = list[list[PackingCandidate]]


def by_batch_size(candidates: Sequence[PackingCandidate], limit: int, name: str = "batch_size") -> Groups:
    """Groups of equal batch sizes, as large as the memory allows."""
    found: Groups = []
    for size in sorted({c.config[name] for c in candidates}):
        found += _split_by_memory([c for c in candidates if c.config[name] == size], limit)
    return found


def at_random(candidates: Sequence[PackingCandidate], limit: int, seed: int = 0) -> Groups:
    """Random groups, as large as the memory allows."""
    shuffled = list(candidates)
    random.Random(seed).shuffle(shuffled)
    return _split_by_memory(shuffled, limit)


def nearest(
    candidates: Sequence[PackingCandidate],
    limit: int,
    space: Mapping[str, Sequence[Any]],
    threshold: float = math.inf,
    seed: int = 0,
) -> Groups:
    """Groups around random centroids: the most similar configurations that fit into the memory."""
    rest, draw, found = list(candidates), random.Random(seed), []
    while rest:
        centre = rest.pop(draw.randrange(len(rest)))
        group, room = [centre], limit - centre.peak_bytes
        for other in sorted(rest, key=lambda c: distance(centre.config, c.config, space)):
            if distance(centre.config, other.config, space) > threshold or other.peak_bytes > room:
                break
            group.append(other)
            room -= other.peak_bytes
        rest = [c for c in rest if c not in group]
        found.append(group)
    return found


def distance(one: Mapping[str, Any], other: Mapping[str, Any], space: Mapping[str, Sequence[Any]]) -> float:
    """The distance of two configurations, as in the paper's Table 3.

    Values that are not numbers count 1 if they differ. Numbers count by their distance in the list of values. The
    parts are added, as in the paper's example (4 for the batch size and 1 for the optimizer give 5).
    """
    total = 0.0
    for name, values in space.items():
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            total += abs(values.index(one[name]) - values.index(other[name]))
        else:
            total += one[name] != other[name]
    return total


def by_rate(
    candidates: Sequence[PackingCandidate],
    limit: int,
    seconds: Callable[[str, int], float] | None = None,
    most: int = 64,
) -> Groups:
    """Groups of the size at which a step costs least per member, of members that end at about the same time.

    `seconds(kind, n)` is the measured time of one step of n members of a kind side by side. A member that has finished
    leaves a gap, so the longest are put together.
    """
    found: Groups = []
    for kind in sorted({c.kind for c in candidates}):
        alike = sorted((c for c in candidates if c.kind == kind), key=lambda c: (-c.steps, c.name))
        found += _split_by_memory(alike, limit, _best_size(kind, len(alike), seconds, most))
    return found


def _best_size(kind: str, count: int, seconds: Callable[[str, int], float] | None, most: int) -> int:
    sizes = range(1, min(count, most) + 1)
    if seconds is None:
        return sizes[-1]
    return min(sizes, key=lambda n: (_total(kind, count, n, seconds), -n))


def _total(kind: str, count: int, size: int, seconds: Callable[[str, int], float]) -> float:
    """Seconds of one step of all members in groups of a size; the last group may be smaller."""
    whole, rest = divmod(count, size)
    return whole * seconds(kind, size) + (seconds(kind, rest) if rest else 0.0)


def measured_seconds(points: Mapping[tuple[str, int], float]) -> Callable[[str, int], float]:
    """Times of group sizes: linear between measured sizes, proportional beyond the largest."""

    def seconds(kind: str, n: int) -> float:
        known = sorted((size, value) for (other, size), value in points.items() if other == kind)
        if not known:
            return float(n)
        above = next((i for i, (size, _) in enumerate(known) if size >= n), None)
        if above is None or (above == 0 and known[0][0] != n):
            size, value = known[-1 if above is None else 0]
            return value * n / size if above is None else value
        if known[above][0] == n:
            return known[above][1]
        (a, at_a), (b, at_b) = known[above - 1], known[above]
        return at_a + (at_b - at_a) * (n - a) / (b - a)

    return seconds


def _split_by_memory(candidates: Sequence[PackingCandidate], limit: int, most: int | None = None) -> Groups:
    """Consecutive groups that fit into the memory; a candidate that is too large for it is a group by itself."""
    found: Groups = []
    room = 0
    for candidate in candidates:
        full = found and most is not None and len(found[-1]) >= most
        if not found or full or candidate.peak_bytes > room:
            found.append([])
            room = limit
        found[-1].append(candidate)
        room -= candidate.peak_bytes
    return found
