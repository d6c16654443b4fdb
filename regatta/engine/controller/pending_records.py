"""Records of finished units, held back until they may be written.

The record of a training unit waits until its state is durable. The records of one trial are written in the order of
its training, whatever the order in which its states became durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regatta.engine.controller.run_log import RunLog
from regatta.engine.controller.state_files import StateFiles
from regatta.engine.controller.trials import Trial
from regatta.engine.messages import TaskDone

NOT_IN_THE_JOURNAL = ("task", "warnings", "profile", "pack_profile", "group_profile")  # fields of TaskDone


@dataclass
class PendingRecord:
    event: str
    fields: dict[str, Any]
    ready: bool = True  # False: its state is not durable yet
    obsolete_state: Path | None = None  # the state that no unit needs once this record is durable
    before: tuple[Path | None, int] = (None, 0)  # state and visits of the trial before this unit


@dataclass(frozen=True)
class AwaitedState:
    """A state that can be read and is not durable yet."""

    trial: Trial
    record: PendingRecord
    worker: str


@dataclass(eq=False)
class PendingRecords:
    """Queues of records, one for each trial, and the states that they wait for."""

    run_log: RunLog
    state_files: StateFiles
    on_report: Callable[[Trial, int], None]  # called when all units of an epoch count, instead of writing a record
    delete_state: Callable[[Path], None]

    def __post_init__(self) -> None:
        self._queues: dict[str, deque[PendingRecord]] = {}  # by trial
        self._awaited: dict[Path, AwaitedState] = {}

    def __bool__(self) -> bool:
        """Whether a state is on its way to the disk."""
        return bool(self._awaited)

    def is_empty(self, trial: Trial) -> bool:
        return not self._queues.get(trial.id)

    def add_unit(self, trial: Trial, event: TaskDone, pack: str | None) -> None:
        """A unit is finished: its trial has the new state, and the record follows when that is durable."""
        task = event.task
        state = None if task.state_out is None else str(task.state_out.relative_to(self.state_files.folder))
        place = {"kind": task.kind, "config": task.config, "epoch": task.epoch, "partition": task.partition}
        results = {name: value for name, value in vars(event).items() if name not in NOT_IN_THE_JOURNAL}
        packed = {} if pack is None else {"pack": pack}
        record = PendingRecord("unit", {**place, **results, "state": state, **packed})
        record.before = trial.state, trial.visits
        self._queues.setdefault(trial.id, deque()).append(record)
        if task.state_out is not None:
            record.ready = False
            self._awaited[task.state_out] = AwaitedState(trial, record, event.worker)
            record.obsolete_state = self.state_files.obsolete_after(trial, task)
            trial.state, trial.visits = task.state_out, trial.visits + 1

    def add_report(self, trial: Trial, epoch: int) -> None:
        """All units of an epoch are finished: its report follows when they count."""
        self._queues.setdefault(trial.id, deque()).append(PendingRecord("report", {"epoch": epoch}))

    def write_ready(self, trial: Trial) -> None:
        """Write the records of a trial that are ready, in order."""
        queue = self._queues.get(trial.id, deque())
        while queue and queue[0].ready:
            record = queue.popleft()
            if record.event == "report":
                self.on_report(trial, record.fields["epoch"])
            else:
                state = record.obsolete_state
                then = None if state is None else partial(self.delete_state, state)
                self.run_log.write(record.event, then, **record.fields)

    def on_state_durable(self, path: Path, digest: str) -> None:
        awaited = self._awaited.pop(path, None)
        if awaited is not None:
            awaited.record.fields["hash"] = digest
            awaited.record.ready = True
            self.write_ready(awaited.trial)

    def on_state_lost(self, path: Path) -> AwaitedState | None:
        """A finished unit will never count: its trial goes back to the state before it."""
        awaited = self._awaited.pop(path, None)
        if awaited is not None:
            queue = self._queues[awaited.trial.id]
            while queue.pop() is not awaited.record:
                pass  # a report of the epoch that the unit ended
            awaited.trial.state, awaited.trial.visits = awaited.record.before
        return awaited

    def states_from(self, worker: str) -> list[Path]:
        """The states of a worker that are not durable yet."""
        return [path for path, awaited in self._awaited.items() if awaited.worker == worker]
