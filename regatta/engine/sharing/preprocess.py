"""What the user's `input_fn` and `transform_fn` make of a partition: the same bits in every process.

`transform_fn(batch, seed)` gets a fixed number of rows at a time, in the order of the partition, whatever the batch
size of a model. Its seed belongs to these rows in this epoch, not to a model. So all models can use the result of one
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from regatta.data import read_partition
from regatta.engine.messages import WorkerSetup
from regatta.engine.sharing.blocks import BlockLayout, iterate_arrays, layout_of, to_arrays
from regatta.engine.sharing.ledger import BlockKey, PartitionKind
from regatta.errors import UsageError
from regatta.frameworks import keep_settings, loaded_frameworks, seeded_in_all
from regatta.frameworks.arrays import ARRAYS_HINT, map_leaves, rows
from regatta.frameworks.base import describe
from regatta.seeds import derive_seed

ROWS_PER_CALL = 256  # of transform_fn; `replay` depends on this number

Allocate = Callable[[BlockLayout], Any]


class UnreadableError(Exception):
    """A partition could not be read or transformed here, for any model; carries the error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)  # not its text: an exception's own __str__ may raise
        self.error = error


@contextmanager
def making_data() -> Iterator[None]:
    """A scope that makes the data of a partition: its errors say nothing about a model."""
    try:
        yield
    except (KeyboardInterrupt, UnreadableError):
        raise
    except BaseException as error:
        raise UnreadableError(error) from error


@dataclass
class Preprocessor:
    """Reads and transforms the partitions of a run."""

    setup: WorkerSetup

    def read(self, kind: PartitionKind, index: int) -> Any:
        path, input_fn = self.setup.path(kind, index), self.setup.recipe.input_fn
        with making_data():
            if input_fn is None:
                return read_partition(path)
            data = _call_seeded(lambda: input_fn(path), derive_seed(self.setup.seed, "input", kind, index))
            if data is None:
                raise UsageError(f"input_fn returned {describe(data)}.", place=str(path), hint=ARRAYS_HINT)
            try:
                rows(data)
            except UsageError as error:
                error.place = error.place or str(path)
                raise
            return data

    def transform(
        self, base: Any, partition: int, epoch: int, max_rows: int | None = None, allocate: Allocate | None = None
    ) -> Any:
        """A partition as it is in an epoch, or its first rows; in arrays of `allocate`, if it is given."""
        with making_data():
            all_rows = rows(base)
            total = all_rows if max_rows is None else min(max_rows, all_rows)
            if not total:
                return to_arrays(base, "input_fn")
        result: Any = None
        for start in range(0, total, ROWS_PER_CALL):
            stop = min(start + ROWS_PER_CALL, all_rows)  # the last call gets the same rows, however few are needed
            with making_data():
                piece = self._transform_rows(base, partition, epoch, start, stop)
            if result is None and allocate is not None:
                result = allocate(layout_of(piece, total))
            elif result is None:
                result = map_leaves(lambda part: np.empty((total, *part.shape[1:]), part.dtype), piece)
            with making_data():
                _copy_rows(result, piece, start, min(stop, total))
        return result

    def fill(self, key: BlockKey, base: Any, allocate: Allocate) -> None:
        """Write a block into arrays of `allocate`; `base` is the block that it is made from, if there is one."""
        if base is None:
            base = self.read(key.kind, key.partition)
        with making_data():
            total = rows(base)
        if key.epoch is not None and total:
            self.transform(base, key.partition, key.epoch, allocate=allocate)
            return
        with making_data():
            data = to_arrays(base, "input_fn")
        for target, source in zip(iterate_arrays(allocate(layout_of(data))), iterate_arrays(data), strict=True):
            target[:] = source

    def _transform_rows(self, base: Any, partition: int, epoch: int, start: int, stop: int) -> Any:
        transform = self.setup.recipe.transform_fn
        assert transform is not None
        seed = derive_seed(self.setup.seed, "transform", epoch, partition, start)

        def transformed() -> Any:
            batch = map_leaves(
                lambda part: part[start:stop].copy() if isinstance(part, np.ndarray) else part[start:stop], base
            )
            return to_arrays(transform(batch, seed), "transform_fn")

        piece = _call_seeded(transformed, seed)
        found = sorted({len(array) for array in iterate_arrays(piece)})
        if found != [stop - start]:
            raise UsageError(
                f"transform_fn got {stop - start} rows and returned {' and '.join(map(str, found)) or 'no'} rows.",
                hint="Every array that it returns has a row for each one that it got.",
            )
        return piece


def _call_seeded(function: Callable[[], Any], seed: int) -> Any:
    """Call a function of the user with random numbers from the seed; it leaves no settings behind."""
    while True:
        before = loaded_frameworks()
        with keep_settings(), seeded_in_all(seed):
            result = function()
        if loaded_frameworks() == before:
            return result
        # Otherwise it imported a framework whose random numbers were not seeded yet.


def _copy_rows(result: Any, piece: Any, start: int, stop: int) -> None:
    targets, sources = list(iterate_arrays(result)), list(iterate_arrays(piece))
    alike = len(targets) == len(sources) and all(
        target.dtype == source.dtype and target.shape[1:] == source.shape[1:]
        for target, source in zip(targets, sources, strict=False)
    )
    if not alike:
        raise UsageError(
            f"transform_fn returned {_describe(piece)} for the rows from {start}, but {_describe(result)} for the "
            "first.",
            hint="All rows of a partition must become alike: the same arrays, types and shapes.",
        )
    for target, source in zip(targets, sources, strict=True):
        target[start:stop] = source[: stop - start]


def _describe(data: Any) -> str:
    return " and ".join(f"{array.dtype}{list(array.shape[1:])}" for array in iterate_arrays(data))
