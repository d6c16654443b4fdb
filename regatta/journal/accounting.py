"""Where time and bytes went: of a whole run, and of each of its configurations.

Seconds of a unit are told apart: fetching the state (hop), reading data (load), writing the state (save), and the
rest, which is training or evaluation. A configuration waits while none of its units runs, though it has more to come;
the journal costs it the time from the end of a unit until the unit counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regatta.journal.record import RunRecord, UnitRecord

Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Resources:
    """Where the time of a run went: seconds summed over workers, but for `wall`.

    `workers` is how long workers were there, from the first unit to the last; those that joined or left, for less.
    """

    wall: float
    workers: float
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
    """What one configuration has cost, in seconds and in bytes."""

    train_seconds: float
    eval_seconds: float
    hop_seconds: float
    load_seconds: float
    save_seconds: float
    wait_seconds: float
    journal_seconds: float
    hop_bytes: int
    journal_bytes: int

    def row(self) -> dict[str, Any]:
        return asdict(self)


def resources(record: RunRecord) -> Resources:
    units = record.units
    wall = worked(units, record.sessions)
    sums = {kind: sum(u.seconds * u.width for u in units if u.kind == kind) for kind in ("train", "eval", "pilot")}
    there = sum(present(record).values())
    return Resources(
        wall=wall,
        workers=there,
        **sums,
        hop=sum(u.hop_seconds for u in units),
        save=sum(u.save_seconds for u in units),
        load=sum(u.load_seconds for u in units),
        idle=max(0.0, there - sum(sums.values())),
        bytes_hopped=sum(u.hop_bytes for u in units),
        hops=sum(u.hop_bytes > 0 for u in units),
        units=len(units),
        journal=sum(_until_counted(u) for u in units),
        journal_bytes=record.journal_bytes,
    )


def present(record: RunRecord) -> dict[str, float]:
    """Seconds for which each worker that did something was there, from the run's first unit to its last.

    Those of a group count as often as it has members. Who was never told of, for groups were made of the workers that
    had tried something, was there for that.
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
        found[worker] = sum(width * within(start, end, [(begin, until)]) for begin, until, width in spans)
    return found


def most_workers(record: RunRecord) -> int:
    """How many workers were there at once, at most; each of a group counted."""
    comes = [(begin, width) for spans in record.presence.values() for begin, _, width in spans]
    goes = [(until, -width) for spans in record.presence.values() for _, until, width in spans]
    there = most = 0
    for _, change in sorted([*comes, *goes]):  # who goes at a moment goes first
        there += change
        most = max(most, there)
    return most


def account(record: RunRecord, config: str) -> Account:
    units = record.configs[config].units
    work = {kind: sum(_work(u) for u in units if u.kind == kind) for kind in ("train", "eval")}
    return Account(
        train_seconds=work["train"],
        eval_seconds=work["eval"],
        hop_seconds=sum(u.hop_seconds for u in units),
        load_seconds=sum(u.load_seconds for u in units),
        save_seconds=sum(u.save_seconds for u in units),
        wait_seconds=_waited(units, record.sessions),
        journal_seconds=sum(_until_counted(u) for u in units),
        hop_bytes=sum(u.hop_bytes for u in units),
        journal_bytes=record.configs[config].journal_bytes,
    )


def _work(unit: UnitRecord) -> float:
    return max(0.0, unit.seconds - unit.hop_seconds - unit.load_seconds - unit.save_seconds)


def _until_counted(unit: UnitRecord) -> float:
    return max(0.0, unit.counted - unit.end) if unit.counted else 0.0


def worked(units: Sequence[UnitRecord], sessions: Spans) -> float:
    """Seconds from the first unit to the last, without the time in which nobody was at work."""
    if not units:
        return 0.0
    start, end = min(u.start for u in units), max(u.end for u in units)
    return within(start, end, sessions) if len(sessions) > 1 else end - start


def _waited(units: Iterable[UnitRecord], sessions: Spans) -> float:
    ordered = sorted(units, key=lambda unit: unit.start)
    waited, busy_until = 0.0, None
    for unit in ordered:
        if busy_until is not None and unit.start > busy_until:
            waited += within(busy_until, unit.start, sessions)
        busy_until = max(unit.end, busy_until or unit.end)
    return waited


def within(start: float, end: float, sessions: Spans) -> float:
    """How much of a span lies in sessions."""
    return sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in sessions)
