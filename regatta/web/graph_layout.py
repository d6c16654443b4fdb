"""The layout of a network: boxes in rows, each below its inputs, and the lines between them.

A norm or an activation behind a convolution shares the box of the convolution. Rows follow the longest path. A line
that crosses a row has a lane in it, like a box without content. The order within a row comes from sweeps over the
positions of neighbours; positions are the means of neighbours, with a minimum distance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

FOLDED = frozenset(
    (
        "NORM", "DROPOUT", "RELU", "LEAKY_RELU", "PRELU", "ELU", "CELU", "SELU", "GELU", "SILU", "MISH", "SIGMOID",
        "HARD_SIGMOID", "HARD_SWISH", "TANH", "SOFTPLUS", "SOFTSIGN", "CLIP", "FLATTEN",
    )
)  # fmt: skip
NEVER_SHARED = ("INPUT", "OUTPUT", "WEIGHT", "CONSTANT")  # boxes that hold one node only
HEIGHT, ROW_GAP, GAP, LANE = 40, 24, 22, 14
MAX_LANES = 4000  # beyond them, the longest lines are drawn straight
SWEEPS, ROUNDS = 8, 12


@dataclass
class LayoutBox:
    """A box, or a lane of a line if it has no members; `x` is its middle, `y` its upper edge."""

    members: tuple[str, ...]
    width: float
    row: int = 0
    x: float = 0.0
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)

    @property
    def y(self) -> float:
        return self.row * (HEIGHT + ROW_GAP)


@dataclass(frozen=True)
class DrawnLine:
    """A line between two boxes, through the middles of lanes; it is `operand` of the `operands` of its target."""

    source: int
    target: int
    lanes: tuple[int, ...]
    operand: int
    operands: int


@dataclass(frozen=True)
class Drawing:
    """The layout; in `places`, boxes come before lanes."""

    places: tuple[LayoutBox, ...]
    lines: tuple[DrawnLine, ...]
    width: float
    height: float

    @property
    def boxes(self) -> tuple[LayoutBox, ...]:
        return tuple(place for place in self.places if place.members)


def arrange(kinds: Mapping[str, str], sources: Mapping[str, Sequence[str]], widths: Mapping[str, float]) -> Drawing:
    """Lay out nodes, given the kind and the inputs of each, and the width of a box that starts with it."""
    groups = fold(kinds, sources)
    number = {node: n for n, group in enumerate(groups) for node in group}
    places = [LayoutBox(tuple(group), max(widths[node] for node in group[:1])) for group in groups]
    edges = _edges(groups, number, sources)
    _assign_rows(places, edges)
    lines = _lines(places, edges)
    rows = _rows(places)
    _order(places, rows)
    _assign_positions(places, rows)
    left = min((place.x - place.width / 2 for place in places), default=0.0)
    for place in places:
        place.x -= left
    width = max((place.x + place.width / 2 for place in places), default=0.0)
    height = max((place.y + HEIGHT for place in places), default=0.0)
    return Drawing(tuple(places), tuple(lines), width, height)


def fold(kinds: Mapping[str, str], sources: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Groups of nodes that share a box, in the order of nodes."""
    uses: dict[str, int] = defaultdict(int)
    for needed in sources.values():
        for source in needed:
            uses[source] += 1
    groups: dict[str, list[str]] = {}
    head: dict[str, str] = {}
    for node in kinds:  # in the order of execution; otherwise a node gets its own box
        needed = sources.get(node, ())
        first = head.get(needed[0]) if len(needed) == 1 and uses[needed[0]] == 1 else None
        joins = kinds[node] in FOLDED and first is not None and kinds[first] not in NEVER_SHARED
        head[node] = first if joins and first is not None else node
        groups.setdefault(head[node], []).append(node)
    return list(groups.values())


def _edges(
    groups: Sequence[Sequence[str]], number: Mapping[str, int], sources: Mapping[str, Sequence[str]]
) -> list[tuple[int, int, int, int]]:
    """Source, target, operand and number of operands, between groups."""
    found = []
    for target, group in enumerate(groups):
        needed = [number[source] for source in sources.get(group[0], ()) if source in number]
        found += [(source, target, operand, len(needed)) for operand, source in enumerate(needed)]
    return found


def _assign_rows(places: Sequence[LayoutBox], edges: Sequence[tuple[int, int, int, int]]) -> None:
    below, above = defaultdict(list), defaultdict(list)
    for source, target, _, _ in edges:
        below[source].append(target)
        above[target].append(source)
    waiting = {n: len(above[n]) for n in range(len(places))}
    ready = [n for n, count in waiting.items() if not count]
    while ready:
        node = ready.pop()
        for target in below[node]:
            places[target].row = max(places[target].row, places[node].row + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    for node, place in enumerate(places):  # a node without inputs stands just above its first user
        if not above[node] and below[node]:
            place.row = min(places[target].row for target in below[node]) - 1


def _lines(places: list[LayoutBox], edges: Sequence[tuple[int, int, int, int]]) -> list[DrawnLine]:
    """The lines, with a lane in each row that they cross; short lines get lanes first."""
    found, left = {}, MAX_LANES
    by_length = sorted(range(len(edges)), key=lambda n: places[edges[n][1]].row - places[edges[n][0]].row)
    for at in by_length:
        source, target, operand, operands = edges[at]
        crossed = range(places[source].row + 1, places[target].row)
        lanes = []
        if len(crossed) <= left:
            left -= len(crossed)
            for row in crossed:
                lanes.append(len(places))
                places.append(LayoutBox((), LANE, row))
        chain = [source, *lanes, target]
        if places[target].row == places[source].row + len(lanes) + 1:  # imported graphs may have cycles
            for upper, lower in pairwise(chain):
                places[upper].below.append(lower)
                places[lower].above.append(upper)
        found[at] = DrawnLine(source, target, tuple(lanes), operand, operands)
    return [found[at] for at in range(len(edges))]


def _rows(places: Sequence[LayoutBox]) -> list[list[int]]:
    rows: dict[int, list[int]] = defaultdict(list)
    for number, place in enumerate(places):
        rows[place.row].append(number)
    return [rows[row] for row in sorted(rows)]


def _order(places: Sequence[LayoutBox], rows: list[list[int]]) -> None:
    """Sort rows by the mean position of neighbours, down and up; keep the order with the fewest crossings."""
    best, fewest = [list(row) for row in rows], _crossings(places, rows)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            at = _positions(places, rows, row)
            means = {n: _mean([at[m] for m in (places[n].above if down else places[n].below)], at[n]) for n in row}
            row.sort(key=lambda n: means[n])
        count = _crossings(places, rows)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    for row, kept in zip(rows, best, strict=True):
        row[:] = kept


def _positions(places: Sequence[LayoutBox], rows: Sequence[Sequence[int]], row: Sequence[int]) -> dict[int, int]:
    """The positions in a row and in its two neighbour rows."""
    here = places[row[0]].row - places[rows[0][0]].row  # no row between the first and the last is empty
    return {n: i for each in rows[max(0, here - 1) : here + 2] for i, n in enumerate(each)}


def _crossings(places: Sequence[LayoutBox], rows: Sequence[Sequence[int]]) -> int:
    """The number of crossings of lines between neighbour rows."""
    at = {n: i for row in rows for i, n in enumerate(row)}
    total = 0
    for row in rows:
        ends = [at[lower] for upper in row for lower in sorted(places[upper].below, key=lambda n: at[n])]
        total += _inversions(ends)
    return total


def _inversions(values: Sequence[int]) -> int:
    """The number of pairs that are out of order, by insertion sort, which is fast for short rows."""
    from bisect import bisect_right, insort

    seen: list[int] = []
    count = 0
    for value in values:
        count += len(seen) - bisect_right(seen, value)
        insort(seen, value)
    return count


def _assign_positions(places: Sequence[LayoutBox], rows: Sequence[Sequence[int]]) -> None:
    """Assign x: first side by side, then closer to their neighbours, in the order of the row."""
    for row in rows:
        x = 0.0
        for number in row:
            places[number].x = x + places[number].width / 2
            x += places[number].width + GAP
        for number in row:
            places[number].x -= x / 2
    for turn in range(ROUNDS):
        down = turn % 2 == 0
        for row in rows if down else rows[::-1]:
            wanted = [_wanted(places, n, places[n].above if down else places[n].below) for n in row]
            weights = [_weight(places, n, down) for n in row]
            for number, x in zip(row, _without_overlaps([places[n] for n in row], wanted, weights), strict=True):
                places[number].x = x


def _wanted(places: Sequence[LayoutBox], number: int, neighbours: Sequence[int]) -> float:
    """The wanted x: that of the first of one or two neighbours, so that the main path is straight; else the mean."""
    if 0 < len(neighbours) <= 2:
        return places[neighbours[0]].x
    return _mean([places[n].x for n in neighbours], places[number].x)


def _weight(places: Sequence[LayoutBox], number: int, down: bool) -> float:
    """The weight of a wanted position: largest on the main path, where two boxes are each other's first neighbour."""
    place = places[number]
    here = place.above if down else place.below
    back = (places[here[0]].below if down else places[here[0]].above) if 0 < len(here) <= 2 else []
    is_main = bool(place.members) and 0 < len(back) <= 2 and back[0] == number
    return 1000.0 if is_main else 10.0 if place.members else 1.0


def _without_overlaps(row: Sequence[LayoutBox], wanted: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The positions nearest to the wanted ones without overlaps: boxes that would overlap move as one block."""
    offsets = [0.0]
    for one, other in pairwise(row):
        offsets.append(offsets[-1] + (one.width + other.width) / 2 + GAP)
    blocks: list[tuple[float, float, int]] = []  # wanted start, weight, number of boxes
    for x, weight, offset in zip(wanted, weights, offsets, strict=True):
        blocks.append((x - offset, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (x1, w1, n1), (x2, w2, n2) = blocks[-2:]
            blocks[-2:] = [((x1 * w1 + x2 * w2) / (w1 + w2), w1 + w2, n1 + n2)]
    starts = [start for start, _, count in blocks for _ in range(count)]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]


def _mean(values: Iterable[float], otherwise: float) -> float:
    found = list(values)
    return sum(found) / len(found) if found else otherwise
