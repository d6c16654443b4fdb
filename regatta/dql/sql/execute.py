"""Runs a statement, and turns its rows into values of Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from regatta.dql.bound import BoundSelect, Type
from regatta.dql.sql.select import compile_select, has_plain_models
from regatta.repo.catalog.records import Version

if TYPE_CHECKING:
    from regatta.repo import Repo

Row = tuple[Any, ...]


def select_rows(repo: Repo, query: BoundSelect) -> list[Row]:
    """The rows of a query. A model is a Version, a time a datetime, a duration a timedelta."""
    if has_plain_models(query):
        statement = compile_select(query, whole_versions=True)
        found = repo.catalog.select(statement.text, statement.values, statement.functions)
        return [(version,) for version in Version.from_rows(found)]
    statement = compile_select(query)
    rows = repo.catalog.select(statement.text, statement.values, statement.functions)
    return decoded(repo, rows, statement.types)


def decoded(repo: Repo, rows: Sequence[Row], types: Sequence[Type]) -> list[Row]:
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


def versions_of(rows: Sequence[Row]) -> list[Version]:
    """The models of rows of one column."""
    return [row[0] for row in rows if row[0] is not None]
