"""What the user's `input_fn` and `transform_fn` make of a partition: the same bits, whoever computes them.

`transform_fn(batch, seed)` gets so many rows at a time, as they stand in the partition, whatever the batch size of a
model; its seed is that of these rows in this epoch, not of a model, so that all models can have what one process made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from regatta.configuration import derive_seed
from regatta.data import read_partition
from regatta.engine.messages import WorkerSetup
from regatta.engine.sharing.blocks import (
    BlockLayout,
    layout_of,
    leaves_of,
    plain,
)
from regatta.engine.sharing.ledger import BlockKey
from regatta.errors import UsageError
from regatta.frameworks import keep_settings_in_all, loaded_frameworks, seeded_in_all
from regatta.frameworks.arrays import map_leaves, rows

ROWS = 256  # that a transform_fn gets at a time; part of what `replay` promises

PartitionKind = Literal["train", "eval"]
Allocate = Callable[[BlockLayout], Any]


@dataclass
class Preprocessor:
    """Reads and transforms the partitions of a run."""

    setup: WorkerSetup

    def read(self, kind: PartitionKind, index: int) -> Any:
        path = (self.setup.train if kind == "train" else self.setup.eval)[index]
        return (self.setup.recipe.input_fn or read_partition)(path)

    def transform(
        self, base: Any, partition: int, epoch: int, most: int | None = None, allocate: Allocate | None = None
    ) -> Any:
        """A partition as it is in an epoch, or its first rows; in arrays that `allocate` gives, if it is given."""
        total = rows(base) if most is None else min(most, rows(base))
        if not total:
            return plain(base, "input_fn")
        result: Any = None
        for start in range(0, total, ROWS):
            stop = min(start + ROWS, rows(base))  # the last piece is the same, however few of its rows are wanted
            piece = self._piece(base, partition, epoch, start, stop)
            if result is None:
                result = _empty(piece, total) if allocate is None else allocate(layout_of(piece, total))
            _fill(result, piece, start, min(stop, total))
        return result

    def fill(self, key: BlockKey, base: Any, allocate: Allocate) -> None:
        """A block, in the arrays that `allocate` gives; `base` is what it is made from, where that is a block too."""
        if base is None:
            base = self.read("train" if key.kind == "train" else "eval", key.partition)
        if key.epoch is not None and rows(base):
            self.transform(base, key.partition, key.epoch, allocate=allocate)
            return
        data = plain(base, "input_fn")
        for into, given in zip(leaves_of(allocate(layout_of(data))), leaves_of(data), strict=True):
            into[:] = given

    def _piece(self, base: Any, partition: int, epoch: int, start: int, stop: int) -> Any:
        transform = self.setup.recipe.transform_fn
        assert transform is not None
        seed = derive_seed(self.setup.seed, "transform", epoch, partition, start)
        before = loaded_frameworks()
        while True:
            batch = map_leaves(
                lambda part: part[start:stop].copy() if isinstance(part, np.ndarray) else part[start:stop], base
            )
            with keep_settings_in_all(), seeded_in_all(seed):
                piece = plain(transform(batch, seed), "transform_fn")
            if loaded_frameworks() == before:
                break
            before = loaded_frameworks()  # it brought its framework along, whose random numbers were not seeded yet
        _check_rows(piece, stop - start)
        return piece


def _empty(piece: Any, total: int) -> Any:
    return map_leaves(lambda part: np.empty((total, *part.shape[1:]), part.dtype), piece)


def _fill(result: Any, piece: Any, start: int, stop: int) -> None:
    into, given = list(leaves_of(result)), list(leaves_of(piece))
    alike = len(into) == len(given) and all(
        a.dtype == b.dtype and a.shape[1:] == b.shape[1:] for a, b in zip(into, given, strict=False)
    )
    if not alike:
        raise UsageError(
            f"transform_fn returned {_told(piece)} for the rows from {start}, but {_told(result)} for the first.",
            hint="All rows of a partition must become alike: the same arrays, types and shapes.",
        )
    for a, b in zip(into, given, strict=True):
        a[start:stop] = b[: stop - start]


def _check_rows(piece: Any, wanted: int) -> None:
    found = sorted({len(array) for array in leaves_of(piece)})
    if found != [wanted]:
        raise UsageError(
            f"transform_fn got {wanted} rows and returned {' and '.join(map(str, found)) or 'no'} rows.",
            hint="Every array that it returns has a row for each one that it got.",
        )


def _told(data: Any) -> str:
    return " and ".join(f"{array.dtype}{list(array.shape[1:])}" for array in leaves_of(data))
