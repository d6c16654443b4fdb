"""Repo: the versions of a project's models, with their weights, files and lineage.

    <repository>/catalog.sqlite     what there is (catalog.py)
    <repository>/files/             files of versions, by content (files.py)
    <repository>/store/             weights (regatta/store)
    <repository>/runs/              runs of sweeps, which leave versions behind (sweep.py)

A version counts when `commit` has come back: files and weights are durable first, then one transaction of the catalog
makes them a version. Whoever is killed in between leaves only what `gc` takes away.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from regatta.durable import FileLock
from regatta.errors import ConflictError, NotFoundError, UsageError
from regatta.paths import (
    CATALOG,
    COMMIT_LOCK,
    FILES,
    FOLDER,
    INDEX,
    JOURNAL,
    find_repository,
    runs_folder,
    store_exists,
    store_folder,
    writable_folder,
)
from regatta.repo.catalog.catalog import Catalog, NewVersion
from regatta.repo.catalog.names import ID_DIGITS, check_name
from regatta.repo.catalog.networks import canonical_json, network_rows
from regatta.repo.catalog.queries import Filters
from regatta.repo.catalog.records import (
    Description,
    Link,
    MetricPoint,
    Records,
    SnapshotRecord,
    Tag,
    Version,
    Versions,
)
from regatta.repo.file_store import FileEntry, FileFolder, Files
from regatta.repo.intake.git_commit import git_state
from regatta.repo.intake.metrics import metric_points
from regatta.repo.snapshots import choose, keep_again, weights_of

if TYPE_CHECKING:
    from regatta.repo.archive import ArchiveResult
    from regatta.repo.describe import Portrait
    from regatta.repo.diff import Diff
    from regatta.repo.evaluate import Evaluation
    from regatta.repo.fsck import Collected, RepoFsckReport
    from regatta.repo.inspect.distributions import Distribution
    from regatta.repo.weights import Given, NewSnapshotWeights, StoredWeights, Weights
    from regatta.store.archive.storage_graph import Scheme
    from regatta.store.maintenance.fsck import Depth
    from regatta.store.store import ParameterStore

PREFIX = "versions/"


class Repo:
    """A repository; close it, or use it in a `with`. A reference is a tag, a name, name@number, or part of an id."""

    def __init__(self, folder: Path, read_only: bool, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.read_only, self.clock = folder, read_only, clock
        self.catalog = Catalog(folder / CATALOG, read_only)
        self.files = FileFolder(folder / FILES)
        self._store: ParameterStore | None = None

    @classmethod
    def init(cls, path: str | Path = ".") -> Repo:
        """Make a repository in a project's folder, or open the one that it has."""
        return cls.at(Path(os.path.abspath(path)) / FOLDER)

    @classmethod
    def open(cls, path: str | Path | None = None, *, read_only: bool = False) -> Repo:
        """The repository of this folder or of the nearest one above it; or at `path` itself, where one is.

        In a folder that cannot be written it can still be read.
        """
        start = Path(os.path.abspath(path if path is not None else Path.cwd()))
        folder = start if _is_repository(start) else find_repository(start)
        if folder is None:
            raise NotFoundError(
                "There is no repository here or above.", place=str(start), hint="`regatta init` makes one."
            )
        if read_only or not os.access(folder, os.W_OK | os.X_OK):
            return cls._for_reading(folder)
        return cls.at(folder)

    @classmethod
    def at(cls, folder: str | Path) -> Repo:
        """The repository whose own folder this is (the `.regatta` of a project), made when it is not there."""
        return cls(writable_folder(Path(os.path.abspath(folder)), "repository folder"), read_only=False)

    @classmethod
    def _for_reading(cls, folder: Path) -> Repo:
        if not (folder / CATALOG).is_file():
            raise NotFoundError("The repository has no versions, and cannot be written.", place=str(folder))
        return cls(folder, read_only=True)

    @property
    def store(self) -> ParameterStore:
        """The parameter store, opened when it is first needed."""
        if self._store is None:
            from regatta.store.store import ParameterStore

            self._store = ParameterStore.open(store_folder(self.folder), read_only=self.read_only, clock=self.clock)
        return self._store

    @property
    def has_store(self) -> bool:
        """Whether any weights were ever stored; asking for the store would make one."""
        return store_exists(store_folder(self.folder))

    def close(self) -> None:
        """Let go of the catalog and the store."""
        if self._store is not None:
            self._store.close()
            self._store = None
        self.catalog.close()

    def __enter__(self) -> Repo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Repo {self.folder}: {self.catalog.count()} versions{', read only' if self.read_only else ''}>"

    # Writing

    def commit(
        self,
        name: str,
        weights: Given | None = None,
        *,
        network: Any = None,
        metadata: Mapping[str, Any] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        metrics: Any = None,
        files: Files | Sequence[FileEntry] = (),
        parents: Iterable[str | Version] = (),
        message: str = "",
        git: bool = True,
        ident: str | None = None,
    ) -> Version:
        """Keep a version of a model; it is there for good when this comes back.

        `weights` are tensors by name, a safetensors or npz file, a list of these, or {epoch: one of these}. `metrics`
        are numbers by name, lists or {step: number} by name, or rows of a log; `files` paths of files and folders, or
        {name: path or bytes}. The state of the git working tree around the current folder is noted. `ident` is the id
        that it gets, for whoever has to know it beforehand.
        """
        from regatta.repo.weights import new_snapshots

        given = new_snapshots(weights)
        bases = [self._version(parent) for parent in parents]
        new = NewVersion(
            id=ident or new_id(),
            name=check_name(name),
            created=self.clock(),
            message=_text(message, "message"),
            network=None if network is None else network_rows(network),
            metadata=_plain(metadata, "metadata"),
            git=_surroundings() if git else None,
            hyperparameters=_plain(hyperparameters, "hyperparameters"),
            metrics=metric_points(metrics),
            parents=[Link(base.id, "", "derived", None, message) for base in bases],
            parameters=given[-1].parameters if given else None,
            bytes=given[-1].bytes if given else None,
        )
        with self.committing():
            return self._enter(new, self.files.put_all(files), self._put(new.id, given))

    def copy(
        self, reference: str | Version, name: str, *, message: str = "", snapshot: int | str | None = None
    ) -> Version:
        """Begin a model with what another one is: its network, weights, hyperparameters and files, but not its past."""
        base = self._version(reference)
        chosen = choose(self, base, snapshot) if base.snapshots else None
        text = _text(message, "message") or f"copy of {base.reference}"
        network = self.catalog.network(base.network)
        new = NewVersion(
            id=new_id(),
            name=check_name(name),
            created=self.clock(),
            message=text,
            network=None if network is None else network_rows(network),
            metadata=base.metadata,
            git=_surroundings(),
            hyperparameters=base.hyperparameters,
            parents=[Link(base.id, "", "copy", chosen.epoch if chosen else None, text)],
            parameters=base.parameters,
            bytes=base.bytes,
        )
        with self.committing():
            kept = [] if chosen is None else [keep_again(self, f"{PREFIX}{new.id}/{0:06d}", base, chosen)]
            return self._enter(new, self.catalog.files(base), kept)

    def tag(self, reference: str | Version, name: str, *, move: bool = False) -> Tag:
        """Give a version a name of its own; with `move`, take it from the one that has it."""
        version, checked, now = self._version(reference), check_name(name, "tag"), self.clock()
        with self.catalog.transaction():
            self.catalog.set_tag(checked, version, now, move)
        return Tag(checked, version.id, now)

    def untag(self, name: str) -> None:
        """Let go of a tag; its version stays."""
        with self.catalog.transaction():
            self.catalog.drop_tag(name)

    def delete(self, reference: str | Version, *, force: bool = False) -> None:
        """Forget a version; `gc` frees what only it needed. One with children or tags only with `force`."""
        version = self._version(reference)
        with self.committing():
            with self.catalog.transaction():
                self._check_unneeded(version, force)
                files = self.catalog.files(version)
                own = [s.reference for s in self.catalog.snapshots(version) if s.reference.startswith(PREFIX)]
                self.catalog.drop(version)
            self.files.renew(file.hash for file in files)
            known = self.store.references(f"{PREFIX}{version.id}/") if own else {}
            for name in known:
                self.store.release(name)

    # Reading

    def versions(
        self,
        name: str | None = None,
        *,
        search: str | None = None,
        run: str | None = None,
        since: float | None = None,
        until: float | None = None,
        where: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: Literal["min", "max"] = "min",
        order: Literal["newest", "oldest", "name", "best"] = "newest",
        limit: int | None = None,
    ) -> Versions:
        """Versions for which all of this holds.

        `name` may be a pattern with * and ?; `search` are words of names, messages, hyperparameters and file names;
        `where` has a value, or a list of values, by hyperparameter. With `metric`, only those that have it; with
        order="best", by the best value that each had.
        """
        return self.catalog.versions(Filters(name, search, run, since, until, where or {}, metric, mode, order, limit))

    def best(self, metric: str, mode: Literal["min", "max"] = "min", **filters: Any) -> Version | None:
        """The version with the best value of a metric, of those that the filters leave."""
        found = self.versions(**{**filters, "metric": metric, "mode": mode, "order": "best", "limit": 1})
        return found[0] if found else None

    def version(self, reference: str) -> Version:
        """The version that a tag, a name (its newest), a name@number or the beginning of an id means."""
        return self.catalog.find(reference)

    def describe(self, reference: str | Version) -> Description:
        """All that the catalog knows of a version."""
        version, catalog = self._version(reference), self.catalog
        with catalog.reading():
            return Description(
                version,
                tuple(tag.name for tag in catalog.tags(version)),
                catalog.network(version.network),
                catalog.snapshots(version),
                catalog.metrics(version),
                catalog.files(version),
                catalog.parents(version).links,
                catalog.children(version).links,
                catalog.run(version.run),
            )

    def log(self, reference: str | Version) -> Versions:
        """A version and all that it came out of, newest first; `links` says what came out of what."""
        return self.catalog.lineage(self._version(reference))

    def parents(self, reference: str | Version) -> Versions:
        """What a version came out of."""
        return self.catalog.parents(self._version(reference))

    def children(self, reference: str | Version) -> Versions:
        """What came out of a version."""
        return self.catalog.children(self._version(reference))

    def links(self, versions: Iterable[Version]) -> tuple[Link, ...]:
        """What these came out of."""
        return self.catalog.links([version.key for version in versions])

    def tags(self) -> Records[Tag]:
        """All tags, by name."""
        return self.catalog.tags()

    def snapshots(self, reference: str | Version) -> Records[SnapshotRecord]:
        """The snapshots of a version, the oldest first."""
        return self.catalog.snapshots(self._version(reference))

    def metrics(self, reference: str | Version) -> Records[MetricPoint]:
        """Every value of every metric."""
        return self.catalog.metrics(self._version(reference))

    def network(self, reference: str | Version) -> dict[str, Any] | None:
        """The network of a version as plain data, where it has one."""
        return self.catalog.network(self._version(reference).network)

    def read_file(self, reference: str | Version, path: str) -> bytes:
        """The content of a file of a version."""
        files = {file.path: file for file in self.catalog.files(self._version(reference))}
        if path not in files:
            raise NotFoundError(f"The version has no file {path!r:.200}.", candidates=sorted(files)[:5])
        return self.files.read(files[path].hash)

    def weights(self, reference: str | Version, snapshot: int | str | None = None) -> Weights:
        """The weights at a snapshot, as a mapping that reads each tensor when it is asked for.

        A snapshot is an epoch, or a position where none has an epoch, or the beginning of its id; the last by default.
        """
        version = self._version(reference)
        return weights_of(self, version, choose(self, version, snapshot))

    def load(
        self,
        reference: str | Version,
        snapshot: int | str | None = None,
        *,
        names: Iterable[str] | None = None,
        planes: int | None = None,
    ) -> dict[str, Any]:
        """The weights at a snapshot as {name: array}, all or some, or the leading planes of them with their bounds."""
        return self.weights(reference, snapshot).read(names, planes)

    def distributions(
        self,
        reference: str | Version,
        snapshot: int | str | None = None,
        *,
        names: Iterable[str] | None = None,
        exact: bool = False,
    ) -> Records[Distribution]:
        """How the weights of each tensor are distributed and stored: from the leading planes, or with `exact` from all.

        Histograms are exact either way; means and norms lie between bounds.
        """
        from regatta.repo.inspect.parameters import distributions
        from regatta.repo.references import resolve_reference

        side = resolve_reference(self, reference, snapshot)
        if side.snapshot is None:
            return Records()
        weights = weights_of(self, side.version, side.snapshot)
        wanted = None if names is None else weights.known(names)
        return distributions(self.store if self.has_store else None, weights, wanted, exact)

    def portrait(self, reference: str | Version, **options: Any) -> Portrait:
        """All of a version, with the distributions of its weights; options as for `describe.portrait`."""
        from regatta.repo.describe import portrait

        return portrait(self, reference, **options)

    def diff(self, *references: str | Version, exact: bool = False) -> Diff:
        """What two or more versions differ in; the first is what the others are compared with.

        `name@3:7` is that version after epoch 7. Weights are compared by their leading planes, with `exact` by all.
        """
        from regatta.repo.diff import compare

        return compare(self, references, exact)

    def evaluate(
        self,
        reference: str | Version,
        x: Any,
        y: Any = None,
        *,
        precision: str | int = "auto",
        top_k: int = 1,
        snapshot: int | str | None = None,
        budget: float | None = None,
    ) -> Evaluation:
        """The labels that the model gives to inputs, those of full precision, from as few bytes as that takes.

        `precision` may also be "full", or a number of leading bytes of each weight: then labels may differ from those
        of full precision, as they may with a `budget`, the share of the bytes that is read at most; `certain` says
        which cannot. With `top_k`, the k best classes in place of the best.
        """
        from regatta.repo.evaluate import evaluate

        version = self._version(reference)
        return evaluate(self, version, x, y, precision=precision, top_k=top_k, snapshot=snapshot, budget=budget)

    def checkout(
        self, reference: str | Version, path: str | Path, *, snapshot: int | str | None = None, overwrite: bool = False
    ) -> Path:
        """Write a version out: a folder with weights.safetensors, version.json and files/; or its weights alone, where
        the path ends in .safetensors, .npz, .pt or .pth."""
        from regatta.repo.checkout import check_out

        return check_out(self, self._version(reference), Path(os.path.abspath(path)), snapshot, overwrite)

    # Keeping

    def archive(
        self,
        *references: str | Version,
        lossy: str | None = None,
        budget: float | None = None,
        scheme: Scheme = "independent",
        algorithm: str = "pas-mt",
        progressive: bool = False,
        dry_run: bool = False,
    ) -> ArchiveResult:
        """Keep all weights in less room, bit for bit; a dry run says what that would save.

        `budget` is how many times longer than at best a snapshot may take to read; without one, as little as possible
        is stored. With `lossy`, a scheme such as "float16" or "uniform-8", the weights of the versions that are named
        lose bits; the newest state of a run's configuration stays exact.
        """
        from regatta.repo.archive import archive

        chosen = [self._version(reference) for reference in references]
        return archive(
            self, chosen, lossy=lossy, budget=budget, scheme=scheme, algorithm=algorithm, progressive=progressive,
            dry_run=dry_run,
        )  # fmt: skip

    def gc(self, *, grace: float | None = None) -> Collected:
        """Take away weights and files that no version needs, once they are older than `grace` seconds (two weeks)."""
        from regatta.repo.fsck import collect

        return collect(self, grace)

    def fsck(self, depth: Depth = "structure", *, repair: bool = False) -> RepoFsckReport:
        """Check the catalog, the files and the parameter store; how deeply is as for the store."""
        from regatta.repo.fsck import check

        return check(self, depth, repair)

    # How it is done

    def _version(self, reference: str | Version) -> Version:
        return reference if isinstance(reference, Version) else self.catalog.find(reference)

    def _enter(self, new: NewVersion, files: Sequence[FileEntry], snapshots: Sequence[SnapshotRecord]) -> Version:
        with self.catalog.transaction():
            return self.catalog.add(NewVersion(**{**new.__dict__, "files": files, "snapshots": snapshots}))

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Nobody collects what is about to be named; many may commit at once."""
        if self.read_only:
            raise UsageError("The repository is open for reading only.", place=str(self.folder))
        with FileLock(self.folder / COMMIT_LOCK, shared=True):
            yield

    def _put(self, version: str, given: Sequence[NewSnapshotWeights | StoredWeights]) -> list[SnapshotRecord]:
        from regatta.repo.weights import StoredWeights
        from regatta.store.commit import NewSnapshot

        names = {f"{PREFIX}{version}/{position:06d}": each for position, each in enumerate(given)}
        fresh = {name: each for name, each in names.items() if not isinstance(each, StoredWeights)}
        wanted = [NewSnapshot(each.tensors, each.metadata, name) for name, each in fresh.items()]
        stored = dict(zip(fresh, self.store.put_all(wanted), strict=True)) if wanted else {}
        for name, each in names.items():
            if isinstance(each, StoredWeights):
                self.store.reference(name, each.snapshot)
                stored[name] = each.snapshot
        return [
            SnapshotRecord(position, each.epoch, "weights", name, stored[name])
            for position, (name, each) in enumerate(names.items())
        ]

    def _check_unneeded(self, version: Version, force: bool) -> None:
        tags, children = self.catalog.tags(version), self.catalog.children(version)
        if (tags or children) and not force:
            reasons = [f"the tag {tag.name!r}" for tag in tags] + [f"the child {child.reference}" for child in children]
            raise ConflictError(
                f"The version {version.reference} has {', '.join(reasons[:5])}.",
                hint="Delete it all the same: force=True.",
            )


def new_id() -> str:
    return secrets.token_hex(ID_DIGITS // 2)


def _is_repository(folder: Path) -> bool:
    """Whether this is a repository's own folder, whatever its name."""
    marks = (folder / CATALOG, store_folder(folder) / INDEX, *runs_folder(folder).glob(f"*/{JOURNAL}"))
    return any(mark.is_file() for mark in marks) or (folder.name == FOLDER and folder.is_dir())


def _surroundings() -> dict[str, Any] | None:
    found = git_state(Path.cwd())
    return None if found is None else asdict(found)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"The {what} is a text, not {value!r:.100}.")
    canonical_json(value, what)
    return value


def _plain(values: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
    """A dict of what JSON can hold; NumPy's numbers become Python's."""
    if values is not None and not isinstance(values, Mapping):
        raise UsageError(f"The {what} come as values by name, not as {type(values).__name__}.")
    made = {}
    for name, value in (values or {}).items():
        if not isinstance(name, str):
            raise UsageError(f"The {what} have a name that is no text: {name!r:.100}.")
        item = getattr(value, "item", None)
        made[name] = item() if callable(item) and getattr(value, "ndim", None) == 0 else value
    canonical_json(made, what)
    return made
