"""Runs a statement, and turns its rows into values of Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from regatta.dql.bound import BoundSelect, Type
from regatta.dql.sql.select import compile_select, has_plain_models
from regatta.dql.sql.statement import SqlStatement
from regatta.repo.catalog.records import Version

if TYPE_CHECKING:
    from regatta.repo import Repo

Row = tuple[Any, ...]


def select_rows(repo: Repo, query: BoundSelect) -> list[Row]:
    """The rows of a query. A model is a Version, a time a datetime, a duration a timedelta."""
    statement = statement_of(query)
    with repo.catalog.reading():  # a version that the statement found is there when its row is read
        rows = repo.catalog.select(statement.text, statement.values, statement.functions)
        return decoded(repo, rows, query, statement.types)


def statement_of(query: BoundSelect) -> SqlStatement:
    """The statement that runs: plain models are read with their whole rows at once."""
    return compile_select(query, whole_versions=has_plain_models(query))


def decoded(repo: Repo, rows: Sequence[Row], query: BoundSelect, types: Sequence[Type]) -> list[Row]:
    """The rows of a query's statement as values of Python."""
    if has_plain_models(query):
        return [(version,) for version in Version.from_rows(rows)]
    places = [place for place, type_ in enumerate(types) if type_ == "model"]
    keys = {row[place] for row in rows for place in places} - {None}
    versions = {version.key: version for version in repo.catalog.of_keys(keys)} if keys else {}
    decoders = [_DECODERS.get(type_) for type_ in types]
    if not any(decoders) and not places:
        return list(rows)
    return [
        tuple(
            versions.get(value) if place in places else value if decode is None or value is None else decode(value)
            for place, (decode, value) in enumerate(zip(decoders, row, strict=True))
        )
        for row in rows
    ]


def _time(seconds: float) -> datetime | float:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # before year 1, or after 9999
        return seconds


def _duration(seconds: float) -> timedelta | float:
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        return seconds


_DECODERS: Mapping[Type, Callable[[Any], Any]] = {
    "boolean": bool, "time": _time, "duration": _duration, "any": json.loads, "list": json.loads, "texts": json.loads,
}  # fmt: skip
