"""Moves the states of a run into the parameter store, as far as its journal says that no model goes on from them.

The archiver beside a live run (engine/archiver.py) and an archive pass over past runs (repo/archive.py) share this.
A state file is deleted only after the store has returned the same bytes, so a process may be killed at any moment.

Two archivers may work on one run: a resumed run can meet the archiver of its last controller. Each deletes files under
a lock, and stops when the token in the lock file is not its own any more. The later archiver wins.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from regatta.durable import FileLock
from regatta.errors import DiskError
from regatta.journal.journal_file import Record, read_journal
from regatta.paths import ARCHIVER_LOCK, JOURNAL
from regatta.store.states.state_archive import RawState, series_of, store_states
from regatta.store.store import ParameterStore

BATCH_BYTES, MAX_BATCH_STATES, MAX_BATCH_WAIT_S = 2**25, 64, 10.0  # a batch is stored when it reaches any of these


def archive_run(folder: Path, store: Path) -> int:
    """Move all finished states of a run into the store, and return their number.

    It stops when a controller resumes the run.
    """
    run = folder.absolute()
    series, batch, moved = series_of(run), StateBatch(), 0
    with _deletion_lock(run) as lock:
        token = lock.note()
    batch.add(finished_states(run))
    if series is None or not batch:
        return 0
    with ParameterStore.open(store) as opened:
        while batch and (count := move_batch(run, token, opened, series, batch)) is not None:
            moved += count
    return moved


def finished_states(run: Path) -> list[RawState]:
    """The state files of a run that nothing changes any more and no model goes on from."""
    return [state for state in kept_states(run) if state.path.exists()]


def kept_states(run: Path) -> list[RawState]:
    """The states of a run that are kept for good, whether as files or in the store.

    For each configuration this is the last state of each reported epoch. The newest epoch is left out, because the
    configuration may go on from it, unless the run is done. States of an epoch without a report are left out, too.
    """
    if not (run / JOURNAL).exists():
        return []
    trials, done = _read_trials(read_journal(run / JOURNAL))
    found = []
    for config, trial in trials.items():
        epochs = sorted(trial.reported) if done else sorted(trial.reported)[:-1]
        for epoch in epochs:
            if epoch in trial.states:
                state, digest = trial.states[epoch]
                found.append(RawState(run / state, config, digest))
    return found


@dataclass
class _TrialStates:
    """What a journal says about one configuration: the last state and its hash by epoch, and the reported epochs."""

    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)


def _read_trials(records: Iterator[Record]) -> tuple[dict[str, _TrialStates], bool]:
    """The states by configuration, and whether the run is done."""
    trials: dict[str, _TrialStates] = {}
    last: Record = {}
    for record in records:
        last = record if record["event"] != "rename" else last
        if record["event"] == "unit" and record.get("state") and record.get("hash"):
            trial = trials.setdefault(record["config"], _TrialStates())
            trial.states[record["epoch"]] = record["state"], record["hash"]
        elif record["event"] == "report":
            trials.setdefault(record["config"], _TrialStates()).reported.add(record["epoch"])
    return trials, last.get("event") == "end" and last.get("status") == "done"


class StateBatch:
    """States that wait until they are worth a transaction."""

    def __init__(self) -> None:
        self._states: dict[Path, tuple[RawState, int]] = {}  # with its size
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._states)

    def add(self, states: list[RawState]) -> None:
        self._since = self._since if self._states else time.monotonic()
        for state in states:
            with contextlib.suppress(FileNotFoundError):  # stored and deleted already
                self._states[state.path] = state, state.path.stat().st_size

    def wait_seconds(self) -> float | None:
        """How long the batch may wait for more states; None while it is empty."""
        if not self._states:
            return None
        size = sum(size for _, size in self._states.values())
        if size >= BATCH_BYTES or len(self._states) >= MAX_BATCH_STATES:
            return 0.0
        return max(0.0, self._since + MAX_BATCH_WAIT_S - time.monotonic())

    def pop(self) -> list[RawState]:
        """Remove the oldest states, as many as one transaction takes."""
        popped: list[RawState] = []
        total = 0
        while self._states and len(popped) < MAX_BATCH_STATES and total < BATCH_BYTES:
            state, size = self._states.pop(next(iter(self._states)))
            popped.append(state)
            total += size
        return popped


def move_batch(run: Path, token: bytes, store: ParameterStore, series: str, batch: StateBatch) -> int | None:
    """Store a batch and delete its files; return their number, or None when another archiver has taken over.

    Storing a state twice costs nothing, so only deleting takes the lock.
    """
    stored, failed = store_states(store, series, batch.pop())
    for path, reason in failed.items():
        sys.stderr.write(f"{path} stays as it is: {reason}\n")
    with _deletion_lock(run) as lock:
        if lock.note() != token:
            return None
        for path in stored:
            path.unlink(missing_ok=True)
    return len(stored)


def take_over(run: Path, token: str) -> None:
    """Write a new token: archivers that hold an older one delete nothing from here on."""
    with _deletion_lock(run) as lock:
        if not lock.write_note(token):
            raise DiskError("The archiver of the run cannot be stopped: the disk is full.", place=str(run))


def _deletion_lock(run: Path) -> FileLock:
    """The lock under which states of this run are deleted; its note is the token of the archiver in charge."""
    return FileLock(run / ARCHIVER_LOCK)
