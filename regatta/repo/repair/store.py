"""Makes the index of the store again, and gives snapshots the names that versions and runs know them by."""

from __future__ import annotations

from regatta.paths import STORE
from regatta.repo.catalog.catalog import NewVersion
from regatta.repo.catalog.names import ID_DIGITS
from regatta.repo.catalog.records import SnapshotRecord
from regatta.repo.commit import PREFIX
from regatta.repo.repair.agreement import lost_names, missing_states
from regatta.repo.repo import Repo
from regatta.store.maintenance.rebuild_index import RECOVERED
from regatta.store.store import ParameterStore

RECOVERED_VERSION = "recovered-"  # the names of versions that have nothing left but their weights


def rebuild_index(repo: Repo) -> list[str]:
    """Make a new index from the pack files, with the names that the catalog and the runs know; what was done."""
    repo.close_store()
    made = ParameterStore.rebuild(repo.folder / STORE)
    found = [f"The index was made again from {made.packs} pack files, with {made.snapshots} snapshots."]
    return found + restore_names(repo)


def restore_names(repo: Repo) -> list[str]:
    """Name each snapshot that the store has as the versions and runs name it; a sentence for each name."""
    store = repo.store
    names, present = store.references(), set(store.snapshots())
    wanted = {
        snapshot.reference: snapshot.id
        for _, snapshot in repo.catalog.all_snapshots()
        if snapshot.id in present and names.get(snapshot.reference) != snapshot.id
    }
    if states := missing_states(repo):
        for snapshot in present:
            digest = store.manifest(snapshot).metadata.get("hash", "")
            wanted |= dict.fromkeys(states.get(digest, ()), snapshot)
    for name, snapshot in wanted.items():
        store.reference(name, str(snapshot))
    named = {snapshot for name, snapshot in store.references().items() if not name.startswith(RECOVERED)}
    for name, snapshot in store.references(RECOVERED).items():
        if snapshot in named:
            store.release(name)
    return [f"The snapshot {snapshot} has its name {name} again." for name, snapshot in sorted(wanted.items())]


def recover_versions(repo: Repo) -> list[str]:
    """Make versions of weights whose catalog was lost, so that they can be read and are kept; a sentence for each."""
    store, found = repo.store, []
    names = store.references()
    versions: dict[str, dict[str, str]] = {}
    for name in lost_names(repo):
        if name.startswith(RECOVERED):
            ident = names[name][:ID_DIGITS]
            versions[ident] = {f"{PREFIX}{ident}/{0:06d}": names[name]}
        else:
            versions.setdefault(name.removeprefix(PREFIX).partition("/")[0], {})[name] = names[name]
    for ident, several in versions.items():
        if len(ident) != ID_DIGITS or repo.catalog.has(ident):
            continue
        snapshots = [
            SnapshotRecord(at, None, _kind(store, snapshot), name, snapshot)
            for at, (name, snapshot) in enumerate(sorted(several.items()))
        ]
        message = "recovered from the store; its catalog was lost"
        new = NewVersion(ident, f"{RECOVERED_VERSION}{ident[:10]}", repo.clock(), message, snapshots=snapshots)
        with repo.committing():
            for name, snapshot in several.items():
                store.reference(name, snapshot)
            with repo.catalog.transaction():
                found.append(f"The weights of version {ident} are now the version {repo.catalog.add(new).reference}.")
        for snapshot in several.values():
            if f"{RECOVERED}{snapshot}" in names:
                store.release(f"{RECOVERED}{snapshot}")
    return found


def _kind(store: ParameterStore, snapshot: str) -> str:
    """Whether a snapshot is the weights of a version, or the state of a model in training (state_archive.py)."""
    return "state" if store.manifest(snapshot).metadata.keys() >= {"header", "hash"} else "weights"
