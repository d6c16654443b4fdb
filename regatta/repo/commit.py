"""Commits a version, and copies one to a new model.

A commit first makes files and weights durable; then one transaction of the catalog makes them a version. A process that
is killed in between leaves only what `gc` deletes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regatta.errors import UsageError
from regatta.repo.catalog.catalog import NewVersion
from regatta.repo.catalog.names import ID_DIGITS, check_name
from regatta.repo.catalog.networks import canonical_json, network_rows
from regatta.repo.catalog.records import Link, SnapshotRecord, Version
from regatta.repo.file_store import FileEntry, Files
from regatta.repo.intake.git_commit import git_state
from regatta.repo.intake.metrics import metric_points
from regatta.repo.repo import Repo
from regatta.repo.snapshots import add_reference, choose_snapshot
from regatta.repo.weights import NewWeights, StoredWeights, WeightsInput, new_weights
from regatta.store.commit import NewSnapshot

PREFIX = "versions/"  # of the names that keep snapshots of versions in the parameter store


def commit(
    repo: Repo,
    name: str,
    weights: WeightsInput | None,
    *,
    network: Any,
    metadata: Mapping[str, Any] | None,
    hyperparameters: Mapping[str, Any] | None,
    metrics: Any,
    files: Files | Sequence[FileEntry],
    parents: Iterable[str | Version],
    message: str,
    git: bool,
    ident: str | None,
) -> Version:
    snapshots = new_weights(weights)
    bases = [repo.resolve(parent) for parent in parents]
    if network is None:
        network = _inherited_network(repo, bases, snapshots)
    new = NewVersion(
        id=ident or new_id(),
        name=check_name(name),
        created=repo.clock(),
        message=_checked_message(message),
        network=None if network is None else network_rows(network),
        metadata=_json_values(metadata, "metadata"),
        git=git_state(Path()) if git else None,
        hyperparameters=_json_values(hyperparameters, "hyperparameters"),
        metrics=metric_points(metrics),
        parents=[Link(base.id, "", "derived", None, message) for base in bases],
        parameters=snapshots[-1].parameters if snapshots else None,
        bytes=snapshots[-1].bytes if snapshots else None,
    )
    with repo.committing():
        stored = replace(new, files=repo.files.put_all(files), snapshots=_store_snapshots(repo, new.id, snapshots))
        with repo.catalog.transaction():
            return repo.catalog.add(stored)


def _inherited_network(
    repo: Repo, bases: Sequence[Version], snapshots: Sequence[NewWeights | StoredWeights]
) -> dict[str, Any] | None:
    """The network of the first parent whose layers fit the weights; None if no parent has one."""
    for base in bases:
        network = repo.catalog.network(base.network)
        if network is not None and (not snapshots or _fits(repo, network, snapshots[-1])):
            return network
    return None


def _fits(repo: Repo, network: Mapping[str, Any], snapshot: NewWeights | StoredWeights) -> bool:
    if isinstance(snapshot, NewWeights):
        shapes = {name: tuple(tensor.shape) for name, tensor in snapshot.tensors.items()}
    else:
        shapes = {name: tuple(entry.shape) for name, entry in repo.store.manifest(snapshot.snapshot).tensors.items()}
    parameters = [parameter for node in network["nodes"] for parameter in node.get("parameters", ())]
    return all(shapes.get(each["name"]) == tuple(each["shape"]) for each in parameters)


def copy(repo: Repo, base: Version, name: str, *, message: str, snapshot: int | str | None) -> Version:
    chosen = choose_snapshot(repo, base, snapshot) if base.snapshots else None
    text = _checked_message(message) or f"copy of {base.reference}"
    network = repo.catalog.network(base.network)
    new = NewVersion(
        id=new_id(),
        name=check_name(name),
        created=repo.clock(),
        message=text,
        network=None if network is None else network_rows(network),
        metadata=base.metadata,
        git=git_state(Path()),
        hyperparameters=base.hyperparameters,
        parents=[Link(base.id, "", "copy", chosen.epoch if chosen else None, text)],
        parameters=base.parameters,
        bytes=base.bytes,
    )
    with repo.committing():
        snapshots = [] if chosen is None else [add_reference(repo, f"{PREFIX}{new.id}/{0:06d}", base, chosen)]
        new = replace(new, files=repo.catalog.files(base), snapshots=snapshots)
        with repo.catalog.transaction():
            return repo.catalog.add(new)


def new_id() -> str:
    return secrets.token_hex(ID_DIGITS // 2)


def _store_snapshots(repo: Repo, version: str, snapshots: Sequence[NewWeights | StoredWeights]) -> list[SnapshotRecord]:
    """Put new weights into the store, all in one transaction, and give each snapshot the name that keeps it."""
    names = {f"{PREFIX}{version}/{position:06d}": each for position, each in enumerate(snapshots)}
    fresh = {name: each for name, each in names.items() if isinstance(each, NewWeights)}
    wanted = [NewSnapshot(each.tensors, each.metadata, name) for name, each in fresh.items()]
    stored = dict(zip(fresh, repo.store.put_all(wanted), strict=True)) if wanted else {}
    for name, each in names.items():
        if isinstance(each, StoredWeights):
            repo.store.reference(name, each.snapshot)
            stored[name] = each.snapshot
    return [
        SnapshotRecord(position, each.epoch, "weights", name, stored[name])
        for position, (name, each) in enumerate(names.items())
    ]


def _checked_message(message: object) -> str:
    if not isinstance(message, str):
        raise UsageError(f"The message is a text, not {message!r:.100}.")
    canonical_json(message, "message")
    return message


def _json_values(values: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
    """A dict of JSON values; numbers of NumPy become numbers of Python."""
    if values is not None and not isinstance(values, Mapping):
        raise UsageError(f"The {what} come as values by name, not as {type(values).__name__}.")
    found = {}
    for name, value in (values or {}).items():
        if not isinstance(name, str):
            raise UsageError(f"The {what} have a name that is not a text: {name!r:.100}.")
        item = getattr(value, "item", None)
        found[name] = item() if callable(item) and getattr(value, "ndim", None) == 0 else value
    canonical_json(found, what)
    return found
