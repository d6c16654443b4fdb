"""The state of a run, folded from the records of its journal.

The controller applies each record as it writes it, and `RunRecord.read` applies a whole file. So the display, `show`
and `Run` look at the same object, whether the run is still going or ended long ago.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from regatta.configuration import Scalar
from regatta.errors import CorruptError, NewerVersionError
from regatta.journal import accounting
from regatta.journal.journal_file import Record, read_lines
from regatta.paths import JOURNAL

Status = Literal["running", "done", "failed", "interrupted"]
ConfigStatus = Literal["waiting", "training", "done", "stopped", "failed", "interrupted"]


@dataclass(frozen=True)
class UnitRecord:
    """One unit that counts."""

    kind: Literal["train", "eval", "pilot"]
    config: str
    epoch: int
    partition: int
    worker: str
    start: float
    end: float
    rows: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    hop_bytes: int = 0  # the size of the state; 0: no hop
    hop_seconds: float = 0.0  # that fetching the state took
    load_seconds: float = 0.0
    save_seconds: float = 0.0
    sync_seconds: float = 0.0  # that the workers of a group exchanged gradients and waited for each other
    width: int = 1
    state: str | None = None
    hash: str | None = None
    pack: str | None = None  # each member of a pack has its share of the time
    counted: float = 0.0  # when its record was written

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class ConfigRecord:
    id: str
    values: dict[str, Scalar]
    epochs: int
    parent: str | None = None
    parent_epoch: int | None = None  # it started from the parent's state after that epoch
    reports: dict[int, dict[str, float]] = field(default_factory=dict)
    units: list[UnitRecord] = field(default_factory=list)
    running: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # worker: kind, epoch, partition
    stopped: bool = False
    halted: bool = False  # the run ended before this configuration was done
    error: str | None = None
    traceback: str | None = None
    journal_bytes: int = 0

    @property
    def epoch(self) -> int:
        """The last reported epoch, 0 before the first."""
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

    def retry(self) -> None:
        """Forget that it failed: it goes on from its last state."""
        self.error = self.traceback = None

    def series(self, metric: str) -> list[float]:
        """The value of a metric after each reported epoch, NaN where it is missing."""
        return [self.reports[epoch].get(metric, math.nan) for epoch in sorted(self.reports)]

    def best(self, metric: str, mode: str) -> tuple[int, float] | None:
        """The epoch with the best finite value of the metric, and that value; None if there is none."""
        sign = 1.0 if mode == "min" else -1.0
        values = ((sign * m.get(metric, math.nan), epoch) for epoch, m in self.reports.items())
        finite = [(value, epoch) for value, epoch in values if math.isfinite(value)]
        if not finite:
            return None
        value, epoch = min(finite)
        return epoch, sign * value

    def iterations(self, epoch: int) -> int:
        """The batches of all training units up to an epoch; a partition's last, smaller batch is one as well.

        0 for a configuration without a batch size.
        """
        size = self.values.get("batch_size")
        if not isinstance(size, int) or size < 1:
            return 0
        return sum(-(-unit.rows // size) for unit in self.units if unit.kind == "train" and unit.epoch <= epoch)

    def visits(self, epoch: int) -> list[int]:
        """The partitions of an epoch, in the order of training."""
        return [u.partition for u in self.units if u.kind == "train" and u.epoch == epoch]


@dataclass
class WorkerRecord:
    name: str
    up: bool = True
    info: dict[str, Any] = field(default_factory=dict)
    running: tuple[str, str, int, int] | None = None  # kind, config, epoch, partition
    since: float = 0.0


@dataclass
class RunRecord:
    name: str = ""
    header: Record = field(default_factory=dict)
    status: Status = "running"
    error: str | None = None
    configs: dict[str, ConfigRecord] = field(default_factory=dict)
    workers: dict[str, WorkerRecord] = field(default_factory=dict)
    units: list[UnitRecord] = field(default_factory=list)  # in the order in which they counted
    notes: list[tuple[str, str]] = field(default_factory=list)  # level, text
    journal_bytes: int = 0
    device_seconds: float = 0.0  # of training and evaluation, summed over workers
    started: float = 0.0
    now: float = 0.0  # the time of the last record
    sessions: list[tuple[float, float]] = field(default_factory=list)  # each controller's start and last record
    presence: dict[str, list[tuple[float, float, int]]] = field(default_factory=dict)  # from, until, width
    requests: dict[str, Record] = field(default_factory=dict)  # by id, with their answers
    profiles: list[Record] = field(default_factory=list)  # what a few batches of each model have shown
    plans: list[Record] = field(default_factory=list)  # the first plan and later ones, with their reasons

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        record = cls()
        try:
            for line, size in read_lines(path):
                record.apply(line, size)
        except NewerVersionError as error:
            error.place = str(path)
            raise
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
        """Update the state with one record of the journal, which takes `size` bytes there."""
        handler = _HANDLERS.get(record["event"])
        if handler is None:
            raise NewerVersionError(
                f"This journal was written by a newer version of Regatta: it has records of kind {record['event']!r}.",
                hint="Upgrade Regatta to read this run.",
            )
        if record["event"] != "rename":  # no controller was running then
            self.now = max(self.now, float(record.get("time", 0.0)))
            if self.sessions and record["event"] != "resume":
                self.sessions[-1] = (self.sessions[-1][0], self.now)
        handler(self, record)
        self.journal_bytes += size
        if record.get("config") in self.configs:
            self.configs[record["config"]].journal_bytes += size

    @property
    def elapsed(self) -> float:
        """Seconds during which a controller was running."""
        return sum(end - start for start, end in self.sessions)

    @property
    def plan(self) -> dict[str, Any] | None:
        """The plan at the start of the run, in the form of `Plan.to_json`."""
        return next((line["plan"] for line in self.plans if line["plan"] is not None), None)

    def interrupt(self, error: str | None = None) -> None:
        """The run stopped before its end."""
        self.status, self.error = "interrupted", error
        self._halt()

    def leaderboard(self) -> list[ConfigRecord]:
        """Configurations by their best value, best first; those without a finite value last."""
        sign = 1.0 if self.mode == "min" else -1.0

        def key(config: ConfigRecord) -> tuple[bool, float]:
            best = config.best(self.metric, self.mode)
            return (best is None, sign * best[1] if best else 0.0)

        return sorted(self.configs.values(), key=key)

    def progress(self) -> tuple[int, int]:
        """The number of training units that count, and of all that are wanted so far."""
        partitions = len(self.header["dataset"]["train"])
        done = sum(unit.kind == "train" for unit in self.units)
        active = (c for c in self.configs.values() if c.status not in ("failed", "stopped"))
        open_units = sum(c.epochs * partitions - sum(u.kind == "train" for u in c.units) for c in active)
        return done, done + max(0, open_units)

    resources = accounting.resources
    worker_accounts = accounting.worker_accounts
    most_workers = accounting.most_workers
    account = accounting.account

    def _on_run(self, record: Record) -> None:
        self.header = record
        self.name = record["name"]
        self.started = record["time"]
        self.sessions.append((record["time"], record["time"]))

    def _on_rename(self, record: Record) -> None:
        self.name = record["name"]

    def _on_resume(self, record: Record) -> None:
        self._halt()  # no unit of the last controller is running any more
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
        width = int(info.get("width", 1))
        if worker.name not in self.presence:
            self._widen_pilots(worker.name, width)
        self._mark_presence(worker.name, record["time"], worker.up, width)
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
        kind, config, epoch, partition = (record[name] for name in ("kind", "config", "epoch", "partition"))
        worker.running, worker.since = (kind, config, epoch, partition), record["time"]
        self.configs[config].running[worker.name] = (kind, epoch, partition)

    def _on_profile(self, record: Record) -> None:
        """Some batches were measured: of one model, of a pack, or by a group of workers."""
        if "train_seconds_per_row" in record:
            self.profiles.append(record)
        if record.get("cached"):
            return  # an earlier run spent the time
        start, end, width = record["start"], record["end"], record.get("width", 1)
        self.units.append(UnitRecord("pilot", record["config"], 0, 0, record["worker"], start, end, width=width))

    def _on_unit(self, record: Record) -> None:
        fields = {k: v for k, v in record.items() if k in UnitRecord.__dataclass_fields__}
        unit = UnitRecord(**{**fields, "metrics": _numbers(record.get("metrics", {})), "counted": record["time"]})
        self._end_running(unit.worker, unit.kind, unit.config, unit.epoch, unit.partition)
        self.units.append(unit)
        self.device_seconds += unit.seconds * unit.width
        self.configs[unit.config].units.append(unit)

    def _on_report(self, record: Record) -> None:
        self.configs[record["config"]].reports[record["epoch"]] = _numbers(record["metrics"])

    def _on_stop(self, record: Record) -> None:
        self.configs[record["config"]].stopped = True

    def _on_request(self, record: Record) -> None:
        self.requests[record["id"]] = record
        if record["verb"] == "retry" and record["answer"]["done"]:
            self.configs[record["config"]].retry()

    def _on_failed(self, record: Record) -> None:
        config = self.configs[record["config"]]
        if config.error is None:  # the first error is the reason; units that ran at the same time may fail too
            config.error, config.traceback = record["error"], record.get("traceback")
        if "worker" in record:
            place = record.get("epoch", 0), record.get("partition", 0)
            self._end_running(record["worker"], record["kind"], config.id, *place)

    def _on_end(self, record: Record) -> None:
        self.status = record["status"]
        self.error = record.get("error")
        self._halt()

    def _widen_pilots(self, worker: str, width: int) -> None:
        """Count all members of a group that profiled models before it was declared to be up."""
        for number, unit in enumerate(self.units):
            if unit.worker == worker and unit.kind == "pilot" and unit.width < width:
                self.units[number] = replace(unit, width=width)

    def _mark_presence(self, worker: str, now: float, up: bool, width: int = 1) -> None:
        """A worker, or a group of `width` workers, is up or down from now on; while it is up its span has no end."""
        spans = self.presence.setdefault(worker, [])
        if not spans and not up:  # it died while it profiled models, before it was declared to be up
            first = min((unit.start for unit in self.units if unit.worker == worker), default=now)
            spans.append((first, now, width))
        elif spans and spans[-1][1] == math.inf:
            spans[-1] = (spans[-1][0], now, spans[-1][2])
        if up:
            spans.append((now, math.inf, width))

    def _halt(self) -> None:
        for worker in self.workers.values():
            worker.running = None
            self._mark_presence(worker.name, self.sessions[-1][1] if self.sessions else self.now, up=False)
        for config in self.configs.values():
            config.running.clear()
            config.halted = True

    def _end_running(self, worker: str, kind: str, config: str, epoch: int, partition: int) -> None:
        """A unit ended. The worker may have started its next unit before this one counted."""
        if worker in self.workers and self.workers[worker].running == (kind, config, epoch, partition):
            self.workers[worker].running = None
        if self.configs[config].running.get(worker) == (kind, epoch, partition):
            del self.configs[config].running[worker]


Listener: TypeAlias = Callable[[RunRecord, Record], None]  # is called with each new line of the journal


# Every kind of record in the journal (`journal.EVENTS`) and what it changes.
_HANDLERS: Mapping[str, Callable[[RunRecord, Record], None]] = {
    "run": RunRecord._on_run,
    "resume": RunRecord._on_resume,
    "worker": RunRecord._on_worker,
    "config": RunRecord._on_config,
    "pilot": RunRecord._on_profile,
    "packs": RunRecord._on_profile,
    "groups": RunRecord._on_profile,
    "plan": lambda run, record: run.plans.append(record),
    "start": RunRecord._on_start,
    "unit": RunRecord._on_unit,
    "report": RunRecord._on_report,
    "stop": RunRecord._on_stop,
    "request": RunRecord._on_request,
    "failed": RunRecord._on_failed,
    "note": lambda run, record: run.notes.append((record["level"], record["text"])),
    "rename": RunRecord._on_rename,
    "end": RunRecord._on_end,
}


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Metrics as numbers: in the journal NaN and the infinities are text."""
    return {name: float(value) for name, value in metrics.items()}


def find_journals(runs: Path) -> Iterator[Path]:
    """The journals below a folder of runs, oldest first."""
    found = [path for path in runs.glob(f"*/{JOURNAL}") if path.is_file()]
    yield from sorted(found, key=lambda path: path.stat().st_ctime)
