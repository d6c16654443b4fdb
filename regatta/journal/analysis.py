"""The figures of a run beside those that its plan expected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from regatta.errors import NotFoundError
from regatta.journal.accounting import active_seconds, overlap, worker_accounts
from regatta.journal.run_record import RunRecord, UnitRecord
from regatta.plan.strategy.plan_tree import EvaluateNode, GroupNode, PackNode, Plan, ShareNode

Measure = Literal["seconds", "share", "bytes", "count", "hours"]


@dataclass(frozen=True)
class AnalysisRow:
    """One figure of a plan; None where it was not estimated or did not happen."""

    what: str
    measure: Measure
    estimated: float | None
    actual: float | None

    @property
    def ratio(self) -> float | None:
        return self.actual / self.estimated if self.actual is not None and self.estimated else None


@dataclass(frozen=True)
class Replanning:
    """A later plan: when and why it was made, and whether it changed anything."""

    after: float  # seconds since the first unit
    reason: str
    changed: bool
    name: str


@dataclass(frozen=True)
class Analysis:
    plan: Plan
    rows: tuple[AnalysisRow, ...]
    later: tuple[Replanning, ...]
    status: str = "done"  # of the run; the estimates are for a whole run

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "plan": self.plan.to_json(),
            "rows": [{**asdict(row), "ratio": row.ratio} for row in self.rows],
            "later": [asdict(other) for other in self.later],
        }


def analyze(record: RunRecord) -> Analysis:
    """Compare a run with its first plan; a run that is still going, as far as it is."""
    if record.plan is None:
        raise NotFoundError(f"{record.name} has no plan in its journal.", hint="A run has one as soon as it trains.")
    plan = Plan.from_json(record.plan)
    units = [unit for unit in record.units if unit.kind != "pilot"]
    first = min((unit.start for unit in units), default=record.now)
    later = [
        Replanning(
            overlap(first, line["time"], record.sessions),
            line["reason"],
            line["changed"],
            (line["plan"] or {}).get("name", ""),
        )
        for line in record.plans
        if line["reason"]
    ]
    return Analysis(plan, tuple(_rows(plan, record, units)), tuple(later), record.status)


def _rows(plan: Plan, record: RunRecord, units: list[UnitRecord]) -> Iterable[AnalysisRow]:
    spent, root = record.resources(), plan.root
    span = active_seconds(units, record.sessions)
    accounts = worker_accounts(record, since=min((unit.start for unit in units), default=record.now)).values()
    busy, present = sum(account.busy for account in accounts), sum(account.present for account in accounts)
    workers = root.workers
    yield AnalysisRow("the whole", "seconds", plan.estimate.seconds, span)
    shares = any(isinstance(part, ShareNode) for part in root.parts)  # then waiting for data is a row of its own
    singles = [unit for unit in units if unit.kind == "train" and unit.pack is None]
    yield from _unit_rows("units of single models", root.units, root.unit, singles, shares)
    packs = [part for part in root.parts if isinstance(part, PackNode)]
    count = sum(part.units for part in packs)
    mean = sum(part.units * part.unit for part in packs) / count if count else 0.0
    yield from _unit_rows("units of packs", count, mean, _pack_units(units), shares)
    evaluation = next((part for part in root.parts if isinstance(part, EvaluateNode)), None)
    evaluated = [unit for unit in units if unit.kind == "eval"]
    planned = (evaluation.units, evaluation.unit) if evaluation else (0, 0.0)
    yield from _unit_rows("evaluations", *planned, evaluated)
    if any(unit.width > 1 for unit in units) or any(isinstance(part, GroupNode) for part in root.parts):
        yield AnalysisRow("exchanging gradients", "seconds", None, sum(unit.sync_seconds for unit in units))
    if shares:
        yield AnalysisRow("waiting for data", "seconds", None, sum(unit.load_seconds for unit in units) / workers)
    yield AnalysisRow("workers busy", "share", plan.utilisation, busy / present if present else None)
    yield AnalysisRow("states moved", "bytes", plan.estimate.moved, float(spent.bytes_hopped))
    yield AnalysisRow("device hours", "hours", plan.device_hours, present / 3600)


def _unit_rows(
    what: str, count: int, seconds: float, units: list[UnitRecord], shares: bool = False
) -> Iterable[AnalysisRow]:
    if not count and not units:
        return
    yield AnalysisRow(what, "count", float(count), float(len(units)))
    took = [unit.seconds - unit.load_seconds if shares else unit.seconds for unit in units]
    mean = sum(took) / len(took) if took else None
    yield AnalysisRow(f"{what}, each", "seconds", seconds if count else None, mean)


def _pack_units(units: Iterable[UnitRecord]) -> list[UnitRecord]:
    """The training units of packs: the shares of the members of each unit merged into one."""
    found: dict[tuple[str, int, int], UnitRecord] = {}
    for unit in units:
        if unit.kind == "train" and unit.pack is not None:
            key = unit.pack, unit.epoch, unit.partition
            known = found.get(key)
            start, end = (unit.start, unit.end) if known is None else (known.start, known.end)
            waited = unit.load_seconds + (0.0 if known is None else known.load_seconds)
            found[key] = replace(unit, start=min(start, unit.start), end=max(end, unit.end), load_seconds=waited)
    return list(found.values())
