"""Checks a repository: the catalog, the files, the parameter store, and that they agree."""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

from regatta.errors import UsageError
from regatta.repo.catalog.records import SnapshotRecord
from regatta.repo.gc import LOST_CATALOG, unused_names
from regatta.repo.intake.staging import staged_files
from regatta.repo.repo import Repo
from regatta.repo.snapshots import state_file
from regatta.store.maintenance import fsck as store_fsck


@dataclass(frozen=True)
class RepoFsckResult:
    """What fsck found: a sentence for each problem. `leftovers` counts what gc will delete."""

    versions: int
    files: int
    store: store_fsck.StoreFsckResult
    problems: tuple[str, ...] = ()
    leftovers: int = 0

    @property
    def clean(self) -> bool:
        return not self.problems


def check_repo(repo: Repo, depth: store_fsck.Depth, repair: bool) -> RepoFsckResult:
    if repo.read_only:
        raise UsageError("A repository that is not writable cannot be checked.", hint="Copy it, and check the copy.")
    catalog = repo.catalog
    whole = depth != "structure"
    with catalog.reading():
        problems = catalog.check()
        ids, files, snapshots = catalog.ids(), catalog.all_files(), catalog.all_snapshots()
    store = repo.store.fsck(depth, repair=repair)
    problems += list(store.problems)
    for digest, size in files.items():
        # A problem counts only if the version was not deleted since the catalog was read; the same for snapshots.
        if (reason := repo.files.problem_of(digest, size, whole)) is not None and digest in catalog.all_files():
            problems.append(f"File {digest}: {reason}.")
    names = repo.store.references()
    if repair:
        # A store that was rebuilt from its pack files lost its names; the catalog has them.
        there = set(names.values())
        for _, snapshot in snapshots:
            if snapshot.id is not None and snapshot.id in there and snapshot.reference not in names:
                repo.store.reference(snapshot.reference, snapshot.id)
                names[snapshot.reference] = snapshot.id
    for version, snapshot in snapshots:
        if not catalog.has(version):
            continue
        if (reason := _problem_of(repo, version, snapshot, names, whole)) is not None and catalog.has(version):
            problems.append(f"Version {version}, snapshot {snapshot.position}: {reason}.")
    unused = unused_names(names, {snapshot.reference for _, snapshot in snapshots})
    if unused and not catalog.has_numbered():
        problems.append(LOST_CATALOG.format(len(unused)))
    used_files = files.keys() | staged_files(repo)
    leftovers = len(unused) + sum(digest not in used_files for digest, _ in repo.files.present())
    return RepoFsckResult(len(ids), len(files), store, tuple(problems), leftovers)


def _problem_of(repo: Repo, version: str, snapshot: SnapshotRecord, names: dict[str, str], whole: bool) -> str | None:
    """What is wrong with a snapshot; None if it is sound. With `whole`, the content of a state file is checked."""
    stored = names.get(snapshot.reference)
    if stored is None and snapshot.kind == "state" and snapshot.id is None:
        path = state_file(repo, repo.catalog.of_id(version), snapshot)
        if path is None:
            if snapshot.reference in repo.store.references(snapshot.reference):
                return None  # the archiver moved it into the store since
            return "its state is neither in the store nor a file"
        if whole and blake3().update_mmap(path).hexdigest() != snapshot.digest:
            return f"the file {path} is not the one that the journal names"
        return None
    if stored is None:
        return f"the store has no name {snapshot.reference}"
    if snapshot.id not in (None, stored):
        return f"the store's {snapshot.reference} is {stored}, not {snapshot.id}"
    return None
