"""Versions of runs whose folder was removed by hand, and with it the states that were only there."""

from __future__ import annotations

from dataclasses import replace

from regatta.format import count
from regatta.journal.run_record import find_journals
from regatta.paths import RUNS
from regatta.repo.catalog.records import SnapshotRecord, Version
from regatta.repo.repo import Repo
from regatta.repo.snapshots import folder_of_run, state_file
from regatta.store.states.state_archive import STATE_REFERENCES, series_of


def removed_folder(repo: Repo, version: Version) -> str | None:
    """The name of a version's run, if the folder of that run was removed; None if it is there."""
    run = repo.catalog.run(version.run)
    return None if run is None or folder_of_run(repo, run) is not None else run.name


def lost_states(repo: Repo) -> dict[str, list[tuple[Version, SnapshotRecord]]]:
    """The snapshots that went with the folders of runs, by the name of the run."""
    names = repo.store.references(STATE_REFERENCES) if repo.has_store else {}
    found: dict[str, list[tuple[Version, SnapshotRecord]]] = {}
    for ident, snapshot in repo.catalog.all_snapshots():
        if snapshot.kind != "state" or snapshot.id is not None or snapshot.reference in names:
            continue
        version = repo.catalog.of_id(ident)
        run = removed_folder(repo, version)
        if run is not None and state_file(repo, version, snapshot) is None:
            found.setdefault(run, []).append((version, snapshot))
    return found


def forget_lost_states(repo: Repo) -> list[str]:
    """Take lost snapshots out of their versions, which stay with all else; a sentence for each run."""
    said = []
    for run, lost in lost_states(repo).items():
        gone: dict[str, set[int]] = {}
        for version, snapshot in lost:
            gone.setdefault(version.id, set()).add(snapshot.position)
        with repo.committing(), repo.catalog.transaction():
            for ident, positions in gone.items():
                version = repo.catalog.of_id(ident)
                kept = [each for each in repo.catalog.snapshots(version) if each.position not in positions]
                left = [replace(each, position=number) for number, each in enumerate(kept)]
                repo.catalog.set_snapshots(version, left)
        said.append(
            f"The folder of the run {run} was removed: {count(len(lost), 'snapshot')} of "
            f"{count(len(gone), 'version')} went with it, and the versions stay without them."
        )
    return said


def names_of_removed_runs(repo: Repo) -> list[str]:
    """Names of states in the store whose run is gone and that no version has.

    The names are read before the folders of runs: a run that begins meanwhile has its folder by then.
    """
    names = repo.store.references(STATE_REFERENCES)
    known = {snapshot.reference for _, snapshot in repo.catalog.all_snapshots()}
    series = [series_of(journal.parent) for journal in find_journals(repo.folder / RUNS)]
    if None in series:  # a damaged journal does not say which states are its own
        return []
    present = tuple(f"{STATE_REFERENCES}{each}/" for each in series)
    return [name for name in names if name not in known and not name.startswith(present)]
