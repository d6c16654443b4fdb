"""Rows as a table of Arrow, and in a file of Parquet. A column whose values are not of one type becomes text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.durable import replacing
from regatta.errors import MissingExtraError, NotFoundError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from regatta.dql.bound import Type


def arrow_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Type | None]) -> pa.Table:
    """The rows with these columns, each with its type, or None where the values say it."""
    check_arrow("to_arrow")
    import pyarrow

    types: dict[Type | None, Any] = {
        "text": pyarrow.string(), "model": pyarrow.string(), "boolean": pyarrow.bool_(),
        "time": pyarrow.timestamp("us", tz="UTC"), "duration": pyarrow.float64(),
        "texts": pyarrow.list_(pyarrow.string()),
    }  # fmt: skip
    arrays = [_array([row.get(name) for row in rows], types.get(type_)) for name, type_ in columns.items()]
    return pyarrow.table(arrays, names=list(columns))


def check_parquet(path: Path) -> None:
    """Refuse a file that cannot be written, before rows are made for it."""
    check_arrow("--parquet")
    if path.is_dir():
        raise UsageError("This is a folder, not a file.", place=str(path))
    if not path.absolute().parent.is_dir():
        raise NotFoundError("There is no such folder.", place=str(path.parent))


def write_parquet(table: pa.Table, path: Path) -> None:
    from pyarrow import parquet

    with replacing(path) as written:
        parquet.write_table(table, written)


def check_arrow(needed_for: str) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", needed_for) from error


def _array(values: Sequence[Any], known: Any) -> Any:
    import pyarrow

    try:
        return pyarrow.array(values, known)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError, OverflowError):
        return pyarrow.array([None if value is None else str(value) for value in values], pyarrow.string())
