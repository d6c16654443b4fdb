"""Builds a network for importers: nodes in any order, unique ids, defaults left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from regatta.network.graph import MAX_NAME_CHARACTERS, Edge, Network, Node, Parameter, Shape


class Builder:
    """Collects the nodes and edges of a network, operands before the nodes that use them."""

    def __init__(self, name: str = "", source: str = "") -> None:
        self.name = name
        self.source = source
        self._nodes: dict[str, Node] = {}
        self._edges: list[Edge] = []
        self._numbers: dict[str, int] = {}

    def add(
        self,
        kind: str,
        inputs: Iterable[str] = (),
        *,
        name: str = "",
        attributes: Mapping[str, Any] | None = None,
        shape: Shape | None = None,
        parameters: Iterable[Parameter] = (),
    ) -> str:
        """Add a node; returns its id, which is derived from its name."""
        id = self._fresh_id(name or kind.lower())
        self._nodes[id] = Node(id, kind, name[:MAX_NAME_CHARACTERS], attributes or {}, shape, tuple(parameters))
        self._edges += [Edge(source, id, position) for position, source in enumerate(inputs)]
        return id

    def network(self) -> Network:
        return Network(tuple(self._nodes.values()), tuple(self._edges), self.name[:MAX_NAME_CHARACTERS], self.source)

    def _fresh_id(self, wanted: str) -> str:
        wanted = id = wanted[: MAX_NAME_CHARACTERS - 10]
        while id in self._nodes:
            self._numbers[wanted] = number = self._numbers.get(wanted, 0) + 1
            id = f"{wanted}_{number}"
        return id
