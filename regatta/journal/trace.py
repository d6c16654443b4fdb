"""The units of a run as rows, as a Chrome trace, and compared with the best possible schedule.

`chrome_trace` follows the Trace Event Format, which Perfetto and chrome://tracing open. It has a row for each worker
and a slice for each unit, with slices for fetching and saving the state inside. An arrow shows each hop between two
workers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from regatta.journal.run_record import RunRecord, UnitRecord

if TYPE_CHECKING:
    from regatta.plan.strategy.what_if import HopWorkload

COLUMNS = ("kind", "config", "epoch", "partition", "worker", "start", "end", "hop_bytes", "hop_seconds")


@dataclass(frozen=True)
class Efficiency:
    """The duration of a run beside the shortest that its units allow on its workers."""

    makespan: float
    bound: float
    utilisation: float

    @property
    def ratio(self) -> float:
        return self.makespan / self.bound if self.bound else 1.0


def rows(record: RunRecord) -> list[dict[str, Any]]:
    """A row for each unit, in the order of the journal; times are seconds since 1970."""
    return [{name: getattr(unit, name) for name in COLUMNS} for unit in record.units]


def bound_from_trace(record: RunRecord) -> float:
    """No schedule of these units is shorter: a worker runs one unit at a time, and a model trains in one at a time."""
    busy = _seconds_by("worker", record.units)
    training = _seconds_by("config", (unit for unit in record.units if unit.kind == "train"))
    return max([*busy.values(), *training.values()], default=0.0)


def efficiency(record: RunRecord) -> Efficiency:
    """The time of the run beside its lower bound, and the share of their time for which its workers were busy."""
    used = record.resources()
    busy = used.train + used.eval + used.pilot
    return Efficiency(used.wall, bound_from_trace(record), busy / used.workers if used.workers else 0.0)


def chrome_trace(record: RunRecord) -> dict[str, Any]:
    """The run as a JSON object in the Trace Event Format; times are microseconds since the first unit."""
    threads = {worker: number for number, worker in enumerate(worker_names(record), 1)}
    origin = min((unit.start for unit in record.units), default=record.started)
    events = [_metadata("process_name", 0, {"name": f"regatta {record.name}".strip()})]
    for worker, thread in threads.items():
        events.append(_metadata("thread_name", thread, {"name": worker}))
        events.append(_metadata("thread_sort_index", thread, {"sort_index": thread}))
    events += [*_slices(record, threads, origin), *_arrows(record, threads, origin)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"run": record.name, "started": record.started, "status": record.status},
    }


def worker_names(record: RunRecord) -> list[str]:
    """All workers of the journal, w2 before w10."""
    return sorted({*record.workers, *(unit.worker for unit in record.units)}, key=lambda name: (len(name), name))


def _seconds_by(field: str, units: Iterable[UnitRecord]) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for unit in units:
        sums[getattr(unit, field)] += unit.seconds
    return sums


def _metadata(name: str, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": 1, "tid": thread, "args": args}


def _slices(record: RunRecord, threads: dict[str, int], origin: float) -> Iterator[dict[str, Any]]:
    for unit in record.units:
        values = record.configs[unit.config].values if unit.config in record.configs else {}
        details = {k: v for k, v in asdict(unit).items() if k not in ("worker", "start", "end", "metrics")}
        metrics = {k: v if math.isfinite(v) else str(v) for k, v in unit.metrics.items()}  # JSON has no NaN
        args = {**details, "values": dict(values), "metrics": metrics}
        thread, start = threads[unit.worker], unit.start - origin
        kind = "" if unit.kind == "train" else f" {unit.kind}"
        place = "" if unit.kind == "pilot" else f" epoch {unit.epoch} partition {unit.partition}"
        yield _slice(f"{unit.config}{kind}{place}", unit.kind, thread, start, unit.seconds, args)
        if unit.hop_seconds:
            yield _slice("fetch state", "hop", thread, start, unit.hop_seconds, {"bytes": unit.hop_bytes})
        if unit.save_seconds:
            yield _slice("save state", "save", thread, unit.end - origin - unit.save_seconds, unit.save_seconds, {})


def _slice(name: str, category: str, thread: int, start: float, seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": _micros(start), "dur": _micros(seconds)}
    return {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": thread, **times, "args": args}


def _arrows(record: RunRecord, threads: dict[str, int], origin: float) -> Iterator[dict[str, Any]]:
    """An arrow from each training unit to the next one of the same model, if another worker ran that."""
    previous: dict[str, UnitRecord] = {}
    number = 0
    for unit in sorted((u for u in record.units if u.kind == "train"), key=lambda u: u.start):
        before = previous.get(unit.config)
        previous[unit.config] = unit
        if before is None or before.worker == unit.worker:
            continue
        number += 1
        hop = {"name": "hop", "cat": "hop", "id": number, "pid": 1}
        # An arrow is attached to the slice that is open at its time, so it starts just before the end of its unit.
        leaves = (before.start + before.end) / 2 if before.seconds < 2e-6 else before.end - 1e-6
        yield {**hop, "ph": "s", "tid": threads[before.worker], "ts": _micros(leaves - origin)}
        yield {**hop, "ph": "f", "bp": "e", "tid": threads[unit.worker], "ts": _micros(unit.start - origin)}


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def workload(record: RunRecord) -> HopWorkload:
    """The units of the run, with their measured times: the mean of each model on each partition."""
    from regatta.plan.schedule.estimates import KnownTimes
    from regatta.plan.strategy.costs import UNIT_PAUSE_S
    from regatta.plan.strategy.what_if import HopWorkload

    seconds: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    for unit in record.units:
        if unit.kind != "pilot":
            seconds[unit.kind, unit.config, unit.partition].append(unit.seconds)
    tables: dict[str, dict[tuple[str, int] | tuple[str, int, str], float]] = {"train": {}, "eval": {}}
    for (kind, config, partition), found in seconds.items():
        tables[kind][config, partition] = sum(found) / len(found)
    parts, held_out = len(record.header["dataset"]["train"]), len(record.header["dataset"]["eval"])
    whole = {c.id: c for c in record.configs.values() if all((c.id, p) in tables["train"] for p in range(parts))}
    epochs = {c.id: max(1, c.epoch) for c in whole.values()}
    for config in whole:  # an evaluation that has not run yet takes no time
        for partition in range(held_out):
            tables["eval"].setdefault((config, partition), 0.0)
    return HopWorkload(epochs, parts, held_out, KnownTimes(tables["train"], tables["eval"]), UNIT_PAUSE_S)


def speeds(record: RunRecord) -> dict[str, float]:
    """The speed of each worker, with mean 1: its rows per second over the mean of the same model on all workers."""
    rates: defaultdict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)  # by kind and configuration
    for unit in record.units:
        work = unit.seconds - unit.hop_seconds - unit.load_seconds - unit.save_seconds
        if unit.kind != "pilot" and unit.rows and work > 0:
            rates[unit.kind, unit.config].append((unit.worker, unit.rows / work))
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for found in rates.values():
        usual = sum(rate for _, rate in found) / len(found)
        for worker, rate in found:
            ratios[worker].append(rate / usual)
    means = {worker: sum(values) / len(values) for worker, values in sorted(ratios.items())}
    mean = sum(means.values()) / max(1, len(means))
    return {worker: value / mean for worker, value in means.items()}
