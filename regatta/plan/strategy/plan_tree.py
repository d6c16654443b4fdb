"""A plan as a tree of nodes, each with its estimate, and the rejected strategies with reasons.

Seconds of a unit are those for which a worker, or a group, is busy with it. Seconds of a node are of the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from regatta.format import count, seconds, size

MAX_NAME_COLUMNS = 34  # of the names of rejected strategies, so that lines fit 100 columns


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of the whole run, bytes on the fullest device, bytes that move between workers, and exactness."""

    seconds: float
    memory: float = 0.0
    moved: float = 0.0
    exact: bool = True  # each model is bit for bit as if trained alone; else equal up to rounding


@dataclass(frozen=True, slots=True)
class PackNode:
    """Models of a kind that are trained in packs."""

    kind: str
    models: int
    packs: int
    size: int  # of the largest
    estimate: Estimate
    units: int = 0
    unit: float = 0.0  # seconds


@dataclass(frozen=True, slots=True)
class GroupNode:
    """Groups of workers that train one model data-parallel, with the batch size of one worker."""

    groups: int
    width: int
    nodes: int  # that a group spans
    idle: int  # workers left over
    estimate: Estimate
    models: str = ""  # that only these groups train; empty where they train all


@dataclass(frozen=True, slots=True)
class ShareNode:
    """Data that is preprocessed once for all models."""

    processes: int  # for each worker, on spare cores
    prepared: float  # seconds to preprocess an epoch of data
    bytes: float
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class EvaluateNode:
    units: int
    estimate: Estimate
    unit: float = 0.0  # seconds, of one model


@dataclass(frozen=True, slots=True)
class HopNode:
    """The root: models or packs that hop over workers or groups."""

    models: int
    epochs: int  # of all models together
    workers: int
    partitions: int
    estimate: Estimate
    parts: tuple[PlanPart, ...] = ()
    units: int = 0  # of models in no pack
    unit: float = 0.0  # seconds, on average


PlanPart = PackNode | GroupNode | ShareNode | EvaluateNode
PlanNode = HopNode | PlanPart
_PARTS: dict[str, type[PlanPart]] = {  # by their names in JSON
    "pack": PackNode,
    "group": GroupNode,
    "share": ShareNode,
    "evaluate": EvaluateNode,
}
_NAMES = {node: name for name, node in _PARTS.items()}


@dataclass(frozen=True, slots=True)
class RejectedStrategy:
    name: str
    why: str
    estimate: Estimate | None = None  # None: the strategy is not possible


@dataclass(frozen=True)
class Plan:
    name: str  # of its strategy, such as "hop" or "packs of 8 + share"
    why: str
    root: HopNode
    bound: float  # seconds that no plan can beat
    bound_by: str
    utilisation: float  # of the workers
    rejected: tuple[RejectedStrategy, ...]
    notes: tuple[str, ...] = ()  # further lines of the text

    @property
    def estimate(self) -> Estimate:
        return self.root.estimate

    @property
    def device_hours(self) -> float:
        return self.root.workers * self.estimate.seconds / 3600

    def to_json(self) -> dict[str, Any]:
        parts = [{"node": _NAMES[type(part)], **asdict(part)} for part in self.root.parts]
        return {
            **asdict(self),
            "root": {"node": "hop", **asdict(self.root), "parts": parts},
            "rejected": [asdict(other) for other in self.rejected],
            "notes": list(self.notes),
            "device_hours": self.device_hours,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Plan:
        """The plan in a journal. Fields that only older versions wrote are ignored."""
        root = {name: value for name, value in fields["root"].items() if name in HopNode.__dataclass_fields__}
        root["estimate"] = Estimate(**root["estimate"])
        root["parts"] = tuple(_part_from_json(part) for part in root["parts"])
        rejected = [
            RejectedStrategy(r["name"], r["why"], None if r["estimate"] is None else Estimate(**r["estimate"]))
            for r in fields["rejected"]
        ]
        own = {name: fields[name] for name in ("name", "why", "bound", "bound_by", "utilisation")}
        return cls(root=HopNode(**root), rejected=tuple(rejected), notes=tuple(fields.get("notes", ())), **own)

    def text(self) -> str:
        return "\n".join([f"{self.name}: {self.why}", *self._tree(), *self._figures(), *self._others(), *self.notes])

    def _tree(self) -> list[str]:
        rows = [(describe(self.root), seconds(self.estimate.seconds))]
        rows += [(f"├─ {describe(part)}", seconds(part.estimate.seconds)) for part in self.root.parts]
        if len(rows) > 1:
            rows[-1] = rows[-1][0].replace("├", "└", 1), rows[-1][1]
        wide = max(len(words) for words, _ in rows)
        return [f"{words.ljust(wide)}  {took}" for words, took in rows]

    def _figures(self) -> Iterator[str]:
        estimate = self.estimate
        limit = "the number of workers" if self.bound_by == "all workers" else self.bound_by
        yield f"at least  {seconds(self.bound)}, limited by {limit}"
        yield f"expected  {seconds(estimate.seconds)}, workers busy {self.utilisation:.0%} of the time"
        if estimate.memory:
            yield f"memory    {size(estimate.memory)} per device"
        if estimate.moved:
            yield f"moved     {size(estimate.moved)}"
        yield f"numerics  {'exact' if estimate.exact else 'equal up to rounding'}"
        yield f"cost      {self.device_hours:.3g} device hours"

    def _others(self) -> Iterator[str]:
        if not self.rejected:
            return
        yield "instead of"
        wide = min(max(len(other.name) for other in self.rejected), MAX_NAME_COLUMNS)
        for other in sorted(self.rejected, key=lambda other: other.estimate.seconds if other.estimate else math.inf):
            took = f"{seconds(other.estimate.seconds)}, " if other.estimate else ""
            name = other.name
            if len(name) > wide:  # the reason is on the next line
                yield f"  {name}"
                name = ""
            yield f"  {name.ljust(wide)}  {took}{other.why}"


def _part_from_json(fields: Mapping[str, Any]) -> PlanPart:
    node = _PARTS[fields["node"]]
    own = {name: value for name, value in fields.items() if name in node.__dataclass_fields__}
    return node(**{**own, "estimate": Estimate(**fields["estimate"])})


def describe(part: PlanNode) -> str:
    match part:
        case HopNode():
            where = f"over {count(part.partitions, 'partition')} on {count(part.workers, 'worker')}"
            return f"hop       {count(part.models, 'model')}, {count(part.epochs, 'epoch')} in all, {where}"
        case PackNode():
            least, most = part.models // part.packs, -(-part.models // part.packs)
            sizes = str(most) if least == most else f"{least} or {most}"
            return f"pack     {count(part.models, 'model')} {part.kind} in {count(part.packs, 'pack')} of {sizes}"
        case GroupNode():
            spare = f", {part.idle} idle" if part.idle else ""
            nodes = "inside a node" if part.nodes == 1 else f"over {part.nodes} nodes"
            where = f"{part.groups} of {count(part.width, 'worker')} {nodes}"
            if part.width == 1:
                where = "1 worker by itself" if part.groups == 1 else f"{part.groups} workers by themselves"
            return f"group    {where}{f' for {part.models}' if part.models else ''}{spare}"
        case ShareNode():
            where = "by the workers"
            if part.processes:
                where = count(part.processes, "process", "processes") + " per worker"
            return f"share    {seconds(part.prepared)} of preprocessing per epoch, once for all models, {where}"
        case EvaluateNode():
            return f"evaluate {count(part.units, 'unit')}"
