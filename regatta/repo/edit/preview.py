"""What a deletion would free, once gc has run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from regatta.paths import bytes_on_disk
from regatta.repo.edit.delete import DeletePlan
from regatta.repo.repo import Repo


@dataclass(frozen=True)
class DeletePreview:
    """The bytes in the store, in files and in the folder of a run that only the deleted things use."""

    store_bytes: int
    file_bytes: int
    run_bytes: int

    @property
    def bytes(self) -> int:
        return self.store_bytes + self.file_bytes + self.run_bytes


def preview(repo: Repo, plan: DeletePlan) -> DeletePreview:
    stored = _store_bytes(repo, plan.names) if plan.names else 0
    files: dict[str, int] = {}
    users: dict[str, int] = {}
    for version in plan.versions:
        for file in {each.hash: each for each in repo.catalog.files(version)}.values():
            files[file.hash] = file.bytes
            users[file.hash] = users.get(file.hash, 0) + 1
    counts = repo.catalog.file_users()
    only = sum(size for digest, size in files.items() if users[digest] == counts.get(digest))
    return DeletePreview(stored, only, bytes_on_disk(plan.run_folder) if plan.run_folder is not None else 0)


def _store_bytes(repo: Repo, names: Iterable[str]) -> int:
    """The bytes of tensors that only snapshots with these names need, by themselves or as bases of deltas."""
    index, removed = repo.store.index, set(names)
    with index.reading():
        known, bases = index.names(), index.bases()
        kept = {snapshot for name, snapshot in known.items() if name not in removed}
        gone = {known[name] for name in removed if name in known} - kept

        def needed(snapshots: Iterable[str]) -> set[str]:
            found: set[str] = set()
            for snapshot in snapshots:
                for tensor in index.members(snapshot):
                    each: str | None = tensor
                    while each is not None and each not in found:
                        found.add(each)
                        each = bases.get(each)
            return found

        candidates = needed(gone)
        return index.stored_bytes(candidates - needed(kept)) if candidates else 0
