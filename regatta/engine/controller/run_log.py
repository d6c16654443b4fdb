"""Writes the journal of a running run, keeps its record up to date, and notifies listeners."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from regatta.engine.controller.trials import Trial
from regatta.journal.journal_file import Journal, Record
from regatta.journal.run_record import Listener, RunRecord

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class RunLog:
    """Writes records. Each one is applied to the run's record and passed to the listeners at once."""

    def __init__(self, listeners: Iterable[Listener], metric: str, wait_for_room: Callable[[OSError], None]) -> None:
        """When the journal's disk is full, `wait_for_room` waits until the record can be tried again."""
        self.record = RunRecord()
        self.listeners = list(listeners)
        self._metric = metric
        self._wait_for_room = wait_for_room
        self.journal: Journal | None = None  # until the run has one
        self._warnings: set[str] = set()  # that are written already

    def write(self, event: str, then: Callable[[], None] | None = None, /, **fields: Any) -> None:
        """Write one record; another thread calls `then` when the record is durable."""
        assert self.journal is not None
        while True:
            try:
                line = self.journal.append(event, then, **fields)
                break
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                self._wait_for_room(error)
        self._publish(line, self.journal.last_size)

    def settle(self) -> None:
        """Wait until all records are durable and the state files that they make obsolete are deleted."""
        assert self.journal is not None
        self.journal.settle()

    def declare(self, trial: Trial) -> None:
        """Write what is wanted of a trial, unless the journal has it already."""
        known = self.record.configs.get(trial.id)
        restarted = known is not None and known.stopped and not trial.stopped
        if known is None or known.epochs != trial.epochs or restarted:
            wanted = {"values": dict(trial.values), "epochs": trial.epochs}
            parent = {"parent": trial.parent, "parent_epoch": trial.parent_epoch}
            self.write("config", config=trial.id, **wanted, **parent)
        if trial.stopped and not self.record.configs[trial.id].stopped:
            self.write("stop", config=trial.id)

    def note(self, level: str, text: str, **fields: Any) -> None:
        self.write("note", level=level, **fields, text=text)

    def show(self, level: str, text: str) -> None:
        """Show a message to users without writing it: the disk may be full."""
        self._publish({"event": "note", "time": time.time(), "level": level, "text": text})

    def warn_of_unsaved(self, config: str, names: tuple[str, ...]) -> None:
        """Warn once of attributes that training changes and no state holds."""
        if names:
            text = (
                f"training changes {', '.join(names)}, which no state_dict holds: each unit begins with the "
                "first value again. Make it a buffer, or give its module get_extra_state and set_extra_state."
            )
            self.warn_once(config, [text])

    def warn_once(self, config: str, texts: Iterable[str]) -> None:
        """Write warnings of a configuration, unless they were written for another one: many models are alike."""
        for text in texts:
            if text not in self._warnings:
                self._warnings.add(text)
                self.note("warning", f"{config}: {text}", config=config)

    def warn_of_metrics(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> None:
        """Warn once of metrics that are missing or not finite: such a trial ranks last."""
        wrong = [f"{name} is {value}" for name, value in metrics.items() if not math.isfinite(value)]
        if self._metric not in metrics:
            wrong.append(f"{self._metric} is missing")
        if wrong and not trial.warned:
            trial.warned = True
            self.note("warning", f"{trial.id}: {', '.join(wrong)} after epoch {epoch}", config=trial.id)

    def _publish(self, line: Record, size: int = 0) -> None:
        self.record.apply(line, size)
        for listener in self.listeners:
            listener(self.record, line)
