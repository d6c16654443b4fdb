"""Devices in nodes. A device is a number; the devices of a node follow one another."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from regatta.errors import UsageError


@dataclass(frozen=True)
class Nodes:
    sizes: tuple[int, ...]  # devices of each node

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise UsageError(f"Nodes with {self.sizes} devices: each of at least one node must have one.")

    @classmethod
    def uniform(cls, devices: int, per_node: int) -> Nodes:
        """Nodes of `per_node` devices; the last node has the rest."""
        if devices < 1 or per_node < 1:
            raise UsageError(f"{devices} devices, {per_node} per node: both must be at least 1.")
        full, rest = divmod(devices, per_node)
        return cls((per_node,) * full + ((rest,) if rest else ()))

    @property
    def devices_per_node(self) -> int:
        """The devices of the largest node."""
        return max(self.sizes)

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each device."""
        return tuple(index for index, size in enumerate(self.sizes) for _ in range(size))

    @cached_property
    def device_count(self) -> int:
        return sum(self.sizes)

    def count_nodes(self, devices: Iterable[int]) -> int:
        """The number of nodes that these devices are on."""
        return len({self.node_of[device] for device in devices})

    @cached_property
    def min_nodes(self) -> tuple[int, ...]:
        """By width, from 0: the fewest nodes that a group needs."""
        found = [0]
        for number, size in enumerate(sorted(self.sizes, reverse=True), start=1):
            found += [number] * size
        return tuple(found)

    def place(self, width: int, free: Collection[int], near: Collection[int] = ()) -> tuple[int, ...]:
        """`width` of the free devices on as few nodes as possible.

        Of the nodes with enough free devices, the one with the fewest is taken, so that large groups still find room.
        Where no node has enough, it is the one with the most. Ties go to a node of `near`, where the model is now.
        """
        if width > len(free):
            raise UsageError(f"{width} devices cannot be taken out of {len(free)} that are free.")
        free_on: dict[int, list[int]] = {}
        for device in free:
            free_on.setdefault(self.node_of[device], []).append(device)
        nodes_near = {self.node_of[device] for device in near}

        def rank(node: int, missing: int) -> tuple[bool, int, bool, int]:
            free = len(free_on[node])
            return free < missing, free if free >= missing else -free, node not in nodes_near, node

        taken: list[int] = []
        while len(taken) < width:
            missing = width - len(taken)
            best = min(free_on, key=lambda node: rank(node, missing))
            taken += sorted(free_on.pop(best))[:missing]
        return tuple(sorted(taken))
