"""Parquet: each column is an array; a column of lists of one length is an array with more dimensions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from regatta.data.formats import StoredColumn, broken_file, dtype_name
from regatta.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import pyarrow as pa

_broken = partial(broken_file, "This Parquet file cannot be read")


def inspect(path: Path) -> list[StoredColumn]:
    with _open(path) as file:
        _check_counts(file.metadata, path)
        rows = file.metadata.num_rows
        return [_describe_column(file, field, rows, path) for field in file.schema_arrow]


def read(path: Path) -> tuple[npt.NDArray[np.generic], ...]:
    with _open(path) as file:
        _check_counts(file.metadata, path)
        table = file.read()
    return tuple(_array(name, column, path) for name, column in zip(table.column_names, table.columns, strict=True))


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", f"Reading {path.name}") from error
    try:
        with parquet.ParquetFile(path, memory_map=True) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _broken(path, str(error).rstrip(".")) from error


def _check_counts(metadata: Any, path: Path) -> None:
    """Check the footer's counts. Offsets are left to Arrow, which aborts when asked for those of some damaged files."""
    total = sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    if metadata.num_rows != total:
        raise _broken(path, f"its footer counts {metadata.num_rows} rows, its row groups {total}")


def _describe_column(file: Any, field: pa.Field, rows: int, path: Path) -> StoredColumn:
    """Describe a column from the schema. For lists without a fixed length, the first row gives the length."""
    if _has_fixed_shape(field.type):
        inner, shape = _fixed_shape(field.type)
        return StoredColumn(field.name, _numpy_dtype_name(inner, field, path), (rows, *shape))
    batch = next(file.iter_batches(batch_size=1, columns=[field.name]), None)
    first = _array(field.name, batch.column(0), path) if batch is not None and len(batch) else np.zeros((0, 0))
    return StoredColumn(field.name, dtype_name(first.dtype), (rows, *first.shape[1:]))


def _has_fixed_shape(kind: pa.DataType) -> bool:
    from pyarrow import types

    if types.is_fixed_size_list(kind):
        return _has_fixed_shape(kind.value_type)
    return not types.is_list(kind) and not types.is_large_list(kind)


def _fixed_shape(kind: pa.DataType) -> tuple[pa.DataType, tuple[int, ...]]:
    from pyarrow import types

    if not types.is_fixed_size_list(kind):
        return kind, ()
    inner, shape = _fixed_shape(kind.value_type)
    return inner, (kind.list_size, *shape)


def _numpy_dtype_name(kind: pa.DataType, field: pa.Field, path: Path) -> str:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return "str"
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_timestamp(kind)):
        raise DataError(
            f"The column {field.name!r} is of type {field.type}, which is not an array of numbers.",
            place=os.fspath(path),
            hint="Convert it to numbers or lists of numbers, or drop it.",
        )
    return dtype_name(np.dtype(kind.to_pandas_dtype()))


def _array(name: str, column: pa.Array | pa.ChunkedArray, path: Path) -> npt.NDArray[np.generic]:
    import pyarrow as pa
    from pyarrow import types

    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if values.null_count:
        raise DataError(
            f"The column {name!r} has {values.null_count} missing values.",
            place=os.fspath(path),
            hint="Fill them in, or drop their rows.",
        )
    if types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        import pyarrow.compute as pc

        inner = _array(name, values.flatten(), path)
        shortest, longest = pc.min_max(pc.list_value_length(values)).as_py().values()
        if shortest != longest:
            raise DataError(
                f"The lists of the column {name!r} have {shortest} to {longest} values; an array needs one length.",
                place=os.fspath(path),
                hint="Pad them, or pass an input_fn under another file suffix.",
            )
        return inner.reshape(len(values), int(longest or 0), *inner.shape[1:])
    named = pa.field(name, values.type)
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    expected = _numpy_dtype_name(values.type, named, path)
    array: npt.NDArray[np.generic] = values.to_numpy(zero_copy_only=False)
    return array.astype(str) if expected == "str" else array
