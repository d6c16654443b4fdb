"""A repository is checked and tidied up: the catalog, the files, the parameter store, and that they agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from regatta.durable import exclusive
from regatta.errors import CorruptError, UsageError
from regatta.paths import COMMIT_LOCK
from regatta.repo.catalog.records import SnapshotRecord
from regatta.repo.intake.staging import forget_unknown, staged_files
from regatta.repo.repo import PREFIX, Repo
from regatta.repo.snapshots import state_file
from regatta.store.maintenance import fsck as store_fsck
from regatta.store.store import GRACE

if TYPE_CHECKING:
    from regatta.store.maintenance.gc import StoreGcResult


_LOST = "The catalog has never had a version, but the store has weights of {} snapshots of versions: it is not theirs."


@dataclass(frozen=True)
class RepoFsckReport:
    """What fsck found, a sentence for each problem; `leftovers` are what gc will take away."""

    versions: int
    files: int
    store: store_fsck.StoreFsckResult
    problems: tuple[str, ...] = ()
    leftovers: int = 0

    @property
    def clean(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class Collected:
    """What gc took away: files and their bytes, names of snapshots that no version has, and what the store freed."""

    files: int
    file_bytes: int
    names: int
    store: StoreGcResult

    @property
    def bytes(self) -> int:
        return self.file_bytes + self.store.bytes


def check(repo: Repo, depth: store_fsck.Depth, repair: bool) -> RepoFsckReport:
    """See Repo.fsck."""
    if repo.read_only:
        raise UsageError("A repository that cannot be written cannot be checked.", hint="Copy it, and check the copy.")
    catalog = repo.catalog
    whole = depth != "structure"
    with catalog.reading():
        problems = catalog.check()
        ids, files, snapshots = catalog.ids(), catalog.all_files(), catalog.all_snapshots()
    store = repo.store.fsck(depth, repair=repair)
    problems += list(store.problems)
    for digest, size in files.items():
        if (reason := repo.files.why_bad(digest, size, whole)) is not None and digest in catalog.all_files():
            problems.append(f"File {digest}: {reason}.")
    names = repo.store.references()
    if repair:
        names |= _named_again(repo, snapshots, names)
    for version, snapshot in snapshots:
        if not catalog.has(version):  # deleted since
            continue
        if (reason := _why_bad(repo, version, snapshot, names, whole)) is not None and catalog.has(version):
            problems.append(f"Version {version}, snapshot {snapshot.position}: {reason}.")
    wanted = files.keys() | staged_files(repo)
    known = {snapshot.reference for _, snapshot in snapshots}
    unknown = list(_unknown_names(names, known))
    if unknown and not catalog.has_numbered():
        problems.append(_LOST.format(len(unknown)))
    leftovers = len(unknown) + sum(digest not in wanted for digest, _ in repo.files.present())
    return RepoFsckReport(len(ids), len(files), store, tuple(problems), leftovers)


def collect(repo: Repo, grace: float | None) -> Collected:
    """See Repo.gc."""
    seconds = GRACE if grace is None else grace
    if repo.read_only:
        raise UsageError("The repository is open for reading only.", place=str(repo.folder))
    forget_unknown(repo)
    with exclusive(repo.folder / COMMIT_LOCK, "gc"):  # nobody is between a file or a snapshot and the version of it
        known = {snapshot.reference for _, snapshot in repo.catalog.all_snapshots()}
        names = list(_unknown_names(repo.store.references(PREFIX), known))
        if names and not repo.catalog.has_numbered():
            raise CorruptError(
                f"Nothing was taken away. {_LOST.format(len(names))}",
                place=str(repo.folder),
                hint="Bring catalog.sqlite back from a copy; if nothing was ever committed, commit something first.",
            )
        for name in names:
            repo.store.release(name)
        files, size = repo.files.remove_unknown(
            set(repo.catalog.all_files()) | staged_files(repo), repo.clock() - seconds
        )
    return Collected(files, size, len(names), repo.store.gc(grace=seconds))


def _named_again(
    repo: Repo, snapshots: Iterable[tuple[str, SnapshotRecord]], names: Mapping[str, str]
) -> dict[str, str]:
    """Names that the catalog knows and a store that was rebuilt from its packs does not, though it has the weights."""
    there = set(names.values())
    lost = [s for _, s in snapshots if s.id is not None and s.reference not in names and s.id in there]
    for snapshot in lost:
        assert snapshot.id is not None
        repo.store.reference(snapshot.reference, snapshot.id)
    return {s.reference: s.id for s in lost if s.id is not None}


def _unknown_names(names: dict[str, str], known: set[str]) -> Iterator[str]:
    """Names that a committer gave before it was killed, or that whoever deleted a version did not get to."""
    return (name for name in names if name.startswith(PREFIX) and name not in known)


def _why_bad(repo: Repo, version: str, snapshot: SnapshotRecord, names: dict[str, str], whole: bool) -> str | None:
    stored = names.get(snapshot.reference)
    if stored is None and snapshot.kind == "state" and snapshot.id is None:
        path = state_file(repo, repo.catalog.of_id(version), snapshot)
        if path is None:  # it may have gone into the store since
            gone = snapshot.reference not in repo.store.references(snapshot.reference)
            return "its state is neither in the store nor a file" if gone else None
        if whole and blake3().update_mmap(path).hexdigest() != snapshot.digest:
            return f"the file {path} is not the one that the journal names"
        return None
    if stored is None:
        return f"the store has no name {snapshot.reference}"
    if snapshot.id not in (None, stored):
        return f"the store's {snapshot.reference} is {stored}, not {snapshot.id}"
    return None
