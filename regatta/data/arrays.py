"""The arrays that the caller gives for a data set: named, of equal length, with types that a partition can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from regatta.data.partition import row_columns
from regatta.errors import DataError
from regatta.format import brief

Array: TypeAlias = npt.NDArray[np.generic]
Arrays: TypeAlias = npt.ArrayLike | Mapping[str, npt.ArrayLike]  # one array, or several with their names


def column_names(count: int, names: Sequence[str] | None) -> list[str]:
    """The names of the arrays: those that were given, or x, y, 2, 3 and so on."""
    labels = ["x", "y", *map(str, range(2, count))][:count] if names is None else list(names)
    check_names(labels, count)
    return labels


def check_names(labels: Sequence[object], count: int) -> None:
    if len(labels) != count or len({repr(label) for label in labels}) != count:
        raise DataError(f"The names are {list(labels)!r}; {count} arrays need as many different ones.")
    if not all(isinstance(label, str) and label and label != "__metadata__" for label in labels):
        raise DataError(f"The names are {list(labels)!r}; each must be a non-empty string.")


def named_arrays(arrays: Sequence[Arrays], names: Sequence[str] | None) -> dict[str, Array]:
    """The arrays by their names; those in a dict have the names of the dict."""
    given: list[tuple[str, npt.ArrayLike]] = []
    for label, values in zip(column_names(len(arrays), names), arrays, strict=True):
        given += values.items() if isinstance(values, Mapping) else [(label, values)]
    if not given:
        raise DataError("There is no array: every dict is empty.")
    check_names([label for label, _ in given], len(given))
    columns = {label: _array(label, values) for label, values in given}
    lengths = {label: len(array) for label, array in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"The arrays have different numbers of rows: {lengths}.")
    return columns


def held_out_arrays(
    held_out: Sequence[Arrays] | Mapping[str, npt.ArrayLike], columns: Mapping[str, Array], names: Sequence[str] | None
) -> dict[str, Array]:
    """The arrays of a test split, whose rows must be like those of the training arrays."""
    if not isinstance(held_out, tuple | list | Mapping):
        raise DataError(
            f"eval is {brief(held_out)}; it must hold an array for each training array.",
            hint="For example: regatta.Dataset.from_arrays(x, y, partitions=4, eval=(x_test, y_test))",
        )
    try:
        if isinstance(held_out, Mapping):
            found = named_arrays([held_out], None)
        else:
            found = named_arrays(held_out, names if names is None or len(names) == len(held_out) else None)
    except DataError as error:
        raise DataError(f"eval cannot be used. {error.message}", hint=error.hint) from error
    if sorted(found) != sorted(columns):
        raise DataError(
            f"eval has the arrays {list(found)}; the training data has {list(columns)}.",
            hint="Give eval the same arrays in the same order, or a dict with the same names.",
        )
    found = {label: found[label] for label in columns}
    for given, known in zip(row_columns(found), row_columns(columns), strict=True):
        if given != known:
            raise DataError(
                f"A row of eval is {given}; a row of the training data is {known}.",
                hint="Both need the same dtype and shape of a row: convert one with astype or reshape.",
            )
    return found


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
    return storable(label, array)


def storable(label: str, array: Array) -> Array:
    """The array in the byte order of this machine; a DataError if a partition cannot hold its dtype."""
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 8:
        raise DataError(
            f"{label!r} has the dtype {array.dtype}, which a partition cannot hold.",
            hint="Give booleans, integers, floats of up to 64 bits or complex64; convert texts and objects to numbers.",
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)
