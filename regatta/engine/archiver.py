"""Moves the states at the ends of epochs into the parameter store, beside a run and without delaying it.

The controller offers each state whose epoch is trained, evaluated and in the journal. It holds back the newest state of
each configuration until the next one comes, because the model goes on from it. A separate process with the lowest
priority reads the offers from a pipe. An offer never waits. Some states are never offered to a process: the pipe was
full, there were too few bytes to start a process, or the process died. The next archiver finds these states in the
journal; until then they stay files. The process may be killed at any moment, because it deletes a file only after the
store has returned the same bytes.

`main` is the process's side. store/states/archive_run.py moves a batch of states.
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
from regatta.journal.journal_file import Record
from regatta.paths import ARCHIVER_LOG, LOGS

if TYPE_CHECKING:
    from regatta.store.states.state_archive import RawState

MAX_START_ATTEMPTS = 3  # how often the process is started in a run
MIN_BYTES = 2**22  # of states that are worth a process; fewer stay files until an archive pass
NICENESS = 19
_BOOT = """import os, sys
niceness, run, store, token, *sys.path = sys.argv[1:]
os.nice(int(niceness))
del sys.argv[1:]
from regatta.engine.archiver import main
main(run, store, token)"""


class Archiver:
    """The controller's side. Only `close` ever waits for the disk or the process, and only if asked to."""

    def __init__(self, folder: Path, store: Path) -> None:
        from regatta.store.states.archive_run import take_over

        self._folder, self._store, self._token = folder.absolute(), store.absolute(), secrets.token_hex(8)
        take_over(self._folder, self._token)
        self._states: dict[tuple[str, int], tuple[str, str]] = {}  # state and hash, of epochs without a report
        self._newest: dict[str, tuple[int, bytes]] = {}  # by configuration: the epoch, and the message
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._starts = 0
        self._bytes = 0  # of all offers

    def on_record(self, record: object, line: Record) -> None:
        """Listen to a run, and offer each state when the epoch that it ends is reported."""
        if line["event"] == "unit" and line.get("state") and line.get("hash"):
            self._states[line["config"], line["epoch"]] = line["state"], line["hash"]
        elif line["event"] == "report":
            state = self._states.pop((line["config"], line["epoch"]), None)
            if state is not None:
                self.offer(self._folder / state[0], line["config"], line["epoch"], state[1])

    def offer(self, path: Path, config: str, epoch: int, hash: str) -> None:
        """Offer the state at the end of an evaluated epoch."""
        if not path.absolute().is_relative_to(self._folder):
            return  # workers on other machines keep it themselves
        previous = self._newest.get(config)
        with contextlib.suppress(OSError):
            self._bytes += path.stat().st_size
        message = [config, str(path.absolute().relative_to(self._folder)), hash]
        self._newest[config] = epoch, json.dumps(message).encode() + b"\n"
        if previous is not None and previous[0] < epoch:
            self._send(previous[1])

    def close(self, wait: bool | float = False) -> None:
        """End the offers, once the journal is closed; `wait` until all states are moved, or for that many seconds."""
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
            threading.Thread(target=process.wait, name="archiver", daemon=True).start()  # leaves no zombie

    def _send(self, message: bytes) -> None:
        if self._process is None:
            self._start()
        if self._process is None:
            return
        try:
            os.write(self._pipe, message)  # shorter than PIPE_BUF, so whole or not at all
        except BlockingIOError:
            pass  # the process is behind; it will find the state in the journal
        except BrokenPipeError:
            self._process.wait()
            os.close(self._pipe)
            self._process, self._pipe = None, -1

    def _start(self) -> None:
        if self._starts == MAX_START_ATTEMPTS or self._bytes < MIN_BYTES:
            return
        self._starts += 1
        idle = ["ionice", "-c3", "-t"] if shutil.which("ionice") else []
        arguments = [str(NICENESS), str(self._folder), str(self._store), self._token, *sys.path]
        (self._folder / LOGS).mkdir(exist_ok=True)
        read, write = os.pipe()
        try:
            with (self._folder / LOGS / ARCHIVER_LOG).open("ab") as log:
                self._process = subprocess.Popen(
                    [*idle, sys.executable, "-P", "-c", _BOOT, *arguments],
                    stdin=read,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C must reach only the controller
                )
            os.set_blocking(write, False)
            self._pipe = write
        except OSError:  # too many processes or open files: the states stay files
            os.close(write)
        finally:
            os.close(read)


class _OfferPipe:
    """The receiving end of the pipe."""

    def __init__(self, pipe: int, run: Path) -> None:
        self._pipe, self._run, self._rest, self.ended = pipe, run, b"", False

    def wait(self, seconds: float | None) -> list[RawState]:
        """The states that were offered, after at most this time."""
        from regatta.store.states.state_archive import RawState

        if not select.select([self._pipe], [], [], seconds)[0]:
            return []
        data = os.read(self._pipe, 2**20)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [RawState(self._run / state, config, digest) for config, state, digest in map(json.loads, lines)]


def serve(run: Path, store: Path, token: bytes, pipe: int) -> None:
    """Move what is offered until the controller closes the pipe, and then what else is in the journal."""
    from regatta.store.states.archive_run import StateBatch, finished_states, move_batch
    from regatta.store.states.state_archive import series_of
    from regatta.store.store import ParameterStore

    offers, batch, series = _OfferPipe(pipe, run), StateBatch(), series_of(run)
    if series is None:
        return
    with ParameterStore.open(store, threads=1) as opened:
        batch.add(finished_states(run))  # those that the last archiver did not move
        while not offers.ended:
            batch.add(offers.wait(batch.wait_seconds()))
            if batch.wait_seconds() == 0.0 and move_batch(run, token, opened, series, batch) is None:
                return
        batch.add(finished_states(run))
        while batch and move_batch(run, token, opened, series, batch) is not None:
            pass


def main(run: str, store: str, token: str) -> None:
    try:
        serve(Path(run), Path(store), token.encode(), sys.stdin.fileno())
    except (RegattaError, OSError) as error:
        if Path(run).exists():  # otherwise the run was deleted meanwhile, which is not an error
            sys.exit(f"{type(error).__name__}: {error}")
