"""Which layers of two networks correspond: the alignment behind `diff`.

First, layers with equal ancestors or equal descendants in both networks become anchors. The layers between two anchors
are then aligned along the order of execution by dynamic programming.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from regatta.network.canonical import ancestor_hashes, descendant_hashes, own_hashes
from regatta.network.graph import Network, Node
from regatta.network.kinds import KINDS, Attribute

MAX_TABLE_CELLS = 4_000_000  # cells; a wider gap is aligned by equal layers only


@dataclass(frozen=True)
class Pair:
    """A layer of the left network, the one of the right that corresponds to it, and their differences (left, right)."""

    left: str
    right: str
    changes: Mapping[str, tuple[Attribute, Attribute]]


@dataclass(frozen=True)
class Alignment:
    """Pairs in the order of the left network, and the layers that only one of the two has."""

    pairs: tuple[Pair, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    rewired: tuple[str, ...]  # left ids of pairs whose operands do not correspond

    @property
    def same(self) -> bool:
        return not (self.only_left or self.only_right or self.rewired or any(pair.changes for pair in self.pairs))

    @property
    def changed(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.changes)


def align(left: Network, right: Network) -> Alignment:
    """Pair the layers of two networks so that as much as possible corresponds, in the order of execution."""
    sides = _HashedNetwork(left), _HashedNetwork(right)
    partner = dict(_aligned(*sides, _anchors(*sides)))
    taken = set(partner.values())
    pairs = [Pair(a, partner[a], _changes(left.by_id[a], right.by_id[partner[a]])) for a in left.order if a in partner]
    return Alignment(
        tuple(pairs),
        tuple(id for id in left.order if id not in partner),
        tuple(id for id in right.order if id not in taken),
        tuple(pair.left for pair in pairs if _is_rewired(left, right, pair, partner)),
    )


class _HashedNetwork:
    """One of the two networks, with its hashes."""

    def __init__(self, network: Network) -> None:
        self.order = network.order
        self.nodes = [network.by_id[id] for id in network.order]
        self.own_hashes = own_hashes(network)
        self.above = ancestor_hashes(network, self.own_hashes)
        self.below = descendant_hashes(network, self.own_hashes)


def _anchors(left: _HashedNetwork, right: _HashedNetwork) -> list[tuple[int, int]]:
    """Positions of layers that certainly correspond: equal ancestors or equal descendants, and no other equal layer."""
    found = dict(_unique(left, right, left.above, right.above))
    taken = set(found.values())
    for a, b in _unique(left, right, left.below, right.below):
        if a not in found and b not in taken:
            found[a] = b
            taken.add(b)
    return _increasing(sorted(found.items()))


def _unique(
    left: _HashedNetwork, right: _HashedNetwork, lefts: Mapping[str, str], rights: Mapping[str, str]
) -> Iterator[tuple[int, int]]:
    places_left, places_right = _by_hash(left, lefts), _by_hash(right, rights)
    for key, mine in places_left.items():
        other = places_right.get(key, [])
        if len(mine) == len(other):  # equally often: equal layers correspond in their order
            yield from zip(mine, other, strict=True)


def _by_hash(side: _HashedNetwork, hashes: Mapping[str, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, id in enumerate(side.order):
        found.setdefault(hashes[id], []).append(place)
    return found


def _increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest sequence of pairs that increases in both networks."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, (_, b) in enumerate(pairs):
        at = bisect_left(tails, b)
        before.append(ends[at - 1] if at else -1)
        tails[at : at + 1] = [b]
        ends[at : at + 1] = [index]
    chain = []
    index = ends[-1] if ends else -1
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    return chain[::-1]


def _aligned(
    left: _HashedNetwork, right: _HashedNetwork, anchors: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, str]]:
    a = b = 0
    for to_a, to_b in [*anchors, (len(left.order), len(right.order))]:
        for x, y in _align_gap(left, right, range(a, to_a), range(b, to_b)):
            yield left.order[x], right.order[y]
        if to_a < len(left.order):
            yield left.order[to_a], right.order[to_b]
        a, b = to_a + 1, to_b + 1


def _align_gap(left: _HashedNetwork, right: _HashedNetwork, rows: range, columns: range) -> list[tuple[int, int]]:
    if not rows or not columns:
        return []
    if len(rows) * len(columns) > MAX_TABLE_CELLS:
        return _equal_stretches(left, right, rows, columns)
    return _best_path(left, right, rows, columns)


def _equal_stretches(left: _HashedNetwork, right: _HashedNetwork, rows: range, columns: range) -> list[tuple[int, int]]:
    mine = [left.own_hashes[left.order[row]] for row in rows]
    other = [right.own_hashes[right.order[column]] for column in columns]
    blocks = SequenceMatcher(None, mine, other, autojunk=False).get_matching_blocks()
    return [(rows[block.a + i], columns[block.b + i]) for block in blocks for i in range(block.size)]


class _Similarities:
    """The similarity of each layer of the left to those of a range of the right; computed once for equal layers."""

    def __init__(self, left: _HashedNetwork, right: _HashedNetwork, columns: range) -> None:
        self._left = left.nodes
        self._others = [right.nodes[column] for column in columns]
        self._classes = [_class(node) for node in self._others]
        self._known: dict[object, list[float]] = {}

    def row(self, row: int) -> list[float]:
        node = self._left[row]
        mine = _class(node)
        if mine not in self._known:
            by_class: dict[object, float] = {}
            for other, known in zip(self._others, self._classes, strict=True):
                if known not in by_class:
                    by_class[known] = _similarity(node, other)
            self._known[mine] = [by_class[known] for known in self._classes]
        return self._known[mine]


def _class(node: Node) -> object:
    return node.kind, tuple(node.attributes.items()), node.shape


def _best_path(left: _HashedNetwork, right: _HashedNetwork, rows: range, columns: range) -> list[tuple[int, int]]:
    """The pairs, in order, with the largest sum of similarities."""
    width = len(columns)
    similarities = _Similarities(left, right, columns)
    best = [[0.0] * (width + 1) for _ in range(len(rows) + 1)]
    for i in range(len(rows) - 1, -1, -1):
        row, below, alike = best[i], best[i + 1], similarities.row(rows[i])
        for j in range(width - 1, -1, -1):
            both = below[j + 1] + alike[j] if alike[j] else 0.0
            one = below[j] if below[j] > row[j + 1] else row[j + 1]
            row[j] = both if both > one else one
    return _retraced(best, similarities, rows, columns)


def _retraced(
    best: Sequence[Sequence[float]], similarities: _Similarities, rows: range, columns: range
) -> list[tuple[int, int]]:
    i = j = 0
    pairs = []
    while i < len(rows) and j < len(columns):
        similarity = similarities.row(rows[i])[j]
        if similarity and best[i][j] == best[i + 1][j + 1] + similarity:
            pairs.append((rows[i], columns[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _similarity(a: Node, b: Node) -> float:
    """From 0 (cannot correspond) to 3.5 (same kind, attributes and shape). Names do not count."""
    if a.kind != b.kind:
        family = KINDS[a.kind].family
        return 0.5 if family == "activation" and family == KINDS[b.kind].family else 0.0
    if a.kind == "OTHER" and a.get("type") != b.get("type"):
        return 0.0
    names = a.attributes.keys() | b.attributes.keys()
    alike = sum(a.get(name) == b.get(name) for name in names) / len(names) if names else 1.0
    return 1.0 + 2.0 * alike + 0.5 * (a.shape == b.shape)


def _changes(a: Node, b: Node) -> dict[str, tuple[Attribute, Attribute]]:
    names = sorted(a.attributes.keys() | b.attributes.keys())
    unsaid = a.kind == "INPUT" and not (a.attributes and b.attributes)  # one was read without an example
    changes = {
        name: (a.get(name), b.get(name)) for name in names if not _equal(a.get(name), b.get(name)) and not unsaid
    }
    return changes if a.kind == b.kind else {"kind": (a.kind, b.kind), **changes}


def _equal(a: Attribute, b: Attribute) -> bool:
    """Numbers that differ only by float32 rounding are equal."""
    if isinstance(a, float) and isinstance(b, float):
        return f"{a:.6g}" == f"{b:.6g}"
    return a == b


def _is_rewired(left: Network, right: Network, pair: Pair, partner: Mapping[str, str]) -> bool:
    """Whether an operand that both networks have is connected differently. Added and removed layers do not count."""
    have = set(right.sources[pair.right])
    expected = {partner[source] for source in left.sources[pair.left] if source in partner}
    lost = expected - have
    paired = set(partner.values())
    gained = {source for source in have if source in paired} - expected
    return bool(lost and gained)
