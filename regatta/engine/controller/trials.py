"""The training of each configuration: what is wanted of it and how far it is.

`Trials` applies what the search and users want, in the order of the journal: once while it happens, and again from the
journal when a run is resumed. The same calls in the same order give the same trials.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from regatta.configuration import Scalar, config_id
from regatta.errors import RegattaError
from regatta.journal.journal_file import Record
from regatta.journal.run_record import ConfigRecord, UnitRecord
from regatta.search.base import Action, Goal, Report, Search, Stop, Train


@dataclass(eq=False)
class Trial:
    """The training of one configuration in a run."""

    id: str
    values: Mapping[str, Scalar]
    epochs: int  # wanted by the search or by users, whichever is more
    most: int = 0  # epochs that the search may want later
    parent: str | None = None
    parent_epoch: int | None = None  # it starts from the parent's state after that epoch; None: from a new model
    search_epochs: int = 0  # wanted by the search, which does not hear of later epochs
    user_epochs: int = 0  # wanted by users
    stopped: bool = False
    failed: bool = False
    held: bool = False  # gets no units until it is known whether it has failed, or until it is tried again
    closed: bool = False  # the search knows that no more reports will come
    held_back: list[Report] = field(default_factory=list)  # of epochs that the search has not asked for yet
    initial_state: Path | None = None  # the parent's state, until the trial has one of its own
    state: Path | None = None  # the newest that can be read
    visits: int = 0  # units of the present epoch
    scheduled: bool = False
    alone: bool = False  # never in a pack: a worker was lost while training a pack with it
    warned: bool = False

    @property
    def active(self) -> bool:
        return not (self.stopped or self.failed or self.held)


class Trials:
    """The trials of a run, and the search that asks for them."""

    def __init__(self, search: Search, goal: Goal) -> None:
        self._search = search
        self._goal = goal
        self._trials: dict[str, Trial] = {}
        self._reported: dict[str, int] = {}  # the last epoch of each trial

    @property
    def counts_iterations(self) -> bool:
        """Whether reports to the search say how many batches a configuration has trained."""
        return bool(getattr(self._search, "counts_iterations", False))

    def __getitem__(self, config: str) -> Trial:
        return self._trials[config]

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._trials.values())

    def start(self) -> list[Trial]:
        return self._apply(self._search.start(self._goal))

    def replay_record(self, line: Record) -> None:
        """Apply a record of the journal as it was applied when it was written."""
        event = line["event"]
        if event == "report":
            metrics = {name: float(value) for name, value in line["metrics"].items()}
            costs = line["elapsed"], line["device_seconds"], line.get("iterations", 0)
            self.report(line["config"], line["epoch"], metrics, *costs)
        elif event == "failed":
            self.fail(line["config"], line["epoch"])
        elif event == "request" and line["answer"]["done"]:
            self.apply_request(line)

    def report(
        self,
        config: str,
        epoch: int,
        metrics: Mapping[str, float],
        elapsed: float,
        device_seconds: float,
        iterations: int = 0,
    ) -> list[Trial]:
        """An epoch counts. Returns the trials that the search changes because of it."""
        trial = self._trials[config]
        if trial.failed:  # in a later epoch, while this one was still being evaluated
            return []
        self._reported[config] = max(epoch, self._reported.get(config, 0))
        costs = elapsed, device_seconds, iterations
        trial.held_back.append(Report(config, trial.values, epoch, metrics, False, *costs))
        return self._apply(self._report_to_search(trial))

    def fail(self, config: str, epoch: int) -> list[Trial]:
        """A trial has failed. Returns the trials that the search changes because of it."""
        trial = self._trials[config]
        trial.failed = True
        return self._close(trial, epoch)

    def apply_request(self, request: Record) -> list[Trial]:
        """Do what a user asked for; the request was checked before."""
        trial = self._trials[request["config"]]
        if request["verb"] == "stop":
            trial.stopped = True
            return [trial, *self._close(trial, self._reported.get(trial.id, 0))]
        if request["verb"] == "clone":
            name, epochs = config_id(request["values"]), request["epochs"]
            clone = Trial(name, request["values"], epochs, 0, trial.id, request["parent_epoch"], user_epochs=epochs)
            self._trials[name] = clone
            return [clone]
        if request["verb"] == "retry":
            trial.failed = False  # the search knows of the failure, and gets no reports of later epochs
            return [trial]
        trial.stopped = False
        trial.epochs = trial.user_epochs = request["epochs"]
        return [trial]

    def _close(self, trial: Trial, epoch: int) -> list[Trial]:
        """Tell the search that no more reports will come: a rung must not wait for them."""
        if trial.closed or not trial.search_epochs:
            return []
        trial.closed = True
        return self._apply(self._search.hear(Report(trial.id, trial.values, epoch, {}, failed=True)))

    def _apply(self, actions: Iterable[Action]) -> list[Trial]:
        """Apply actions of the search, and those with which it answers reports that were held back."""
        changed, queue = [], deque(actions)
        while queue:
            action = queue.popleft()
            changed.append(self._stop(action) if isinstance(action, Stop) else self._train(action))
            queue.extend(self._report_to_search(changed[-1]))
        return changed

    def _report_to_search(self, trial: Trial) -> list[Action]:
        """Report the epochs that the search asked for; users may have had more trained."""
        if trial.closed or not trial.search_epochs:
            return []
        due = [report for report in trial.held_back if report.epoch <= trial.search_epochs]
        trial.held_back = [report for report in trial.held_back if report.epoch > trial.search_epochs]
        if trial.failed:
            trial.closed = True
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
            if action.parent is not None:  # it starts from the parent's last epoch that counts
                if action.parent not in self._reported:
                    what = f"a child of {action.parent}, but no epoch of {action.parent} is trained yet"
                    raise RegattaError(f"The search wants {what}.")
                trial.parent_epoch = self._reported[action.parent]
        trial.search_epochs, trial.most = action.epochs, action.most
        trial.epochs = max(trial.search_epochs, trial.user_epochs)
        trial.stopped = False
        trial.closed &= trial.failed
        return trial


def summary(config: ConfigRecord, epoch: int) -> dict[str, float]:
    """The metrics of an epoch: means over its units, weighted by rows, whatever the order of the units."""
    units = [unit for unit in config.units if unit.epoch == epoch]
    sums: dict[str, tuple[float, int]] = {}
    for unit in sorted(units, key=lambda unit: (unit.kind, unit.partition)):
        for name, value in unit.metrics.items():
            total, seen = sums.get(name, (0.0, 0))
            sums[name] = total + value * unit.rows, seen + unit.rows
    return {name: total / max(1, seen) for name, (total, seen) in sorted(sums.items())}


@dataclass(frozen=True)
class Progress:
    """How far a configuration is, by the units that count."""

    epochs: int  # that are trained on all partitions
    visited: tuple[int, ...]  # partitions of the next epoch
    evals: tuple[tuple[int, int], ...]  # evaluations that are missing: epoch, partition
    reports: tuple[int, ...]  # epochs that have all units but no report


def progress(config: ConfigRecord, partitions: int, eval_partitions: int) -> Progress:
    trained: dict[int, list[UnitRecord]] = {}
    evaluated: set[tuple[int, int]] = set()
    for unit in config.units:
        if unit.kind == "train":
            trained.setdefault(unit.epoch, []).append(unit)
        elif unit.kind == "eval":
            evaluated.add((unit.epoch, unit.partition))
    epochs = 0
    while len(trained.get(epochs + 1, ())) == partitions:
        epochs += 1
    visited = tuple(unit.partition for unit in trained.get(epochs + 1, ()))
    unreported = [epoch for epoch in range(1, epochs + 1) if epoch not in config.reports]
    due = {epoch: [p for p in range(eval_partitions) if (epoch, p) not in evaluated] for epoch in unreported}
    evals = tuple((epoch, partition) for epoch, missing in due.items() for partition in missing)
    return Progress(epochs, visited, evals, tuple(epoch for epoch, missing in due.items() if not missing))
