"""What a running run writes down: its journal, the record that follows from it, and whoever listens."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from regatta.engine.controller.trials import Trial
from regatta.journal.journal import Journal, Record
from regatta.journal.record import Listener, RunRecord

FULL = (errno.ENOSPC, errno.EDQUOT)


class RunLog:
    """Writes records; each is taken into the run's record and told to the listeners at once."""

    def __init__(self, listeners: Iterable[Listener], metric: str, wait_for_room: Callable[[OSError], bool]) -> None:
        """`wait_for_room` is called when the journal's disk is full, and says whether to try again."""
        self.record = RunRecord()
        self.listeners = list(listeners)
        self._metric = metric
        self._wait_for_room = wait_for_room
        self._journal: Journal | None = None
        self._forgotten: set[tuple[str, ...]] = set()  # names of which people were warned

    def open(self, journal: Journal) -> None:
        self._journal = journal

    def write(self, event: str, then: Callable[[], None] | None = None, **fields: Any) -> None:
        """One record; `then` is called, from another thread, when it is durable."""
        assert self._journal is not None
        while True:
            try:
                line = self._journal.append(event, then, **fields)
                break
            except OSError as error:
                if error.errno not in FULL or not self._wait_for_room(error):
                    raise
        self._tell(line, self._journal.last_size)

    def settle(self) -> None:
        """Wait until what was written is durable, and states that nobody needs any more are gone."""
        assert self._journal is not None
        self._journal.settle()

    def note(self, level: str, text: str, **fields: Any) -> None:
        """Something that people should see."""
        self.write("note", None, level=level, **fields, text=text)

    def say(self, level: str, text: str) -> None:
        """The same, to be seen now and not kept: the disk may not take it."""
        self._tell({"event": "note", "time": time.time(), "level": level, "text": text})

    def warn_of_forgotten(self, config: str, names: tuple[str, ...]) -> None:
        if names and names not in self._forgotten:  # many models are of one kind
            self._forgotten.add(names)
            text = (
                f"{config}: training changes {', '.join(names)}, which no state_dict holds: each unit begins with the "
                "first value again. Make it a buffer, or give its module get_extra_state and set_extra_state."
            )
            self.note("warning", text, config=config)

    def warn_of_metrics(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> None:
        """Say once what is no number, or is not there: it ranks last."""
        wrong = [f"{name} is {value}" for name, value in metrics.items() if not math.isfinite(value)]
        if self._metric not in metrics:
            wrong.append(f"{self._metric} is missing")
        if wrong and not trial.warned:
            trial.warned = True
            self.note("warning", f"{trial.id}: {', '.join(wrong)} after epoch {epoch}", config=trial.id)

    def _tell(self, line: Record, size: int = 0) -> None:
        self.record.apply(line, size)
        for listener in self.listeners:
            listener(self.record, line)
