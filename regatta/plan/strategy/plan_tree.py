"""A plan as data: few kinds of nodes, each with what it is expected to take, and what was rejected, with reasons.

A unit's seconds are those that a worker, or a group, is busy with it; a node's are those of the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from regatta.format import count, seconds, size


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of the whole run, bytes on the fullest device, bytes that go from worker to worker, and exactness."""

    seconds: float
    memory: float = 0.0
    moved: float = 0.0
    exact: bool = True  # bit for bit what each model is alone; else up to rounding


@dataclass(frozen=True, slots=True)
class PackNode:
    """Models of a kind that take their steps together, so many to a device."""

    kind: str
    models: int
    packs: int
    size: int  # of the largest
    estimate: Estimate
    units: int = 0
    unit: float = 0.0  # seconds


@dataclass(frozen=True, slots=True)
class GroupNode:
    """Workers that train one model together, data-parallel, with the batch size of one."""

    groups: int
    width: int
    nodes: int  # that a group lies on
    idle: int  # workers left over
    estimate: Estimate
    models: str = ""  # that are trained here and nowhere else; empty where all are


@dataclass(frozen=True, slots=True)
class ShareNode:
    """Data that is prepared once for all models, in processes of its own."""

    processes: int  # of each worker, on cores that no trainer needs
    prepared: float  # seconds for an epoch of data
    bytes: float
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class EvaluateNode:
    units: int
    estimate: Estimate
    unit: float = 0.0  # seconds, of one model


@dataclass(frozen=True, slots=True)
class HopNode:
    """The whole of it: models, packs or not, that hop over workers, groups or not."""

    models: int
    epochs: int  # of all models together
    workers: int
    partitions: int
    estimate: Estimate
    parts: tuple[PlanPart, ...] = ()
    units: int = 0  # of models that are in no pack
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
    estimate: Estimate | None = None  # None where it cannot be done at all


@dataclass(frozen=True)
class Plan:
    name: str  # as alternatives are named: "hop", "packs of 8 + share"
    why: str
    root: HopNode
    bound: float  # seconds that no plan can beat
    bound_by: str
    utilisation: float  # of the devices, at best
    rejected: tuple[RejectedStrategy, ...]
    notes: tuple[str, ...] = ()  # what else people should know

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
    def from_json(cls, told: Mapping[str, Any]) -> Plan:
        """A plan as a journal tells it; what an older one told besides is passed over."""
        root = {name: value for name, value in told["root"].items() if name in HopNode.__dataclass_fields__}
        parts = tuple(_part(part) for part in root.pop("parts"))
        rejected = tuple(RejectedStrategy(r["name"], r["why"], _estimate(r["estimate"])) for r in told["rejected"])
        fields = {name: told[name] for name in ("name", "why", "bound", "bound_by", "utilisation")}
        estimate = Estimate(**root.pop("estimate"))
        notes = tuple(told.get("notes", ()))
        return cls(root=HopNode(estimate=estimate, parts=parts, **root), rejected=rejected, notes=notes, **fields)

    def text(self) -> str:
        """The tree for people."""
        return "\n".join([f"{self.name}: {self.why}", *self._tree(), *self._figures(), *self._others(), *self.notes])

    def _tree(self) -> list[str]:
        rows = [(describe_root(self.root), brief(self.root.estimate))]
        rows += [(f"├─ {describe(part)}", seconds(part.estimate.seconds)) for part in self.root.parts]
        if len(rows) > 1:
            rows[-1] = rows[-1][0].replace("├", "└", 1), rows[-1][1]
        wide = max(len(words) for words, _ in rows)
        return [f"{words.ljust(wide)}  {figures}" for words, figures in rows]

    def _figures(self) -> Iterator[str]:
        yield f"at least  {seconds(self.bound)}, bound by {self.bound_by}"
        yield f"expected  {seconds(self.estimate.seconds)}, workers busy {self.utilisation:.0%} of the time"
        yield f"cost      {self.device_hours:.3g} device hours"

    def _others(self) -> Iterator[str]:
        if self.rejected:
            yield "instead of"
        wide = max((len(other.name) for other in self.rejected), default=0)
        for other in sorted(self.rejected, key=lambda other: other.estimate.seconds if other.estimate else math.inf):
            took = f"{seconds(other.estimate.seconds)}, " if other.estimate else ""
            yield f"  {other.name.ljust(wide)}  {took}{other.why}"


def _part(told: Mapping[str, Any]) -> PlanPart:
    kind = _PARTS[told["node"]]
    fields = {name: value for name, value in told.items() if name in kind.__dataclass_fields__ and name != "estimate"}
    return kind(estimate=Estimate(**told["estimate"]), **fields)


def _estimate(told: Mapping[str, Any] | None) -> Estimate | None:
    return None if told is None else Estimate(**told)


def describe_root(root: HopNode) -> str:
    return (
        f"hop       {count(root.models, 'model')}, {count(root.epochs, 'epoch')} in all, over "
        f"{count(root.partitions, 'partition')} on {count(root.workers, 'worker')}"
    )


def describe(part: PlanPart) -> str:
    match part:
        case PackNode():
            least, most = part.models // part.packs, -(-part.models // part.packs)  # as near to each other as can be
            sizes = str(most) if least == most else f"{least} or {most}"
            return f"pack     {count(part.models, 'model')} {part.kind} in {count(part.packs, 'pack')} of {sizes}"
        case GroupNode():
            spare = f", {part.idle} idle" if part.idle else ""
            nodes = "inside a node" if part.nodes == 1 else f"over {part.nodes} nodes"
            where = f"{part.groups} of {count(part.width, 'worker')} {nodes}" if part.width > 1 else _alone(part.groups)
            return f"group    {where}{f' for {part.models}' if part.models else ''}{spare}"
        case ShareNode():
            where = count(part.processes, "process", "processes") + " a worker" if part.processes else "by the trainers"
            return f"share    {seconds(part.prepared)} of preparation an epoch, once for all models, {where}"
        case EvaluateNode():
            return f"evaluate {count(part.units, 'unit')}"


def _alone(workers: int) -> str:
    return "1 worker by itself" if workers == 1 else f"{workers} workers by themselves"


def brief(estimate: Estimate) -> str:
    words = [seconds(estimate.seconds)]
    if estimate.memory:
        words.append(f"{size(estimate.memory)} a device")
    if estimate.moved:
        words.append(f"{size(estimate.moved)} moved")
    return ", ".join([*words, "exact" if estimate.exact else "up to rounding"])
