"""Kills commits, copies, deletions, collections, commits of runs and of staged files, additions and lossy archives.

    python commit_crash_points.py FOLDER K     prints [moments, problem, ...] as JSON

Each operation is killed at every K-th moment (crash_drill.py). What was there before must be there afterwards, what was
reported as committed too, and the repository must open, pass fsck in full depth and take the next commit.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from crash_drill import arm, finishes
from fake_run import FakeRun
from kill_drill import snapshot_of

from regatta.repo import Repo
from regatta.repo.commit_run import commit_run
from regatta.repo.intake.staging import add, commit_staged, staged
from regatta.store.database import Database
from regatta.testing.store import bits_of

STEPS: list[tuple[Any, str]] = [
    (os, "fsync"), (os, "replace"), (os, "truncate"), (os, "write"), (Path, "unlink"), (Database, "_run"),
]  # fmt: skip


def files_of(number: int) -> dict[str, bytes]:
    return {"shared": b"the same in all", "own/file": f"only in {number}".encode()}


def make(repo: Repo, name: str, number: int) -> None:
    series = {epoch: snapshot_of(epoch, number) for epoch in (1, 2)}
    options: dict[str, Any] = {"hyperparameters": {"number": number}, "metrics": {"loss": [2.0, 1.0]}, "git": False}
    repo.commit(name, series, files=files_of(number), **options)


def prepare(folder: Path) -> None:
    FakeRun(configs=3, epochs=1, partitions=2).write(folder / "runs")
    with Repo.at(folder) as repo:
        for number in (1, 2, 3):
            make(repo, f"v{number}", number)
        repo.delete("v3")
        repo.commit("may-lose", snapshot_of(1, 7), git=False)
        write_sources(folder)
        add(repo, [folder / "sources" / "early.npz", folder / "sources" / "early.toml"])


def commit(repo: Repo) -> None:
    make(repo, "new", 9)


def copy(repo: Repo) -> None:
    repo.copy("v1", "new")


def delete(repo: Repo) -> None:
    repo.delete("v2")


def collect(repo: Repo) -> None:
    repo.gc(grace=0.0)


def enter_run(repo: Repo) -> None:
    commit_run(repo, repo.folder / "runs" / "made")


def write_sources(folder: Path) -> None:
    (folder / "sources").mkdir()
    for name, number in (("early", 5), ("late", 6)):
        np.savez(folder / "sources" / f"{name}.npz", w=np.full(300, number, "f4"))
        (folder / "sources" / f"{name}.toml").write_text(f"number = {number}\n")


def stage(repo: Repo) -> None:
    add(repo, [repo.folder / "sources" / "late.npz", repo.folder / "sources" / "late.toml"])


def commit_area(repo: Repo) -> None:
    commit_staged(repo, "area")


def lessen(repo: Repo) -> None:
    repo.archive("may-lose", lossy="float16")


def wrong_area(repo: Repo, finished: bool, operation: Callable[..., None]) -> list[str]:
    """The staging area is as it was or as it was to be, never in between, and makes one version, not two."""
    early, late = {"early.npz", "early.toml"}, {"late.npz", "late.toml"}
    names, made = {item.name for item in staged(repo)}, len(repo.versions("area"))
    allowed: list[tuple[set[str], int]] = [(early, 0)] if not finished or operation not in (stage, commit_area) else []
    allowed += [(early | late, 0)] if operation is stage else [(set(), 1)] if operation is commit_area else []
    if (names, made) not in allowed:
        return [f"{names} are staged, and there are {made} versions of them"]
    if names:
        commit_staged(repo, "area")
    number = 6 if late <= names else 5
    version = repo.version("area")
    right = version.hyperparameters == {"number": number} and bool((repo.load(version)["w"] == number).all())
    return [*([] if right else ["another area"]), *(["two of them"] if len(repo.versions("area")) > 1 else [])]


def problems(folder: Path, finished: bool, operation: Callable[..., None]) -> list[str]:
    """What is wrong with the repository after a death."""
    with Repo.at(folder) as repo:
        found = list(repo.fsck("deep").problems)
        if {ident for kind, ident in repo.catalog.log.read().entries() if kind == "version"} != repo.catalog.ids():
            found.append("the version log has other versions than the catalog")
        names = {version.name for version in repo.versions()}
        expected = {"v1": 1, "v2": 2, **({"new": 9} if operation is commit else {})}
        if operation is delete:
            expected.pop("v2") if finished or "v2" not in names else None
        for name, number in expected.items():
            if name in names:
                found += wrong(repo, name, number)
            elif name != "new" or finished:
                found.append(f"{name} is not there")
        if operation is enter_run and len(repo.versions(run="made")) not in ((3,) if finished else (0, 3)):
            found.append("half a run")
        repo.load("may-lose")
        found += wrong_area(repo, finished, operation)
        make(repo, "after", 10)
        repo.gc(grace=0.0)
        after = repo.fsck("deep")
        return [*found, *after.problems, *wrong(repo, "after", 10), *(["leftovers"] if after.leftovers else [])]


def wrong(repo: Repo, name: str, number: int) -> list[str]:
    found = []
    for epoch in (1, 2):
        values = {key: bits_of(value) for key, value in repo.load(name, epoch).items()}
        if values != {key: bits_of(value) for key, value in snapshot_of(epoch, number).items()}:
            found.append(f"{name}: other bits in epoch {epoch}")
    if any(repo.read_file(name, path) != content for path, content in files_of(number).items()):
        found.append(f"{name}: other files")
    known = {version.name for version in repo.versions(search=name)}
    return found + ([] if name in known else [f"{name} is not found"])


def run_and_die(folder: Path, operation: Callable[[Repo], None], moment: int) -> bool:
    """Whether the operation got to the end."""

    def work() -> None:
        with Repo.at(folder) as repo:
            arm(moment, STEPS)
            operation(repo)

    return finishes(work, f"{operation.__name__}, to be killed at moment {moment},")


def main(folder: Path, every: int) -> None:
    prepare(folder / "start")
    moments, found = 0, []
    for operation in (commit, copy, delete, collect, enter_run, stage, commit_area, lessen):
        for moment in count(0, every):
            here = folder / "work"
            shutil.copytree(folder / "start", here)
            finished = run_and_die(here, operation, moment)
            moments += not finished
            found += [f"{operation.__name__}, moment {moment}: {text}" for text in problems(here, finished, operation)]
            shutil.rmtree(here)
            if finished:
                break
    print(json.dumps([moments, *found]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
