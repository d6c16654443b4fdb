"""Which worker holds which partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from regatta.errors import DataError, UsageError, nearest

Workers: TypeAlias = tuple[int | str, ...]


def place_partitions(
    paths: Sequence[Path], availability: Mapping[Path, Workers], workers: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """The partitions that each worker holds, by number.

    If the map names any of the paths, it must name a worker for each. If it names none, they are assigned round robin,
    and surplus workers hold a partition that another worker holds as well.
    """
    if not workers:
        raise UsageError("There are no workers to hold the partitions.")
    if not any(path in availability for path in paths):
        if not paths:
            return dict.fromkeys(workers, ())
        return {
            worker: tuple(range(w, len(paths), len(workers))) if w < len(paths) else (w % len(paths),)
            for w, worker in enumerate(workers)
        }
    held: dict[str, list[int]] = {worker: [] for worker in workers}
    for j, path in enumerate(paths):
        holders = {_worker(reference, workers, path): None for reference in availability.get(path, ())}
        if not holders:
            raise DataError(
                "No worker holds this partition.", place=str(path), hint="Name its workers in the availability map."
            )
        for worker in holders:
            held[worker].append(j)
    return {worker: tuple(partitions) for worker, partitions in held.items()}


def find_partitions(names: object, train: Sequence[Path], held_out: Sequence[Path]) -> dict[str, list[int]] | None:
    """The partitions with these names: a path, the name of a file, or the number of a training partition."""
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"The partitions are {names!r:.80}; give a list of names.")
    found: dict[str, list[int]] = {"train": [], "eval": []}
    known = {"train": train, "eval": held_out}
    for name in names:
        places = [
            (kind, j)
            for kind, paths in known.items()
            for j, path in enumerate(paths)
            if name in (str(path), path.name) or (kind == "train" and name == str(j))
        ]
        if not places:
            near = nearest(name, [path.name for paths in known.values() for path in paths])
            raise UsageError(f"The data set has no partition {name!r}.", candidates=near)
        for kind, j in places:
            found[kind].append(j)
    return found


def _worker(reference: int | str, workers: Sequence[str], path: Path) -> str:
    if isinstance(reference, str):
        if reference in workers:
            return reference
        raise UsageError(
            f"The availability map names the worker {reference!r}; there are {', '.join(workers)}.",
            place=str(path),
            candidates=nearest(reference, workers),
        )
    if not 0 <= reference < len(workers):
        raise UsageError(
            f"The availability map names worker number {reference}; there are {len(workers)}, counted from 0.",
            place=str(path),
        )
    return workers[reference]
