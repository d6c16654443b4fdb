"""Data sets: named partitions for training and for evaluation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from regatta.configuration import Scalar
from regatta.data.arrays import Arrays, held_out_arrays, named_arrays
from regatta.data.availability import Workers, place_partitions
from regatta.data.dataset_choice import DataChoice, check_choice
from regatta.data.fingerprint import hash_arrays, hash_files, hash_fingerprints, hash_rows
from regatta.data.order import Indices
from regatta.data.partition import Column, Partition, inspect, row_columns, unknown_format
from regatta.data.row_files import RowScatter, UnfinishedPartition, unfinished_folder
from regatta.data.split import EVAL_FRACTION, plan_partitions
from regatta.data.torch_rows import CollateFn, RowSource, find_rows
from regatta.data.write import check_owner, is_written, locked, write_partition
from regatta.errors import DataError, UsageError, nearest
from regatta.format import brief
from regatta.frameworks import seeded_in_all
from regatta.paths import DATA, ensure_repository, writable_folder

PathLike: TypeAlias = str | os.PathLike[str]
_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class Dataset:
    """Partitions for training and for evaluation, and which workers hold them, if the user says so."""

    name: str
    train: tuple[Partition, ...]
    eval: tuple[Partition, ...] = ()
    availability: Mapping[Path, Workers] = field(default_factory=dict)
    content: str | None = None  # the fingerprint, where it is known without reading the files
    choice: DataChoice | None = None  # the data sets of the configurations; this one is the first of them

    @classmethod
    def from_arrays(
        cls,
        x: Arrays,
        y: Arrays,
        *more: Arrays,
        partitions: int,
        eval: Sequence[Arrays] | Mapping[str, ArrayLike] | None = None,
        eval_fraction: float = EVAL_FRACTION,
        eval_partitions: int | None = None,
        seed: int = 0,
        name: str = "data",
        directory: PathLike | None = None,
        proportions: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
    ) -> Dataset:
        """Shuffle the rows once, set some aside for evaluation, and write both as partitions.

        Training partitions have equal sizes, or sizes in `proportions` (such as the speeds of their workers). The same
        arrays and parameters find the files of the last time. Without a `directory` they are in the repository.
        A test split that exists already is `eval=(x_test, y_test)`: it is used as it is, and no row is drawn.
        An argument may be a dict of arrays, whose names become those of its columns.
        """
        _check_name(name)
        columns = named_arrays((x, y, *more), names)
        given = None if eval is None else held_out_arrays(eval, columns, names)
        rows, given_rows = (None if each is None else len(next(iter(each.values()))) for each in (columns, given))
        train, held_out = plan_partitions(
            rows or 0, given_rows, partitions, eval_fraction, eval_partitions, seed, proportions
        )
        parameters: list[Any] = [seed, *([len(part) for part in kind] for kind in (train, held_out))]
        content = hash_arrays(columns, parameters if given is None else [*parameters, hash_arrays(given, [])])
        dataset = cls._planned(name, directory, row_columns(columns), train, held_out, content)
        arrays = [columns] * len(train) + [columns if given is None else given] * len(held_out)
        with locked(dataset.train[0].path.parent):
            for partition, source, indices in zip(dataset.train + dataset.eval, arrays, train + held_out, strict=True):
                if not is_written(partition, content):
                    write_partition(partition, {k: a[indices] for k, a in source.items()}, content)
        return dataset

    @classmethod
    def from_torch(
        cls,
        train: Any,
        eval: Any = None,
        *,
        partitions: int,
        eval_fraction: float = EVAL_FRACTION,
        eval_partitions: int | None = None,
        seed: int = 0,
        name: str = "data",
        directory: PathLike | None = None,
        proportions: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
        collate_fn: CollateFn | None = None,
    ) -> Dataset:
        """Write the rows of a map-style PyTorch Dataset, or of the one in a DataLoader, as partitions.

        Each row is read once, in order, under random numbers of the seed, and a few rows are in memory at a time. A
        row is a tensor, an array or a number, or a tuple or a dict of them. The split, the order and the options are
        those of `from_arrays`; `eval` is a Dataset, too. `collate_fn` makes arrays, with a row each, from a list of
        rows.
        """
        _check_name(name)
        sources = [find_rows(train, "train", collate_fn)]
        if eval is not None:
            sources.append(find_rows(eval, "eval", collate_fn))
        given_rows = None if eval is None else len(sources[1])
        kinds = plan_partitions(
            len(sources[0]), given_rows, partitions, eval_fraction, eval_partitions, seed, proportions
        )
        home = ensure_repository() / DATA if directory is None else Path(os.path.abspath(directory))
        with unfinished_folder(writable_folder(home, "data folder"), name) as folder:
            parts = [kinds[0] + kinds[1]] if eval is None else list(kinds)
            with seeded_in_all(seed % 2**63):
                columns, files, digests = _read_rows(sources, parts, names, folder)
            sizes = [[len(part) for part in kind] for kind in kinds]
            content = hash_rows(columns, digests, [seed, *sizes])
            dataset = cls._planned(name, directory, columns, *kinds, content)
            with locked(dataset.train[0].path.parent):
                for partition, file in zip(dataset.train + dataset.eval, files, strict=True):
                    if not is_written(partition, content):
                        file.finish(partition, content)
        return dataset

    @classmethod
    def _planned(
        cls,
        name: str,
        directory: PathLike | None,
        columns: tuple[Column, ...],
        train: Sequence[Indices],
        held_out: Sequence[Indices],
        content: str,
    ) -> Dataset:
        """The data set as it will be after writing, and its folder."""
        default = f"{name}-{content[:12]}"
        chosen = ensure_repository() / DATA / default if directory is None else Path(os.path.abspath(directory))
        folder = writable_folder(chosen, "data folder")
        parts = [
            tuple(
                Partition(folder / f"{kind}-{j:04}.safetensors", len(each), columns) for j, each in enumerate(indices)
            )
            for kind, indices in (("train", train), ("eval", held_out))
        ]
        return cls(name, parts[0], parts[1], content=content)

    @classmethod
    def from_paths(
        cls,
        train: Sequence[PathLike],
        eval: Sequence[PathLike] = (),
        availability: Mapping[PathLike, Sequence[int | str]] | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Files that are partitioned already: safetensors, npz, Parquet, or anything that your `input_fn` reads.

        `availability` says which workers hold a path, by number or by name.
        """
        if name is not None:
            _check_name(name)
        parts = [_inspect_all(paths, what) for paths, what in ((train, "train"), (eval, "eval"))]
        known = [part.path for kind in parts for part in kind]
        placed = _check_availability(availability or {}, known)
        dataset = cls(name or known[0].parent.name or "data", parts[0], parts[1], placed)
        _check_same_columns(dataset.train + dataset.eval)
        return dataset

    @classmethod
    def digits(
        cls, partitions: int = 4, eval_fraction: float = 0.2, seed: int = 0, directory: PathLike | None = None
    ) -> Dataset:
        """Scikit-learn's 1,797 handwritten digits: x of 64 numbers from 0 to 1, y the digit."""
        from sklearn.datasets import load_digits

        pixels, digits = load_digits(return_X_y=True)
        x, y = (pixels / 16).astype(np.float32), digits.astype(np.int64)
        return cls.from_arrays(
            x, y, name="digits", partitions=partitions, eval_fraction=eval_fraction, seed=seed, directory=directory
        )

    @classmethod
    def by_config(cls, by: str, datasets: Mapping[str, Dataset]) -> Dataset:
        """Several data sets for one sweep: `config[by]` names the one on which a configuration is trained.

        They have the same columns and equally many partitions. `name` and `rows` are those of the first one.
        """
        choice = check_choice(by, datasets)
        first = next(iter(choice.datasets.values()))
        return cls("-".join(choice.datasets)[:80], first.train, first.eval, choice=choice)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that all partitions share; empty where only an `input_fn` can read them."""
        return next((part.columns for part in self.train + self.eval if part.columns), ())

    @property
    def fingerprint(self) -> str:
        """A hash of all the data as it is now; it does not depend on where the files are."""
        if self.choice is not None:
            return hash_fingerprints(self.choice.by, {n: each.fingerprint for n, each in self.choice.datasets.items()})
        return self.content or hash_files([p.path for p in self.train], [p.path for p in self.eval])

    def check(self, input_fn: bool = False) -> None:
        """Check the partitions as they are now; `input_fn`: whether the user's own function reads them."""
        if not self.train:
            raise DataError(f"The data set {self.name!r} has no training partitions.")
        for part in self.train + self.eval:
            found = inspect(part.path)
            if found.rows is None and not input_fn:
                raise unknown_format(part.path)
            if found != part:
                raise DataError(
                    f"This partition has changed: it had {_summary(part)}, and now has {_summary(found)}.",
                    place=str(part.path),
                    hint="Make the Dataset again.",
                )
            if self.content is not None:
                check_owner(part.path, self.content)
        _check_same_columns(self.train + self.eval)
        for dataset in self._others():
            dataset.check(input_fn)

    def data_of(self, values: Mapping[str, Scalar]) -> str:
        """The name of a configuration's data set, where there are several; otherwise empty."""
        return "" if self.choice is None else self.choice.of(values)

    def _others(self) -> tuple[Dataset, ...]:
        return () if self.choice is None else tuple(self.choice.datasets.values())[1:]

    def relative_to(self, folder: Path) -> Dataset:
        """The same data set with relative paths for the partitions below a folder, as `below` takes them."""
        return self._moved(lambda path: path.relative_to(folder) if path.is_relative_to(folder) else path)

    def below(self, folder: Path) -> Dataset:
        """The same data set; its relative paths are below that folder."""
        return self._moved(lambda path: folder / path)

    def _moved(self, move: Callable[[Path], Path]) -> Dataset:
        train, held_out = (
            tuple(replace(part, path=move(part.path)) for part in kind) for kind in (self.train, self.eval)
        )
        placed = {move(path): workers for path, workers in self.availability.items()}
        choice = self.choice
        if choice is not None:
            choice = replace(choice, datasets={name: each._moved(move) for name, each in choice.datasets.items()})
        return replace(self, train=train, eval=held_out, availability=placed, choice=choice)

    def check_present(self) -> None:
        """Raise if a partition is not where it was."""
        known = (part.path for dataset in (self, *self._others()) for part in dataset.train + dataset.eval)
        missing = [path for path in known if not path.exists()]
        if missing:
            others = f" (and {len(missing) - 1} more)" if missing[1:] else ""
            raise DataError(
                f"This partition does not exist{others}.",
                place=str(missing[0]),
                hint="Put the data back where it was, then resume the run. Nothing of it is lost.",
            )

    def holders(self, worker_names: Sequence[str]) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """The numbers of the training and of the evaluation partitions that each worker holds."""
        train, held_out = ([part.path for part in kind] for kind in (self.train, self.eval))
        return (
            place_partitions(train, self.availability, worker_names),
            place_partitions(held_out, self.availability, worker_names),
        )

    def describe(self) -> dict[str, Any]:
        """The data set for the journal: plain values only."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "train": [{"path": str(part.path), "rows": part.rows} for part in self.train],
            "eval": [{"path": str(part.path), "rows": part.rows} for part in self.eval],
            "columns": [{"name": c.name, "dtype": c.dtype, "shape": list(c.shape)} for c in self.columns],
            **self._describe_choice(),
        }

    def _describe_choice(self) -> dict[str, Any]:
        if self.choice is None:
            return {}
        return {"by": self.choice.by, "of": {name: each.describe() for name, each in self.choice.datasets.items()}}


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"The data set's name is {name!r}; use letters, digits, '.', '_' and '-'.")


def _read_rows(
    sources: Iterable[RowSource], parts: Iterable[Sequence[Indices]], names: Sequence[str] | None, folder: Path
) -> tuple[tuple[Column, ...], list[UnfinishedPartition], list[dict[str, str]]]:
    """Write the rows of each source to its partitions: the columns, the files, and hashes of the columns."""
    columns: tuple[Column, ...] = ()
    files: list[UnfinishedPartition] = []
    digests = []
    for source, indices in zip(sources, parts, strict=True):
        scatter = None
        for start, block in source.blocks(names, columns):
            columns = columns or row_columns(block)
            if scatter is None:
                own = [
                    UnfinishedPartition(folder / f".{len(files) + j}", len(i), columns) for j, i in enumerate(indices)
                ]
                scatter = RowScatter(own, indices)
                files += own
            scatter.write(start, block)
        assert scatter is not None, "find_rows refuses a source without rows"
        digests.append(scatter.digests())
    return columns, files, digests


def _inspect_all(paths: Sequence[PathLike], what: str) -> tuple[Partition, ...]:
    if isinstance(paths, str | os.PathLike):
        example = os.path.join(paths, "*.npz") if os.path.isdir(paths) else os.fspath(paths)
        raise UsageError(
            f"{what} is {str(paths)!r}; give a list of paths, one per partition.",
            hint=f"For example: {what}=sorted(glob.glob({example!r}))",
        )
    wrong = [path for path in paths if not isinstance(path, str | os.PathLike)]
    if wrong:
        raise UsageError(
            f"{what} holds {brief(wrong[0])}, which is not a path.",
            hint="Arrays and tensors become partitions with: regatta.Dataset.from_arrays(x, y, partitions=4)",
        )
    parts = tuple(inspect(path) for path in paths)
    if not parts and what == "train":
        raise DataError("There are no training partitions: the list of paths is empty.")
    paths_seen = [part.path for part in parts]
    for path in paths_seen:
        if paths_seen.count(path) > 1:
            raise DataError(f"The list of {what} partitions names this one more than once.", place=str(path))
    return parts


def _check_availability(
    availability: Mapping[PathLike, Sequence[int | str]], known: Sequence[Path]
) -> dict[Path, Workers]:
    placed: dict[Path, Workers] = {}
    for path, workers in availability.items():
        place = Path(os.path.abspath(path))
        if place not in known:
            raise UsageError(
                f"The availability map names {os.fspath(path)!r}, which is not a partition of this data set.",
                candidates=nearest(str(place), map(str, known)),
            )
        if isinstance(workers, str) or not all(isinstance(w, int | str) and not isinstance(w, bool) for w in workers):
            given = f"The workers of {os.fspath(path)!r} are {brief(workers)}"
            raise UsageError(f"{given}; give a list of numbers or names.")
        placed[place] = tuple(workers)
    return placed


def _check_same_columns(parts: Sequence[Partition]) -> None:
    """All partitions must have the columns of the first partition with a known header."""
    described = [part for part in parts if part.columns]
    for part in described[1:]:
        if part.columns != described[0].columns:
            raise DataError(
                f"This partition has {_summary(part)}; {described[0].path.name} has {_summary(described[0])}.",
                place=str(part.path),
                hint="All partitions need the same columns: same number, names, dtypes and shape of a row.",
            )


def _summary(part: Partition) -> str:
    if part.rows is None:
        return "unknown contents"
    columns = ", ".join(map(str, part.columns))
    return f"{part.rows} rows of {len(part.columns)} columns ({columns})"
