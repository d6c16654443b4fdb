"""Sinks follow a run by reading its journal, each on a thread of its own.

The journal is the queue. The run only wakes the thread when there is a report; it holds nothing in memory for the sink
and never waits for it. A sink that raises is switched off, with a note. `export` sends a journal later.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from regatta.journal.journal_file import Journal, Record, read_journal
from regatta.journal.run_record import Listener, RunRecord
from regatta.paths import JOURNAL
from regatta.sinks.base import Sink, SinkInput, usable_sinks

CLOSE_TIMEOUT_S = 60.0  # for the sinks, at the end of a run
FREQUENT = frozenset(("start", "unit", "pilot"))  # most of a journal; sinks are not woken for them


class Feed:
    """One sink that follows one run, on a thread."""

    def __init__(self, sink: Sink, folder: Path) -> None:
        self.failure: str | None = None
        self._sink, self._folder = sink, folder
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._body, name=f"sink {type(sink).__name__}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread that the journal has new lines."""
        if not self._wake.is_set():
            self._wake.set()

    def close(self, deadline: float) -> None:
        """Let the sink reach the end of the journal, until the deadline."""
        self._closing = True
        self._wake.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self.failure = f"is still writing {CLOSE_TIMEOUT_S:g} seconds after the end"

    def describe(self) -> str:
        """The failure, and the remedy."""
        kind = type(self._sink).__name__.lower()
        again = f"`regatta show {self._folder.name} --export {kind}` sends the whole run again"
        return f"the sink {kind} {self.failure}; the run continues without it, and {again}"

    def _body(self) -> None:
        try:
            send(self._lines(), self._sink, self._folder)
        except Exception as error:  # noqa: BLE001 (no error of a sink ends a run)
            lines = str(error).strip().splitlines() or ["without a message"]
            self.failure = f"failed with {type(error).__name__}: {lines[0]}"

    def _lines(self) -> Iterator[Record]:
        self._wake.wait()  # the first record creates the file
        if self._closing and not (self._folder / JOURNAL).exists():
            return
        with (self._folder / JOURNAL).open("rb") as file:
            while True:
                last = self._closing  # read before the file, so that all lines before `close` are sent
                self._wake.clear()
                while (line := file.readline()).endswith(b"\n"):
                    yield json.loads(line)
                file.seek(-len(line), os.SEEK_CUR)  # an incomplete line
                if last:
                    return
                self._wake.wait()


def send(lines: Iterable[Record], sink: Sink, folder: Path) -> str:
    """Send the lines of a journal to a sink, and return where users find the output."""
    record, writer = RunRecord(), None
    for line in lines:
        record.apply(line)
        writer = writer or sink.open(folder)
        writer.write(record, line)
    if writer is None:
        return ""
    writer.close()
    return writer.place


def export(folder: Path, sink: SinkInput) -> str:
    """Send the journal of a run, in progress or past, to a sink, and return where users find the output."""
    (usable,) = usable_sinks([sink])
    return send(read_journal(folder / JOURNAL), usable, folder)


@contextmanager
def following(
    sinks: Sequence[Sink], folder: Path, tell: Sequence[Listener] = (), patience: float = CLOSE_TIMEOUT_S
) -> Iterator[tuple[Listener, ...]]:
    """A listener that wakes the sinks; at the end, the sinks get the rest of the journal.

    A failure of a sink is a note: `tell` get it at once, and it is in the journal after the run.
    """
    if not sinks:
        yield ()
        return
    listener = _FeedListener([Feed(sink, folder) for sink in sinks], folder, tell)
    try:
        yield (listener,)
    finally:
        listener.close(patience)


class _FeedListener:
    """Wakes the feeds, on the thread of the controller, and reports a failed feed once."""

    def __init__(self, feeds: list[Feed], folder: Path, listeners: Sequence[Listener]) -> None:
        self._feeds, self._folder, self._listeners = feeds, folder, listeners
        self._record: RunRecord | None = None
        self._notes: list[str] = []

    def __call__(self, record: RunRecord, line: Record) -> None:
        self._record = record
        if line["event"] in FREQUENT:
            return
        for feed in self._feeds:
            feed.wake()
            if feed.failure is not None:
                self._report_failure(feed)

    def close(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        for feed in list(self._feeds):
            feed.close(deadline)
            if feed.failure is not None:
                self._report_failure(feed)
        if self._notes and (self._folder / JOURNAL).exists():
            journal = Journal(self._folder / JOURNAL)
            for text in self._notes:
                journal.append("note", level="warning", text=text)
            journal.close()

    def _report_failure(self, feed: Feed) -> None:
        self._feeds = [other for other in self._feeds if other is not feed]
        text = feed.describe()
        self._notes.append(text)
        note: Record = {"event": "note", "time": time.time(), "level": "warning", "text": text}
        if self._record is not None:
            self._record.apply(note)
            for listener in self._listeners:
                listener(self._record, note)
