"""Which layers of a network a selector names, and where its steps lead from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from regatta.dql.bound import And, BoundPart, Constant, Has, LayerPath, Not, NotEmpty, Or, PathStep
from regatta.dql.selectors import Captures
from regatta.network.aliases import layer_names
from regatta.network.graph import Network

MAX_LISTED = 20  # layers in an error


class NamedLayers:
    """A network whose layers are found by id, name, other names and kind."""

    def __init__(self, network: Network) -> None:
        self.network = network
        found = layer_names((node.id, node.kind, node.name) for node in network.nodes)
        self.names = {names.id: (*names, network.by_id[names.id].kind) for names in found}

    def select(self, nodes: LayerPath, bound: Captures | None = None) -> dict[str, Captures]:
        """The selected layers in the network's order, each with the captures of the layer where its path starts.

        With `bound`, only paths that start at layers whose captures are those.
        """
        found: dict[str, Captures] = {}
        for start, captures in self._starts(nodes, bound or {}).items():
            for id in self._follow({start}, nodes.steps):
                found.setdefault(id, captures)
        return {node.id: found[node.id] for node in self.network.nodes if node.id in found}

    def holds(self, condition: BoundPart, captures: Captures) -> bool:
        """Whether a condition on the network holds when its captures are these texts."""
        match condition:
            case Has(nodes, tests, every):
                starts = self._starts(nodes, captures)
                each = [
                    any(test.matches(self.network.by_id[id], self.names[id]) for id in reached for test in tests)
                    for reached in (self._follow({start}, nodes.steps) for start in starts)
                ]
                return bool(each) and all(each) if every else any(each)
            case NotEmpty(LayerPath() as nodes):
                return bool(self.select(nodes, captures))
            case Not(operand):
                return not self.holds(operand, captures)
            case Constant(value):
                return value is True
            case And(operands):
                return all(self.holds(operand, captures) for operand in operands)
            case Or(operands):
                return any(self.holds(operand, captures) for operand in operands)
        raise TypeError(f"{type(condition).__name__} is no condition on a network")

    def _starts(self, nodes: LayerPath, bound: Captures) -> dict[str, Captures]:
        matched = ((id, nodes.selector.match(names)) for id, names in self.names.items())
        return {
            id: captures
            for id, captures in matched
            if captures is not None and all(bound.get(key, text) == text for key, text in captures.items())
        }

    def _follow(self, layers: Iterable[str], steps: Iterable[PathStep]) -> set[str]:
        reached = set(layers)
        for step in steps:
            reached = self._step(reached, step)
        return reached

    def _step(self, layers: set[str], step: PathStep) -> set[str]:
        neighbours = self.network.targets if step.forward else self.network.sources
        found: set[str] = set(layers) if step.least == 0 else set()
        at, count = set(layers), 0
        while at and (step.most is None or count < step.most):
            at = {other for id in at for other in neighbours[id]}
            count += 1
            if count >= step.least:
                found |= at
        test = step.test
        if test is None:
            return found
        return {id for id in found if test.matches(self.network.by_id[id], self.names[id])}


def listed_layers(ids: Sequence[str]) -> str:
    """The first layers of many, for an error."""
    return (
        ", ".join(ids) if len(ids) <= MAX_LISTED else f"{', '.join(ids[:MAX_LISTED])} and {len(ids) - MAX_LISTED} more"
    )
