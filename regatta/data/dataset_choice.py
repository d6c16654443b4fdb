"""Several data sets for one sweep: a value of each configuration says on which of them it is trained.

All have equally many partitions. Partition j of the sweep is, for each configuration, partition j of its own data set:
so a model hops from partition to partition as ever, and only the files that a worker reads depend on the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regatta.configuration import Scalar
from regatta.errors import DataError, UsageError, nearest
from regatta.format import brief

if TYPE_CHECKING:
    from regatta.data.dataset import Dataset


@dataclass(frozen=True)
class DataChoice:
    """The data sets by the value that the configurations have under the name `by`."""

    by: str
    datasets: Mapping[str, Dataset]

    def of(self, values: Mapping[str, Scalar]) -> str:
        """The name of a configuration's data set."""
        if self.by not in values:
            known = f"{self.by}={list(self.datasets)!r}"
            raise UsageError(
                f"The configuration {dict(values)} has no {self.by!r}, which names its data set.",
                hint=f"Add it to the search: {known}.",
            )
        name = values[self.by]
        if not isinstance(name, str) or name not in self.datasets:
            raise UsageError(
                f"There is no data set {brief(name)}.",
                candidates=nearest(str(name), self.datasets),
                hint=f"There are {', '.join(self.datasets)}.",
            )
        return name


@dataclass(frozen=True)
class PartitionPaths:
    """The files of a data choice as workers get them: those of all data sets, one data set after the other."""

    by: str
    names: tuple[str, ...]
    train: tuple[Path, ...]
    eval: tuple[Path, ...]

    def place(self, kind: Literal["train", "eval"], values: Mapping[str, Any], partition: int) -> int:
        """Where the partition of a configuration's own data set is in `train` or `eval`."""
        paths = self.train if kind == "train" else self.eval
        return self.names.index(values[self.by]) * (len(paths) // len(self.names)) + partition

    def __getitem__(self, kind: Literal["train", "eval"]) -> tuple[Path, ...]:
        return self.train if kind == "train" else self.eval


def paths_of(choice: DataChoice) -> PartitionPaths:
    train = tuple(part.path for dataset in choice.datasets.values() for part in dataset.train)
    held_out = tuple(part.path for dataset in choice.datasets.values() for part in dataset.eval)
    return PartitionPaths(choice.by, tuple(choice.datasets), train, held_out)


def check_choice(by: object, datasets: object) -> DataChoice:
    """The data sets as a choice; they must have the same columns and equally many partitions."""
    from regatta.data.dataset import Dataset

    if not isinstance(by, str) or not by:
        raise UsageError(f"by is {brief(by)}; it is the name of a value of the configurations.")
    if not isinstance(datasets, Mapping) or not datasets:
        raise UsageError(f"The data sets are {brief(datasets)}; give them by name: {{'clean': ..., 'noisy': ...}}.")
    for name, dataset in datasets.items():
        if not isinstance(name, str) or not isinstance(dataset, Dataset) or dataset.choice is not None:
            raise UsageError(f"{brief(name)} is {brief(dataset)}; a choice is made of single data sets, by name.")
        if dataset.availability:
            raise UsageError(f"The data set {name!r} says which workers hold it, which a choice cannot have.")
    (first, one), *others = datasets.items()
    for name, dataset in others:
        for kind in ("train", "eval"):
            counts = [len(getattr(each, kind)) for each in (one, dataset)]
            if counts[0] != counts[1]:
                what = "training" if kind == "train" else "evaluation"
                raise DataError(
                    f"The data set {first!r} has {counts[0]} {what} partitions, and {name!r} has {counts[1]}.",
                    hint="A sweep needs equally many of each. Write one of them again with another number.",
                )
        if dataset.columns != one.columns:
            described = ["; ".join(map(str, each.columns)) or "unknown" for each in (one, dataset)]
            raise DataError(
                f"The columns of the data set {first!r} are {described[0]}; those of {name!r} are {described[1]}."
            )
    return DataChoice(by, dict(datasets))
