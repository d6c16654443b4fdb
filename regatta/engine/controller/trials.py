"""The way of each configuration through a run: what is wanted of it, how far it is, what waits to be written.

`Trials` is told what the search and people want, in the order of the journal: once while it happens, and again, from
the journal, when a run is resumed. The same calls in the same order lead to the same trials.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regatta.configuration import Scalar, config_id
from regatta.errors import RegattaError
from regatta.journal.journal import Record
from regatta.journal.record import ConfigRecord, UnitRecord
from regatta.search.base import Action, Goal, Report, Search, Stop, Train


@dataclass
class PendingRecord:
    """A record that waits for its turn in the journal."""

    event: str
    fields: dict[str, Any]
    ready: bool = True  # not before its state is durable
    spent: Path | None = None  # the state that nobody needs once this is durable
    before: tuple[Path | None, int] = (None, 0)  # the trial's state and visits, should it never count


@dataclass(eq=False)
class Trial:
    """The way of one configuration through the run."""

    id: str
    values: Mapping[str, Scalar]
    epochs: int
    most: int = 0  # epochs that the search may come to want
    parent: str | None = None
    parent_epoch: int | None = None  # it begins with the parent's state after that epoch; None: afresh
    searched: int = 0  # epochs that the search wants: what people want beyond is none of its business
    asked: int = 0  # epochs that people want
    stopped: bool = False
    failed: bool = False
    written_off: bool = False  # the search was told that nothing more will come
    unheard: list[Report] = field(default_factory=list)  # of epochs that the search did not want yet
    origin: Path | None = None  # the parent's state, as long as it has none of its own
    state: Path | None = None  # the newest that can be read
    visits: int = 0  # of the present epoch
    pending: deque[PendingRecord] = field(default_factory=deque)
    kills: int = 0  # workers lost since it last got on
    scheduled: bool = False
    alone: bool = False  # not in a pack: one that it was in took a worker with it
    warned: bool = False


class Trials:
    """The trials of a run, and the search that asks for most of them."""

    def __init__(self, search: Search, goal: Goal) -> None:
        self._search = search
        self._goal = goal
        self._trials: dict[str, Trial] = {}
        self._reported: dict[str, int] = {}  # the last epoch of which was told

    def __getitem__(self, config: str) -> Trial:
        return self._trials[config]

    def __contains__(self, config: str) -> bool:
        return config in self._trials

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._trials.values())

    def start(self) -> list[Trial]:
        return self._take(self._search.start(self._goal))

    def replay_record(self, line: Record) -> None:
        """Take in a record of the journal as it was taken in when it was written."""
        event = line["event"]
        if event == "report":
            metrics = {name: float(value) for name, value in line["metrics"].items()}
            self.report(line["config"], line["epoch"], metrics, line["elapsed"], line["device_seconds"])
        elif event == "failed":
            self.fail(line["config"], line["epoch"])
        elif event == "request" and line["answer"]["done"]:
            self.apply_request(line)

    def report(
        self, config: str, epoch: int, metrics: Mapping[str, float], elapsed: float, device_seconds: float
    ) -> list[Trial]:
        """An epoch counts; the trials that the search changes for it."""
        trial = self._trials[config]
        if trial.failed:  # in a later epoch, while this one was still judged
            return []
        self._reported[config] = max(epoch, self._reported.get(config, 0))
        trial.unheard.append(Report(config, trial.values, epoch, metrics, False, elapsed, device_seconds))
        return self._take(self._catch_up(trial))

    def fail(self, config: str, epoch: int) -> list[Trial]:
        """Nothing more will come of it."""
        trial = self._trials[config]
        trial.failed = True
        return self._write_off(trial, epoch)

    def apply_request(self, request: Record) -> list[Trial]:
        """Do what people asked for, which was checked."""
        trial = self._trials[request["config"]]
        if request["verb"] == "stop":
            trial.stopped = True
            return [trial, *self._write_off(trial, self._reported.get(trial.id, 0))]
        if request["verb"] == "clone":
            name, epochs = config_id(request["values"]), request["epochs"]
            clone = Trial(name, request["values"], epochs, 0, trial.id, request["parent_epoch"], asked=epochs)
            self._trials[name] = clone
            return [clone]
        trial.stopped = False
        trial.epochs = trial.asked = request["epochs"]
        return [trial]

    def _write_off(self, trial: Trial, epoch: int) -> list[Trial]:
        """A rung or a generation must not wait for what will never come."""
        if trial.written_off or not trial.searched:
            return []
        trial.written_off = True
        return self._take(self._search.hear(Report(trial.id, trial.values, epoch, {}, failed=True)))

    def _take(self, actions: Iterable[Action]) -> list[Trial]:
        """Act, and on what the search answers to what is known of these trials already."""
        changed, open_actions = [], deque(actions)
        while open_actions:
            action = open_actions.popleft()
            changed.append(self._stop(action) if isinstance(action, Stop) else self._train(action))
            open_actions.extend(self._catch_up(changed[-1]))
        return changed

    def _catch_up(self, trial: Trial) -> list[Action]:
        """Tell the search what it wants to know: people may have had a trial trained before it asked."""
        if trial.written_off or not trial.searched:
            return []
        due = [report for report in trial.unheard if report.epoch <= trial.searched]
        trial.unheard = [report for report in trial.unheard if report.epoch > trial.searched]
        if trial.failed:
            trial.written_off = True
            due.append(Report(trial.id, trial.values, self._reported.get(trial.id, 0), {}, failed=True))
        return [action for report in due for action in self._search.hear(report)]

    def _stop(self, action: Stop) -> Trial:
        trial = self._trials[action.config]
        trial.stopped = True
        return trial

    def _train(self, action: Train) -> Trial:
        name = config_id(action.config)
        trial = self._trials.get(name)
        if trial is None:
            trial = self._trials[name] = Trial(name, action.config, action.epochs, parent=action.parent)
            trial.parent_epoch = None if action.parent is None else self._state_of(action.parent)
        trial.searched, trial.most = action.epochs, action.most
        trial.epochs = max(trial.searched, trial.asked)
        trial.stopped = False
        trial.written_off &= trial.failed
        return trial

    def _state_of(self, parent: str) -> int:
        """The last epoch of a parent that counts: what its children begin with."""
        if parent not in self._reported:
            raise RegattaError(f"The search wants a child of {parent}, of which no epoch is trained yet.")
        return self._reported[parent]


def summary(config: ConfigRecord, epoch: int) -> dict[str, float]:
    """The metrics of an epoch: means over its units, weighted by rows; the same whatever came first."""
    units = [unit for unit in config.units if unit.epoch == epoch]
    sums: dict[str, tuple[float, int]] = {}
    for unit in sorted(units, key=lambda unit: (unit.kind, unit.partition)):
        for name, value in unit.metrics.items():
            total, seen = sums.get(name, (0.0, 0))
            sums[name] = total + value * unit.rows, seen + unit.rows
    return {name: total / max(1, seen) for name, (total, seen) in sorted(sums.items())}


@dataclass(frozen=True)
class Progress:
    """How far a configuration is by what counts: whole epochs, what of the next, and evaluations still due."""

    epochs: int
    visited: tuple[int, ...]
    evals: tuple[tuple[int, int], ...]  # epoch, partition
    reports: tuple[int, ...]  # epochs whose units are all there, but not their report


def progress(config: ConfigRecord, partitions: int, eval_partitions: int) -> Progress:
    trained: dict[int, list[UnitRecord]] = {}
    judged: set[tuple[int, int]] = set()
    for unit in config.units:
        if unit.kind == "train":
            trained.setdefault(unit.epoch, []).append(unit)
        elif unit.kind == "eval":
            judged.add((unit.epoch, unit.partition))
    epochs = 0
    while len(trained.get(epochs + 1, ())) == partitions:
        epochs += 1
    visited = tuple(unit.partition for unit in trained.get(epochs + 1, ()))
    unreported = [epoch for epoch in range(1, epochs + 1) if epoch not in config.reports]
    due = {epoch: [p for p in range(eval_partitions) if (epoch, p) not in judged] for epoch in unreported}
    evals = tuple((epoch, partition) for epoch, missing in due.items() for partition in missing)
    return Progress(epochs, visited, evals, tuple(epoch for epoch, missing in due.items() if not missing))
