"""The arrays that the caller gives for a data set: named, of equal length, with types that a partition can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from regatta.errors import DataError
from regatta.format import brief

Array: TypeAlias = npt.NDArray[np.generic]


def named_arrays(arrays: Sequence[npt.ArrayLike], names: Sequence[str] | None) -> dict[str, Array]:
    labels = ["x", "y", *map(str, range(2, len(arrays)))] if names is None else list(names)
    if len(labels) != len(arrays) or len(set(labels)) != len(labels):
        raise DataError(f"The names are {labels!r}; {len(arrays)} arrays need as many different ones.")
    if not all(isinstance(label, str) and label and label != "__metadata__" for label in labels):
        raise DataError(f"The names are {labels!r}; each must be a non-empty string.")
    columns = {label: _array(label, values) for label, values in zip(labels, arrays, strict=True)}
    lengths = {label: len(array) for label, array in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"The arrays have different numbers of rows: {lengths}.")
    return columns


def _array(label: str, values: npt.ArrayLike) -> Array:
    try:
        array = np.ascontiguousarray(values) if np.ndim(values) else np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{label!r} is {brief(values)}, not an array.",
            hint="Give each array by itself: regatta.Dataset.from_arrays(x, y, partitions=4)",
        ) from error
    if array.ndim == 0:
        raise DataError(f"{label!r} is a single value, not one per row: {array!r}.")
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 8:
        raise DataError(
            f"{label!r} has the dtype {array.dtype}, which a partition cannot hold.",
            hint="Give booleans, integers, floats of up to 64 bits or complex64; convert texts and objects to numbers.",
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)
