"""Moves the states at ends of epochs into the parameter store, beside a run and never in its way.

The controller offers each state whose epoch is trained, evaluated and in the journal; the newest of a configuration is
held back until its next one comes, for models go on from it. A process of its own, with the lowest priority, takes them
through a pipe. An offer never waits: what a full pipe does not take, what was offered before it was worth a process,
and what a keeper that died had not yet done, the next one finds in the journal; until then it stays the file that it
was. Kill it at any moment: a file is deleted only after the store has given it back.

Of two keepers of one run (a resumed run may meet the one of its last controller, still at work) the later has the say:
each deletes under a lock, and stops when the token in it is not its own any more.

`main` is the process's side; `keep` does the same for a run of the past.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from regatta.errors import RegattaError
from regatta.journal.journal import Record, read_journal

if TYPE_CHECKING:
    from regatta.store.states.state_archive import RawState
    from regatta.store.store import ParameterStore

LOCK, JOURNAL = "keeper.lock", "journal.jsonl"
STARTS = 3  # how often the process is started in a run
LEAST = 2**22  # bytes of states that are worth a process; fewer stay files until somebody calls `keep`
TOGETHER_BYTES, TOGETHER_STATES, TOGETHER_SECONDS = 2**25, 64, 10.0  # a batch goes when it has any of these
NICENESS = 19
_BOOT = """import os, sys
niceness, run, store, token, *sys.path = sys.argv[1:]
os.nice(int(niceness))
del sys.argv[1:]
from regatta.engine.archiver import main
main(run, store, token)"""


class Keeper:
    """The controller's side. Nothing of it waits for the disk or the process, but `close` when told to."""

    def __init__(self, folder: Path, store: Path) -> None:
        self._folder, self._store, self._token = folder.absolute(), store.absolute(), secrets.token_hex(8)
        with _turn(self._folder) as lock:  # a keeper of the past will find that it is one
            os.ftruncate(lock, 0)
            os.pwrite(lock, self._token.encode(), 0)
        self._states: dict[tuple[str, int], tuple[str, str]] = {}  # of epochs that are not reported: state and hash
        self._newest: dict[str, tuple[int, bytes]] = {}  # of each configuration: the epoch, and what to say of it
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._starts = 0
        self._bytes = 0  # offered so far

    def hear(self, record: object, line: Record) -> None:
        """Follow a run, as its listener: each state is offered when the epoch that it ends is reported."""
        if line["event"] == "unit" and line.get("state") and line.get("hash"):
            self._states[line["config"], line["epoch"]] = line["state"], line["hash"]
        elif line["event"] == "report":
            state = self._states.pop((line["config"], line["epoch"]), None)
            if state is not None:
                self.offer(self._folder / state[0], line["config"], line["epoch"], state[1])

    def offer(self, path: Path, config: str, epoch: int, hash: str) -> None:
        """A state at the end of an epoch that counts, and that was evaluated."""
        if not path.absolute().is_relative_to(self._folder):
            return  # workers elsewhere keep it themselves
        before = self._newest.get(config)
        with contextlib.suppress(OSError):
            self._bytes += path.stat().st_size
        message = [config, str(path.absolute().relative_to(self._folder)), hash]
        self._newest[config] = epoch, json.dumps(message).encode() + b"\n"
        if before is not None and before[0] < epoch:
            self._send(before[1])

    def close(self, wait: bool | float = False) -> None:
        """No more comes; call it when the journal is closed, which says whether the newest states may go too.

        The process goes on by itself until all is done, unless told to wait for that, or so many seconds at most.
        """
        if self._process is None:
            self._start()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(None if wait is True else float(wait))
        except subprocess.TimeoutExpired:
            threading.Thread(target=process.wait, name="keeper", daemon=True).start()  # leaves no zombie behind

    def _send(self, message: bytes) -> None:
        if self._process is None:
            self._start()
        if self._process is None:
            return
        try:
            os.write(self._pipe, message)  # shorter than PIPE_BUF, so whole or not at all
        except BlockingIOError:
            pass  # it is behind: the journal has it
        except BrokenPipeError:
            self._process.wait()
            os.close(self._pipe)
            self._process, self._pipe = None, -1

    def _start(self) -> None:
        if self._starts == STARTS or self._bytes < LEAST:
            return
        self._starts += 1
        idle = ["ionice", "-c3", "-t"] if shutil.which("ionice") else []
        arguments = [str(NICENESS), str(self._folder), str(self._store), self._token, *sys.path]
        (self._folder / "logs").mkdir(exist_ok=True)
        read, write = os.pipe()
        try:
            with (self._folder / "logs" / "keeper.log").open("ab") as log:
                self._process = subprocess.Popen(
                    [*idle, sys.executable, "-P", "-c", _BOOT, *arguments],
                    stdin=read,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the controller alone
                )
            os.set_blocking(write, False)
            self._pipe = write
        except OSError:  # no more processes, no more files: states stay as they are
            os.close(write)
        finally:
            os.close(read)


def keep(folder: Path, store: Path) -> int:
    """Move into the store all states of a run that nothing will change any more; how many there were.

    The newest ones only of a run that is done. It stops where a controller begins to go on with the run.
    """
    from regatta.store.states.state_archive import series_of
    from regatta.store.store import ParameterStore

    run = folder.absolute()
    series, batch, token, kept = series_of(run), _Batch(), _token(run), 0
    batch.add(settled(run))
    if series is None or not batch:
        return 0
    with ParameterStore.open(store) as opened:
        while batch and (taken := _take_turn(run, token, opened, series, batch)) is not None:
            kept += taken
    return kept


def settled(run: Path) -> list[RawState]:
    """The states of a run's journal that nobody will change or go on from, and that are files still.

    For each configuration: the last of each epoch that is reported, but for the newest, from which it may go on; that
    one as well when the run is done. What belongs to an epoch that is not reported stays, for it may be finished yet.
    """
    courses, done = _courses(read_journal(run / JOURNAL)) if (run / JOURNAL).exists() else ({}, False)
    found = []
    for config, course in courses.items():
        ripe = sorted(course.reported) if done else sorted(course.reported)[:-1]
        found += [_raw(run, config, *course.states[epoch]) for epoch in ripe if epoch in course.states]
    return [state for state in found if state.path.exists()]


@dataclass
class _Course:
    """What a journal says of a configuration: of each epoch the last state and its hash; which ones are reported."""

    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)


def _courses(records: Iterator[Record]) -> tuple[dict[str, _Course], bool]:
    """Configurations, and whether the run is done."""
    courses: dict[str, _Course] = {}
    record: Record = {}
    for record in records:
        if record["event"] == "unit" and record.get("state") and record.get("hash"):
            course = courses.setdefault(record["config"], _Course())
            course.states[record["epoch"]] = record["state"], record["hash"]
        elif record["event"] == "report":
            courses.setdefault(record["config"], _Course()).reported.add(record["epoch"])
    return courses, record.get("event") == "end" and record.get("status") == "done"


def _raw(run: Path, config: str, state: str, digest: str) -> RawState:
    from regatta.store.states.state_archive import RawState

    return RawState(run / state, config, digest)


@contextlib.contextmanager
def _turn(run: Path) -> Iterator[int]:
    """Nobody else deletes states of this run meanwhile."""
    handle = os.open(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _token(run: Path) -> bytes:
    """The token of the keeper that has the say now."""
    with _turn(run) as lock:
        return os.pread(lock, 64, 0)


def _stored(store: ParameterStore, series: str, states: list[RawState]) -> list[Path]:
    """The files that the store has as well."""
    from regatta.store.states.state_archive import store_states

    kept, left = store_states(store, series, states)
    for path, reason in left.items():
        sys.stderr.write(f"{path} stays as it is: {reason}\n")
    return kept


class _Inbox:
    """Offers as they come through the pipe."""

    def __init__(self, pipe: int, run: Path) -> None:
        self._pipe, self._run, self._rest, self.ended = pipe, run, b"", False

    def wait(self, seconds: float | None) -> list[RawState]:
        """What has come, at the latest after that time."""
        if not select.select([self._pipe], [], [], seconds)[0]:
            return []
        data = os.read(self._pipe, 2**20)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_raw(self._run, *json.loads(line)) for line in lines]


class _Batch:
    """States that wait until they are worth a transaction."""

    def __init__(self) -> None:
        self._states: dict[Path, tuple[RawState, int]] = {}  # with its size
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._states)

    def add(self, states: list[RawState]) -> None:
        self._since = self._since if self._states else time.monotonic()
        for state in states:
            with contextlib.suppress(FileNotFoundError):  # taken already
                self._states[state.path] = state, state.path.stat().st_size

    def watchdog(self) -> float | None:
        """How long it may wait for more: as long as it likes while it is empty."""
        if not self._states:
            return None
        size = sum(size for _, size in self._states.values())
        if size >= TOGETHER_BYTES or len(self._states) >= TOGETHER_STATES:
            return 0.0
        return max(0.0, self._since + TOGETHER_SECONDS - time.monotonic())

    def pop(self) -> list[RawState]:
        """The first of them, as many as belong together."""
        taken: list[RawState] = []
        size = 0
        while self._states and len(taken) < TOGETHER_STATES and size < TOGETHER_BYTES:
            state, more = self._states.pop(next(iter(self._states)))
            taken.append(state)
            size += more
        return taken


def serve(run: Path, store: Path, token: bytes, pipe: int) -> None:
    """Take what is offered until the controller has closed the pipe, and then what the journal has left."""
    from regatta.store.states.state_archive import series_of
    from regatta.store.store import ParameterStore

    inbox, batch, series = _Inbox(pipe, run), _Batch(), series_of(run)
    if series is None:
        return
    with ParameterStore.open(store, threads=1) as opened:
        batch.add(settled(run))  # what the last keeper did not get to
        while not inbox.ended:
            batch.add(inbox.wait(batch.watchdog()))
            if batch.watchdog() == 0.0 and _take_turn(run, token, opened, series, batch) is None:
                return
        batch.add(settled(run))
        while batch and _take_turn(run, token, opened, series, batch) is not None:
            pass


def _take_turn(run: Path, token: bytes, store: ParameterStore, series: str, batch: _Batch) -> int | None:
    """Move a batch, and say how many states went; None when another keeper has taken over.

    What is stored twice costs nothing: whose turn it is matters only for deleting, and nobody waits for more than that.
    """
    stored = _stored(store, series, batch.pop())
    with _turn(run) as lock:
        if os.pread(lock, 64, 0) != token:
            return None
        for path in stored:
            path.unlink(missing_ok=True)
    return len(stored)


def main(run: str, store: str, token: str) -> None:
    try:
        serve(Path(run), Path(store), token.encode(), sys.stdin.fileno())
    except (RegattaError, OSError) as error:
        if Path(run).exists():  # else all was deleted under its hands, and nobody asks
            sys.exit(f"{type(error).__name__}: {error}")
