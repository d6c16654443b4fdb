"""The journal of a run: one JSON object a line, appended, never changed.

`append` hands the line to the operating system at once, so that it survives the death of this process;
a background thread makes it durable (fsync, many lines at a time) and then calls what waited for that.
Nothing that the journal does not hold has happened.

| event   | fields, beside `time`                                                                          |
|---------|------------------------------------------------------------------------------------------------|
| run     | version, name, seed, epochs, metric, mode, rule, search, dataset, cluster, versions            |
| worker  | worker, state (up, down), and pid, device, threads, train, eval, of groups width, members; or reason |
| resume  | pid: another controller goes on with the run                                                   |
| config  | config, values, epochs, parent, parent_epoch: this configuration is to be trained so far       |
| pilot   | config, worker, start, end, seconds (per row, for training and evaluation), state_bytes;       |
|         | cached: an earlier run measured it, and no worker, start or end are told                       |
| packs   | build, members, gain, reason, worker, start, end: some models were tried side by side          |
| start   | worker, kind, config, epoch, partition, pack                                                   |
| unit    | kind, config, epoch, partition, worker, start, end, rows, metrics, *_seconds, width, state, hash, pack  |
| report  | config, epoch, metrics: an epoch that is trained and evaluated; elapsed and device_seconds of the run |
| stop    | config: it gets no more units                                                                  |
| request | id, verb, config and what else was asked for by people, and the answer they got                |
| failed  | config, epoch, partition, worker, kind, error, traceback                                       |
| note    | level, text, config: something that people should see                                          |
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

from regatta.durable import fsync_path
from regatta.errors import CorruptError

Record: TypeAlias = dict[str, Any]
VERSION = 1


class Journal:
    """Appends records to a run's journal and says when they are durable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_size = 0  # bytes of the record that was appended last
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

    def append(self, event: str, then: Callable[[], None] | None = None, **fields: Any) -> Record:
        """Write one record; `then` is called, from another thread, when it is durable."""
        record: Record = {"event": event, "time": time.time(), **fields}
        line = _encoded(record)
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
        """Wait until all of it is durable and what waited for that has been called."""
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
        """Make all of it durable and let go of the file."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        os.close(self._file)
        if self._error is not None:
            raise self._error

    def _write(self, line: bytes) -> None:
        """The whole line or nothing: what follows half a line would be lost with it."""
        end = os.fstat(self._file).st_size
        try:
            _write_all(self._file, line)
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
                os.fsync(self._file)
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


def _encoded(record: Record) -> bytes:
    """One line; JSON has no word for NaN and the infinities, which are metrics of models that diverged."""
    try:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_spelled(record), separators=(",", ":"))
    return (text + "\n").encode()


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _whole_lines(file: int, block: int = 1 << 16) -> int:
    """Where the last whole line of a file ends: a crash may have torn the one after it."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - block)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def read_journal(path: Path) -> Iterator[Record]:
    """The records of a journal; a last line that was torn by a crash is left out."""
    for record, _ in read_lines(path):
        yield record


def read_lines(path: Path) -> Iterator[tuple[Record, int]]:
    """The records of a journal, each with the bytes it takes."""
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
