"""Devices in nodes. A device is a number; the devices of a node follow one another."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from regatta.errors import UsageError


@dataclass(frozen=True)
class Nodes:
    """A cluster: how many devices each node has."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise UsageError(f"Nodes with {self.sizes} devices: there must be one node, and one device on each.")

    @classmethod
    def of(cls, devices: int, each: int) -> Nodes:
        """So many devices on nodes of `each`; the last node has what is left."""
        if devices < 1 or each < 1:
            raise UsageError(f"{devices} devices, {each} a node: both must be at least 1.")
        full, rest = divmod(devices, each)
        return cls((each,) * full + ((rest,) if rest else ()))

    @property
    def each(self) -> int:
        """The devices of the largest node."""
        return max(self.sizes)

    @cached_property
    def node(self) -> tuple[int, ...]:
        """The node of every device."""
        return tuple(index for index, size in enumerate(self.sizes) for _ in range(size))

    @cached_property
    def count(self) -> int:
        return sum(self.sizes)

    def nodes(self, devices: Iterable[int]) -> int:
        """Over how many nodes these devices lie."""
        return len({self.node[device] for device in devices})

    @cached_property
    def fewest(self) -> tuple[int, ...]:
        """By width, from 0: the nodes that it takes at least."""
        found = [0]
        for number, size in enumerate(sorted(self.sizes, reverse=True), start=1):
            found += [number] * size
        return tuple(found)

    def place(self, width: int, free: Collection[int], near: Collection[int] = ()) -> tuple[int, ...]:
        """`width` of the free devices on as few nodes as they allow: inside one node where it fits.

        Of the nodes that hold all that is missing the fullest is taken, so that large groups still find room;
        where no node does, the emptiest. Between equals, a node of `near`, where the model is now.
        """
        if width > len(free):
            raise UsageError(f"{width} devices cannot be taken out of {len(free)} that are free.")
        rooms: dict[int, list[int]] = {}
        for device in free:
            rooms.setdefault(self.node[device], []).append(device)
        known = {self.node[device] for device in near}
        taken: list[int] = []
        while len(taken) < width:
            missing = width - len(taken)
            node = min(rooms, key=lambda node: self._fit(len(rooms[node]), missing, node in known, node))
            taken += sorted(rooms.pop(node))[:missing]
        return tuple(sorted(taken))

    @staticmethod
    def _fit(room: int, missing: int, known: bool, node: int) -> tuple[bool, int, bool, int]:
        return (room < missing, room if room >= missing else -room, not known, node)
