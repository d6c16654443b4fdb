"""Takes back a deletion, as long as gc has not freed its content."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from regatta.durable import move
from regatta.errors import ConflictError, NotFoundError
from regatta.paths import RUNS, state_path
from regatta.repo.catalog.catalog import NewVersion
from regatta.repo.catalog.records import Link
from regatta.repo.edit.deleted import Deletion, deleted_run_folder, deletions, find_deletion, record_folder
from regatta.repo.repo import Repo
from regatta.repo.snapshots import folder_of_run
from regatta.store.states.state_archive import STATE_REFERENCES


@dataclass(frozen=True)
class UndoResult:
    """What is back: references of versions, and a run. `lost_tags` are tags that other versions have by now."""

    deletion: Deletion
    versions: tuple[str, ...]
    run: str | None
    lost_tags: tuple[str, ...] = ()


def undo(repo: Repo, wanted: str | None) -> UndoResult:
    """Take back the newest deletion, or the one with this id. It may be repeated if it was interrupted."""
    with repo.committing():
        deletion = find_deletion(repo, wanted)
        _check_there(repo, deletion)
        for name, snapshot in deletion.names.items():
            repo.store.reference(name, snapshot)
        _put_back_run(repo, deletion)
        lost = _put_back_versions(repo, deletion)
        shutil.rmtree(record_folder(repo, deletion))
        back = tuple(repo.catalog.of_id(each.id).reference for each in deletion.versions)
        return UndoResult(deletion, back, deletion.run_name, lost)


def _check_there(repo: Repo, deletion: Deletion) -> None:
    """Refuse before anything is changed."""
    present = set(repo.store.snapshots()) if deletion.names else set()
    gone = [name for name, snapshot in deletion.names.items() if snapshot not in present]
    files = [file for version in deletion.versions for file in version.new_version().files]
    missing = [file.path for file in files if repo.files.problem_of(file.hash, file.bytes, whole=False) is not None]
    if gone or missing:
        what = f"the weights {gone[0]}" if gone else f"the file {missing[0]!r:.200}"
        raise NotFoundError(
            f"The deletion of {deletion.title} cannot be taken back: gc has freed {what}.", place=str(repo.folder)
        )
    _check_states(repo, deletion)
    _check_names(repo, deletion)


def _check_states(repo: Repo, deletion: Deletion) -> None:
    """Refuse if states that were files of a run went with its folder."""
    folders = {run.series: folder_of_run(repo, run) for run in deletion.runs}
    for version in deletion.versions:
        new = version.new_version()
        files = [each for each in new.snapshots if each.kind == "state" and each.reference not in deletion.names]
        if not files or new.run is None or (deletion.run is not None and deletion.run.series == new.run):
            continue
        stored = repo.store.references(f"{STATE_REFERENCES}{new.run}/") if repo.has_store else {}
        folder = folders.get(new.run)
        for each in files:
            path = None if folder is None else state_path(folder, str(new.config), each.reference.rpartition("/")[2])
            if each.reference not in stored and (path is None or not path.is_file()):
                with_it = [other for other in deletions(repo) if other.run is not None and other.run.series == new.run]
                raise NotFoundError(
                    f"The deletion of {deletion.title} cannot be taken back: "
                    f"the state {each.reference} went with its run.",
                    place=str(repo.folder),
                    hint=f"Take back the deletion of the run first: regatta undo {with_it[-1].id}" if with_it else None,
                )


def _check_names(repo: Repo, deletion: Deletion) -> None:
    tags = {tag.name for tag in repo.tags()}
    for version in deletion.versions:
        if version.content["name"] in tags and not repo.catalog.has(version.id):
            raise ConflictError(
                f"There is a tag {version.content['name']!r} now; a version cannot have the same name.",
                place=str(repo.folder),
                hint="Remove the tag first.",
            )
    name = deletion.run_name
    if name is not None and (repo.folder / RUNS / name).exists() and deleted_run_folder(repo, deletion).exists():
        raise ConflictError(
            f"There is another run named {name!r} now.",
            place=str(repo.folder / RUNS),
            hint=f"Rename it first: regatta rename {name} OTHER",
        )


def _put_back_run(repo: Repo, deletion: Deletion) -> None:
    source = deleted_run_folder(repo, deletion)
    if source.exists() and deletion.run_name is not None:
        (repo.folder / RUNS).mkdir(exist_ok=True)
        move(source, repo.folder / RUNS / deletion.run_name)


def _put_back_versions(repo: Repo, deletion: Deletion) -> tuple[str, ...]:
    """Add the versions with their old numbers, links and tags; the tags that are taken by now."""
    catalog = repo.catalog
    lost: list[str] = []
    with catalog.transaction():
        if deletion.run is not None:
            catalog.set_run(deletion.run)
        for run in deletion.runs:
            if catalog.run(run.series) is None:
                catalog.set_run(run)
        for each in deletion.versions:
            if not catalog.has(each.id):
                catalog.add(each.new_version(), each.number)
        for each in deletion.versions:
            for link in each.new_version().parents:
                _link(repo, each.id, link)
            for link in each.children:
                _link(repo, link.derived, link)
        taken = {tag.name: tag.version for tag in catalog.tags()}
        for each in deletion.versions:
            for tag in each.tags:
                if taken.get(tag.name, each.id) != each.id or tag.name in catalog.names():
                    lost.append(tag.name)
                else:
                    catalog.set_tag(tag.name, catalog.of_id(each.id), tag.created, move=False)
    return tuple(lost)


def _link(repo: Repo, derived: str, link: Link) -> None:
    if repo.catalog.has(derived):
        child = repo.catalog.of_id(derived)
        repo.catalog.extend(child.key, NewVersion(child.id, child.name, child.created, parents=[link]))
