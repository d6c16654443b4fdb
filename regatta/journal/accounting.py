"""Where time and bytes went: in a whole run, and for each of its configurations.

The seconds of a unit are split into fetching the state (hop), reading data (load), writing the state (save) and the
rest, which is training or evaluation. A configuration waits while none of its units runs although more units follow.
Its journal time is the time from the end of a unit until the unit counts.

A worker is present while it is up. Present, it runs a unit or it is idle. Absent, it is neither: before it joined,
after it left, and between two controllers. So the kinds of work and the idle time add up to the time of the workers.
"""

from __future__ import annotations

import math
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
    workers: float  # for which they were present; the sum of `train`, `eval`, `pilot` and `idle`
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
class Presence:
    """A worker, or a group of `width` workers, was present from `start` until `end`."""

    start: float
    end: float
    width: int = 1


@dataclass(frozen=True)
class WorkerAccount:
    """Where the time of one worker went while it was present; the seconds of a group are multiplied by its width."""

    train: float
    eval: float
    pilot: float
    idle: float

    @property
    def busy(self) -> float:
        return self.train + self.eval + self.pilot

    @property
    def present(self) -> float:
        return self.busy + self.idle


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
    units, accounts = record.units, worker_accounts(record).values()
    return Resources(
        wall=active_seconds(units, record.sessions),
        workers=sum(account.present for account in accounts),
        train=sum(account.train for account in accounts),
        eval=sum(account.eval for account in accounts),
        pilot=sum(account.pilot for account in accounts),
        hop=sum(u.hop_seconds for u in units),
        save=sum(u.save_seconds for u in units),
        load=sum(u.load_seconds for u in units),
        idle=sum(account.idle for account in accounts),
        bytes_hopped=sum(u.hop_bytes for u in units),
        hops=sum(u.hop_bytes > 0 for u in units),
        units=len(units),
        journal=sum(_journal_seconds(u) for u in units),
        journal_bytes=record.journal_bytes,
    )


def percentages(used: Resources) -> dict[str, int]:
    """The workers' time in whole percent, by kind of work; they add up to 100, unless no worker was present."""
    if used.workers <= 0:
        return {}
    exact = {kind: 100 * getattr(used, kind) / used.workers for kind in ("train", "eval", "pilot", "idle")}
    whole = {kind: int(value) for kind, value in exact.items()}
    # The largest remainders are rounded up, as many as are missing.
    remainders = sorted(exact, key=lambda kind: exact[kind] - whole[kind], reverse=True)
    for kind in remainders[: 100 - sum(whole.values())]:
        whole[kind] += 1
    return whole


def presence(record: RunRecord) -> dict[str, list[Presence]]:
    """When each worker was present, from the start of the first unit to the end of the last.

    A worker is present before its first `worker` record while it profiles models. A worker without such a record was
    put into a group after it had profiled: it is present from its first unit to its last.
    """
    units = record.units
    if not units:
        return {}
    start, end = min(u.start for u in units), max(u.end for u in units)
    own: dict[str, list[UnitRecord]] = {worker: [] for worker in record.presence}
    for unit in units:
        own.setdefault(unit.worker, []).append(unit)
    found = {}
    for worker, ran in own.items():
        first, last = min((u.start for u in ran), default=end), max((u.end for u in ran), default=start)
        (begin, until, width), *others = record.presence.get(worker) or [(first, last, 1)]
        spans = [Presence(min(begin, first), until, width), *(Presence(*span) for span in others)]
        clipped = [Presence(max(s.start, start), min(s.end, end), s.width) for s in spans]
        found[worker] = [span for span in clipped if span.end > span.start]
    return found


def worker_accounts(record: RunRecord, since: float = -math.inf) -> dict[str, WorkerAccount]:
    """Where the time of each worker went, from the first unit, or from `since`, to the last unit."""
    own: dict[str, list[UnitRecord]] = {}
    for unit in record.units:
        if unit.end > since:
            own.setdefault(unit.worker, []).append(unit)
    found = {}
    for worker, spans in presence(record).items():
        units = own.get(worker, [])
        busy = merged((u.start, u.end) for u in units)
        sums = dict.fromkeys(("train", "eval", "pilot"), 0.0)
        for unit in units:
            sums[unit.kind] += unit.width * (unit.end - max(unit.start, since))
        idle = 0.0
        for span in spans:
            begin = max(span.start, since)
            if span.end > begin:
                idle += span.width * (span.end - begin - overlap(begin, span.end, busy))
        found[worker] = WorkerAccount(**sums, idle=max(0.0, idle))
    return found


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The spans in order, where those that overlap or touch are one."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
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
