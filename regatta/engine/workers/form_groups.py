"""Which workers form a group: preferably workers of one node, because they exchange data faster."""

from __future__ import annotations

from collections.abc import Mapping


def form_groups(nodes: Mapping[str, str], width: int) -> list[tuple[str, ...]]:
    """Groups of `width` workers, whose nodes are given; workers that are left over are in no group."""
    by_node: dict[str, list[str]] = {}
    for worker in sorted(nodes, key=_by_number):
        by_node.setdefault(nodes[worker], []).append(worker)
    groups = []
    while sum(map(len, by_node.values())) >= width:
        groups.append(_take_group(list(by_node.values()), width))
    return sorted(groups, key=lambda group: _by_number(group[0]))


def _take_group(nodes: list[list[str]], width: int) -> tuple[str, ...]:
    """Take a group from as few nodes as possible, and from the smallest nodes that are enough."""
    group: list[str] = []
    while len(group) < width:
        missing = width - len(group)
        enough = [workers for workers in nodes if len(workers) >= missing]
        chosen = min(enough, key=len) if enough else max(nodes, key=len)
        group += chosen[:missing]
        del chosen[:missing]
    return tuple(group)


def _by_number(worker: str) -> tuple[int, str]:
    """Sorts w2 before w10."""
    return len(worker), worker
