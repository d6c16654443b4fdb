"""Records of deletions, from which they can be taken back.

    <repository>/deleted/<time>-<random>/record.json    versions, tags, links and names of snapshots
    <repository>/deleted/<time>-<random>/run/           the folder of a deleted run

A record is written before anything is deleted. The weights and files of deleted versions stay until gc frees them, and
gc then removes the record.
"""

from __future__ import annotations

import errno
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from regatta.durable import checked_json, fsync_path, parse_checked_json, replacing
from regatta.errors import CorruptError, NotFoundError, nearest
from regatta.paths import DELETED, DELETED_RECORD, DELETED_RUN, bytes_on_disk
from regatta.repo.catalog.catalog import NewVersion
from regatta.repo.catalog.networks import network_rows
from regatta.repo.catalog.records import Link, RunEntry, SnapshotRecord, Tag, Version
from regatta.repo.file_store import FileEntry
from regatta.repo.repo import Repo

FORMAT = 1


@dataclass(frozen=True)
class DeletedVersion:
    """Everything that the catalog had about a version."""

    number: int
    content: dict[str, Any]  # the fields of a NewVersion, as JSON
    tags: tuple[Tag, ...] = ()
    children: tuple[Link, ...] = ()

    @property
    def id(self) -> str:
        return str(self.content["id"])

    @property
    def reference(self) -> str:
        return f"{self.content['name']}@{self.number}"

    def new_version(self) -> NewVersion:
        made = dict(self.content)
        made["network"] = None if made["network"] is None else network_rows(made["network"])
        made["metrics"] = {name: {step: value for step, value in points} for name, points in made["metrics"].items()}
        made["snapshots"] = [SnapshotRecord(**each) for each in made["snapshots"]]
        made["files"] = [FileEntry(**each) for each in made["files"]]
        made["parents"] = [Link(**each) for each in made["parents"]]
        return NewVersion(**made)


@dataclass(frozen=True)
class Deletion:
    """One deletion: when, what, the names that its snapshots had in the store, and the runs of its versions."""

    id: str
    time: float
    versions: tuple[DeletedVersion, ...] = ()
    run: RunEntry | None = None
    run_name: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    runs: tuple[RunEntry, ...] = ()

    @property
    def title(self) -> str:
        """What was deleted, in a few words."""
        said = f"run {self.run_name}" if self.run_name is not None else ""
        if len(self.versions) == 1 and not said:
            return self.versions[0].reference
        many = f"{len(self.versions)} version{'s' if len(self.versions) != 1 else ''}"
        return f"{said} with {many}" if said else many


def describe_version(repo: Repo, version: Version) -> DeletedVersion:
    catalog = repo.catalog
    points: dict[str, list[tuple[int, float]]] = {}
    for point in catalog.metrics(version):
        points.setdefault(point.name, []).append((point.step, point.value))
    content = {
        **version.fields("id", "name", "created", "message", "metadata", "git", "run", "config", "hyperparameters"),
        "network": catalog.network(version.network),
        "metrics": points,
        "snapshots": [asdict(each) for each in catalog.snapshots(version)],
        "files": [asdict(each) for each in catalog.files(version)],
        "parents": [asdict(each) for each in catalog.links([version.key])],
        "parameters": version.parameters,
        "bytes": version.bytes,
    }
    children = catalog.links([version.key], "base")
    return DeletedVersion(version.number, content, tuple(catalog.tags(version)), children)


def write_record(
    repo: Repo, versions: Sequence[Version], names: dict[str, str], run: RunEntry | None, run_name: str | None
) -> Path | None:
    """The folder of a new record; None if the disk has no room for it: then the deletion cannot be taken back."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(repo.clock()))
    folder = repo.folder / DELETED / f"{stamp}-{secrets.token_hex(2)}"
    made = Deletion(
        folder.name,
        repo.clock(),
        tuple(describe_version(repo, version) for version in versions),
        run,
        run_name,
        {**_snapshot_names(repo, versions), **names},
        tuple(entry for each in {version.run for version in versions} if (entry := repo.catalog.run(each)) is not None),
    )
    try:
        folder.mkdir(parents=True)
        with replacing(folder / DELETED_RECORD) as written, written.open("w", encoding="utf-8") as file:
            file.write(checked_json({"format": FORMAT, **asdict(made)}))
        fsync_path(folder.parent)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return None
    return folder


def _snapshot_names(repo: Repo, versions: Sequence[Version]) -> dict[str, str]:
    """The names in the store by which these versions know their snapshots: their own, or those of states of a run."""
    if not repo.has_store or not any(version.snapshots for version in versions):
        return {}
    known = repo.store.references()
    snapshots = (snapshot.reference for version in versions for snapshot in repo.catalog.snapshots(version))
    return {name: known[name] for name in snapshots if name in known}


def deletions(repo: Repo) -> list[Deletion]:
    """The deletions that gc has not made final, oldest first. Those with damaged records cannot be taken back."""
    found = []
    for folder in _folders(repo):
        with suppress(CorruptError):
            found.append(_read(folder))
    return sorted(found, key=lambda each: each.time)


def _folders(repo: Repo) -> list[Path]:
    folder = repo.folder / DELETED
    return sorted(each for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []


def find_deletion(repo: Repo, wanted: str | None) -> Deletion:
    """The deletion with this id or title, or the newest."""
    known = deletions(repo)
    if any(folder.name == wanted for folder in _folders(repo)):
        _read(repo.folder / DELETED / str(wanted))  # an error says what is wrong with its record
    chosen = [each for each in known if wanted in (None, each.id, each.run_name, each.title)]
    if not chosen:
        raise NotFoundError(
            "There is no deletion to take back." if wanted is None else f"There is no deletion {wanted!r:.200}.",
            place=str(repo.folder),
            candidates=nearest(wanted or "", [each.id for each in known]),
            hint="Each deletion is taken back once, as long as gc has not freed it."
            if wanted is None
            else "See all: regatta undo --list",
        )
    return chosen[-1]


def record_folder(repo: Repo, deletion: Deletion) -> Path:
    return repo.folder / DELETED / deletion.id


def remove_old_records(repo: Repo, before: float, dry_run: bool = False) -> int:
    """Make deletions final that are older than this time; the bytes that their runs took.

    Folders without a readable record go as well: a process was killed before it wrote one, or while it removed one.
    """
    size, times = 0, {each.id: each.time for each in deletions(repo)}
    for folder in _folders(repo):
        if times.get(folder.name, folder.stat().st_mtime) <= before:
            size += bytes_on_disk(folder)
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
    return size


def deleted_run_folder(repo: Repo, deletion: Deletion) -> Path:
    return record_folder(repo, deletion) / DELETED_RUN


def _read(folder: Path) -> Deletion:
    try:
        content = parse_checked_json((folder / DELETED_RECORD).read_bytes())
        if content.pop("format") != FORMAT:
            raise ValueError("another version of Regatta wrote it")
        versions = tuple(_version(each) for each in content.pop("versions"))
        run, runs = content.pop("run"), tuple(RunEntry(**each) for each in content.pop("runs", ()))
        run = None if run is None else RunEntry(**run)
        return replace(Deletion(**content), versions=versions, run=run, runs=runs)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(
            f"The record of a deletion cannot be read: {error!r:.200}.",
            place=str(folder),
            hint="Delete that folder: the deletion is then final.",
        ) from error


def _version(content: dict[str, Any]) -> DeletedVersion:
    tags = tuple(Tag(**each) for each in content["tags"])
    return DeletedVersion(content["number"], content["content"], tags, tuple(Link(**c) for c in content["children"]))
