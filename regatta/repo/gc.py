"""Deletes what no version, run or staged file uses: files, names of snapshots, and then weights in the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from regatta.durable import exclusive
from regatta.errors import CorruptError
from regatta.paths import CATALOG, COMMIT_LOCK
from regatta.repo.commit import PREFIX
from regatta.repo.intake.staging import release_unused, staged_files
from regatta.repo.repo import Repo
from regatta.store.maintenance.gc import StoreGcResult
from regatta.store.store import GC_GRACE_S

LOST_CATALOG = (
    "The catalog never had a version, but the store has weights of {} snapshots of versions: this is not their catalog."
)


@dataclass(frozen=True)
class RepoGcResult:
    """What gc deleted: files and their bytes, names of snapshots that no version has, and what the store freed."""

    files: int
    file_bytes: int
    names: int
    store: StoreGcResult

    @property
    def bytes(self) -> int:
        return self.file_bytes + self.store.bytes


def collect_garbage(repo: Repo, grace: float | None) -> RepoGcResult:
    seconds = GC_GRACE_S if grace is None else grace
    repo.check_writable()
    release_unused(repo)
    with exclusive(repo.folder / COMMIT_LOCK, "gc"):  # no commit is between storing a snapshot and naming its version
        known = {snapshot.reference for _, snapshot in repo.catalog.all_snapshots()}
        names = unused_names(repo.store.references(PREFIX), known)
        if names and not repo.catalog.has_numbered():
            raise CorruptError(
                f"Nothing was deleted. {LOST_CATALOG.format(len(names))}",
                place=str(repo.folder),
                hint=f"Restore {CATALOG} from a copy; if nothing was ever committed, commit something first.",
            )
        for name in names:
            repo.store.release(name)
        used = set(repo.catalog.all_files()) | staged_files(repo)
        files, size = repo.files.remove_unknown(used, repo.clock() - seconds)
    return RepoGcResult(files, size, len(names), repo.store.gc(grace=seconds))


def unused_names(names: Iterable[str], known: set[str]) -> list[str]:
    """Names of snapshots in the store that no version has: a commit or a delete was killed halfway."""
    return [name for name in names if name.startswith(PREFIX) and name not in known]
