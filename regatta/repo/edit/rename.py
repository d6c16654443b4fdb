"""Gives a run, or a model with all its versions, another name.

The series of a run, by which the store knows its states, comes from the first line of its journal, and stays. A record
in the journal has the new name. Each step may be repeated, so an interrupted rename is finished by another one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from regatta.durable import move
from regatta.errors import ConflictError, NotFoundError, nearest
from regatta.journal.journal_file import Journal
from regatta.journal.lock import run_lock
from regatta.journal.run_record import RunRecord
from regatta.paths import JOURNAL, RUNS, check_run_name
from regatta.repo.catalog.names import check_name
from regatta.repo.commit_run import message_of_run
from regatta.repo.edit.delete import run_folder
from regatta.repo.repo import Repo
from regatta.store.states.state_archive import series_of


def rename_model(repo: Repo, old: str, new: str) -> int:
    """Rename all versions of a model, whose numbers stay; the number of versions."""
    checked = check_name(new)
    if old not in repo.catalog.names():
        raise NotFoundError(
            f"No version has the name {old!r:.200}.",
            candidates=nearest(old, repo.catalog.names()),
            hint="A name belongs to all versions of a model; `copy` starts another model from one of them.",
        )
    with repo.committing(), repo.catalog.transaction():
        return repo.catalog.rename(old, checked)


def rename_run(repo: Repo, old: str, new: str) -> int:
    """Rename a run that no process trains, and its versions; the number of versions."""
    target = repo.folder / RUNS / check_run_name(new)
    is_moved = _is_moved(repo, old, target)
    folder = target if is_moved else run_folder(repo, old)
    if target.exists() and not is_moved:
        raise ConflictError(f"There is a run named {new!r} already.", place=str(target.parent))
    with repo.committing(), run_lock(folder):
        series, record = series_of(folder), RunRecord.read(folder / JOURNAL)
        before, renamed = {record.name, old}, 0
        with repo.catalog.transaction():
            entry = repo.catalog.run(series)
            if entry is not None:
                repo.catalog.set_run(replace(entry, name=new, folder=target.relative_to(repo.folder).as_posix()))
            for version in repo.versions(run=series) if series is not None else ():
                stem, slash, config = version.name.rpartition("/")
                if slash and stem in before and version.name in repo.catalog.names():
                    renamed += repo.catalog.rename(version.name, f"{new}/{config}")
                if version.message in map(message_of_run, before):
                    repo.catalog.set_message(version, message_of_run(new))
            # No name is taken. Only now is the folder moved, and the catalog changed last.
            if record.name != new:
                with Journal(folder / JOURNAL) as journal:
                    journal.append("rename", name=new)
            if not is_moved:
                move(folder, target)
    return renamed


def _is_moved(repo: Repo, old: str, target: Path) -> bool:
    """Whether a rename of this run was interrupted after it had moved the folder."""
    if (repo.folder / RUNS / old).exists() or (series := series_of(target)) is None:
        return False
    entry = repo.catalog.run(series)
    return entry is not None and entry.name == old
