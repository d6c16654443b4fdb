"""getGPUAssignment and assignGPUs: Algorithms 3 and 4 of the FLEET paper, with Equation 4 as the score.

Devices are given out in their order, in three steps: models whose width is a multiple of a node; pairs whose widths
add up to one; the others in the order, of at most 1024 that are tried, that crosses the fewest nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, permutations

from regatta.errors import UsageError
from regatta.plan.fleet.nodes import Nodes

TRIED = 1024  # orders of the remaining models, as in the paper

Groups = dict[int, tuple[int, ...]]  # the devices of each model


def get_gpu_assignment(widths: Mapping[int, int], machines: Nodes) -> Groups:
    """The devices of each model of a flotilla, given their widths. The nodes are all of one size, as in the paper."""
    if sum(widths.values()) > machines.count:
        raise UsageError(f"Groups of {sum(widths.values())} devices in all do not fit on {machines.count}.")
    each = machines.each
    groups: Groups = {}
    first = 0
    for model in [m for m in widths if widths[m] % each == 0]:
        first = assign_gpus(groups, model, first, widths[model])
    for model in _paired({m: widths[m] for m in widths if m not in groups}, each):
        first = assign_gpus(groups, model, first, widths[model])
    remaining = [m for m in widths if m not in groups]
    return groups | best_order(remaining, widths, first, machines)


def assign_gpus(groups: Groups, model: int, first: int, width: int) -> int:
    """Algorithm 4: the next `width` devices; returns the first one after them."""
    groups[model] = tuple(range(first, first + width))
    return first + width


def _paired(widths: Mapping[int, int], each: int) -> list[int]:
    """Models that fill whole nodes two by two, in the order of their pairs.

    As in the paper, a model waits for its partner under the remainder of its width, and a later one of the same
    remainder takes its place.
    """
    waiting: dict[int, int] = {}
    pairs: list[int] = []
    for model, width in widths.items():
        partner = -width % each
        if partner in waiting:
            pairs += [model, waiting.pop(partner)]
        else:
            waiting[width % each] = model
    return pairs


def best_order(remaining: Sequence[int], widths: Mapping[int, int], first: int, machines: Nodes) -> Groups:
    best: Groups = {}
    best_score = float("inf")
    for order in islice(permutations(remaining), TRIED):
        groups: Groups = {}
        place = first
        for model in order:
            place = assign_gpus(groups, model, place, widths[model])
        found = score(groups.values(), machines)
        if found < best_score:
            best, best_score = groups, found
    return best


def score(groups: Iterable[tuple[int, ...]], machines: Nodes) -> float:
    """Equation 4: the nodes of each group over its devices, summed up; the smaller, the better.

    The devices of a group follow one another.
    """
    node = machines.node
    return sum((node[devices[-1]] - node[devices[0]] + 1) / len(devices) for devices in groups)
