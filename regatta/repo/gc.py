"""Deletes what no version, run or staged file uses: files, names of snapshots, and then weights in the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from regatta.durable import exclusive
from regatta.errors import CorruptError
from regatta.paths import COMMIT_LOCK
from regatta.repo.commit import PREFIX
from regatta.repo.edit.deleted import remove_old_records
from regatta.repo.intake.staging import release_unused, staged_files
from regatta.repo.repair.agreement import disagreements
from regatta.repo.repair.removed_runs import names_of_removed_runs
from regatta.repo.repo import Repo
from regatta.store.maintenance.gc import StoreGcResult
from regatta.store.maintenance.rebuild_index import RECOVERED
from regatta.store.store import GC_GRACE_S

MAX_NAMED = 5  # disagreements that an error names


@dataclass(frozen=True)
class RepoGcResult:
    """What gc deleted: files and their bytes, names of snapshots that no version has, and what the store freed."""

    files: int
    file_bytes: int
    names: int
    store: StoreGcResult
    run_bytes: int = 0  # of deleted runs

    @property
    def bytes(self) -> int:
        return self.file_bytes + self.store.bytes + self.run_bytes


def collect_garbage(repo: Repo, grace: float | None, dry_run: bool = False) -> RepoGcResult:
    seconds = GC_GRACE_S if grace is None else grace
    repo.check_writable()
    if not dry_run:
        release_unused(repo)
    with exclusive(repo.folder / COMMIT_LOCK, "gc"):  # no commit is between storing a snapshot and naming its version
        _check_agreement(repo)
        known = {snapshot.reference for _, snapshot in repo.catalog.all_snapshots()}
        old = repo.store.index.names_before(RECOVERED, repo.clock() - seconds)
        names = [*unused_names(repo.store.references(PREFIX), known), *names_of_removed_runs(repo), *old]
        used, before = set(repo.catalog.all_files()) | staged_files(repo), repo.clock() - seconds
        runs = remove_old_records(repo, before, dry_run)
        files, size = repo.files.remove_unknown(used, before, dry_run)
        if not dry_run:
            repo.store.release_all(names)
            if repo.catalog.log_is_sparse():
                repo.catalog.write_log()
    stored = repo.store.gc_preview(names, grace=seconds) if dry_run else repo.store.gc(grace=seconds)
    return RepoGcResult(files, size, len(names), stored, runs)


def _check_agreement(repo: Repo) -> None:
    """Refuse to delete anything while it is not certain what is needed."""
    if found := disagreements(repo):
        more = f" And {len(found) - MAX_NAMED} more." if len(found) > MAX_NAMED else ""
        raise CorruptError(
            f"Nothing was deleted, because the catalog and the store disagree. {' '.join(found[:MAX_NAMED])}{more}",
            place=str(repo.folder),
            hint="`regatta fsck` shows everything; `regatta fsck --repair` mends what can be mended.",
        )


def unused_names(names: Iterable[str], known: set[str]) -> list[str]:
    """Names of snapshots in the store that no version has: a commit or a delete was killed halfway."""
    return [name for name in names if name.startswith(PREFIX) and name not in known]
