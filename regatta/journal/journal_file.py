"""The journal of a run: one JSON object per line, appended and never changed.

`Journal.append` hands the line to the operating system at once, so the line survives the death of this process.
A background thread makes lines durable, many with one fsync, and then calls the functions that wait for them.
Whatever is not in the journal has not happened.

| event   | fields besides `time`                                                                          |
|---------|------------------------------------------------------------------------------------------------|
| run     | version, name, sweep, seed, epochs, metric, mode, rule, search, dataset, cluster, versions,    |
|         | path; base: the ids of the versions that its models come from, by the value `model`            |
| resume  | pid: another controller continues the run                                                      |
| worker  | worker, state (up, down); up: pid, device, threads, train, eval, of groups width and members;  |
|         | down: reason, or regroups if it goes on in another group                                       |
| config  | config, values, epochs, parent, parent_epoch: train this configuration for these epochs        |
| pilot   | config, worker, start, end, and what a few batches of it measured: seconds, bytes, build       |
| packs   | the same for models trained side by side: build, members, gain, reason, fixed                  |
| groups  | the same for a group of workers: build, width, ratio of communication to computation           |
|         | (pilot, packs, groups: with cached, an earlier run measured it; no worker, start and end then) |
| plan    | width, share, packs, teams, plan, reason, changed: the plan at the start, or a later one       |
| start   | worker, kind, config, epoch, partition, pack                                                   |
| unit    | kind, config, epoch, partition, worker, start, end, rows, metrics, hop_bytes, *_seconds, width,|
|         | state, hash, pack                                                                              |
| report  | config, epoch, metrics of an epoch that is trained and evaluated; elapsed and device_seconds   |
|         | of the run; iterations: its batches up to here, if a rule of the search counts them             |
| stop    | config: it gets no more units                                                                  |
| request | id, verb, config, the arguments of a request made by a user, and its answer                    |
| failed  | config, epoch, partition, worker, kind, error, traceback                                       |
| note    | level, text, config: a message for users                                                       |
| rename  | name: the run has another name from here on; its series is that of the first record            |
| end     | status (done, failed, interrupted), error                                                      |
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from regatta.durable import fsync_file, fsync_path
from regatta.errors import CorruptError

Record: TypeAlias = dict[str, Any]
VERSION = 1
# Every kind of record. A new one also needs a row in the table above and a handler in run_record.py.
EVENTS = (
    "run", "resume", "worker", "config", "pilot", "packs", "groups", "plan", "start", "unit", "report", "stop",
    "request", "failed", "note", "rename", "end",
)  # fmt: skip


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_size = 0  # bytes of the last record
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._file, _whole_lines(self._file))
        fsync_path(path.parent)
        self._waiting: list[Callable[[], None]] = []
        self._dirty = False
        self._closed = False
        self._error: OSError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._flush, name="journal", daemon=True)
        self._thread.start()

    def append(self, event: str, then: Callable[[], None] | None = None, /, **fields: Any) -> Record:
        """Write one record; another thread calls `then` when the record is durable."""
        if event not in EVENTS:
            raise ValueError(f"{event!r} is not a kind of journal record.")
        record: Record = {"event": event, "time": time.time(), **fields}
        line = _encode(record)
        with self._changed:
            if self._error is not None:
                raise self._error
            self._write(line)
            self.last_size = len(line)
            self._dirty = True
            if then is not None:
                self._waiting.append(then)
            self._changed.notify()
        return record

    def settle(self) -> None:
        """Wait until all records are durable and every `then` has been called."""
        settled = threading.Event()
        with self._changed:
            self._waiting.append(settled.set)
            self._dirty = True
            self._changed.notify()
        while not settled.wait(0.1):
            with self._changed:
                if self._error is not None:
                    raise self._error

    def close(self) -> None:
        """Make all records durable and close the file."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        os.close(self._file)
        if self._error is not None:
            raise self._error

    def _write(self, line: bytes) -> None:
        """Write the whole line or nothing: a record after half a line would be lost with it."""
        end, rest = os.fstat(self._file).st_size, memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, end)
            raise

    def _flush(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._dirty or self._closed)
                if not self._dirty:
                    return
                self._dirty = False
                waiting, self._waiting = self._waiting, []
            try:
                fsync_file(self._file)
                for then in waiting:
                    then()
            except OSError as error:
                with self._changed:
                    self._error = error
                return

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _encode(record: Record) -> bytes:
    """One line. JSON has no NaN and no infinities, which diverged models report: those become text."""
    try:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_nonfinite_as_text(record), separators=(",", ":"))
    return (text + "\n").encode()


def _nonfinite_as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nonfinite_as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_nonfinite_as_text(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _whole_lines(file: int, block: int = 1 << 16) -> int:
    """Where the last whole line of a file ends: a crash may have cut off the line after it."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - block)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def read_journal(path: Path) -> Iterator[Record]:
    """The records of a journal, without a last line that a crash has cut off."""
    for record, _ in read_lines(path):
        yield record


def read_lines(path: Path) -> Iterator[tuple[Record, int]]:
    """The records of a journal, each with its size in bytes."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError as error:
                raise CorruptError(f"Line {number} is not JSON: {error}.", place=str(path)) from error
            if not isinstance(record, dict) or "event" not in record:
                raise CorruptError(f"Line {number} is not a record with an event.", place=str(path))
            yield record, len(line)
