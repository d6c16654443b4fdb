"""Checks a repository: the catalog and its log, the files, the parameter store, and that they agree.

A repair mends each from the others: the catalog from its log and the log from the catalog, the store's index from the
pack files, names of snapshots from the catalog and the runs, files from copies elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from blake3 import blake3

from regatta.errors import CorruptError, NewerVersionError, RegattaError, UsageError
from regatta.paths import STORE
from regatta.repo.catalog.check import catalog_problems
from regatta.repo.catalog.records import SnapshotRecord
from regatta.repo.catalog.repair import make_again, repair_catalog
from regatta.repo.gc import unused_names
from regatta.repo.intake.staging import staged_files
from regatta.repo.repair.agreement import LOST_CATALOG, UNLISTED_PACK, lost_names, needed_packs
from regatta.repo.repair.files import mend_files
from regatta.repo.repair.removed_runs import forget_lost_states, removed_folder
from regatta.repo.repair.store import rebuild_index, recover_versions, restore_names
from regatta.repo.repo import Repo
from regatta.repo.snapshots import state_file
from regatta.store.maintenance import fsck as store_fsck
from regatta.store.store import ParameterStore


@dataclass(frozen=True)
class RepoFsckResult:
    """What fsck found: a sentence for each problem, repair and loss. `leftovers` counts what gc will delete."""

    versions: int
    files: int
    store: store_fsck.StoreFsckResult
    problems: tuple[str, ...] = ()
    leftovers: int = 0
    repaired: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.problems


@dataclass
class _Findings:
    problems: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def check_folder(
    path: str | Path | None, depth: store_fsck.Depth, repair: bool, rebuild: bool = False
) -> RepoFsckResult:
    """Check the repository that `Repo.open` opens. A repair begins even if its catalog cannot be opened."""
    problems: list[str] = []
    repaired: list[str] = []
    lost: list[str] = []
    try:
        repo = Repo.open(path)
    except NewerVersionError:
        raise
    except (CorruptError, UsageError) as error:
        if not repair:
            raise
        problems.append(f"Catalog: {error.message}")
        folder = Repo.find(path)
        repaired, lost = make_again(folder, _names_in_store(folder))
        repo = Repo.open(folder)
    with repo:
        found = check_repo(repo, depth, repair, rebuild)
    return replace(
        found,
        problems=(*problems, *found.problems),
        repaired=(*repaired, *found.repaired),
        lost=(*lost, *found.lost),
    )


def _names_in_store(folder: Path) -> set[str]:
    """The names of the snapshots in the store; none if it cannot be opened."""
    try:
        with ParameterStore.open(folder / STORE, create=False, read_only=True) as store:
            return set(store.references())
    except RegattaError:
        return set()


def check_repo(repo: Repo, depth: store_fsck.Depth, repair: bool, rebuild: bool = False) -> RepoFsckResult:
    if repair or rebuild:
        repo.check_writable()
    whole = depth != "structure"
    found = _Findings(catalog_problems(repo.catalog, whole or repair))
    if repair and found.problems:
        repo.catalog, found.repaired, found.lost = repair_catalog(repo.catalog, _names_in_store(repo.folder))
    store = _check_store(repo, depth, repair, rebuild, found)
    with repo.catalog.reading():
        ids, files, snapshots = repo.catalog.ids(), repo.catalog.all_files(), repo.catalog.all_snapshots()
    _check_files(repo, files, whole, repair, found)
    usable = store is not None or not repo.has_store
    unused = _check_snapshots(repo, snapshots, whole, repair, found) if usable else []
    if repair:
        found.repaired += forget_lost_states(repo)
    used_files = files.keys() | staged_files(repo)
    leftovers = len(unused) + sum(digest not in used_files for digest, _ in repo.files.present())
    counts = store or store_fsck.StoreFsckResult(depth, 0, 0, 0)
    said = (tuple(each) for each in (found.repaired, found.lost))
    return RepoFsckResult(len(ids), len(files), counts, tuple(found.problems), leftovers, *said)


def _check_store(
    repo: Repo, depth: store_fsck.Depth, repair: bool, rebuild: bool, found: _Findings
) -> store_fsck.StoreFsckResult | None:
    """The result of the store's own check; None if there is no store, or its index cannot be used."""
    if rebuild:
        found.repaired += [*rebuild_index(repo), *recover_versions(repo)]
    elif not repo.has_store and not (repair and repo.catalog.all_snapshots()):
        return None
    try:
        result = repo.store.fsck(depth, repair=repair)
    except CorruptError as error:
        found.problems.append(f"Store: {error.message}")
        if not repair:
            return None
        found.repaired += rebuild_index(repo)
        result = repo.store.fsck(depth, repair=True)
    found.problems += result.problems
    if repair:
        if not rebuild and _needs_rebuild(repo, result, depth):
            found.repaired += rebuild_index(repo)
            result = repo.store.fsck(depth, repair=True)
        found.repaired += [*result.repaired, *restore_names(repo), *recover_versions(repo)]
        found.lost += result.lost
    return result


def _needs_rebuild(repo: Repo, result: store_fsck.StoreFsckResult, depth: store_fsck.Depth) -> bool:
    """Whether something is wrong with the index after a repair that its pack files can mend."""
    if any(problem.startswith("Index:") for problem in result.problems) or needed_packs(repo):
        return True
    return bool(result.problems) and not result.lost and not repo.store.fsck(depth).clean


def _check_files(repo: Repo, files: dict[str, int], whole: bool, repair: bool, found: _Findings) -> None:
    damaged = {}
    for digest, size in files.items():
        # A problem counts only if the version was not deleted since the catalog was read; the same for snapshots.
        reason = repo.files.problem_of(digest, size, whole or repair)
        if reason is not None and digest in repo.catalog.all_files():
            found.problems.append(f"File {digest}: {reason}.")
            damaged[digest] = size
    if not repair or not damaged:
        return
    mended = mend_files(repo, damaged)
    found.repaired += [f"File {digest} was mended from {path}." for digest, path in mended.items()]
    for digest in damaged.keys() - mended.keys():
        users = ", ".join(f"{path} of {version}" for version, path in repo.catalog.users_of_file(digest)[:5])
        found.lost.append(f"File {digest}, which is {users}; committing the same content again restores it.")


def _check_snapshots(
    repo: Repo, snapshots: Iterable[tuple[str, SnapshotRecord]], whole: bool, repair: bool, found: _Findings
) -> list[str]:
    """Check that the store has the snapshots of all versions; the names in the store that no version has."""
    catalog, names = repo.catalog, repo.store.references() if repo.has_store else {}
    known = set()
    for version, snapshot in snapshots:
        known.add(snapshot.reference)
        if not catalog.has(version):
            continue
        try:
            reason = _problem_of(repo, version, snapshot, names, whole)
        except RegattaError as error:
            reason = error.message.rstrip(".")
        if reason is not None and catalog.has(version):
            found.problems.append(f"Version {version}, snapshot {snapshot.position}: {reason}.")
            if repair:
                found.lost.append(f"Version {version}, snapshot {snapshot.position}: {reason}.")
    if not repo.has_store:
        return []
    found.problems += [UNLISTED_PACK.format(*each) for each in needed_packs(repo)]
    if lost := lost_names(repo):
        found.problems.append(LOST_CATALOG.format(len(lost)))
    return unused_names(names, known)


def _problem_of(repo: Repo, version: str, snapshot: SnapshotRecord, names: dict[str, str], whole: bool) -> str | None:
    """What is wrong with a snapshot; None if it is sound. With `whole`, the content of a state file is checked."""
    stored = names.get(snapshot.reference)
    if stored is None and snapshot.kind == "state" and snapshot.id is None:
        path = state_file(repo, repo.catalog.of_id(version), snapshot)
        if path is None:
            if repo.has_store and snapshot.reference in repo.store.references(snapshot.reference):
                return None  # the archiver moved it into the store since
            run = removed_folder(repo, repo.catalog.of_id(version))
            where = "" if run is None else f": the folder of the run {run} was removed"
            return f"its state is neither in the store nor a file{where}"
        if whole and blake3().update_mmap(path).hexdigest() != snapshot.digest:
            return f"the file {path} is not the one that the journal names"
        return None
    if stored is None:
        return f"the store has no name {snapshot.reference}"
    if snapshot.id not in (None, stored):
        return f"the store's {snapshot.reference} is {stored}, not {snapshot.id}"
    return None
