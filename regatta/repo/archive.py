"""Stores all weights in less space: moves state files into the store, plans the store again, and drops bits on request.

The repository knows the lineage of snapshots, which the store does not: the epochs of a version follow each other, and
a version starts where its parents end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regatta.errors import UsageError, nearest
from regatta.journal.lock import is_live
from regatta.journal.run_record import find_journals
from regatta.paths import RUNS, STORE, bytes_on_disk
from regatta.repo.catalog.records import SnapshotRecord, Version
from regatta.repo.commit import PREFIX
from regatta.repo.repo import Repo
from regatta.repo.snapshots import weights_of
from regatta.store.archive.archive import ArchiveReport
from regatta.store.archive.archive import archive as archive_store
from regatta.store.archive.candidates import lineage
from regatta.store.archive.storage_graph import Scheme
from regatta.store.format.dtypes import floats_of
from regatta.store.format.encodings import ENCODINGS, Encoding, encoding_named
from regatta.store.format.tensor_id import RawTensor, as_tensor
from regatta.store.index import LOCAL
from regatta.store.states.archive_run import archive_run, finished_states
from regatta.store.states.state_archive import series_bases, series_of, store_states
from regatta.store.store import ParameterStore

MAX_TRIAL_BYTES = 2**31  # of state files that a dry run encodes
__all__ = ["ArchiveReport", "ArchiveResult", "LossyChange", "archive", "bases", "lossy_schemes"]


@dataclass(frozen=True)
class LossyChange:
    """The effect of a lossy scheme on the weights of a version: bytes, and the largest change of a weight."""

    version: str
    snapshots: int
    bytes_before: int
    bytes_after: int
    largest_change: float


@dataclass(frozen=True)
class ArchiveResult:
    """The result of an archive pass or a dry run: state files, versions that lost bits, the report of the store.

    `live` are runs in training, whose states stay files. The report is None without a store. In a dry run, `trial` is
    the report of a temporary store with the state files. The bytes on the disk are those of the whole repository:
    before the pass, after it, and without the old form of the weights, which `gc` deletes.
    """

    states: int
    state_bytes: int
    live: tuple[str, ...]
    lessened: tuple[LossyChange, ...]
    report: ArchiveReport | None
    trial: ArchiveReport | None = None
    disk_before: int = 0
    disk_after: int = 0
    disk_after_gc: int = 0


def lossy_schemes() -> list[str]:
    return [encoding.name for encoding in ENCODINGS.values() if encoding.lossy]


def archive(
    repo: Repo,
    versions: Sequence[Version],
    *,
    lossy: str | None,
    budget: float | None,
    scheme: Scheme,
    algorithm: str,
    progressive: bool,
    dry_run: bool,
) -> ArchiveResult:
    if not dry_run:
        repo.check_writable()
    chosen = _lossy(lossy) if lossy is not None else None
    if chosen is not None and not versions:
        raise UsageError(
            "A lossy scheme needs the versions that may lose bits.", hint="Name them; the others stay exact."
        )
    disk_before = _disk(repo)
    states, size, live = _move_states(repo, dry_run)
    lessened = tuple(_drop_bits(repo, version, chosen, dry_run) for version in versions) if chosen is not None else ()
    options: dict[str, Any] = {
        "budget": budget, "scheme": scheme, "algorithm": algorithm, "progressive": progressive, "dry_run": dry_run,
    }  # fmt: skip
    trial = _trial(repo, options) if dry_run and 0 < size <= MAX_TRIAL_BYTES else None
    report = archive_store(repo.store, bases(repo), **options) if repo.has_store else None
    disk = _disk(repo)
    return ArchiveResult(states, size, live, lessened, report, trial, disk_before, disk, disk - _unneeded_packs(repo))


def _disk(repo: Repo) -> int:
    """The disk space of the repository, with the logs of its databases written back."""
    if not repo.read_only:
        for database in (repo.catalog, *([repo.store.index] if repo.has_store else [])):
            database.checkpoint()
    return bytes_on_disk(repo.folder)


def _unneeded_packs(repo: Repo) -> int:
    """The disk space of pack files that gc deletes after its grace period."""
    if not repo.has_store:
        return 0
    packs = repo.store.index.packs()
    retired = [pack for pack, (_, place, since) in packs.items() if since is not None and place & LOCAL]
    return sum(bytes_on_disk(repo.store.folder.path(pack)) for pack in retired)


def bases(repo: Repo) -> dict[str, list[str]]:
    """The snapshots that each may be stored as a delta to, by lineage."""
    names, present = repo.store.references(), set(repo.store.snapshots())
    series: dict[str, list[str]] = {}
    for version, snapshot in repo.catalog.all_snapshots():
        stored = snapshot.id or names.get(snapshot.reference)
        if stored in present:
            series.setdefault(version, []).append(str(stored))
    parents: dict[str, list[str]] = {}
    for link in repo.catalog.links():
        if link.base in series and link.derived in series:
            parents.setdefault(link.derived, []).append(link.base)
    found = series_bases(names)  # of runs that were not committed
    for one, several in lineage(series, parents).items():
        if others := [base for base in dict.fromkeys(several) if base != one]:
            found[one] = others
    return found


def _move_states(repo: Repo, dry_run: bool) -> tuple[int, int, tuple[str, ...]]:
    """Move state files of past runs into the store; return their number, their bytes, and the runs in training."""
    count, size, past = 0, 0, _past_runs(repo)
    for run in past:
        sizes = [state.path.stat().st_size for state in finished_states(run)]
        count += len(sizes) if dry_run else archive_run(run, repo.folder / STORE)
        size += sum(sizes)
    live = [journal.parent.name for journal in find_journals(repo.folder / RUNS) if journal.parent not in past]
    return count, size, tuple(live)


def _trial(repo: Repo, options: Mapping[str, Any]) -> ArchiveReport:
    """Plan the state files in a temporary store; the repository is not changed."""
    with tempfile.TemporaryDirectory(prefix="regatta-archive-") as folder, ParameterStore.open(folder) as store:
        for run in _past_runs(repo):
            if (series := series_of(run)) is not None:
                store_states(store, series, finished_states(run))
        return archive_store(store, **options)


def _past_runs(repo: Repo) -> list[Path]:
    return [journal.parent for journal in find_journals(repo.folder / RUNS) if not is_live(journal.parent)]


def _lossy(name: str) -> Encoding:
    known = lossy_schemes()
    if name not in known:
        raise UsageError(
            f"There is no lossy scheme {name!r}.",
            candidates=nearest(name, known),
            hint="There are float16, bfloat16, fixed-2 to fixed-24, uniform-1 to uniform-8, random-1 to random-8.",
        )
    return encoding_named(name)


def _drop_bits(repo: Repo, version: Version, scheme: Encoding, dry_run: bool) -> LossyChange:
    """Replace the snapshots of a version by their weights in the lossy scheme."""
    chosen = _replaceable(repo, version)
    before, after, change = 0, 0, 0.0
    replaced: list[SnapshotRecord] = []
    for snapshot in chosen:
        tensors = {name: as_tensor(name, value) for name, value in weights_of(repo, version, snapshot).items()}
        before += sum(tensor.words.nbytes for tensor in tensors.values())
        for tensor in filter(_is_float, tensors.values()):
            left, encoded = repo.store.encoder.lossy(tensor, scheme)
            after += sum(len(chunk) for stream in encoded.streams for chunk in stream)
            change = max(change, _largest_change(tensor, left))
        after += sum(tensor.words.nbytes for tensor in tensors.values() if not _is_float(tensor))
        if not dry_run:
            name = f"{PREFIX}{version.id}/{snapshot.position:06d}-{scheme.name}"
            stored = repo.store.put(tensors, metadata={"lossy": scheme.name}, reference=name, scheme=scheme.name)
            replaced.append(SnapshotRecord(snapshot.position, snapshot.epoch, "weights", name, stored))
    if replaced:  # the version refers to the new snapshots before the old names are released; gc frees the old weights
        names = {snapshot.reference for snapshot in chosen} - {snapshot.reference for snapshot in replaced}
        with repo.committing():
            with repo.catalog.transaction():
                repo.catalog.replace_snapshots(version.key, replaced)
            for name in names & repo.store.references().keys():
                repo.store.release(name)
    return LossyChange(version.reference, len(chosen), before, after, change)


def _replaceable(repo: Repo, version: Version) -> list[SnapshotRecord]:
    """All snapshots but the newest state of a run's configuration, from which the run would continue."""
    found = repo.catalog.snapshots(version)
    return [each for each in found if each.kind == "weights" or each is not found[-1]]


def _is_float(tensor: RawTensor) -> bool:
    return tensor.dtype.kind == "float" and bool(tensor.words.size)


def _largest_change(before: RawTensor, after: RawTensor) -> float:
    one, other = (floats_of(each.words, each.dtype).astype(np.float64) for each in (before, after))
    with np.errstate(invalid="ignore"):
        return float(np.nanmax(np.abs(one - other), initial=0.0))
