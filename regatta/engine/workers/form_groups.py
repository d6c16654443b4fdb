"""Who is in a group with whom: those of one node first, for they exchange faster."""

from __future__ import annotations

from collections.abc import Mapping


def form_groups(nodes: Mapping[str, str], width: int) -> list[tuple[str, ...]]:
    """Workers, whose nodes are given, in groups of so many; who is left over is in none."""
    lots: dict[str, list[str]] = {}
    for worker in sorted(nodes, key=_natural):
        lots.setdefault(nodes[worker], []).append(worker)
    groups = []
    while sum(map(len, lots.values())) >= width:
        groups.append(_taken(list(lots.values()), width))
    return sorted(groups, key=lambda group: _natural(group[0]))


def _taken(lots: list[list[str]], width: int) -> tuple[str, ...]:
    """A group over as few nodes as can be, out of the smallest lots that do."""
    found: list[str] = []
    while len(found) < width:
        need = width - len(found)
        enough = [lot for lot in lots if len(lot) >= need]
        lot = min(enough, key=len) if enough else max(lots, key=len)
        found += lot[:need]
        del lot[:need]
    return tuple(found)


def _natural(worker: str) -> tuple[int, str]:
    return len(worker), worker
