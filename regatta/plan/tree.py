"""A plan as data: few kinds of nodes, each with what it is expected to take, and what was rejected, with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of the whole run, bytes on the fullest device, bytes that go from worker to worker, and exactness."""

    seconds: float
    memory: float = 0.0
    moved: float = 0.0
    exact: bool = True  # bit for bit what each model is alone; else up to rounding


@dataclass(frozen=True, slots=True)
class Pack:
    """Models of a kind that take their steps together, so many to a device."""

    kind: str
    models: int
    packs: int
    size: int  # of the largest
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Group:
    """Workers that train one model together, data-parallel, with the batch size of one."""

    groups: int
    width: int
    nodes: int  # that a group lies on
    idle: int  # workers left over
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Share:
    """Data that is prepared once for all models, in processes of its own."""

    processes: int  # of each worker, on cores that no trainer needs
    prepared: float  # seconds for an epoch of data
    bytes: float
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Evaluate:
    units: int
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Hop:
    """The whole of it: models, packs or not, that hop over workers, groups or not."""

    models: int
    epochs: int  # of all models together
    workers: int
    partitions: int
    estimate: Estimate
    parts: tuple[Pack | Group | Share | Evaluate, ...] = ()


Node = Hop | Pack | Group | Share | Evaluate


@dataclass(frozen=True, slots=True)
class Rejected:
    name: str
    why: str
    estimate: Estimate | None = None  # None where it cannot be done at all


@dataclass(frozen=True)
class Plan:
    name: str  # as alternatives are named: "hop", "packs of 8 + share"
    why: str
    root: Hop
    bound: float  # seconds that no plan can beat
    bound_by: str
    utilisation: float  # of the devices, at best
    rejected: tuple[Rejected, ...]

    @property
    def estimate(self) -> Estimate:
        return self.root.estimate

    @property
    def device_hours(self) -> float:
        return self.root.workers * self.estimate.seconds / 3600

    def to_json(self) -> dict[str, Any]:
        parts = [{"node": type(part).__name__.lower(), **asdict(part)} for part in self.root.parts]
        return {
            **asdict(self),
            "root": {"node": "hop", **asdict(self.root), "parts": parts},
            "device_hours": self.device_hours,
        }

    def text(self) -> str:
        """The tree for people."""
        lines = [f"{self.name}: {self.why}", *_described(self.root)]
        lines.append(f"at least {seconds(self.bound)}, bound by {self.bound_by}; {self.device_hours:.3g} device hours")
        for other in self.rejected:
            took = f"{seconds(other.estimate.seconds)}, " if other.estimate else ""
            lines.append(f"not {other.name}: {took}{other.why}")
        return "\n".join(lines)


def _described(root: Hop) -> Iterator[str]:
    yield (
        f"hop      {counted(root.models, 'model')}, {counted(root.epochs, 'epoch')} in all, over "
        f"{counted(root.partitions, 'partition')} on {counted(root.workers, 'worker')}  [{brief(root.estimate)}]"
    )
    for number, part in enumerate(root.parts, start=1):
        branch = "└─" if number == len(root.parts) else "├─"
        yield f"{branch} {describe(part)}  [{brief(part.estimate)}]"


def describe(part: Pack | Group | Share | Evaluate) -> str:
    match part:
        case Pack():
            return (
                f"pack     {counted(part.models, 'model')} {part.kind} in {counted(part.packs, 'pack')} of {part.size}"
            )
        case Group():
            spare = f", {part.idle} idle" if part.idle else ""
            nodes = "inside a node" if part.nodes == 1 else f"over {part.nodes} nodes"
            return f"group    {part.groups} of {counted(part.width, 'worker')} {nodes}{spare}"
        case Share():
            where = (
                counted(part.processes, "process", "processes") + " a worker" if part.processes else "by the trainers"
            )
            return f"share    {seconds(part.prepared)} of preparation an epoch, once for all models, {where}"
        case Evaluate():
            return f"evaluate {counted(part.units, 'unit')}"


def brief(estimate: Estimate) -> str:
    words = [seconds(estimate.seconds)]
    if estimate.memory:
        words.append(f"{size(estimate.memory)} a device")
    if estimate.moved:
        words.append(f"{size(estimate.moved)} moved")
    return ", ".join([*words, "exact" if estimate.exact else "up to rounding"])


def counted(number: int, noun: str, many: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    hours, minutes = divmod(round(value / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
