"""Checks an environment and a repository, with a remedy for each problem.

Nothing is changed, no framework is imported, and a repository that is not writable is checked as well.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from regatta.errors import RegattaError
from regatta.journal.lock import is_live
from regatta.journal.run_record import RunRecord, find_journals
from regatta.paths import CATALOG, FOLDER, RUNS, STORE, VERSION_LOG, find_repository, has_packs
from regatta.repo.intake.staging import staged
from regatta.repo.repair.agreement import disagreements
from regatta.repo.repair.removed_runs import lost_states
from regatta.repo.repo import Repo
from regatta.store.sqlite import sqlite3
from regatta.store.states.archive_run import finished_states

LOW_DISK_BYTES, CRITICAL_DISK_BYTES = 5 * 2**30, 2**29
MIN_ARCHIVE_BYTES = 2**26  # of state files that are worth an archive pass
NEEDED = ("numpy", "scipy", "torch", "safetensors", "blake3", "zstandard", "pcodec", "rich")
EXTRAS = {
    "keras": ("keras", "tensorflow"), "jax": ("jax",), "ray": ("ray",), "onnx": ("onnx",), "optuna": ("optuna",),
    "pandas": ("pandas",), "parquet": ("pyarrow",), "cpsat": ("ortools",), "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",), "yaml": ("yaml",),
}  # fmt: skip
DISTRIBUTIONS = {"mlflow": "mlflow-skinny", "yaml": "pyyaml", "tensorflow": "tensorflow-cpu"}


@dataclass(frozen=True)
class Finding:
    """The result of one check, with a remedy if something is wrong."""

    state: Literal["ok", "note", "warning", "error"]
    what: str
    says: str
    remedy: str = ""


def examine(folder: str | Path | None = None) -> list[Finding]:
    """All findings about this environment and the repository of a folder, or the nearest one upwards."""
    found = Path(os.path.abspath(folder)) if folder is not None else find_repository()
    if found is not None and not (found / CATALOG).exists() and (found / FOLDER).is_dir():
        found = found / FOLDER
    if found is not None:
        return [*_environment(), *_repository(found)]
    remedy = "regatta init creates one, and so does a run"
    return [*_environment(), Finding("note", "repository", "there is none here or above", remedy)]


def _environment() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in NEEDED:
        known = _version(package)
        if known is None:
            yield Finding("error", package, "is not installed", f"pip install {package}")
        elif package == "torch":
            yield Finding("ok", package, known)
    there = {extra: [_version(package) for package in packages] for extra, packages in EXTRAS.items()}
    having = [f"{extra} {versions[0]}" for extra, versions in there.items() if all(versions)]
    missing = [extra for extra, versions in there.items() if not all(versions)]
    yield Finding("ok", "extras", ", ".join(having) or "none")
    if missing:
        yield Finding(
            "note", "not installed", ", ".join(missing), f"pip install '.[{missing[0]}]' in the clone, if you want it"
        )
    if sqlite3.sqlite_version_info < (3, 35):
        yield Finding("error", "sqlite", sqlite3.sqlite_version, "Python's SQLite must be 3.35 or newer")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("ok", "processors", f"{usable} usable of {os.cpu_count()}")
    yield _device()


def _version(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    if find_spec(package) is None:
        return None
    for name in (package, DISTRIBUTIONS.get(package, package)):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


def _device() -> Finding:
    """The devices by nvidia-smi; asking a framework would take seconds."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding("ok", "devices", "no NVIDIA driver here: training on processors")
    command = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("warning", "devices", f"nvidia-smi does not answer: {error}", "Check the driver.")
    if done.returncode:
        return Finding("warning", "devices", done.stdout.strip()[:200] or "nvidia-smi failed", "Check the driver.")
    return Finding("ok", "devices", "; ".join(done.stdout.strip().splitlines()))


def _repository(folder: Path) -> Iterator[Finding]:
    if not folder.is_dir():
        yield Finding("error", "repository", f"{folder} is not a folder", "Choose another one.")
        return
    writable = os.access(folder, os.W_OK | os.X_OK)
    remedy = "" if writable else "It can be read. To commit or train, make the folder writable."
    says = f"{folder}{'' if writable else ', for reading only'}"
    yield Finding("ok" if writable else "warning", "repository", says, remedy)
    yield _disk(folder)
    yield from _catalog(folder)
    yield from _runs(folder)


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:,.1f} GB free"
    if free < LOW_DISK_BYTES:
        state: Literal["error", "warning"] = "error" if free < CRITICAL_DISK_BYTES else "warning"
        return Finding(state, "disk", text, "Free some space: regatta archive, then regatta gc --grace 0")
    return Finding("ok", "disk", text)


def _catalog(folder: Path) -> Iterator[Finding]:
    known = (folder / CATALOG).is_file() or (folder / VERSION_LOG).is_file() or has_packs(folder / STORE)
    if not known:
        yield Finding("note", "versions", "there is no catalog yet", "The first commit or run creates one.")
        return
    try:
        with Repo.open(folder) as repo:
            problems, waiting, count = repo.catalog.check(), staged(repo), repo.catalog.count()
    except RegattaError as error:
        yield Finding("error", "catalog", error.message, error.hint or "Restore it from a copy.")
        return
    yield from _store(folder)
    yield from _removed_runs(folder)
    for problem in problems:
        yield Finding("error", "catalog", problem, "regatta fsck --depth deep shows more")
    if not problems:
        yield Finding("ok", "catalog", f"sound, {count:,} versions")
    if waiting:
        yield Finding("note", "staged", f"{len(waiting)} files wait for a commit", "regatta commit NAME, or unstage")


def _store(folder: Path) -> Iterator[Finding]:
    """Whether the parameter store can be opened and has what versions need; fsck checks its content."""
    try:
        with Repo.open(folder) as repo:
            if not repo.has_store:
                yield from _removed_store(repo)
                return
            kept, problems = repo.store.references(), disagreements(repo)
    except RegattaError as error:
        yield Finding("error", "store", error.message, error.hint or "regatta fsck --depth deep shows more")
        return
    if problems:
        more = f" And {len(problems) - 1} more." if len(problems) > 1 else ""
        yield Finding(
            "error", "store", f"{problems[0]}{more}", "regatta fsck shows all; regatta fsck --repair mends them"
        )
    else:
        yield Finding("ok", "store", f"{len(kept):,} snapshots")


def _removed_store(repo: Repo) -> Iterator[Finding]:
    """A repository without a parameter store whose versions have weights there."""
    if lost := sum(snapshot.id is not None for _, snapshot in repo.catalog.all_snapshots()):
        says = f"it is missing, and with it the weights of {lost:,} snapshots of versions"
        yield Finding("error", "store", says, f"Restore the folder {repo.folder / STORE} from a copy.")


def _removed_runs(folder: Path) -> Iterator[Finding]:
    """Runs whose folder was removed by hand, and with it weights of their versions."""
    try:
        with Repo.open(folder) as repo:
            lost = lost_states(repo)
    except RegattaError:
        return  # said already
    for run, snapshots in lost.items():
        says = f"its folder was removed, and with it {len(snapshots)} snapshots of its versions"
        yield Finding("error", f"run {run}", says, "Restore the folder, or: regatta fsck --repair")


def _runs(folder: Path) -> Iterator[Finding]:
    """Runs that were interrupted or are damaged, and the size of their state files."""
    loose, done, going = 0, 0, 0
    for journal in find_journals(folder / RUNS):
        name = journal.parent.name
        try:
            record = RunRecord.read(journal)
        except RegattaError as error:
            yield Finding("error", f"run {name}", error.message, "Restore its journal from a copy.")
            continue
        if is_live(journal.parent):
            going += 1
        elif record.status == "done":
            done += 1
            loose += sum(state.path.stat().st_size for state in finished_states(journal.parent))
        else:
            how = "was interrupted" if record.status in ("running", "interrupted") else "failed"
            yield Finding("warning", f"run {name}", how, f"regatta resume {name}")
    yield Finding("ok", "runs", f"{done} done{f', {going} being trained' if going else ''}")
    if loose >= MIN_ARCHIVE_BYTES:
        yield Finding("note", "states", f"{loose / 1e6:,.0f} MB of states are still files", "regatta archive")


def worst(findings: list[Finding]) -> str:
    order = ("ok", "note", "warning", "error")
    return max((finding.state for finding in findings), key=order.index, default="ok")
