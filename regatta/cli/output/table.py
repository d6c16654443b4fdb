"""A table of text: what commands hand to `ui.write_table`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from regatta.format import scalar

Cell: TypeAlias = str | tuple[str, str]  # text, or text and its style


@dataclass(frozen=True)
class TableColumn:
    name: str
    right: bool = False  # aligned to the right, as numbers are


@dataclass(frozen=True)
class Table:
    """Rows under columns, with lines of text above and below them."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Cell]]
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


def values_column(name: str, values: Iterable[object]) -> TableColumn:
    """A column of values, aligned to the right if all are numbers."""
    return TableColumn(name, all(isinstance(value, int | float) and not isinstance(value, bool) for value in values))


def split_values(rows: Iterable[Mapping[str, object]]) -> tuple[list[str], dict[str, object]]:
    """The names whose values differ between rows, and the values that all rows share."""
    known = list(rows)
    names = list(dict.fromkeys(name for row in known for name in row))
    missing = object()
    shared = {}
    for name in names:
        first, *others = [row.get(name, missing) for row in known]
        if all(type(value) is type(first) and value == first for value in others):
            shared[name] = first
    return [name for name in names if name not in shared], shared


def shared_lines(shared: Mapping[str, object]) -> tuple[str, ...]:
    """The line above a table with the values that all rows share."""
    text = ", ".join(f"{name}={scalar(value)}" for name, value in shared.items())
    return (f"in all: {text}",) if text else ()


def left(name: str) -> TableColumn:
    return TableColumn(name)


def right(name: str) -> TableColumn:
    return TableColumn(name, right=True)
