"""Repo: the versions of a project's models, with their weights, files and lineage.

    catalog          versions and their metadata (catalog/)
    files/           files of versions, by content (file_store.py)
    store/           weights (regatta/store)
    runs/            runs of sweeps; commit_run.py makes versions of them

Each method delegates to the module of its verb. Methods take a version, or a reference to one: a tag, a name (its
newest version), name@number, or the beginning of an id. Where weights are read, `name@3:7` means after epoch 7.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regatta.durable import FileLock, make_lock_file
from regatta.errors import NotFoundError, UsageError
from regatta.paths import (
    CATALOG,
    COMMIT_LOCK,
    FILES,
    FOLDER,
    INDEX,
    JOURNAL,
    NO_REPOSITORY_HINT,
    RUNS,
    STAGING_LOCK,
    STORE,
    VERSION_LOG,
    find_repository,
    store_exists,
    writable_folder,
)
from regatta.repo.catalog.catalog import Catalog
from regatta.repo.catalog.names import check_name
from regatta.repo.catalog.queries import Filters
from regatta.repo.catalog.records import Description, Link, MetricPoint, Records, SnapshotRecord, Tag, Version, Versions
from regatta.repo.file_store import FileEntry, FileFolder, Files
from regatta.repo.references import resolve_reference, split_reference
from regatta.repo.snapshots import choose_snapshot, weights_of

if TYPE_CHECKING:
    from regatta.dql.relation import Relation
    from regatta.repo.archive import ArchiveResult
    from regatta.repo.backup.copy_repository import BackupResult
    from regatta.repo.describe import Portrait
    from regatta.repo.diff import Diff
    from regatta.repo.edit.delete import DeleteResult
    from regatta.repo.edit.deleted import Deletion
    from regatta.repo.edit.undo import UndoResult
    from regatta.repo.evaluate import Evaluation
    from regatta.repo.fsck import RepoFsckResult
    from regatta.repo.gc import RepoGcResult
    from regatta.repo.inspect.distributions import Distribution
    from regatta.repo.weights import Weights, WeightsInput
    from regatta.store.archive.storage_graph import Scheme
    from regatta.store.maintenance.fsck import Depth
    from regatta.store.store import ParameterStore


class Repo:
    """A repository. Close it after use, or open it in a `with` statement."""

    def __init__(self, folder: Path, read_only: bool, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.read_only, self.clock = folder, read_only, clock
        if not read_only:
            make_lock_file(folder / COMMIT_LOCK)
            make_lock_file(folder / STAGING_LOCK)
        self.catalog = Catalog(folder / CATALOG, read_only, clock)
        self.files = FileFolder(folder / FILES)
        self._store: ParameterStore | None = None

    @classmethod
    def init(cls, path: str | Path = ".") -> Repo:
        """Create a repository in a project's folder, or open the existing one."""
        return cls.at(Path(os.path.abspath(path)) / FOLDER)

    @classmethod
    def open(cls, path: str | Path | None = None, *, read_only: bool = False) -> Repo:
        """Open the repository at `path`, or in the nearest folder at or above it.

        A repository in a folder without write permission is opened for reading only.
        """
        folder = cls.find(path)
        if read_only or not os.access(folder, os.W_OK | os.X_OK):
            if not (folder / CATALOG).is_file():
                raise NotFoundError("The repository has no versions, and is not writable.", place=str(folder))
            return cls(folder, read_only=True)
        return cls.at(folder)

    @staticmethod
    def find(path: str | Path | None = None) -> Path:
        """The folder of the repository at `path`, or in the nearest folder at or above it."""
        start = Path(os.path.abspath(path if path is not None else Path.cwd()))
        folder = start if _is_repository(start) else find_repository(start)
        if folder is None:
            raise NotFoundError("There is no repository here or above.", place=str(start), hint=NO_REPOSITORY_HINT)
        return folder

    @classmethod
    def at(cls, folder: str | Path) -> Repo:
        """Open the repository with this folder (the `.regatta` of a project), and create it if it is missing."""
        return cls(writable_folder(Path(os.path.abspath(folder)), "repository folder"), read_only=False)

    @property
    def store(self) -> ParameterStore:
        """The parameter store, opened at its first use."""
        if self._store is None:
            from regatta.store.store import ParameterStore

            self._store = ParameterStore.open(self.folder / STORE, read_only=self.read_only, clock=self.clock)
        return self._store

    @property
    def has_store(self) -> bool:
        """Whether any weights were ever stored. Using `store` would create one."""
        return store_exists(self.folder / STORE)

    def close(self) -> None:
        """Close the catalog and the store."""
        self.close_store()
        self.catalog.close()

    def close_store(self) -> None:
        """Close the store; it is opened again when it is used."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def __enter__(self) -> Repo:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Repo {self.folder}: {self.catalog.count()} versions{', read only' if self.read_only else ''}>"

    # Writing

    def commit(
        self,
        name: str,
        weights: WeightsInput | None = None,
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
        """Commit a version of a model. The version is durable when this returns.

        `weights` are tensors by name, a safetensors or npz file, a list of these, or {epoch: one of these}. `metrics`
        are numbers by name, lists or {step: number} by name, or rows of a log. `files` are paths of files and folders,
        or {name: path or bytes}. With `git`, the state of the git working tree around the current folder is recorded.
        `ident` is the id of the version, for callers that must know it beforehand.
        """
        from regatta.repo.commit import commit

        return commit(
            self, name, weights, network=network, metadata=metadata, hyperparameters=hyperparameters, metrics=metrics,
            files=files, parents=parents, message=message, git=git, ident=ident,
        )  # fmt: skip

    def copy(
        self, reference: str | Version, name: str, *, message: str = "", snapshot: int | str | None = None
    ) -> Version:
        """Start a new model from a version: its network, weights, hyperparameters and files, but not its history."""
        from regatta.repo.commit import copy

        version, snapshot = split_reference(self, reference, snapshot)
        return copy(self, version, name, message=message, snapshot=snapshot)

    def tag(self, reference: str | Version, name: str, *, move: bool = False) -> Tag:
        """Tag a version. With `move`, a tag that another version has is moved to this one."""
        version, checked, now = self.resolve(reference), check_name(name, "tag"), self.clock()
        with self.catalog.transaction():
            self.catalog.set_tag(checked, version, now, move)
        return Tag(checked, version.id, now)

    def untag(self, name: str) -> None:
        """Remove a tag. The version stays."""
        with self.catalog.transaction():
            self.catalog.drop_tag(name)

    def delete(self, reference: str | Version, *, force: bool = False) -> None:
        """Delete a version; `gc` frees what only it used. A version with children or tags needs `force`."""
        self.delete_versions([reference], force=force)

    def delete_versions(self, references: Iterable[str | Version], *, force: bool = False) -> DeleteResult:
        """Delete versions together, so that one `undo` takes it back; tags, and children that stay, need `force`."""
        from regatta.repo.edit.delete import delete_versions

        return delete_versions(self, [self.resolve(reference) for reference in references], force)

    def delete_run(self, name: str, *, keep_versions: bool = False, force: bool = False) -> DeleteResult:
        """Delete a run that is not being trained, with its versions; `gc` frees the space.

        With `keep_versions` they stay, with their weights, and only the run's folder goes. Versions with tags, or with
        children outside of the run, need `force`.
        """
        from regatta.repo.edit.delete import delete_run

        return delete_run(self, name, keep_versions=keep_versions, force=force)

    def deletions(self) -> list[Deletion]:
        """The deletions that can be taken back, oldest first."""
        from regatta.repo.edit.deleted import deletions

        return deletions(self)

    def undo(self, deletion: str | None = None) -> UndoResult:
        """Take back the newest deletion, or the one with this id, as long as gc has not freed its content."""
        from regatta.repo.edit.undo import undo

        return undo(self, deletion)

    def rename(self, name: str, new: str) -> int:
        """Give a model, all versions of a name, another name; returns the number of versions. Numbers stay."""
        from regatta.repo.edit.rename import rename_model

        return rename_model(self, name, new)

    def rename_run(self, name: str, new: str) -> int:
        """Give a run that is not being trained, and its versions, another name; returns the number of versions."""
        from regatta.repo.edit.rename import rename_run

        return rename_run(self, name, new)

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
        """The versions that match all filters.

        `name` may be a pattern with * and ?. `search` are words of names, messages, hyperparameters and file names.
        `where` has a value, or a list of values, by hyperparameter. With `metric`, only versions that have it are
        returned. order="best" sorts them by the best value of the metric.
        """
        return self.catalog.versions(Filters(name, search, run, since, until, where or {}, metric, mode, order, limit))

    def best(self, metric: str, mode: Literal["min", "max"] = "min", **filters: Any) -> Version | None:
        """The version with the best value of a metric, among those that match the filters."""
        found = self.versions(**{**filters, "metric": metric, "mode": mode, "order": "best", "limit": 1})
        return found[0] if found else None

    def query(self, text: str, /, **parameters: Any) -> Relation:
        """A query in DQL (docs/dql.md), as a relation that runs when its rows are needed.

        The text is parsed and bound now. Parameters take the place of `:name`; they are bound, and never pasted.
        """
        from regatta.dql.relation import query
        from regatta.dql.run import QueryContext

        return query(QueryContext(self, text), parameters)

    def version(self, reference: str) -> Version:
        """The version of a reference: a tag, a name (its newest version), name@number, or the beginning of an id."""
        return self.catalog.find(reference)

    def describe(self, reference: str | Version) -> Description:
        """Everything that the catalog has about a version."""
        from regatta.repo.describe import describe

        return describe(self, self.resolve(reference))

    def log(self, reference: str | Version) -> Versions:
        """A version and all its ancestors, newest first; `links` has the links between them."""
        return self.catalog.lineage(self.resolve(reference))

    def parents(self, reference: str | Version) -> Versions:
        """The parents of a version."""
        return self.catalog.parents(self.resolve(reference))

    def children(self, reference: str | Version) -> Versions:
        """The children of a version."""
        return self.catalog.children(self.resolve(reference))

    def links(self, versions: Iterable[Version]) -> tuple[Link, ...]:
        """The links of these versions to their parents."""
        return self.catalog.links([version.key for version in versions])

    def tags(self) -> Records[Tag]:
        """All tags, by name."""
        return self.catalog.tags()

    def snapshots(self, reference: str | Version) -> Records[SnapshotRecord]:
        """The snapshots of a version, oldest first."""
        return self.catalog.snapshots(self.resolve(reference))

    def metrics(self, reference: str | Version) -> Records[MetricPoint]:
        """Every value of every metric."""
        return self.catalog.metrics(self.resolve(reference))

    def network(self, reference: str | Version) -> dict[str, Any] | None:
        """The network of a version as plain data, if it has one."""
        return self.catalog.network(self.resolve(reference).network)

    def read_file(self, reference: str | Version, path: str) -> bytes:
        """The content of a file of a version."""
        files = {file.path: file for file in self.catalog.files(self.resolve(reference))}
        if path not in files:
            raise NotFoundError(f"The version has no file {path!r:.200}.", candidates=sorted(files)[:5])
        return self.files.read(files[path])

    def weights(self, reference: str | Version, snapshot: int | str | None = None) -> Weights:
        """The weights at a snapshot, as a mapping that reads each tensor on access.

        `snapshot` is an epoch, a position if no snapshot has an epoch, or the beginning of an id. The default is the
        last snapshot.
        """
        version, snapshot = split_reference(self, reference, snapshot)
        return weights_of(self, version, choose_snapshot(self, version, snapshot))

    def load(
        self,
        reference: str | Version,
        snapshot: int | str | None = None,
        *,
        names: Iterable[str] | None = None,
        planes: int | None = None,
    ) -> dict[str, Any]:
        """The weights at a snapshot as {name: array}: all or some; with `planes`, their leading bytes with bounds."""
        return self.weights(reference, snapshot).read(names, planes)

    def distributions(
        self,
        reference: str | Version,
        snapshot: int | str | None = None,
        *,
        names: Iterable[str] | None = None,
        exact: bool = False,
    ) -> Records[Distribution]:
        """How the weights of each tensor are distributed and stored.

        Only the leading planes are read, unless `exact`. Histograms are exact either way; means and norms have bounds.
        """
        from regatta.repo.inspect.parameters import distributions

        found = resolve_reference(self, reference, snapshot)
        if found.snapshot is None:
            return Records()
        weights = weights_of(self, found.version, found.snapshot)
        wanted = None if names is None else weights.check_names(names)
        return distributions(self.store if self.has_store else None, weights, wanted, exact)

    def portrait(self, reference: str | Version, **options: Any) -> Portrait:
        """Everything about a version, with the distributions of its weights; options as for `describe.portrait`."""
        from regatta.repo.describe import portrait

        return portrait(self, reference, **options)

    def diff(self, *references: str | Version, exact: bool = False) -> Diff:
        """Compare two or more versions with the first one.

        `name@3:7` is that version after epoch 7. Weights are compared by their leading planes, or wholly if `exact`.
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
        """Label inputs as the model with full precision would, reading as few bytes of its weights as possible.

        `precision` may also be "full", or a number of leading bytes of each weight. `budget` is the largest share of
        the bytes to read. With a number of bytes or a budget, labels may differ from those of full precision;
        `certain` says which cannot. With `top_k`, the k best classes are returned instead of the best one.
        """
        from regatta.repo.evaluate import evaluate

        version, snapshot = split_reference(self, reference, snapshot)
        return evaluate(self, version, x, y, precision=precision, top_k=top_k, snapshot=snapshot, budget=budget)

    def checkout(
        self, reference: str | Version, path: str | Path, *, snapshot: int | str | None = None, overwrite: bool = False
    ) -> Path:
        """Write a version to a folder, with weights.safetensors, version.json and files/.

        If the path ends in .safetensors, .npz, .pt or .pth, only the weights are written, to that file.
        """
        from regatta.repo.checkout import check_out

        version, snapshot = split_reference(self, reference, snapshot)
        return check_out(self, version, Path(os.path.abspath(path)), snapshot, overwrite)

    # Maintenance

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
        """Store all weights in less space, bit for bit; a dry run only reports the savings.

        `budget` limits how many times longer than at best a snapshot may take to read: by default 4 times, or its
        present time; infinity uses the least space. Only a given budget may make the repository larger. With `lossy`, a
        scheme such as "float16" or "uniform-8", the weights of the named versions lose bits. The newest state of a
        run's configuration stays exact.
        """
        from regatta.repo.archive import archive

        chosen = [self.resolve(reference) for reference in references]
        return archive(
            self, chosen, lossy=lossy, budget=budget, scheme=scheme, algorithm=algorithm, progressive=progressive,
            dry_run=dry_run,
        )  # fmt: skip

    def backup(self, path: str | Path) -> BackupResult:
        """Copy the whole repository to `path`/.regatta, and check the copy. Commits and runs go on meanwhile."""
        from regatta.repo.backup.copy_repository import back_up

        return back_up(self, Path(path))

    def gc(self, *, grace: float | None = None, dry_run: bool = False) -> RepoGcResult:
        """Delete weights and files that no version uses and that are older than `grace` seconds (two weeks).

        Deletions of that age cannot be taken back any more. With `dry_run`, only say what would be deleted.
        """
        from regatta.repo.gc import collect_garbage

        return collect_garbage(self, grace, dry_run)

    def fsck(self, depth: Depth = "structure", *, repair: bool = False, rebuild_index: bool = False) -> RepoFsckResult:
        """Check the catalog, the files and the parameter store; `depth` is that of the store's fsck.

        `repair` mends what can be mended. It needs the repository for itself if the catalog or the store's index must
        be made again. `rebuild_index` makes that index again in any case.
        """
        from regatta.repo.fsck import check_repo

        return check_repo(self, depth, repair, rebuild_index)

    # For the modules of this package

    def resolve(self, reference: str | Version) -> Version:
        """The version itself, or the one that a reference names."""
        return reference if isinstance(reference, Version) else self.catalog.find(reference)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Keep gc from deleting files and snapshots that no version refers to yet. Several commits may run at once."""
        self.check_writable()
        with FileLock(self.folder / COMMIT_LOCK, shared=True):
            yield

    def check_writable(self) -> None:
        """Raise UsageError if the repository is open for reading only."""
        if self.read_only:
            raise UsageError("The repository is open for reading only.", place=str(self.folder))


def _is_repository(folder: Path) -> bool:
    """Whether this is a repository's own folder, whatever its name."""
    marks = (folder / CATALOG, folder / VERSION_LOG, folder / STORE / INDEX, *(folder / RUNS).glob(f"*/{JOURNAL}"))
    return any(mark.is_file() for mark in marks) or (folder.name == FOLDER and folder.is_dir())
