"""Queries that were saved under a name: `from "name"` reads their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from regatta.dql.parse import MAX_TEXT_CHARACTERS, parse
from regatta.durable import replacing
from regatta.errors import NotFoundError, UsageError, nearest
from regatta.paths import QUERIES, QUERY_SUFFIX, RUN_NAME

MAX_NAME_CHARACTERS = 100


def save_query(repository: Path, name: str, text: str) -> Path:
    """Keep the text of a query under a name; an earlier one of that name is replaced."""
    path = _path(repository, name)
    parse(text)
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as written:
        written.write_text(text.strip() + "\n", encoding="utf-8")
    return path


def read_query(repository: Path, name: str) -> str:
    """The text of a saved query."""
    path = _path(repository, name)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(4 * MAX_TEXT_CHARACTERS)
    except FileNotFoundError:
        known = saved_queries(repository)
        hint = None if known else "Save one: regatta query --save NAME 'select m'"
        raise NotFoundError(
            f"There is no saved query {name!r:.100}.", candidates=nearest(name, known), hint=hint
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError("The saved query is not a text in UTF-8.", place=str(path)) from error
    return text


def saved_queries(repository: Path) -> list[str]:
    """The names of the saved queries."""
    return sorted(path.stem for path in (repository / QUERIES).glob(f"*{QUERY_SUFFIX}"))


def forget_query(repository: Path, name: str) -> None:
    """Remove a saved query."""
    read_query(repository, name)
    _path(repository, name).unlink(missing_ok=True)


def _path(repository: Path, name: str) -> Path:
    if not RUN_NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
        raise UsageError(
            f"A query cannot be saved as {name!r:.100}; "
            f"use letters, digits, '.', '-' and '_', at most {MAX_NAME_CHARACTERS}."
        )
    return repository / QUERIES / f"{name}{QUERY_SUFFIX}"


class SavedQueries(Mapping[str, str]):
    """The saved queries of a repository by name; each is read when it is asked for."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository

    def __getitem__(self, name: str) -> str:
        if name not in self:
            raise KeyError(name)
        return read_query(self._repository, name)

    def __contains__(self, name: object) -> bool:
        return name in saved_queries(self._repository)

    def __iter__(self) -> Iterator[str]:
        return iter(saved_queries(self._repository))

    def __len__(self) -> int:
        return len(saved_queries(self._repository))
