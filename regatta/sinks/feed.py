"""A sink follows a run by reading its journal, on a thread of its own.

The journal is the queue: the run only wakes the thread when something is reported, holds nothing in memory for it, and
never waits for it. A sink that raises is switched off and a note says so; `export` sends the journal later.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from regatta.journal.journal import Journal, Record, read_journal
from regatta.journal.record import Listener, RunRecord
from regatta.paths import run_journal
from regatta.sinks.base import Given, Sink, usable_sinks

PATIENCE = 60.0  # seconds that a run's end waits for its sinks
FREQUENT = frozenset(("start", "unit", "pilot"))  # most of a journal; a sink reads them when something is to be told
Lines: TypeAlias = Iterator[Record]


class Feed:
    """One sink that follows one run."""

    def __init__(self, sink: Sink, folder: Path) -> None:
        self.failure: str | None = None
        self._sink, self._folder = sink, folder
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._body, name=f"sink {type(sink).__name__}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is more in the journal."""
        if not self._wake.is_set():
            self._wake.set()

    def close(self, deadline: float) -> None:
        """Let it come to the end of the journal, but not forever."""
        self._closing = True
        self._wake.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self.failure = f"is still writing {PATIENCE:g} seconds after the end"

    def describe(self) -> str:
        """The failure, and what to do about it."""
        kind = type(self._sink).__name__.lower()
        again = f"`regatta show {self._folder.name} --export {kind}` sends all of the run to it again"
        return f"the sink {kind} {self.failure}; the run goes on without it, and {again}"

    def _body(self) -> None:
        try:
            send(self._lines(), self._sink, self._folder)
        except Exception as error:  # noqa: BLE001 (other people's code and servers: no error of theirs ends a run)
            lines = str(error).strip().splitlines() or ["without a message"]
            self.failure = f"failed with {type(error).__name__}: {lines[0]}"

    def _lines(self) -> Lines:
        self._wake.wait()  # the first record makes the file
        if self._closing and not run_journal(self._folder).exists():
            return
        with run_journal(self._folder).open("rb") as file:
            while True:
                last = self._closing  # looked at first: what was written before it is read below
                self._wake.clear()
                while (line := file.readline()).endswith(b"\n"):
                    yield json.loads(line)
                file.seek(-len(line), os.SEEK_CUR)  # a line that is being written
                if last:
                    return
                self._wake.wait()


def send(lines: Iterable[Record], sink: Sink, folder: Path) -> str:
    """A journal's lines through a sink, which folds them for itself; where people find what came of it."""
    record, writer = RunRecord(), None
    for line in lines:
        record.apply(line)
        writer = writer or sink.open(folder)
        writer.write(record, line)
    if writer is None:
        return ""
    writer.close()
    return writer.place


def export(folder: Path, sink: Given) -> str:
    """Send the journal of a run, ended or not, through a sink; where people find what came of it."""
    (usable,) = usable_sinks([sink])
    return send(read_journal(run_journal(folder)), usable, folder)


@contextmanager
def following(
    sinks: Sequence[Sink], folder: Path, tell: Sequence[Listener] = (), patience: float = PATIENCE
) -> Iterator[tuple[Listener, ...]]:
    """Listeners that keep the sinks going; at the end all that is in the journal is with them.

    What goes wrong with one is a note: heard by the listeners in `tell` at once, in the journal when the run is over.
    """
    if not sinks:
        yield ()
        return
    watch = _FeedListener([Feed(sink, folder) for sink in sinks], folder, tell)
    try:
        yield (watch,)
    finally:
        watch.close(patience)


class _FeedListener:
    """Wakes the feeds, on the controller's thread, and says once what became of one that failed."""

    def __init__(self, feeds: list[Feed], folder: Path, tell: Sequence[Listener]) -> None:
        self._feeds, self._folder, self._tell = feeds, folder, tell
        self._record: RunRecord | None = None
        self._notes: list[str] = []

    def __call__(self, record: RunRecord, line: Record) -> None:
        self._record = record
        if line["event"] in FREQUENT:
            return
        for feed in self._feeds:
            feed.wake()
            if feed.failure is not None:
                self._say(feed)

    def close(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        for feed in list(self._feeds):
            feed.close(deadline)
            if feed.failure is not None:
                self._say(feed)
        if self._notes and run_journal(self._folder).exists():
            journal = Journal(run_journal(self._folder))
            for text in self._notes:
                journal.append("note", level="warning", text=text)
            journal.close()

    def _say(self, feed: Feed) -> None:
        self._feeds = [other for other in self._feeds if other is not feed]
        text = feed.describe()
        self._notes.append(text)
        note: Record = {"event": "note", "time": time.time(), "level": "warning", "text": text}
        if self._record is not None:
            self._record.apply(note)
            for listener in self._tell:
                listener(self._record, note)
