"""Runs operations of a store and kills each of them at every k-th moment (crash_drill.py).

    python crash_points.py FOLDER K     prints {operation: [moments, problem, ...]} as JSON

What was promised before must be there afterwards, and the store must work.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from crash_drill import arm, finishes
from kill_drill import random_plan, snapshot_of

from regatta.errors import RegattaError
from regatta.store.store import ParameterStore
from regatta.testing.store import bits_of


def opened(folder: Path) -> ParameterStore:
    return ParameterStore.open(folder / "here", remote=str(folder / "there"), threads=1)


def prepare(folder: Path) -> None:
    """A store with two named snapshots, one of them archived, one offloaded, and something to collect."""
    with opened(folder) as store:
        store.put(snapshot_of(0, 1), reference="one")
        store.put(snapshot_of(0, 3))
        store.reencode(random_plan(store, random.Random(5)))
        store.put(snapshot_of(0, 2), reference="two")
        store.put(snapshot_of(0, 4), reference="four")
        store.offload([store.references()["four"]], 1)


def put(store: ParameterStore) -> None:
    store.put(snapshot_of(0, 9), reference="nine")


def reencode(store: ParameterStore) -> None:
    store.reencode(random_plan(store, random.Random(6)))


def collect(store: ParameterStore) -> None:
    store.gc(grace=0.0)


def offload(store: ParameterStore) -> None:
    store.offload([store.references()["two"]], 1)


def recall(store: ParameterStore) -> None:
    store.recall([store.references()["four"]])


def push(store: ParameterStore) -> None:
    store.push()


def repair(store: ParameterStore) -> None:
    """One pack that the remote has is damaged, another has vanished; fsck repairs both."""
    store.push()
    packs = sorted(pack for pack, (_, place, _) in store.index.packs().items() if place & 1)
    store.folder.path(packs[0]).write_bytes(b"damaged")
    store.folder.path(packs[-1]).unlink()
    store.folder.forget(packs[0])
    store.fsck("checksums", repair=True)


def problems(folder: Path, finished: bool, operation: Callable[..., None]) -> list[str]:
    """The problems of the store after a kill."""
    found = []
    with opened(folder) as store:
        if operation is repair and not finished:
            store.fsck("checksums", repair=True)  # the interrupted repair may have left damage
        found += store.fsck("deep").problems
        names = {"one": 1, "two": 2, "four": 4, **({"nine": 9} if operation is put and finished else {})}
        for name, number in names.items():
            try:
                values = store.get(store.references()[name])
            except (KeyError, RegattaError) as error:
                found.append(f"{name}: {error!r}")
                continue
            if {k: bits_of(v) for k, v in values.items()} != {k: bits_of(v) for k, v in snapshot_of(0, number).items()}:
                found.append(f"{name}: other bits")
        put(store)
        collect(store)
        found += store.fsck("deep").problems
    return found


def main(folder: Path, every: int) -> None:
    prepare(folder / "start")
    result: dict[str, list[Any]] = {}
    for operation in (put, reencode, collect, offload, recall, push, repair):
        for moment in count(0, every):
            here = folder / "work"
            shutil.copytree(folder / "start", here)
            finished = run_and_die(here, operation, moment)
            for problem in problems(here, finished, operation):
                result.setdefault(operation.__name__, [0]).append(f"moment {moment}: {problem}")
            shutil.rmtree(here)
            if finished:
                result.setdefault(operation.__name__, [0])[0] = moment
                break
    print(json.dumps(result))


def run_and_die(folder: Path, operation: Callable[[ParameterStore], None], moment: int) -> bool:
    """Whether the operation got to the end."""

    def work() -> None:
        with opened(folder) as store:
            arm(moment)
            operation(store)

    return finishes(work, f"{operation.__name__}, to be killed at moment {moment},")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
