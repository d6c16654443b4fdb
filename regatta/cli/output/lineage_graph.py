"""Draws lineage beside lines of text, as `git log --graph` does: newest first, each version above its parents.

A node without a parent in the list is hollow.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Strokes:
    """The characters to draw with: `close` ends a lane at the right, `open` starts one, `cross` crosses another."""

    node: str
    root: str
    up: str
    across: str
    branch: str
    close: str
    open: str
    closing: str
    opening: str
    cross: str


UNICODE = Strokes("●", "○", "│", "─", "├", "╯", "╮", "┴", "┬", "┼")
ASCII = Strokes("*", "o", "|", "-", "|", "'", ".", "'", ".", "+")


@dataclass(frozen=True)
class DrawnNode:
    """One node: the lines above and below it, the prefix of its text, and the prefix of further lines of text."""

    id: str
    above: tuple[str, ...]
    prefix: str
    below: tuple[str, ...]
    beside: str


def strokes(encoding: str | None) -> Strokes:
    """The characters that a terminal with this encoding can show."""
    try:
        "".join(vars(UNICODE).values()).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def children_first(ids: Sequence[str], parents: Mapping[str, Iterable[str]]) -> list[str]:
    """The same order, changed as far as needed: children come before their parents."""
    place = {ident: number for number, ident in enumerate(ids)}
    waits = dict.fromkeys(ids, 0)
    for ident in ids:
        for parent in _known(parents, ident, place):
            waits[parent] += 1
    ready = [place[ident] for ident in ids if not waits[ident]]
    heapq.heapify(ready)
    found = []
    while ready:
        ident = ids[heapq.heappop(ready)]
        found.append(ident)
        for parent in _known(parents, ident, place):
            waits[parent] -= 1
            if not waits[parent]:
                heapq.heappush(ready, place[parent])
    return found


def draw(ids: Sequence[str], parents: Mapping[str, Iterable[str]], pen: Strokes = UNICODE) -> list[DrawnNode]:
    """Lanes for nodes in the order of `children_first`; parents that are not among the nodes are left out."""
    known = {ident: number for number, ident in enumerate(ids)}
    lanes: list[str | None] = []
    return [_step(ident, _known(parents, ident, known), lanes, pen) for ident in ids]


def _step(ident: str, bases: list[str], lanes: list[str | None], pen: Strokes) -> DrawnNode:
    """Draw a node, and change the lanes to those below it."""
    mine = [number for number, waiting in enumerate(lanes) if waiting == ident] or [_free(lanes, ident)]
    lane, ending = mine[0], mine[1:]
    above = (_turn(lanes, lane, ending, pen, pen.closing, pen.close),) if ending else ()
    for number in ending:
        lanes[number] = None
    prefix = _row(lanes, pen, lane, pen.node if bases else pen.root)
    lanes[lane] = bases[0] if bases else None
    begun = [_free(lanes, base, after=lane) for base in bases[1:]]
    below = (_turn(lanes, lane, begun, pen, pen.opening, pen.open),) if begun else ()
    if bases and bases[0] in lanes[:lane] and not begun:  # another lane leads to the same parent: merge the two
        below = (_turn(lanes, lanes.index(bases[0]), [lane], pen, pen.closing, pen.close),)
        lanes[lane] = None
    while lanes and lanes[-1] is None:
        lanes.pop()
    return DrawnNode(ident, above, prefix, below, _row(lanes, pen))


def _free(lanes: list[str | None], ident: str, after: int = -1) -> int:
    """Reserve a lane for a node further down: the first free one, or a new one at the right."""
    for number in range(after + 1, len(lanes)):
        if lanes[number] is None:
            lanes[number] = ident
            return number
    lanes.append(ident)
    return len(lanes) - 1


def _row(lanes: Sequence[str | None], pen: Strokes, node: int = -1, mark: str = "") -> str:
    marks = [mark if n == node else pen.up if waiting else " " for n, waiting in enumerate(lanes)]
    return " ".join(marks).rstrip()


def _turn(lanes: Sequence[str | None], lane: int, others: Sequence[int], pen: Strokes, middle: str, last: str) -> str:
    """The line between two rows where other lanes join this lane or leave it."""
    text = ""
    for number, waiting in enumerate(lanes):
        inside = lane <= number < others[-1]
        if number == lane:
            mark = pen.branch
        elif number in others:
            mark = last if number == others[-1] else middle
        elif lane < number < others[-1]:
            mark = pen.cross if waiting else pen.across
        else:
            mark = pen.up if waiting else " "
        text += mark + (pen.across if inside else " ")
    return text.rstrip()


def _known(parents: Mapping[str, Iterable[str]], ident: str, known: Mapping[str, int]) -> list[str]:
    return [parent for parent in dict.fromkeys(parents.get(ident, ())) if parent in known and parent != ident]
