"""The rows of a map-style PyTorch Dataset, or of the one in a DataLoader, read in order as blocks of arrays.

PyTorch is not imported: a caller that has its objects has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regatta.data.arrays import Array, column_names, storable
from regatta.data.partition import Column, row_columns
from regatta.errors import DataError
from regatta.format import brief, type_name

BLOCK_ROWS = 256  # a constant, because collate_fn sees the blocks
BLOCK_BYTES = 2**24
CollateFn = Callable[[list[Any]], Any]
_ARRAYS = "Return tensors, arrays and numbers, or pass a collate_fn that makes such arrays from a list of rows."


@dataclass(frozen=True)
class RowSource:
    """Rows that can be read by their numbers; `what` is the argument that they came in by."""

    what: str
    rows: Any
    collate_fn: CollateFn | None

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(
        self, names: Sequence[str] | None, known: tuple[Column, ...] = ()
    ) -> Iterator[tuple[int, dict[str, Array]]]:
        """Arrays with some rows, and the number of the first. All rows are like `known`, or like the first row."""
        layout = _RowLayout(names, known, "row 0 of train" if known else "row 0")
        for start, samples in self._samples(layout):
            parts = samples
            if self.collate_fn is not None:
                where = f"The collated block of rows {start} to {start + len(samples) - 1} of {self.what}"
                parts = [layout.block(self.collate_fn(samples), len(samples), where)]
            yield start, {c.name: np.concatenate([part[c.name] for part in parts]) for c in layout.columns}

    def _samples(self, layout: _RowLayout) -> Iterator[tuple[int, list[Any]]]:
        """Samples in order; without a collate_fn each becomes arrays at once, before the dataset reuses a buffer."""
        samples: list[Any] = []
        size = 0
        for number in range(len(self)):
            sample = self.rows[number]
            samples.append(sample if self.collate_fn else layout.row(sample, f"Row {number} of {self.what}"))
            size += _bytes_of(samples[-1])
            if len(samples) == BLOCK_ROWS or size >= BLOCK_BYTES or number + 1 == len(self):
                yield number + 1 - len(samples), samples
                samples, size = [], 0


class _RowLayout:
    """The columns of the first row, which all others must have."""

    def __init__(self, names: Sequence[str] | None, columns: tuple[Column, ...], first: str) -> None:
        self.names, self.columns, self.first = names, columns, first

    def row(self, value: Any, where: str) -> dict[str, Array]:
        """A row as arrays of one row."""
        return self._checked({label: array[np.newaxis] for label, array in self._named(value, where).items()}, where)

    def block(self, value: Any, rows: int, where: str) -> dict[str, Array]:
        """What collate_fn made of this number of rows, as arrays."""
        found = self._named(value, where)
        for label, array in found.items():
            if array.ndim == 0 or len(array) != rows:
                shape = f"of shape {array.shape}" if array.ndim else "a single value"
                raise DataError(
                    f"{where} has {label!r}, {shape}; it needs a row for each of the {rows} rows.",
                    hint="Let collate_fn return arrays or tensors as long as the list that it receives.",
                )
        return self._checked(found, where)

    def _named(self, value: Any, where: str) -> dict[str, Array]:
        return _arrays_by_name(value, where, self.names, [column.name for column in self.columns])

    def _checked(self, arrays: dict[str, Array], where: str) -> dict[str, Array]:
        found = row_columns(arrays)
        self.columns = self.columns or found
        if found != self.columns:
            raise DataError(
                f"{where} is {_summary(found)}; {self.first} is {_summary(self.columns)}.",
                hint="All rows need the same columns, dtypes and shapes. Pad, crop or convert them in the dataset, "
                "or in a collate_fn that makes arrays of one shape.",
            )
        return arrays


def find_rows(source: Any, what: str, collate_fn: CollateFn | None) -> RowSource:
    """The rows of a map-style Dataset, or of the one in a DataLoader; a DataError if they cannot be read by number."""
    if collate_fn is not None and not callable(collate_fn):
        raise DataError(f"collate_fn is {brief(collate_fn)}; it must be a function of a list of rows.")
    torch_data = sys.modules.get("torch.utils.data")
    rows = source
    if torch_data is not None and isinstance(source, torch_data.DataLoader):
        rows = source.dataset
    if torch_data is not None and isinstance(rows, torch_data.IterableDataset):
        raise DataError(
            f"{what} is an IterableDataset, {type_name(rows)}, whose rows cannot be read by their numbers.",
            hint="Pass a Dataset with __len__ and __getitem__, such as the list of its rows. Or write its rows to "
            "files and use regatta.Dataset.from_paths.",
        )
    if rows is not source:
        collate_fn = collate_fn or _check_loader(source, what, torch_data)
    if isinstance(rows, tuple | str | bytes | Mapping | np.ndarray) or hasattr(rows, "detach"):
        raise DataError(
            f"{what} is {brief(rows)}, not a torch Dataset.",
            hint="Arrays and tensors become partitions with: regatta.Dataset.from_arrays(x, y, partitions=4)",
        )
    lacking = [name for name in ("__len__", "__getitem__") if not hasattr(type(rows), name)]
    if lacking:
        raise DataError(
            f"{what} is {brief(rows)}, which has no {' and no '.join(lacking)}.",
            hint="Pass a map-style torch Dataset, whose class has both, or a DataLoader of one.",
        )
    if len(rows) == 0:
        raise DataError(f"{what} has no rows.")
    return RowSource(what, rows, collate_fn)


def _check_loader(loader: Any, what: str, torch_data: Any) -> CollateFn | None:
    """The collate_fn of a DataLoader, unless it is PyTorch's; a DataError if it chooses rows in a way of its own."""
    sampler, own = loader.sampler, None
    plain = type(sampler) in (torch_data.SequentialSampler, torch_data.RandomSampler)
    if loader.batch_size is None:
        own = "batch_sampler" if loader.batch_sampler is not None else "batching, since its batch_size is None"
    elif not plain or sampler.data_source is not loader.dataset:
        own = f"sampler, {type_name(sampler)}"
    elif type(sampler) is torch_data.RandomSampler and (sampler.replacement or len(sampler) != len(loader.dataset)):
        own = "sampler, a RandomSampler that repeats or leaves out rows"
    if own is not None:
        raise DataError(
            f"The DataLoader in {what} has its own {own}, which a sweep would ignore: each epoch of a sweep takes "
            "every row once, in batches of config['batch_size'].",
            hint=f"Pass the rows to train on: the loader's dataset, or a torch.utils.data.Subset or a dataset that "
            f"repeats rows. For example: {what}=loader.dataset",
        )
    collate_fn: CollateFn = loader.collate_fn
    return None if collate_fn is torch_data.default_collate else collate_fn


def _arrays_by_name(row: Any, where: str, names: Sequence[str] | None, known: Sequence[str]) -> dict[str, Array]:
    """The arrays of a row, or of a block of rows: a dict's by its keys, others by `names` or by default names."""
    try:
        if isinstance(row, Mapping):
            order = known if set(known) == set(row) else list(row)
            labels, values = column_names(len(row), order), [row[label] for label in order]
        else:
            values = list(row) if isinstance(row, tuple | list) else [row]
            # After the first row, another number of values is an error of that row, and not of the names.
            labels = column_names(len(values), None if known and names and len(names) != len(values) else names)
        if not labels:
            raise DataError("It holds no array.", hint=_ARRAYS)
        return {label: _to_array(label, value) for label, value in zip(labels, values, strict=True)}
    except DataError as error:
        raise DataError(f"{where} cannot be used. {error.message}", hint=error.hint) from error


def _to_array(label: str, value: Any) -> Array:
    """A copy of the value, because a dataset may return the same buffer again."""
    try:
        array = np.array(value.detach().cpu().numpy() if hasattr(value, "detach") else value, order="C")
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{label!r} is {brief(value)}, not an array: {error}.", hint=_ARRAYS) from error
    if array.dtype.kind not in "biufc":
        raise DataError(f"{label!r} is {brief(value)}, which is no array of numbers.", hint=_ARRAYS)
    return storable(label, array)


def _bytes_of(value: Any) -> int:
    """About how much memory a row takes until its block is written."""
    if isinstance(value, Mapping):
        return sum(map(_bytes_of, value.values()))
    if isinstance(value, tuple | list):
        return sum(map(_bytes_of, value))
    return int(getattr(value, "nbytes", 0)) or (len(value) if isinstance(value, str | bytes) else 8)


def _summary(columns: Sequence[Column]) -> str:
    return ", ".join(map(str, columns))
