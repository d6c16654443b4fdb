"""What a journal says, folded into the state of a run.

The runner feeds it each record as it is written, `RunRecord.read` feeds it a whole file: the display, `show`
and `Run` look at the same object whether the run goes on or ended long ago.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

from regatta.configuration import Scalar
from regatta.errors import CorruptError
from regatta.journal.accounting import (
    Account,
    Resources,
    account,
    most_workers,
    present,
    resources,
)
from regatta.journal.journal import Record, read_lines
from regatta.paths import JOURNAL

Status = Literal["running", "done", "failed", "interrupted"]
ConfigStatus = Literal["waiting", "training", "done", "stopped", "failed", "interrupted"]


@dataclass(frozen=True)
class UnitRecord:
    """One unit that counts. `hop_seconds` is what fetching the state cost, `hop_bytes` its size (0: no hop).

    `sync_seconds` of a unit of `width` workers went into exchanging gradients and waiting for each other.
    """

    kind: Literal["train", "eval", "pilot"]
    config: str
    epoch: int
    partition: int
    worker: str
    start: float
    end: float
    rows: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    hop_bytes: int = 0
    hop_seconds: float = 0.0
    load_seconds: float = 0.0
    save_seconds: float = 0.0
    sync_seconds: float = 0.0
    width: int = 1
    state: str | None = None
    hash: str | None = None
    pack: str | None = None  # of its members each has its share of the time
    counted: float = 0.0  # when it was in the journal

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class ConfigRecord:
    """One configuration: its values, how far it is to be trained, what was reported of it."""

    id: str
    values: dict[str, Scalar]
    epochs: int
    parent: str | None = None
    parent_epoch: int | None = None  # it began with the parent's state after that epoch
    reports: dict[int, dict[str, float]] = field(default_factory=dict)
    units: list[UnitRecord] = field(default_factory=list)
    running: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # worker: kind, epoch, partition
    stopped: bool = False
    halted: bool = False  # the run ended, or was killed, before it was done
    error: str | None = None
    traceback: str | None = None
    journal_bytes: int = 0

    @property
    def epoch(self) -> int:
        """The last epoch reported, 0 before the first."""
        return max(self.reports, default=0)

    @property
    def status(self) -> ConfigStatus:
        if self.error is not None:
            return "failed"
        if self.stopped:
            return "stopped"
        if self.epoch >= self.epochs:
            return "done"
        if self.halted:
            return "interrupted"
        return "training" if self.units or self.running else "waiting"

    def series(self, metric: str) -> list[float]:
        """A metric's value after each reported epoch, NaN where it was missing."""
        return [self.reports[epoch].get(metric, math.nan) for epoch in sorted(self.reports)]

    def best(self, metric: str, mode: str) -> tuple[int, float] | None:
        """The epoch and value at which the metric was best; None while there is no finite number."""
        sign = 1.0 if mode == "min" else -1.0
        values = ((sign * m.get(metric, math.nan), epoch) for epoch, m in self.reports.items())
        finite = [(value, epoch) for value, epoch in values if math.isfinite(value)]
        if not finite:
            return None
        value, epoch = min(finite)
        return epoch, sign * value

    def visits(self, epoch: int) -> list[int]:
        """The partitions of an epoch in the order in which they were trained on."""
        return [u.partition for u in self.units if u.kind == "train" and u.epoch == epoch]


@dataclass
class WorkerRecord:
    """One worker: where it is and what it does right now."""

    name: str
    up: bool = True
    info: dict[str, Any] = field(default_factory=dict)
    running: tuple[str, str, int, int] | None = None  # kind, config, epoch, partition
    since: float = 0.0


@dataclass
class RunRecord:
    """The state of a run as its journal tells it."""

    name: str = ""
    header: Record = field(default_factory=dict)
    status: Status = "running"
    error: str | None = None
    configs: dict[str, ConfigRecord] = field(default_factory=dict)
    workers: dict[str, WorkerRecord] = field(default_factory=dict)
    units: list[UnitRecord] = field(default_factory=list)  # in the order in which they counted
    notes: list[tuple[str, str]] = field(default_factory=list)  # level, text
    journal_bytes: int = 0
    device_seconds: float = 0.0  # that workers trained and judged, all together
    started: float = 0.0
    now: float = 0.0  # the time of the last record
    sessions: list[tuple[float, float]] = field(default_factory=list)  # when each controller began and was last heard
    presence: dict[str, list[tuple[float, float, int]]] = field(default_factory=dict)  # came, went, and how many it is
    requests: dict[str, Record] = field(default_factory=dict)  # what people asked for, by id, with the answers
    plans: list[Record] = field(default_factory=list)  # the first, and those that were made later, with reasons

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        record = cls()
        for line, size in read_lines(path):
            record.apply(line, size)
        if not record.header:
            raise CorruptError("The journal has no record of its run.", place=str(path))
        return record

    @property
    def metric(self) -> str:
        return str(self.header["metric"])

    @property
    def mode(self) -> str:
        return str(self.header["mode"])

    def apply(self, record: Record, size: int = 0) -> None:
        """Take in one record of the journal, of so many bytes; events of later versions are passed over."""
        self.now = max(self.now, float(record.get("time", 0.0)))
        if self.sessions and record["event"] != "resume":
            self.sessions[-1] = (self.sessions[-1][0], self.now)
        handler = getattr(self, f"_on_{record['event']}", None)
        if handler is not None:
            handler(record)
        self.journal_bytes += size
        if record.get("config") in self.configs:
            self.configs[record["config"]].journal_bytes += size

    @property
    def elapsed(self) -> float:
        """Seconds for which a controller was at work on it."""
        return sum(end - start for start, end in self.sessions)

    @property
    def plan(self) -> dict[str, Any] | None:
        """The plan that the run began with, as `Plan.to_json` tells it."""
        return next((line["plan"] for line in self.plans if line["plan"] is not None), None)

    def interrupt(self, error: str | None = None) -> None:
        """The run has come to a halt before its end."""
        self.status, self.error = "interrupted", error
        self._halt()

    def leaderboard(self) -> list[ConfigRecord]:
        """Configurations by their best value, best first; those without a number last."""
        sign = 1.0 if self.mode == "min" else -1.0

        def key(config: ConfigRecord) -> tuple[bool, float]:
            best = config.best(self.metric, self.mode)
            return (best is None, sign * best[1] if best else 0.0)

        return sorted(self.configs.values(), key=key)

    def progress(self) -> tuple[int, int]:
        """Training units that count, and all that are wanted so far."""
        partitions = len(self.header["dataset"]["train"])
        done = sum(unit.kind == "train" for unit in self.units)
        active = (c for c in self.configs.values() if c.status not in ("failed", "stopped"))
        open_units = sum(c.epochs * partitions - sum(u.kind == "train" for u in c.units) for c in active)
        return done, done + max(0, open_units)

    def longest_way(self) -> float:
        """Seconds of units that some model has still before it, each as long as those of its last epoch.

        A model's units come one after another, however many workers there are.
        """
        partitions = len(self.header["dataset"]["train"])
        ways = [0.0]
        for config in self.configs.values():
            trained = [unit.seconds for unit in config.units if unit.kind == "train"]
            if trained and config.status in ("training", "waiting"):
                left = config.epochs * partitions - len(trained)
                ways.append(left * fmean(trained[-partitions:]))
        return max(ways)

    def resources(self) -> Resources:
        return resources(self)

    def present(self) -> dict[str, float]:
        return present(self)

    def most_workers(self) -> int:
        return most_workers(self)

    def account(self, config: str) -> Account:
        return account(self, config)

    def _on_run(self, record: Record) -> None:
        self.header = record
        self.name = record["name"]
        self.started = record["time"]
        self.sessions.append((record["time"], record["time"]))

    def _on_resume(self, record: Record) -> None:
        self._halt()  # of what the last controller had begun, nothing runs any more
        self.status, self.error = "running", None
        self.sessions.append((record["time"], record["time"]))
        for worker in self.workers.values():
            worker.up = False
        for config in self.configs.values():
            config.halted = False

    def _on_worker(self, record: Record) -> None:
        info = {k: v for k, v in record.items() if k not in ("event", "time", "worker", "state")}
        worker = WorkerRecord(record["worker"], up=record["state"] == "up", info=info, since=record["time"])
        self.workers[worker.name] = worker
        self._see(worker.name, record["time"], worker.up, int(info.get("width", 1)))
        if not worker.up:
            for config in self.configs.values():
                config.running.pop(worker.name, None)

    def _on_config(self, record: Record) -> None:
        known = self.configs.get(record["config"])
        if known is not None:
            known.epochs = record["epochs"]
            known.stopped = False
            return
        self.configs[record["config"]] = ConfigRecord(
            record["config"], record["values"], record["epochs"], record.get("parent"), record.get("parent_epoch")
        )

    def _on_start(self, record: Record) -> None:
        worker = self.workers[record["worker"]]
        worker.running = (record["kind"], record["config"], record["epoch"], record["partition"])
        worker.since = record["time"]
        self.configs[record["config"]].running[worker.name] = (
            record["kind"],
            record["epoch"],
            record["partition"],
        )

    def _on_pilot(self, record: Record) -> None:
        if record.get("cached"):
            return  # an earlier run measured it
        start, end = record["start"], record["end"]
        self.units.append(UnitRecord("pilot", record["config"], 0, 0, record["worker"], start, end))

    def _on_packs(self, record: Record) -> None:
        self._on_pilot(record)

    def _on_unit(self, record: Record) -> None:
        fields = {k: v for k, v in record.items() if k in UnitRecord.__dataclass_fields__}
        unit = UnitRecord(**{**fields, "metrics": _numbers(record.get("metrics", {})), "counted": record["time"]})
        self._clear(unit.worker, unit.kind, unit.config, unit.epoch, unit.partition)
        self.units.append(unit)
        self.device_seconds += unit.seconds * unit.width
        self.configs[unit.config].units.append(unit)

    def _on_report(self, record: Record) -> None:
        self.configs[record["config"]].reports[record["epoch"]] = _numbers(record["metrics"])

    def _on_stop(self, record: Record) -> None:
        self.configs[record["config"]].stopped = True

    def _on_failed(self, record: Record) -> None:
        config = self.configs[record["config"]]
        if config.error is None:  # what came first is the reason; units that ran beside it may fail as well
            config.error, config.traceback = record["error"], record.get("traceback")
        if "worker" in record:
            self._clear(record["worker"], record["kind"], config.id, record.get("epoch", 0), record.get("partition", 0))

    def _on_note(self, record: Record) -> None:
        self.notes.append((record["level"], record["text"]))

    def _on_plan(self, record: Record) -> None:
        self.plans.append(record)

    def _on_request(self, record: Record) -> None:
        self.requests[record["id"]] = record

    def _on_end(self, record: Record) -> None:
        self.status = record["status"]
        self.error = record.get("error")
        self._halt()

    def _see(self, worker: str, now: float, up: bool, width: int = 1) -> None:
        """A worker, or a group of so many, came or went; one that is here has no end yet."""
        spans = self.presence.setdefault(worker, [])
        if spans and spans[-1][1] == math.inf:
            spans[-1] = (spans[-1][0], now, spans[-1][2])
        if up:
            spans.append((now, math.inf, width))

    def _halt(self) -> None:
        for worker in self.workers.values():
            worker.running = None
            self._see(worker.name, self.sessions[-1][1] if self.sessions else self.now, up=False)
        for config in self.configs.values():
            config.running.clear()
            config.halted = True

    def _clear(self, worker: str, kind: str, config: str, epoch: int, partition: int) -> None:
        """A unit ended; the worker may have begun its next before this one counted."""
        if worker in self.workers and self.workers[worker].running == (kind, config, epoch, partition):
            self.workers[worker].running = None
        if self.configs[config].running.get(worker) == (kind, epoch, partition):
            del self.configs[config].running[worker]


Listener: TypeAlias = Callable[[RunRecord, Record], None]  # is called with each new line of the journal


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Metrics as numbers; the journal spells NaN and the infinities as texts."""
    return {name: float(value) for name, value in metrics.items()}


def find_journals(runs: Path) -> Iterator[Path]:
    """The journals under a repository's folder of runs, oldest first."""
    found = [path for path in runs.glob(f"*/{JOURNAL}") if path.is_file()]
    yield from sorted(found, key=lambda path: path.stat().st_ctime)
