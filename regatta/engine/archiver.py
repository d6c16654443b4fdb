"""Moves the states at ends of epochs into the parameter store, beside a run and never in its way.

The controller offers each state whose epoch is trained, evaluated and in the journal; the newest of a configuration is
held back until its next one comes, for models go on from it. A process of its own, with the lowest priority, takes them
through a pipe. An offer never waits: what a full pipe does not take, what was offered before it was worth a process,
and what a keeper that died had not yet done, the next one finds in the journal; until then it stays the file that it
was. Kill it at any moment: a file is deleted only after the store has given it back.

`main` is the process's side. Moving a batch of states is in store/states/archive_run.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from regatta.errors import RegattaError
from regatta.journal.journal import Record
from regatta.paths import ARCHIVER_LOG, run_logs

if TYPE_CHECKING:
    from regatta.store.states.state_archive import RawState

MAX_START_ATTEMPTS = 3  # how often the process is started in a run
LEAST = 2**22  # bytes of states that are worth a process; fewer stay files until an archive pass
NICENESS = 19
_BOOT = """import os, sys
niceness, run, store, token, *sys.path = sys.argv[1:]
os.nice(int(niceness))
del sys.argv[1:]
from regatta.engine.archiver import main
main(run, store, token)"""


class Archiver:
    """The controller's side. Nothing of it waits for the disk or the process, but `close` when told to."""

    def __init__(self, folder: Path, store: Path) -> None:
        from regatta.store.states.archive_run import take_over

        self._folder, self._store, self._token = folder.absolute(), store.absolute(), secrets.token_hex(8)
        take_over(self._folder, self._token)
        self._states: dict[tuple[str, int], tuple[str, str]] = {}  # of epochs that are not reported: state and hash
        self._newest: dict[str, tuple[int, bytes]] = {}  # of each configuration: the epoch, and what to say of it
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._starts = 0
        self._bytes = 0  # offered so far

    def on_record(self, record: object, line: Record) -> None:
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
        if self._starts == MAX_START_ATTEMPTS or self._bytes < LEAST:
            return
        self._starts += 1
        idle = ["ionice", "-c3", "-t"] if shutil.which("ionice") else []
        arguments = [str(NICENESS), str(self._folder), str(self._store), self._token, *sys.path]
        run_logs(self._folder).mkdir(exist_ok=True)
        read, write = os.pipe()
        try:
            with (run_logs(self._folder) / ARCHIVER_LOG).open("ab") as log:
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


class _Inbox:
    """Offers as they come through the pipe."""

    def __init__(self, pipe: int, run: Path) -> None:
        self._pipe, self._run, self._rest, self.ended = pipe, run, b"", False

    def wait(self, seconds: float | None) -> list[RawState]:
        """What has come, at the latest after that time."""
        from regatta.store.states.state_archive import RawState

        if not select.select([self._pipe], [], [], seconds)[0]:
            return []
        data = os.read(self._pipe, 2**20)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for config, state, digest in map(json.loads, lines):
            found.append(RawState(self._run / state, config, digest))
        return found


def serve(run: Path, store: Path, token: bytes, pipe: int) -> None:
    """Take what is offered until the controller has closed the pipe, and then what the journal has left."""
    from regatta.store.states.archive_run import StateBatch, finished_states, move_batch
    from regatta.store.states.state_archive import series_of
    from regatta.store.store import ParameterStore

    inbox, batch, series = _Inbox(pipe, run), StateBatch(), series_of(run)
    if series is None:
        return
    with ParameterStore.open(store, threads=1) as opened:
        batch.add(finished_states(run))  # what the last keeper did not get to
        while not inbox.ended:
            batch.add(inbox.wait(batch.wait_seconds()))
            if batch.wait_seconds() == 0.0 and move_batch(run, token, opened, series, batch) is None:
                return
        batch.add(finished_states(run))
        while batch and move_batch(run, token, opened, series, batch) is not None:
            pass


def main(run: str, store: str, token: str) -> None:
    try:
        serve(Path(run), Path(store), token.encode(), sys.stdin.fileno())
    except (RegattaError, OSError) as error:
        if Path(run).exists():  # else all was deleted under its hands, and nobody asks
            sys.exit(f"{type(error).__name__}: {error}")
