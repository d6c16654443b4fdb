"""A drill for the parameter store: processes write, archive and collect garbage, and are killed at random moments.

    python tests/helpers/kill_drill.py FOLDER ROUNDS SEED RESULT.json

Four writers store series of snapshots, name them and release old ones. An archiver re-encodes everything, by a plan
of the archive pass or as random deltas, and runs gc without a grace period. Each process logs what the store promised
in a file that outlives it. In each round the archiver and some writers get SIGKILL. Then the store must pass a deep
`fsck`, and every promised snapshot must be there, bit for bit, while the other writers continue.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from regatta.errors import RegattaError
from regatta.store.archive.archive import archive
from regatta.store.archive.speeds import measured_speeds
from regatta.store.format.encodings import ENCODINGS
from regatta.store.format.tensor_id import Bits, word_count
from regatta.store.store import ParameterStore
from regatta.testing.store import bits_of

WRITERS = 4
WRITER_NAMES = [f"writer-{number}" for number in range(WRITERS)]
KEPT_SNAPSHOTS = 4  # a writer releases older ones
MAX_KILL_WAIT_S = 1.5  # until the next kill
WRITER_PAUSE_S = 0.02  # between snapshots, so that checking all of them can keep up


@dataclass
class DrillCounts:
    kills: int = 0
    in_archive: int = 0  # kills during this operation of the archiver
    in_reencode: int = 0
    in_gc: int = 0
    promised: int = 0
    checked: int = 0
    passes: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def random_plan(store: ParameterStore, rng: random.Random, most: int = 50) -> dict[str, tuple[int, str | None]]:
    """New encodings for up to `most` tensors: deltas to a recent tensor of the same type and size, or direct ones."""
    lossless = [encoding for encoding in ENCODINGS.values() if not encoding.lossy]
    direct = [encoding.id for encoding in lossless if not encoding.needs_base]
    deltas = [encoding.id for encoding in lossless if encoding.needs_base]
    entries = list(store.entries())
    rng.shuffle(entries)
    plan: dict[str, tuple[int, str | None]] = {}
    alike: dict[tuple[str, int], list[str]] = {}
    for entry in entries[:most]:
        before = alike.setdefault((entry.dtype.name, word_count(entry.dtype, entry.shape)), [])
        if before and rng.random() < 0.7:
            plan[entry.tensor] = rng.choice(deltas), rng.choice(before[-3:])
        else:
            plan[entry.tensor] = rng.choice(direct), None
        before.append(entry.tensor)
    return plan


def snapshot_of(writer: int, number: int) -> dict[str, Any]:
    """The weights of a writer's snapshot; all writers begin with the same weights."""
    weight = np.random.default_rng(0).normal(size=(40, 150)).astype(np.float32)
    moved = weight + (1e-3 * np.random.default_rng([writer, number]).normal(size=weight.shape)).astype(np.float32)
    half = (moved.view(np.uint32) >> 16).astype(np.uint16)
    return {"start": weight, "weight": moved, "half": Bits("BF16", half.shape, half), "step": np.int64(number)}


class PromiseLog:
    """One line for each promise to a process; written at once, so the log outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def read_log(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def write(folder: Path, writer: int) -> None:
    """Store one snapshot after another, until killed."""
    log = PromiseLog(folder / f"writer-{writer}")
    with ParameterStore.open(folder / "store", threads=1) as store:
        for number in count(time.time_ns()):  # no number is used twice, even after a kill
            name = f"{writer}/{number}"
            log.add("kept", name, store.put(snapshot_of(writer, number), reference=name))
            mine = sorted(known for known in store.references() if known.startswith(f"{writer}/"))
            for old in mine[:-KEPT_SNAPSHOTS]:
                log.add("released", old)  # from here on it may or may not be there
                store.release(old)
            time.sleep(WRITER_PAUSE_S)


def maintain(folder: Path, seed: int) -> None:
    """Run gc and re-encode the rest, until killed."""
    log, rng = PromiseLog(folder / "archiver"), random.Random(seed)
    with ParameterStore.open(folder / "store", threads=1) as store:
        while True:
            log.add("collects")
            store.gc(grace=0.0)
            if rng.random() < 0.3:
                log.add("archives")
                archive(store, budget=rng.choice((None, 1.5, 4.0)))
            else:
                log.add("reencodes")
                store.reencode(random_plan(store, rng))


class KillDrill:
    """Starts the processes, kills some, checks the store, starts them again."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng, self.counts = folder, random.Random(seed), DrillCounts()
        self.running: dict[str, int] = {}

    def run(self, rounds: int) -> DrillCounts:
        began = time.monotonic()
        measured_speeds()  # once, here: archivers are forks of this process
        ParameterStore.open(self.folder / "store").close()
        try:
            for _ in range(rounds):
                self._start()
                time.sleep(self.rng.uniform(0.01, MAX_KILL_WAIT_S))
                self._kill(["archiver", *self.rng.sample(WRITER_NAMES, self.rng.randint(1, WRITERS))])
                self.counts.kills += 1
                last = self._notes("archiver")[-1:]
                self.counts.in_archive += last == [["archives"]]
                self.counts.in_reencode += last == [["reencodes"]]
                self.counts.in_gc += last == [["collects"]]
                self._check()
        finally:
            self._kill(list(self.running))
        self.counts.promised = sum(note[0] == "kept" for name in WRITER_NAMES for note in self._notes(name))
        self.counts.passes = sum(note in (["archives"], ["reencodes"]) for note in self._notes("archiver"))
        self.counts.seconds = time.monotonic() - began
        return self.counts

    def _notes(self, name: str) -> list[list[str]]:
        return read_log(self.folder / name)

    def _start(self) -> None:
        seed = self.rng.randrange(2**32)
        tasks: dict[str, Callable[[], None]] = {"archiver": lambda: maintain(self.folder, seed)}
        tasks |= {name: partial(write, self.folder, number) for number, name in enumerate(WRITER_NAMES)}
        for name, task in tasks.items():
            if name not in self.running:
                self.running[name] = _fork(task, self.folder / "errors")

    def _kill(self, names: list[str]) -> None:
        for name in names:
            os.kill(self.running[name], signal.SIGKILL)
        for name in names:
            _, status = os.waitpid(self.running.pop(name), 0)
            if not os.WIFSIGNALED(status):
                errors = self.folder / "errors"
                why = errors.read_text() if errors.exists() else status
                self.counts.problems.append(f"{name} ended by itself: {why}")

    def _check(self) -> None:
        promised = {note[1]: note[2] for name in WRITER_NAMES for note in self._notes(name) if note[0] == "kept"}
        released = self._released()
        with ParameterStore.open(self.folder / "store", threads=1) as store:
            self.counts.problems += store.fsck("deep").problems
            for name in promised.keys() - released:
                self._check_snapshot(store, name, promised[name])

    def _check_snapshot(self, store: ParameterStore, name: str, snapshot: str) -> None:
        writer, number = map(int, name.split("/"))
        expected = {key: bits_of(value) for key, value in snapshot_of(writer, number).items()}
        try:
            found = {key: bits_of(value) for key, value in store.get(snapshot).items()}
            there = store.references().get(name) == snapshot
            problem = "its name is gone" if not there else "it has other bits" if found != expected else ""
        except RegattaError as error:
            problem = str(error)
        if problem and name not in self._released():  # its writer may be alive and have released it just now
            self.counts.problems.append(f"{name} ({snapshot}) was promised: {problem}")
        self.counts.checked += 1

    def _released(self) -> set[str]:
        return {note[1] for name in WRITER_NAMES for note in self._notes(name) if note[0] == "released"}


def _fork(task: Callable[[], None], errors: Path) -> int:
    """Run a task in a fork of this process, which has no threads."""
    pid = os.fork()
    if pid:
        return pid
    try:
        task()
    finally:
        errors.write_text(traceback.format_exc())
        os._exit(1)


def main(folder: str, rounds: str, seed: str, result: str) -> None:
    counts = KillDrill(Path(folder), int(seed)).run(int(rounds))
    Path(result).write_text(json.dumps(asdict(counts)))


if __name__ == "__main__":
    main(*sys.argv[1:])
