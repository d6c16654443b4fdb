"""Moves states into a store and is killed at every k-th moment (crash_drill.py).

    python archive_crash_points.py FOLDER K     prints [moments, problem, ...] as JSON

Whenever it died, each state is there, as a file or in the store, and the next pass moves all of them.
"""

from __future__ import annotations

import json
import shutil
import sys
from itertools import count
from pathlib import Path

import numpy as np
from blake3 import blake3
from crash_drill import arm, finishes
from safetensors.numpy import save_file

from regatta.errors import RegattaError
from regatta.store.states.archive_run import archive_run
from regatta.store.states.state_archive import RunStates
from regatta.store.states.state_files import state_metadata
from regatta.store.store import ParameterStore

EPOCHS = 3


def prepare(folder: Path) -> dict[int, str]:
    """A run that is done, and the hashes of its states."""
    states = folder / "runs" / "one" / "states" / "a"
    states.mkdir(parents=True)
    journal, hashes = [{"event": "run", "name": "one"}], {}
    for epoch in range(1, EPOCHS + 1):
        path = states / f"{epoch:04d}-002.safetensors"
        weight = np.random.default_rng(epoch).normal(size=500).astype("f4")
        save_file({"model/w": weight, "optimizer/m": weight * 2}, path, state_metadata("numpy", {}))
        hashes[epoch] = blake3(path.read_bytes()).hexdigest()
        fields = {"config": "a", "epoch": epoch, "state": f"states/a/{path.name}", "hash": hashes[epoch]}
        journal += [{"event": "unit", **fields}, {"event": "report", "config": "a", "epoch": epoch}]
    journal.append({"event": "end", "status": "done"})
    (folder / "runs" / "one" / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in journal))
    return hashes


def archive_and_die(folder: Path, moment: int) -> bool:
    """Whether archiving got to the end."""

    def work() -> None:
        arm(moment)
        archive_run(folder / "runs" / "one", folder / "store")

    return finishes(work, f"archiving, to be killed at moment {moment},")


def problems(folder: Path, hashes: dict[int, str]) -> list[str]:
    found = [*missing(folder, hashes)]
    archive_run(folder / "runs" / "one", folder / "store")
    left = [path.name for path in (folder / "runs" / "one" / "states" / "a").glob("*.safetensors")]
    found += [f"left after another pass: {left}"] if left else []
    with ParameterStore.open(folder / "store", threads=1) as store:
        found += store.fsck("deep").problems
    return found + missing(folder, hashes)


def missing(folder: Path, hashes: dict[int, str]) -> list[str]:
    found = []
    for epoch, expected in hashes.items():
        try:
            path = RunStates(folder / "runs" / "one").materialize("a", epoch, folder / "again")
        except RegattaError as error:
            found.append(f"epoch {epoch}: {error}")
            continue
        if blake3(path.read_bytes()).hexdigest() != expected:
            found.append(f"epoch {epoch}: other bytes")
    return found


def main(folder: Path, every: int) -> None:
    hashes, result = prepare(folder / "start"), []
    for moment in count(0, every):
        here = folder / "work"
        shutil.copytree(folder / "start", here)
        finished = archive_and_die(here, moment)
        result += [f"moment {moment}: {problem}" for problem in problems(here, hashes)]
        shutil.rmtree(here)
        if finished:
            print(json.dumps([moment, *result]))
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
