"""Commits a run as versions: one version for each configuration, with a snapshot for each epoch.

Nothing is copied. The archiver moves the states of a run into the parameter store, under names that are known
beforehand. A snapshot of a version is such a name; until the store has it, the state file of the run is read. A second
commit of the same run adds only what is new.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from regatta.errors import CorruptError, NotFoundError
from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.paths import CATALOG, JOURNAL, state_path
from regatta.repo.catalog.catalog import NewVersion
from regatta.repo.catalog.names import ID_DIGITS
from regatta.repo.catalog.networks import NetworkRows, network_rows
from regatta.repo.catalog.queries import Filters
from regatta.repo.catalog.records import Link, RunEntry, SnapshotRecord, Version, Versions
from regatta.repo.repo import Repo
from regatta.repo.weights import state_file_weights, stored_weights
from regatta.store.states.state_archive import STATE_REFERENCES, reference_of, series_of


def commit_run(
    repo: Repo, run_folder: str | Path, *, record: RunRecord | None = None, networks: Mapping[str, Any] | None = None
) -> Versions:
    """Add a run to the catalog, and return its versions in the order of their start.

    `record` is its record, if the caller has read the journal already; `networks` are by id of configuration.
    """
    folder = Path(run_folder).absolute()
    if not (folder / JOURNAL).is_file():
        raise NotFoundError("There is no journal of a run.", place=str(folder))
    run = _RunCommit(repo, folder, record or RunRecord.read(folder / JOURNAL))
    with repo.committing():
        wanted = run.versions(networks or {})
        with repo.catalog.transaction():
            repo.catalog.set_run(run.entry())
            for new in wanted:
                _enter(repo, new)
    return Versions(repo.versions(run=run.series, order="oldest"))


def message_of_run(name: str) -> str:
    """The message that the versions of a run have."""
    return f"run {name}"


def version_id(series: str, config: str) -> str:
    """The id of the version of a configuration; it is the same for each commit of the run."""
    return blake3(f"regatta run version 1\n{series}\n{config}".encode()).hexdigest(length=ID_DIGITS // 2)


def version_of(run_folder: Path, config: str) -> str | None:
    """The reference of the version of a run's configuration; None if it was not committed."""
    series, folder = series_of(run_folder), run_folder.absolute().parents[1]
    if series is None or not (folder / CATALOG).is_file():
        return None
    with Repo.open(folder) as repo:
        wanted = version_id(series, config)
        return repo.catalog.of_id(wanted).reference if repo.catalog.has(wanted) else None


def _enter(repo: Repo, new: NewVersion) -> None:
    """Add a version, or extend the existing one."""
    if not repo.catalog.has(new.id):
        repo.catalog.add(new)
        return
    known = repo.catalog.of_id(new.id)
    gained = new.network is not None and known.network is None
    if gained or known.metadata != new.metadata or known.snapshots != len(new.snapshots):
        repo.catalog.extend(known.key, new)
        repo.catalog.set_metadata(known, new.metadata)


class _RunCommit:
    """A run, with the states of it that are in the store, and its existing versions."""

    def __init__(self, repo: Repo, folder: Path, record: RunRecord) -> None:
        series = series_of(folder)
        if series is None:
            raise CorruptError("The journal does not say which run it is.", place=str(folder / JOURNAL))
        self.repo, self.folder, self.record, self.series = repo, folder, record, series
        self.stored = repo.store.references(f"{STATE_REFERENCES}{series}/") if repo.has_store else {}
        self.known = {version.id: version for version in repo.catalog.versions(Filters(run=series))}
        self.clones = {
            request["clone"]: request["config"]
            for request in record.requests.values()
            if request.get("verb") == "clone" and request["answer"]["done"]
        }

    def entry(self) -> RunEntry:
        inside = self.folder.is_relative_to(self.repo.folder)
        where = self.folder.relative_to(self.repo.folder) if inside else self.folder
        run = self.record
        known = run.name, where.as_posix(), run.status, run.started, run.metric, run.mode
        return RunEntry(self.series, *known, header=run.header)

    def versions(self, networks: Mapping[str, Any]) -> list[NewVersion]:
        """One version for each configuration that was started; parents come before their children."""
        begun = [config for config in self.record.configs.values() if config.units or config.error is not None]
        made: dict[int, NetworkRows] = {}  # many configurations share one
        found = []
        for config in begun:
            network = networks.get(config.id)
            if network is not None and id(network) not in made:
                made[id(network)] = network_rows(network)
            found.append(self._version(config, None if network is None else made[id(network)]))
        return found

    def _version(self, config: ConfigRecord, network: NetworkRows | None) -> NewVersion:
        states = self._states(config)
        ident = version_id(self.series, config.id)
        known = self.known.get(ident)
        snapshots = self._snapshots(known, states)
        size = self._size(config, states) if known is None or known.snapshots != len(snapshots) else (None, None)
        return NewVersion(
            id=ident,
            name=f"{self.record.name}/{config.id}",
            created=min((unit.start for unit in config.units), default=self.record.started),
            message=message_of_run(self.record.name),
            network=network,
            metadata=self._metadata(config),
            run=self.series,
            config=config.id,
            hyperparameters=config.values,
            metrics=_metrics(config),
            snapshots=snapshots,
            parents=self._parents(config),
            parameters=size[0],
            bytes=size[1],
        )

    def _snapshots(self, known: Version | None, states: list[SnapshotRecord]) -> list[SnapshotRecord]:
        """The snapshots in the order of epochs; snapshots with lossy weights are kept as they are."""
        replaced = [each for each in self.repo.snapshots(known) if each.kind == "weights"] if known else []
        merged = {each.epoch: each for each in (*states, *replaced) if each.epoch is not None}
        return [replace(merged[epoch], position=position) for position, epoch in enumerate(sorted(merged))]

    def _metadata(self, config: ConfigRecord) -> dict[str, Any]:
        header = self.record.header
        known = {
            "status": config.status,
            "epochs": config.epoch,
            "seconds": sum(unit.seconds for unit in config.units),
            "dataset": header.get("dataset", {}).get("name"),
            "seed": header.get("seed"),
            "versions": header.get("versions"),
            "error": config.error,
        }
        return {name: value for name, value in known.items() if value is not None}

    def _states(self, config: ConfigRecord) -> list[SnapshotRecord]:
        """The states at the ends of reported epochs, if they are in the store or a file."""
        last = {unit.epoch: unit for unit in config.units if unit.kind == "train" and unit.state is not None}
        found = []
        for epoch in sorted(last.keys() & config.reports.keys()):
            path = self.folder / str(last[epoch].state)
            reference = reference_of(self.series, config.id, path)
            if reference in self.stored or path.is_file():
                stored, digest = self.stored.get(reference), last[epoch].hash
                found.append(SnapshotRecord(0, epoch, "state", reference, stored, digest))
        return found

    def _parents(self, config: ConfigRecord) -> list[Link]:
        parent = config.parent or self.clones.get(config.id)
        if parent is None:
            return self._base(config)
        warm = "" if config.parent_epoch is None else f" after epoch {config.parent_epoch}"
        kind = "clone" if config.id in self.clones else "child"  # requested by a user, or by the search
        return [Link(version_id(self.series, parent), "", kind, config.parent_epoch, f"{kind} of {parent}{warm}")]

    def _base(self, config: ConfigRecord) -> list[Link]:
        """The version that a configuration's model comes from, if the sweep was given one that is still there."""
        bases = self.record.header.get("base", {})
        base = bases.get(str(config.values.get("model")), bases.get(""))
        if base is None or not self.repo.catalog.has(base):
            return []
        return [Link(base, "", "trained", None, f"trained in run {self.record.name}")]

    def _size(self, config: ConfigRecord, states: list[SnapshotRecord]) -> tuple[int | None, int | None]:
        if not states:
            return None, None
        path = state_path(self.folder, config.id, states[-1].reference.rpartition("/")[2])
        stored = states[-1].id
        try:
            weights = stored_weights(self.repo.store, stored, "state") if stored else state_file_weights(path)
        except FileNotFoundError:  # the archiver is moving it right now; the next commit records the size
            return None, None
        return weights.parameters, weights.bytes


def _metrics(config: ConfigRecord) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for epoch, values in config.reports.items():
        for name, value in values.items():
            found.setdefault(name, {})[epoch] = value if isinstance(value, float) else math.nan
    return found
