"""Deletes versions, and runs with or without their versions.

A record is written first, so that `undo` can take the deletion back. Then the catalog forgets the versions, and the
store their names; gc frees the weights and files that nothing else uses. The folder of a run is moved to the record.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from regatta.durable import fsync_path, move
from regatta.errors import ConflictError, DiskError, NotFoundError, UsageError, nearest
from regatta.journal.lock import run_lock
from regatta.journal.run_record import find_journals
from regatta.paths import DELETED_RUN, JOURNAL, RUNS
from regatta.repo.catalog.records import RunEntry, Version
from regatta.repo.commit import PREFIX
from regatta.repo.edit.deleted import write_record
from regatta.repo.repo import Repo
from regatta.repo.snapshots import folder_of_run, state_file, stored_id
from regatta.store.states.archive_run import take_over
from regatta.store.states.state_archive import STATE_REFERENCES, RawState, series_of, store_states

MAX_NAMED = 5  # tags and children that an error names


@dataclass(frozen=True)
class DeletePlan:
    """What a deletion takes away: versions, names of snapshots in the store, and a run."""

    versions: tuple[Version, ...]
    names: dict[str, str]
    run: RunEntry | None = None
    run_name: str | None = None
    run_folder: Path | None = None  # of a run whose folder was not removed by hand


@dataclass(frozen=True)
class DeleteResult:
    """What was deleted. `undo` is the id for `undo`; None if the disk had no room for the record."""

    versions: tuple[Version, ...]
    run: str | None
    undo: str | None


def plan_versions(repo: Repo, versions: Sequence[Version], force: bool = False) -> DeletePlan:
    """Delete these versions together. Those with tags, or with children that stay, need `force`."""
    chosen = tuple({version.id: version for version in versions}.values())
    if not force:
        _check_unused(repo, chosen)
    return DeletePlan(chosen, _own_names(repo, chosen))


def plan_run(repo: Repo, name: str, *, keep_versions: bool = False, force: bool = False) -> DeletePlan:
    """Delete a run with its versions, or leave these with their weights."""
    series, folder = find_run(repo, name)
    versions = tuple(repo.versions(run=series)) if series is not None else ()
    if not keep_versions and not force:
        _check_unused(repo, versions)
    names = repo.store.references(f"{STATE_REFERENCES}{series}/") if series is not None and repo.has_store else {}
    entry = repo.catalog.run(series)
    if keep_versions:
        used = {each.reference for version in versions for each in repo.catalog.snapshots(version)}
        return DeletePlan((), {each: names[each] for each in names if each not in used}, entry, name, folder)
    return DeletePlan(versions, {**names, **_own_names(repo, versions)}, entry, name, folder)


def run_names(repo: Repo) -> list[str]:
    """The names of the runs of the repository."""
    return [journal.parent.name for journal in find_journals(repo.folder / RUNS)]


def find_run(repo: Repo, name: str) -> tuple[str | None, Path | None]:
    """The series and the folder of a run. Without a folder it was removed by hand, and only its versions are left."""
    entry = repo.catalog.run(repo.catalog.series_named(name)) if name not in run_names(repo) else None
    if entry is not None and folder_of_run(repo, entry) is None:
        return entry.series, None
    folder = run_folder(repo, name)
    return series_of(folder), folder


def run_folder(repo: Repo, name: str) -> Path:
    """The folder of a run of the repository."""
    known = run_names(repo)
    if name not in known:
        place = str(repo.folder / RUNS)
        raise NotFoundError(f"There is no run {name!r:.200}.", place=place, candidates=nearest(name, known))
    return repo.folder / RUNS / name


def delete_versions(repo: Repo, versions: Sequence[Version], force: bool = False) -> DeleteResult:
    with repo.committing():
        plan = plan_versions(repo, versions, force)
        return _delete(repo, plan)


def delete_run(repo: Repo, name: str, *, keep_versions: bool = False, force: bool = False) -> DeleteResult:
    """Delete a run that no process trains. With `keep_versions` its states move into the store first."""
    _, folder = find_run(repo, name)
    with repo.committing(), _not_training(folder) if folder is not None else nullcontext():
        if keep_versions and folder is not None:
            _store_states(repo, folder)
        return _delete(repo, plan_run(repo, name, keep_versions=keep_versions, force=force))


def _delete(repo: Repo, plan: DeletePlan) -> DeleteResult:
    record = write_record(repo, plan.versions, plan.names, plan.run, plan.run_name)
    files = [file.hash for version in plan.versions for file in repo.catalog.files(version)]
    with repo.catalog.transaction():
        for version in plan.versions:
            repo.catalog.drop(version)
        if plan.run is not None and not repo.catalog.has_versions(plan.run.series):
            repo.catalog.drop_run(plan.run.series)
    repo.files.renew(files)
    if plan.names:
        repo.store.release_all(plan.names)
    if plan.run_folder is not None:
        if record is None:
            shutil.rmtree(plan.run_folder)
            fsync_path(repo.folder / RUNS)
        else:
            move(plan.run_folder, record / DELETED_RUN)
    return DeleteResult(plan.versions, plan.run_name, None if record is None else record.name)


@contextmanager
def _not_training(folder: Path) -> Iterator[None]:
    """Keep controllers away from a run, and tell archivers to leave its files."""
    try:
        with run_lock(folder):
            with suppress(DiskError):  # an archiver that goes on finds no files
                take_over(folder, f"deleted {secrets.token_hex(8)}")
            yield
    except ConflictError as error:
        if not (folder / JOURNAL).exists():
            raise
        raise ConflictError(error.message, place=error.place, hint="Wait for its end, or stop that process.") from error


def _store_states(repo: Repo, folder: Path) -> None:
    """Put the states of a run's versions into the store, so that the versions do not need its folder."""
    series = series_of(folder)
    for version in repo.versions(run=series) if series is not None else ():
        wanted = [each for each in repo.catalog.snapshots(version) if stored_id(repo, each) is None]
        paths = [(each, state_file(repo, version, each)) for each in wanted]
        states = [RawState(path, str(version.config), str(each.digest)) for each, path in paths if path is not None]
        failed = store_states(repo.store, str(series), states).failed if states else {}
        if failed:
            path, reason = next(iter(failed.items()))
            raise UsageError(
                f"The weights of {version.reference} cannot be stored: {reason}",
                place=str(path),
                hint="Nothing was deleted. Without --keep-versions, the version is deleted as well.",
            )


def _own_names(repo: Repo, versions: Sequence[Version]) -> dict[str, str]:
    """The names of snapshots in the store that only these versions use."""
    if not repo.has_store or not any(version.snapshots for version in versions):
        return {}
    return {
        name: snapshot
        for version in versions
        for name, snapshot in repo.store.references(f"{PREFIX}{version.id}/").items()
    }


def _check_unused(repo: Repo, versions: Sequence[Version]) -> None:
    deleted = {version.id for version in versions}
    for version in versions:
        children = [child for child in repo.catalog.children(version) if child.id not in deleted]
        users = [
            *(f"the tag {tag.name!r}" for tag in repo.catalog.tags(version)),
            *(f"the child {child.reference}" for child in children),
        ]
        if users:
            more = f" and {len(users) - MAX_NAMED} more" if len(users) > MAX_NAMED else ""
            raise ConflictError(
                f"The version {version.reference} has {', '.join(users[:MAX_NAMED])}{more}.",
                hint="Delete it all the same: force=True.",
            )
