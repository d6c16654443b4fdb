"""The architecture of a network as a regular expression over its layers: `(CONV POOL){2} FULL{2}`.

As in table I of the ModelHub paper (Miao et al., 2017), activations and side connections are left out: the expression
follows the path from input to output with the most layers. Repetitions are found automatically.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from regatta.network.graph import Network

LAYERS = frozenset(("CONV", "POOL", "FULL", "EMBED", "ATTENTION", "RNN"))
CostAndParts = tuple[int, tuple[str, ...]]  # the cost is one for each symbol, one for each pair of brackets
MAX_PERIOD = 128  # layers, runs counted once; a longer block is written out


def expression(network: Network, kinds: Collection[str] = LAYERS) -> str:
    """The kinds along the longest path, with repetitions as `{n}`."""
    return shortest_expression(main_path(network, kinds))


def main_path(network: Network, kinds: Collection[str] = LAYERS) -> list[str]:
    """The kinds of the layers on the path with the most layers."""
    length: dict[str, int] = {}
    before: dict[str, str | None] = {}
    for id in network.order:
        best = max(network.sources[id], key=lambda source: length[source], default=None)
        before[id] = best
        length[id] = (length[best] if best is not None else 0) + (network.by_id[id].kind in kinds)
    at: str | None = max(network.order, key=lambda id: length[id], default=None)
    path = []
    while at is not None:
        path.append(network.by_id[at].kind)
        at = before[at]
    return [kind for kind in reversed(path) if kind in kinds]


def shortest_expression(words: Sequence[str]) -> str:
    """The words as the shortest expression with repetitions: runs first, then nested blocks."""
    return " ".join(_shortest(_runs(words), {})[1])


@dataclass(frozen=True)
class _Cover:
    """The cheapest expression of the words up to a position: its cost, its number of parts, and its last part."""

    cost: int
    parts: int
    before: int
    part: str


def _runs(words: Sequence[str]) -> tuple[str, ...]:
    found: list[tuple[str, int]] = []
    for word in words:
        if found and found[-1][0] == word:
            found[-1] = (word, found[-1][1] + 1)
        else:
            found.append((word, 1))
    return tuple(word if count == 1 else f"{word}{{{count}}}" for word, count in found)


def _shortest(words: tuple[str, ...], known: dict[tuple[str, ...], CostAndParts]) -> CostAndParts:
    """The cheapest cover of the words by single words and by repeated blocks, from the left."""
    if words in known:
        return known[words]
    steps = {0: _Cover(0, 0, 0, "")}
    repeats = _repeats(words)
    for start, word in enumerate(words):
        _improve(steps, start, start + 1, 1, word)
        for period, count in repeats.get(start, {}).items():
            cost, parts = _shortest(words[start : start + period], known)
            for times in {2, count - 1, count} - {1}:
                part = f"({' '.join(parts)}){{{times}}}"
                _improve(steps, start, start + period * times, cost + 1, part)
    known[words] = steps[len(words)].cost, _retraced(steps, len(words))
    return known[words]


def _improve(steps: dict[int, _Cover], start: int, end: int, cost: int, part: str) -> None:
    new = _Cover(steps[start].cost + cost, steps[start].parts + 1, start, part)
    old = steps.get(end)
    if old is None or (new.cost, new.parts) <= (old.cost, old.parts):
        steps[end] = new


def _retraced(steps: Mapping[int, _Cover], end: int) -> tuple[str, ...]:
    parts = []
    while end:
        parts.append(steps[end].part)
        end = steps[end].before
    return tuple(reversed(parts))


def _is_periodic(shorter: Mapping[int, int], period: int) -> bool:
    """Whether a block is a repetition of a shorter one."""
    return any(period % p == 0 and p * count >= period for p, count in shorter.items())


def _repeats(words: Sequence[str]) -> Mapping[int, dict[int, int]]:
    """By start, then by period: how often the block at that position repeats, if it does."""
    found: dict[int, dict[int, int]] = {}
    for period in range(1, min(len(words) // 2, MAX_PERIOD) + 1):
        same = 0
        for start in range(len(words) - period - 1, -1, -1):
            same = same + 1 if words[start] == words[start + period] else 0
            if same >= period and not _is_periodic(found.get(start, {}), period):
                found.setdefault(start, {})[period] = same // period + 1
    return found
