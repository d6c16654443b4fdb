"""The staging area: files that were added and wait for a commit.

    <repository>/staging.json     a list of items; the file is replaced as a whole
    staged/<random>               the names that keep staged weights in the parameter store

As in git, the staged content is that at the time of `add`. Weights are in the store and files in the file store by
then, and a commit only refers to them. The id of the version is written down before the commit. A process that is
killed between the commit and the emptying of the area therefore does not commit twice.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from regatta.durable import checked_json, exclusive, parse_checked_json, replacing
from regatta.errors import CorruptError, NotFoundError, UsageError, nearest
from regatta.paths import FOLDER, STAGING, STAGING_LOCK
from regatta.repo.catalog.records import Version
from regatta.repo.commit import new_id
from regatta.repo.file_store import FileEntry, named_files
from regatta.repo.intake.read_file import Kind, RecognizedFile, check_regular, joined, recognize, shards
from regatta.repo.repo import Repo
from regatta.repo.weights import StoredWeights

PREFIX, FORMAT = "staged/", 1
MAX_BYTES = 2**28


@dataclass(frozen=True)
class StagedWeights:
    """Weights in the parameter store, under a name of their own until a version has them."""

    reference: str
    snapshot: str
    epoch: int | None
    parameters: int
    bytes: int
    tensors: int


@dataclass(frozen=True)
class Staged:
    """One staged file: its name, its kind, and where its content is stored."""

    name: str
    source: str
    kind: Kind
    says: str
    notes: tuple[str, ...] = ()
    weights: StagedWeights | None = None
    file: FileEntry | None = None
    hyperparameters: Mapping[str, Any] | None = None
    metrics: bool = False
    network: bool = False
    origin: str | None = None  # the id of the version that was checked out to this file


@dataclass(frozen=True)
class StagingArea:
    """The content of staging.json: the items, and the id of the version that is being committed."""

    items: tuple[Staged, ...] = ()
    committing: str | None = None


def staged(repo: Repo) -> tuple[Staged, ...]:
    return _read(repo).items


def staged_files(repo: Repo) -> set[str]:
    """The hashes of staged files, which gc keeps."""
    return {item.file.hash for item in staged(repo) if item.file is not None}


def add(repo: Repo, paths: Sequence[str | Path], *, kind: Kind | None = None, epoch: int | None = None) -> list[Staged]:
    """Stage files and folders, all or none, and return the items. Files that are staged already are replaced.

    `kind` overrides the guess of what they are; `epoch` is that of the weights.
    """
    found = _read_all(_named(paths), kind, epoch)
    with repo.committing(), _changing(repo) as area:
        sources = {item.name: item.source for item in area.items}
        for name, _, source in found:
            if sources.get(name, str(source)) != str(source):
                raise UsageError(
                    f"{name!r:.200} is staged already, from another place.",
                    place=sources[name],
                    hint="Commit that first, or unstage it.",
                )
        made = [_stage(repo, name, what, source) for name, what, source in found]
        names = {item.name for item in made}
        kept = [item for item in area.items if item.name not in names]
        _write(repo, StagingArea((*kept, *made)))
        _release(repo, [item for item in area.items if item.name in names])
    return made


def unstage(repo: Repo, names: Iterable[str] | None = None) -> list[Staged]:
    """Remove items from the area, by default all, and return them."""
    with repo.committing(), _changing(repo) as area:
        known = {item.name: item for item in area.items}
        chosen = list(known) if names is None else [_matching(name, known) for name in names]
        gone = [known[name] for name in dict.fromkeys(chosen)]
        _write(repo, StagingArea(tuple(item for item in area.items if item not in gone)))
        _release(repo, gone)
    return gone


def commit_staged(
    repo: Repo,
    name: str,
    *,
    hyperparameters: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    parents: Sequence[str] = (),
    message: str = "",
) -> Version:
    """Make a version of what is staged, and of what is given beside it; the area is empty afterwards.

    Without `parents`, the versions that were checked out to the staged files are its parents.
    """
    with _changing(repo) as area:
        if not area.items and not hyperparameters and not metrics:
            raise UsageError("Nothing is staged.", place=str(repo.folder), hint="Add something: regatta add FILE ...")
        ident = new_id()
        values, network, points = _meanings(repo, area.items)
        last_step = max((step for series in points.values() for step in series), default=0)
        points |= {key: {last_step: value} for key, value in (metrics or {}).items()}
        _write(repo, replace(area, committing=ident))
        made = repo.commit(
            name,
            _snapshots(area.items),
            network=network,
            hyperparameters={**values, **(hyperparameters or {})},
            metrics=points,
            files=[item.file for item in area.items if item.file is not None],
            parents=parents or _origins(repo, area.items),
            message=message,
            ident=ident,
        )
        _write(repo, StagingArea())
        _release(repo, area.items)
    return made


def _named(paths: Sequence[str | Path]) -> list[tuple[str, Path]]:
    """The files below the paths, each with its name in the version."""
    for path in map(Path, paths):
        if not path.is_dir():
            check_regular(path)
        elif FOLDER in path.resolve().parts:
            raise UsageError("A repository is not added to itself.", place=str(path))
    return [(name, path) for name, path in named_files(list(paths)) if isinstance(path, Path)]


def _read_all(
    named: Sequence[tuple[str, Path]], kind: Kind | None, epoch: int | None
) -> list[tuple[str, RecognizedFile, Path]]:
    """The recognized files; parts of one snapshot are joined."""
    names = {path: name for name, path in named}
    found = []
    for first, parts in shards([path for _, path in named]).items():
        what = joined([recognize(part, kind) for part in parts], first)
        if epoch is not None and what.weights is not None:
            what = replace(what, weights=replace(what.weights, epoch=epoch))
        found.append((names[parts[0]], what, parts[0].absolute()))
    return found


def _stage(repo: Repo, name: str, what: RecognizedFile, source: Path) -> Staged:
    """Make the content of a file durable; it is not staged yet."""
    weights = None
    if what.weights is not None:
        reference = f"{PREFIX}{secrets.token_hex(8)}"
        snapshot = repo.store.put(what.weights.tensors, metadata=what.weights.metadata, reference=reference)
        size = what.weights.parameters, what.weights.bytes, len(what.weights.tensors)
        weights = StagedWeights(reference, snapshot, what.weights.epoch, *size)
    file = repo.files.put_all({name: source})[0] if what.kept else None
    known = name, str(source), what.kind, what.says, what.notes, weights, file, what.hyperparameters
    metrics, network = what.metrics is not None, what.network is not None
    return Staged(*known, metrics=metrics, network=network, origin=what.origin)


def _origins(repo: Repo, items: Sequence[Staged]) -> list[str]:
    """The ids of the versions of this repository that the staged files were checked out from."""
    ids = dict.fromkeys(item.origin for item in items if item.origin is not None)
    return [ident for ident in ids if repo.catalog.has(ident)]


def _snapshots(items: Sequence[Staged]) -> list[StoredWeights] | None:
    """The staged weights in the order of their epochs; those without an epoch come first."""
    found = [item.weights for item in items if item.weights is not None]
    epochs = [each.epoch for each in found if each.epoch is not None]
    if len(set(epochs)) < len(epochs):
        twice = next(epoch for epoch in epochs if epochs.count(epoch) > 1)
        raise UsageError(f"Two staged snapshots are of epoch {twice}.", hint="Unstage one of them.")
    ordered = sorted(found, key=lambda each: (each.epoch is not None, each.epoch or 0))
    return [StoredWeights(each.snapshot, each.epoch, each.parameters, each.bytes) for each in ordered] or None


def _meanings(repo: Repo, items: Sequence[Staged]) -> tuple[dict[str, Any], Any, dict[str, dict[int, float]]]:
    """Hyperparameters, the network and metrics of the staged files; later files override earlier ones."""
    values: dict[str, Any] = {}
    points: dict[str, dict[int, float]] = {}
    networks = [item for item in items if item.network and item.kind == "network"]
    networks = networks or [item for item in items if item.network][:1]  # that of a checkout
    if len(networks) > 1:
        names = " and ".join(item.name for item in networks[:2])
        raise UsageError(f"A version has one network, and several are staged: {names}.", hint="Unstage all but one.")
    for item in items:
        values |= item.hyperparameters or {}
        if item.metrics:
            for name, series in (_again(repo, item).metrics or {}).items():
                points.setdefault(name, {}).update(series)
    if not networks:
        return values, None, points
    from regatta.network import to_json

    return values, to_json(_again(repo, networks[0]).network), points


def _again(repo: Repo, item: Staged) -> RecognizedFile:
    """Recognize a staged file again, from the file store, where it has another name."""
    assert item.file is not None
    repo.files.check(item.file)
    return recognize(repo.files.path(item.file.hash), item.kind, Path(item.name).suffix)


def _matching(name: str, known: Mapping[str, Staged]) -> str:
    """The name of a staged item, given its name or the path of its file."""
    by_source = {item.source: item.name for item in known.values()}
    found = name if name in known else by_source.get(os.path.abspath(name))
    if found is None:
        raise NotFoundError(f"{name!r:.200} is not staged.", candidates=nearest(name, known))
    return found


def _release(repo: Repo, items: Iterable[Staged]) -> None:
    """Release the names of staged weights. After a crash, `release_unused` releases the rest."""
    names = {item.weights.reference for item in items if item.weights is not None}
    for name in names & repo.store.references(PREFIX).keys() if names else ():
        repo.store.release(name)


def release_unused(repo: Repo) -> int:
    """Release names of weights that no item has, as an `add` that was killed leaves them; return their number."""
    with _changing(repo) as area:
        known = {item.weights.reference for item in area.items if item.weights is not None}
        unknown = [name for name in repo.store.references(PREFIX) if name not in known]
        for name in unknown:
            repo.store.release(name)
    return len(unknown)


@contextmanager
def _changing(repo: Repo) -> Iterator[StagingArea]:
    repo.check_writable()
    with exclusive(repo.folder / STAGING_LOCK, "staging"):
        yield _read(repo)


def _read(repo: Repo) -> StagingArea:
    path = repo.folder / STAGING
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return StagingArea()
    try:
        area = _parsed(parse_checked_json(text) if len(text) <= MAX_BYTES else None)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"The staging area cannot be read: {error!r:.200}.", place=str(path), hint="Delete the file and add again."
        ) from error
    done = area.committing is not None and repo.catalog.has(area.committing)
    return StagingArea() if done else replace(area, committing=None)


def _parsed(content: Any) -> StagingArea:
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r}, not {FORMAT}")
    return StagingArea(tuple(map(_item, content["items"])), content["committing"])


def _item(content: dict[str, Any]) -> Staged:
    weights, file = content["weights"], content["file"]
    made = {
        "notes": tuple(content["notes"]),
        "weights": None if weights is None else StagedWeights(**weights),
        "file": None if file is None else FileEntry(**file),
    }
    return Staged(**{**content, **made})


def _write(repo: Repo, area: StagingArea) -> None:
    content = {"format": FORMAT, "committing": area.committing, "items": [asdict(item) for item in area.items]}
    path = repo.folder / STAGING
    with replacing(path) as written, written.open("w", encoding="utf-8") as file:
        file.write(checked_json(content))
