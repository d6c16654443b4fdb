"""A drill for the parameter store: processes write, archive and collect, and are killed at random moments.

    python -m regatta.testing.kills FOLDER ROUNDS SEED RESULT.json

Four writers store series of snapshots, name them and let old ones go; an archiver stores everything anew, by a plan of
the archive pass or as random deltas, and collects what is left over, without any grace. Each notes what it was promised
in a file of its own, which outlives it. In each round the archiver and some writers get SIGKILL; then the store must
pass `fsck` in full depth, and every snapshot that was promised must be there, bit for bit, while the others go on.
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
KEPT_SNAPSHOTS = 4  # snapshots that a writer keeps a name for
MAX_KILL_WAIT_S = 1.5  # seconds until the next kill
WRITER_PAUSE_S = 0.02  # between a writer's snapshots: it must not outrun a check of all that it wrote


@dataclass
class DrillCounts:
    """What a drill came to."""

    kills: int = 0
    in_archive: int = 0  # kills that met the archiver there
    in_reencode: int = 0
    in_gc: int = 0
    promised: int = 0
    checked: int = 0
    passes: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def random_plan(store: ParameterStore, rng: random.Random, most: int = 50) -> dict[str, tuple[int, str | None]]:
    """Another way to store so many: as deltas to one of the last few alike, in a random order, or directly."""
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
    """The weights of a writer at that time: all come from the same start."""
    weight = np.random.default_rng(0).normal(size=(40, 150)).astype(np.float32)
    moved = weight + (1e-3 * np.random.default_rng([writer, number]).normal(size=weight.shape)).astype(np.float32)
    half = (moved.view(np.uint32) >> 16).astype(np.uint16)
    return {"start": weight, "weight": moved, "half": Bits("BF16", half.shape, half), "step": np.int64(number)}


class PromiseLog:
    """What a process was promised, a line each: written at once, it outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def read_notes(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def write(folder: Path, writer: int) -> None:
    """Store one snapshot after another, until killed."""
    notes = PromiseLog(folder / f"writer-{writer}")
    with ParameterStore.open(folder / "store", threads=1) as store:
        for number in count(time.time_ns()):  # so that no number is used twice, whoever was killed
            name = f"{writer}/{number}"
            notes.add("kept", name, store.put(snapshot_of(writer, number), reference=name))
            mine = sorted(known for known in store.references() if known.startswith(f"{writer}/"))
            for old in mine[:-KEPT_SNAPSHOTS]:
                notes.add("released", old)  # from here on it may be there or not
                store.release(old)
            time.sleep(WRITER_PAUSE_S)


def maintain(folder: Path, seed: int) -> None:
    """Collect what is not needed and store the rest anew, until killed."""
    notes, rng = PromiseLog(folder / "archiver"), random.Random(seed)
    with ParameterStore.open(folder / "store", threads=1) as store:
        while True:
            notes.add("collects")
            store.gc(grace=0.0)
            if rng.random() < 0.3:
                notes.add("archives")
                archive(store, budget=rng.choice((None, 1.5, 4.0)))
            else:
                notes.add("reencodes")
                store.reencode(random_plan(store, rng))


class KillDrill:
    """Starts the processes, kills some, checks the store, starts them again."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng, self.tally = folder, random.Random(seed), DrillCounts()
        self.running: dict[str, int] = {}

    def run(self, rounds: int) -> DrillCounts:
        began = time.monotonic()
        measured_speeds()  # once, here: the archivers are copies of this process
        ParameterStore.open(self.folder / "store").close()
        try:
            for _ in range(rounds):
                self._start()
                time.sleep(self.rng.uniform(0.01, MAX_KILL_WAIT_S))
                self._kill(["archiver", *self.rng.sample(self._writers(), self.rng.randint(1, WRITERS))])
                self.tally.kills += 1
                last = self._notes("archiver")[-1:]
                self.tally.in_archive += last == [["archives"]]
                self.tally.in_reencode += last == [["reencodes"]]
                self.tally.in_gc += last == [["collects"]]
                self._check()
        finally:
            self._kill(list(self.running))
        self.tally.promised = sum(note[0] == "kept" for name in self._writers() for note in self._notes(name))
        self.tally.passes = sum(note in (["archives"], ["reencodes"]) for note in self._notes("archiver"))
        self.tally.seconds = time.monotonic() - began
        return self.tally

    def _writers(self) -> list[str]:
        return [f"writer-{number}" for number in range(WRITERS)]

    def _notes(self, name: str) -> list[list[str]]:
        return read_notes(self.folder / name)

    def _start(self) -> None:
        seed = self.rng.randrange(2**32)
        tasks: dict[str, Callable[[], None]] = {"archiver": lambda: maintain(self.folder, seed)}
        tasks |= {name: partial(write, self.folder, number) for number, name in enumerate(self._writers())}
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
                self.tally.problems.append(
                    f"{name} ended by itself: {errors.read_text() if errors.exists() else status}"
                )

    def _check(self) -> None:
        promised = {note[1]: note[2] for name in self._writers() for note in self._notes(name) if note[0] == "kept"}
        released = self._released()
        with ParameterStore.open(self.folder / "store", threads=1) as store:
            self.tally.problems += store.fsck("deep").problems
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
        if problem and name not in self._released():  # its writer may live, and have let it go just now
            self.tally.problems.append(f"{name} ({snapshot}) was promised: {problem}")
        self.tally.checked += 1

    def _released(self) -> set[str]:
        return {note[1] for name in self._writers() for note in self._notes(name) if note[0] == "released"}


def _fork(task: Callable[[], None], errors: Path) -> int:
    """Run a task in a copy of this process, which has no threads: it starts at once."""
    pid = os.fork()
    if pid:
        return pid
    try:
        task()
    finally:
        errors.write_text(traceback.format_exc())
        os._exit(1)


def main(folder: str, rounds: str, seed: str, result: str) -> None:
    tally = KillDrill(Path(folder), int(seed)).run(int(rounds))
    Path(result).write_text(json.dumps(asdict(tally)))


if __name__ == "__main__":
    main(*sys.argv[1:])
