"""Where time and bytes went: in a whole run, and for each of its configurations.

The seconds of a unit are split into fetching the state (hop), reading data (load), writing the state (save) and the
rest, which is training or evaluation. A configuration waits while none of its units runs although more units follow.
Its journal time is the time from the end of a unit until the unit counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regatta.journal.run_record import RunRecord, UnitRecord

Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Resources:
    """Where the time of a run went, in seconds summed over workers; only `wall` is not summed."""

    wall: float
    workers: float  # for which they were up, between the start of the first unit and the end of the last
    train: float
    eval: float
    pilot: float
    hop: float
    save: float
    load: float
    idle: float
    bytes_hopped: int
    hops: int
    units: int
    journal: float
    journal_bytes: int


@dataclass(frozen=True)
class Account:
    """What one configuration cost, in seconds and bytes."""

    train_seconds: float
    eval_seconds: float
    hop_seconds: float
    load_seconds: float
    save_seconds: float
    wait_seconds: float
    journal_seconds: float
    hop_bytes: int
    journal_bytes: int


def resources(record: RunRecord) -> Resources:
    units = record.units
    wall = active_seconds(units, record.sessions)
    sums = {kind: sum(u.seconds * u.width for u in units if u.kind == kind) for kind in ("train", "eval", "pilot")}
    up = sum(worker_seconds(record).values())
    return Resources(
        wall=wall,
        workers=up,
        **sums,
        hop=sum(u.hop_seconds for u in units),
        save=sum(u.save_seconds for u in units),
        load=sum(u.load_seconds for u in units),
        idle=max(0.0, up - sum(sums.values())),
        bytes_hopped=sum(u.hop_bytes for u in units),
        hops=sum(u.hop_bytes > 0 for u in units),
        units=len(units),
        journal=sum(_journal_seconds(u) for u in units),
        journal_bytes=record.journal_bytes,
    )


def worker_seconds(record: RunRecord) -> dict[str, float]:
    """Seconds for which each worker that ran a unit was up, from the start of the first unit to the end of the last.

    The seconds of a group are multiplied by its width. Workers that only profiled models, before they were put into
    groups, have no `worker` record: they count as up from their first unit to their last.
    """
    units = record.units
    if not units:
        return {}
    start, end = min(u.start for u in units), max(u.end for u in units)
    found = {}
    for worker in {u.worker for u in units}:
        own = [u for u in units if u.worker == worker]
        first, last = min(u.start for u in own), max(u.end for u in own)
        (begin, until, width), *others = record.presence.get(worker) or [(first, last, 1)]
        spans = [(min(begin, first), until, width), *others]
        found[worker] = sum(width * overlap(start, end, [(begin, until)]) for begin, until, width in spans)
    return found


def most_workers(record: RunRecord) -> int:
    """The largest number of workers that were up at the same time, counting each worker of a group."""
    spans = [span for worker_spans in record.presence.values() for span in worker_spans]
    starts = [(begin, width) for begin, _, width in spans]
    ends = [(until, -width) for _, until, width in spans]
    up = most = 0
    for _, change in sorted([*starts, *ends]):  # at equal times, ends come first
        up += change
        most = max(most, up)
    return most


def account(record: RunRecord, config: str) -> Account:
    units = record.configs[config].units
    work = {kind: sum(_compute_seconds(u) for u in units if u.kind == kind) for kind in ("train", "eval")}
    return Account(
        train_seconds=work["train"],
        eval_seconds=work["eval"],
        hop_seconds=sum(u.hop_seconds for u in units),
        load_seconds=sum(u.load_seconds for u in units),
        save_seconds=sum(u.save_seconds for u in units),
        wait_seconds=_wait_seconds(units, record.sessions),
        journal_seconds=sum(_journal_seconds(u) for u in units),
        hop_bytes=sum(u.hop_bytes for u in units),
        journal_bytes=record.configs[config].journal_bytes,
    )


def _compute_seconds(unit: UnitRecord) -> float:
    return max(0.0, unit.seconds - unit.hop_seconds - unit.load_seconds - unit.save_seconds)


def _journal_seconds(unit: UnitRecord) -> float:
    return max(0.0, unit.counted - unit.end) if unit.counted else 0.0


def active_seconds(units: Sequence[UnitRecord], sessions: Spans) -> float:
    """Seconds from the first unit to the last, without the time between two controllers of a resumed run."""
    if not units:
        return 0.0
    start, end = min(u.start for u in units), max(u.end for u in units)
    return overlap(start, end, sessions) if len(sessions) > 1 else end - start


def _wait_seconds(units: Iterable[UnitRecord], sessions: Spans) -> float:
    waited, busy_until = 0.0, None
    for unit in sorted(units, key=lambda unit: unit.start):
        if busy_until is not None and unit.start > busy_until:
            waited += overlap(busy_until, unit.start, sessions)
        busy_until = max(unit.end, busy_until or unit.end)
    return waited


def overlap(start: float, end: float, sessions: Spans) -> float:
    """How many seconds of the span from start to end lie in sessions."""
    return sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in sessions)
