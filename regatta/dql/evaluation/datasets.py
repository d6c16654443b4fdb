"""The data sets of an evaluation. A query can name those of its config, and `digits`: no other file is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regatta.data import Dataset, read_partition
from regatta.data.fingerprint import hash_files
from regatta.data.formats import find_format
from regatta.data.partition import inspect
from regatta.dql.evaluation.config_file import Config, DataPaths
from regatta.dql.evaluation.settings import DIGITS, SETTINGS
from regatta.errors import DataError, UsageError, nearest
from regatta.paths import DATA

BY = "input_data"  # the value of a configuration that names its data set
_WILDCARDS = "*?["


def open_datasets(names: Sequence[str], config: Config, values: Mapping[str, Any], repository: Path) -> Dataset:
    """One data set, or several, if configurations name theirs."""
    found = {name: _open(name, config, values, repository) for name in dict.fromkeys(names)}
    for name, dataset in found.items():
        if len(dataset.columns) != 2:
            held = ", ".join(column.name for column in dataset.columns) or "none that are known"
            raise DataError(f"The data set {name!r:.100} has the columns {held}; two are needed: inputs and targets.")
    return next(iter(found.values())) if len(found) == 1 else Dataset.by_config(BY, found)


def known_names(config: Config) -> list[str]:
    """The data sets that a query can name."""
    return list(dict.fromkeys([*config.data, *config.input_data, DIGITS]))


def _open(name: str, config: Config, values: Mapping[str, Any], repository: Path) -> Dataset:
    split = {key: values.get(key, SETTINGS[key].default) for key in ("partitions", "eval_fraction", "seed")}
    if name in config.data:
        return _of_paths(name, config.data[name], config.folder, split, repository)
    if name == DIGITS:
        return _digits(split, repository)
    if name not in config.input_data:
        hint = f"The config names {', '.join(known_names(config))}."
        if config.path is None:
            hint = 'Name a file that does: with config = "config.toml". It has the data sets in [data].'
        raise UsageError(
            f"There is no data set {name!r:.200}.", candidates=nearest(name, known_names(config)), hint=hint
        )
    return _of_paths(name, _paths_of(config.folder / name, name), config.folder, split, repository)


def _digits(split: Mapping[str, Any], repository: Path) -> Dataset:
    from sklearn.datasets import load_digits  # noqa: F401 (its absence is found here)

    name = "-".join([DIGITS, *(f"{split[key]:g}" for key in split)])
    return Dataset.digits(directory=repository / DATA / name, **split)


def _paths_of(path: Path, given: str) -> DataPaths:
    """A path in a config: a file that is split, or a folder with files train* and eval*."""
    if not path.is_dir():
        return DataPaths(single=given)
    return DataPaths(None, (os.path.join(given, "train*"),), (os.path.join(given, "eval*"),))


def _of_paths(name: str, paths: DataPaths, folder: Path, split: Mapping[str, Any], repository: Path) -> Dataset:
    if paths.single is not None and not (folder / paths.single).is_dir():
        return _split(name, folder / paths.single, split, repository)
    if paths.single is not None:
        paths = _paths_of(folder / paths.single, paths.single)
    train, held_out = (
        _expand(name, kind, patterns, folder) for kind, patterns in (("train", paths.train), ("eval", paths.eval))
    )
    return Dataset.from_paths(train, held_out, name=_plain(name))


def _split(name: str, path: Path, split: Mapping[str, Any], repository: Path) -> Dataset:
    """A single file in partitions, which are written once for the same content."""
    inspect(path)  # says what is wrong with it
    if find_format(path) is None:
        raise DataError("This file has no format that is known: npz, Parquet or safetensors.", place=str(path))
    arrays = read_partition(path)
    if len(arrays) < 2:
        raise DataError("This file has one column; inputs and targets are needed.", place=str(path))
    digest = hash_files([path])[:12]
    where = "-".join([_plain(name), digest, *(f"{split[key]:g}" for key in split)])
    columns = [column.name for column in inspect(path).columns]
    return Dataset.from_arrays(*arrays, name=_plain(name), names=columns, directory=repository / DATA / where, **split)


def _expand(name: str, kind: str, patterns: Sequence[str], folder: Path) -> list[Path]:
    found: list[Path] = []
    for pattern in patterns:
        if any(letter in pattern for letter in _WILDCARDS):
            below = Path(pattern)
            root = Path(below.anchor) if below.is_absolute() else folder
            relative = str(below.relative_to(below.anchor)) if below.is_absolute() else pattern
            matching = sorted(root.glob(relative))
            if not matching:
                raise DataError(
                    f"No {kind} file of the data set {name!r:.100} is like {pattern!r:.200}.", place=str(folder)
                )
            found += matching
        else:
            found.append(folder / pattern)
    return list(dict.fromkeys(found))


def _plain(name: str) -> str:
    """A name that a data set can have."""
    text = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip(".-")
    return text[:60] or "data"
