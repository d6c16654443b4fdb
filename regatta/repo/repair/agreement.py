"""Compares the versions of a repository with its parameter store, cheaply enough to do it before each gc."""

from __future__ import annotations

from collections.abc import Iterator

from regatta.errors import RegattaError
from regatta.journal.run_record import find_journals
from regatta.paths import RUNS
from regatta.repo.catalog.check import log_problems
from regatta.repo.commit import PREFIX
from regatta.repo.repo import Repo
from regatta.repo.snapshots import state_file
from regatta.store.format.pack_file import ManifestRecord
from regatta.store.index import LOCAL
from regatta.store.maintenance.index_check import index_problems
from regatta.store.maintenance.rebuild_index import RECOVERED
from regatta.store.states.archive_run import kept_states
from regatta.store.states.state_archive import reference_of, series_of

CLOCK_STEP_S = 1.0  # the times of files are a little behind the clock
LOST_CATALOG = (
    "The store has weights of {} snapshots of versions from before this catalog began: what named them may be lost."
)
UNNAMED_STATE = "Snapshot {}: the index has lost the name {} of the state that it holds."
UNLISTED_PACK = "Pack {}: the index does not list it, but it holds {}."


def disagreements(repo: Repo) -> list[str]:
    """A sentence for each thing that the catalog, its log, the store's index and the pack files do not agree about."""
    found = log_problems(repo.catalog)
    found += [f"Version {version}, snapshot {at}: {why}." for version, at, why in unknown_snapshots(repo)]
    packs = {
        pack for pack, (_, place, retired) in repo.store.index.packs().items() if place & LOCAL and retired is None
    }
    missing = packs - {pack for pack, _ in repo.store.folder.present()}
    found += [f"Pack {pack}: the index lists it, but the file is missing." for pack in sorted(missing)]
    found += [UNLISTED_PACK.format(*each) for each in needed_packs(repo)]
    found += [UNNAMED_STATE.format(*each) for each in unnamed_states(repo)]
    if names := lost_names(repo):
        found.append(LOST_CATALOG.format(len(names)))
    return found + index_problems(repo.store)


def unknown_snapshots(repo: Repo) -> Iterator[tuple[str, int, str]]:
    """The snapshots of versions that the store should have and does not: the version, the position and the reason."""
    names, present = repo.store.references(), set(repo.store.snapshots())
    for version, snapshot in repo.catalog.all_snapshots():
        stored = names.get(snapshot.reference)
        if snapshot.id is None and stored is None:
            continue  # a state of a run, which may be a file
        if stored is None:
            yield version, snapshot.position, f"the store has no name {snapshot.reference}"
        elif snapshot.id not in (None, stored):
            yield version, snapshot.position, f"the store's {snapshot.reference} is {stored}, not {snapshot.id}"
        elif stored not in present:
            yield version, snapshot.position, f"the store does not know the snapshot {stored}"


def needed_packs(repo: Repo) -> list[tuple[str, str]]:
    """Pack files that the index does not list and that hold what a version or a run needs; others are leftovers."""
    listed, present = repo.store.index.packs(), set(repo.store.snapshots())
    held: list[tuple[str, ManifestRecord]] = []
    for pack, _ in repo.store.folder.present():
        if pack in listed:
            continue
        try:
            records = repo.store.folder.records(pack)
        except RegattaError:
            continue  # a writer was killed, or the file is damaged; nothing can be read from it
        held += [(pack, record) for record in records if isinstance(record, ManifestRecord)]
    held = [(pack, record) for pack, record in held if record.snapshot not in present]
    if not held:
        return []
    wanted = {snapshot.id for _, snapshot in repo.catalog.all_snapshots()}
    hashes = missing_states(repo).keys()
    found = {}
    for pack, record in held:
        if record.snapshot in wanted:
            found[pack] = f"the snapshot {record.snapshot} of a version"
        elif hashes:
            try:
                manifest = repo.store.read_manifest(record.snapshot, record, pack, LOCAL)
            except RegattaError:
                continue
            if manifest.metadata.get("hash") in hashes:
                found[pack] = f"the state {record.snapshot} of a run"
    return sorted(found.items())


def unnamed_states(repo: Repo) -> list[tuple[str, str]]:
    """Snapshots without a name that hold a state which a version misses, each with one of its names.

    A run may miss states that were released on purpose, as by an archive that drops bits.
    """
    store = repo.store
    without = set(store.snapshots()) - set(store.references().values())
    digests = {snapshot: digest for snapshot in without if (digest := _digest_of_state(repo, snapshot)) is not None}
    missing = _states_missed_by_versions(repo) if digests else {}
    return [(snapshot, min(missing[digest])) for snapshot, digest in sorted(digests.items()) if digest in missing]


def _digest_of_state(repo: Repo, snapshot: str) -> str | None:
    """The hash of the state file that a snapshot was made of; None if it is not a state or cannot be read."""
    try:
        return repo.store.manifest(snapshot).metadata.get("hash")
    except RegattaError:
        return None


def missing_states(repo: Repo) -> dict[str, set[str]]:
    """The states that are neither files nor named in the store: their names by the hash of their file."""
    names, found = repo.store.references(), _states_missed_by_versions(repo)
    for journal in find_journals(repo.folder / RUNS):
        series = series_of(journal.parent)
        try:
            states = kept_states(journal.parent) if series is not None else []
        except RegattaError:
            continue  # fsck of the repository does not check journals; doctor does
        for state in states:
            name = reference_of(str(series), state.config, state.path)
            if name not in names and not state.path.exists():
                found.setdefault(state.hash, set()).add(name)
    return found


def _states_missed_by_versions(repo: Repo) -> dict[str, set[str]]:
    names = repo.store.references()
    found: dict[str, set[str]] = {}
    for version, snapshot in repo.catalog.all_snapshots():
        if snapshot.digest is None or snapshot.reference in names:
            continue
        if state_file(repo, repo.catalog.of_id(version), snapshot) is None:
            found.setdefault(snapshot.digest, set()).add(snapshot.reference)
    return found


def lost_names(repo: Repo) -> list[str]:
    """Names of snapshots from before the version log began that no version has: their catalog was lost."""
    known, since = {snapshot.reference for _, snapshot in repo.catalog.all_snapshots()}, repo.catalog.log_since()
    found = [name for name in repo.store.index.names_before(PREFIX, since) if name not in known]
    return found + _recovered_names(repo, since - CLOCK_STEP_S)


def _recovered_names(repo: Repo, since: float) -> list[str]:
    """The same for snapshots that a rebuild of the index named, by the age of their pack files."""
    recovered = repo.store.references(RECOVERED)
    if not recovered:
        return []
    written = {pack: status.st_mtime for pack, status in repo.store.folder.present()}
    packs = {name: repo.store.index.manifest_record(snapshot)[1] for name, snapshot in recovered.items()}
    return [name for name, pack in packs.items() if written.get(pack, 0.0) < since]
