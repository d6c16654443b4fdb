"""getGPUAssignment and assignGPUs: Algorithms 3 and 4 of the FLEET paper, with Equation 4 as the score.

Devices are assigned in their order, in three steps: models whose width is a multiple of a node; pairs whose widths add
up to one; the others in the best of at most 1024 orders, which crosses the fewest nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, permutations

from regatta.errors import UsageError
from regatta.plan.fleet.nodes import Nodes

MAX_ORDERS = 1024  # of the remaining models, as in the paper

Groups = dict[int, tuple[int, ...]]  # the devices of each model


def get_gpu_assignment(widths: Mapping[int, int], nodes: Nodes) -> Groups:
    """The devices of each model of a flotilla, given the widths. All nodes have one size, as in the paper."""
    if sum(widths.values()) > nodes.device_count:
        raise UsageError(f"Groups of {sum(widths.values())} devices together do not fit on {nodes.device_count}.")
    per_node = nodes.devices_per_node
    groups: Groups = {}
    first = 0
    for model in [m for m in widths if widths[m] % per_node == 0]:
        first = assign_gpus(groups, model, first, widths[model])
    for model in _pairs({m: widths[m] for m in widths if m not in groups}, per_node):
        first = assign_gpus(groups, model, first, widths[model])
    remaining = [m for m in widths if m not in groups]
    return groups | best_order(remaining, widths, first, nodes)


def assign_gpus(groups: Groups, model: int, first: int, width: int) -> int:
    """Algorithm 4: the next `width` devices; returns the first one after them."""
    groups[model] = tuple(range(first, first + width))
    return first + width


def _pairs(widths: Mapping[int, int], per_node: int) -> list[int]:
    """Pairs of models that fill whole nodes, one after the other.

    As in the paper, a model waits for its partner under the remainder of its width. A later model with the same
    remainder takes its place.
    """
    waiting: dict[int, int] = {}
    pairs: list[int] = []
    for model, width in widths.items():
        partner = -width % per_node
        if partner in waiting:
            pairs += [model, waiting.pop(partner)]
        else:
            waiting[width % per_node] = model
    return pairs


def best_order(remaining: Sequence[int], widths: Mapping[int, int], first: int, nodes: Nodes) -> Groups:
    best: Groups = {}
    best_score = float("inf")
    for order in islice(permutations(remaining), MAX_ORDERS):
        groups: Groups = {}
        place = first
        for model in order:
            place = assign_gpus(groups, model, place, widths[model])
        found = score(groups.values(), nodes)
        if found < best_score:
            best, best_score = groups, found
    return best


def score(groups: Iterable[tuple[int, ...]], nodes: Nodes) -> float:
    """Equation 4: the sum over groups of nodes over devices; smaller is better.

    The devices of a group are consecutive.
    """
    node = nodes.node_of
    return sum((node[devices[-1]] - node[devices[0]] + 1) / len(devices) for devices in groups)
