"""Finds the weights of a version: in the parameter store, or, just after a run, in a state file of the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regatta.errors import NotFoundError, UsageError
from regatta.paths import RUNS, state_path
from regatta.repo.catalog.records import RunEntry, SnapshotRecord, Version

if TYPE_CHECKING:
    from regatta.repo.repo import Repo
    from regatta.repo.weights import Weights


def choose_snapshot(repo: Repo, version: Version, wanted: int | str | None) -> SnapshotRecord:
    """A snapshot by its epoch, its position (if none has an epoch) or the beginning of its id; by default the last."""
    found = repo.catalog.snapshots(version)
    if not found:
        raise NotFoundError(f"The version {version.reference} has no weights.", place=str(repo.folder))
    if wanted is None:
        return found[-1]
    if isinstance(wanted, str):
        chosen = [each for each in found if (stored_id(repo, each) or "").startswith(wanted.lower())]
    elif any(each.epoch is not None for each in found):
        chosen = [each for each in found if each.epoch == wanted]
    else:
        chosen = [each for each in found if wanted in (each.position, each.position - len(found))]
    if not chosen:
        known = ", ".join(str(each.position if each.epoch is None else each.epoch) for each in found[:20])
        raise NotFoundError(f"The version {version.reference} has no snapshot {wanted!r}.", hint=f"It has {known}.")
    return chosen[-1]


def stored_id(repo: Repo, snapshot: SnapshotRecord) -> str | None:
    """The id of a snapshot in the store; None if it is not there (yet)."""
    if snapshot.id is not None:
        return snapshot.id
    if not repo.has_store:
        return None
    return repo.store.references(snapshot.reference).get(snapshot.reference)


def state_file(repo: Repo, version: Version, snapshot: SnapshotRecord) -> Path | None:
    """The file of a state that is not in the store yet."""
    run = repo.catalog.run(version.run)
    folder = None if run is None or snapshot.kind != "state" else folder_of_run(repo, run)
    if folder is None:
        return None
    path = state_path(folder, str(version.config), snapshot.reference.rpartition("/")[2])
    return path if path.is_file() else None


def folder_of_run(repo: Repo, run: RunEntry) -> Path | None:
    """The folder of a run; None if it was removed.

    If it is not where the catalog has it, it was moved by hand, or by a rename that was interrupted.
    """
    from regatta.journal.run_record import find_journals
    from regatta.store.states.state_archive import series_of

    known = repo.folder / run.folder
    if series_of(known) == run.series:
        return known
    folders = (journal.parent for journal in find_journals(repo.folder / RUNS))
    return next((folder for folder in folders if series_of(folder) == run.series), None)


def weights_of(repo: Repo, version: Version, snapshot: SnapshotRecord) -> Weights:
    from regatta.repo.weights import state_file_weights, stored_weights

    stored = stored_id(repo, snapshot)
    if stored is None and (path := state_file(repo, version, snapshot)) is not None:
        try:
            return state_file_weights(path, snapshot.digest)
        except FileNotFoundError:  # the archiver has just moved it into the store
            pass
    stored = stored or stored_id(repo, snapshot)
    if stored is None:
        raise _not_found(repo, version, snapshot)
    return stored_weights(repo.store, stored, snapshot.kind)


def add_reference(repo: Repo, name: str, version: Version, snapshot: SnapshotRecord) -> SnapshotRecord:
    """Give a snapshot of a version a second name, for use by another version."""
    from regatta.store.states.state_archive import RawState, store_states

    if stored_id(repo, snapshot) is None and (path := state_file(repo, version, snapshot)) is not None:
        # Put the file into the store under the name that the archiver would use.
        state = RawState(path, str(version.config), str(snapshot.digest))
        left = store_states(repo.store, str(version.run), [state]).failed
        if path in left:
            raise UsageError(f"The state cannot be stored: {left[path]}", place=str(path))
    stored = stored_id(repo, snapshot)
    if stored is None:
        raise _not_found(repo, version, snapshot)
    repo.store.reference(name, stored)
    return SnapshotRecord(0, snapshot.epoch, snapshot.kind, name, stored)


def _not_found(repo: Repo, version: Version, snapshot: SnapshotRecord) -> NotFoundError:
    return NotFoundError(
        f"The weights {snapshot.reference} of {version.reference} are missing.", place=str(repo.folder)
    )
