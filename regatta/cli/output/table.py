"""A table of text: what commands hand to `ui.write_table`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

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


def left(name: str) -> TableColumn:
    return TableColumn(name)


def right(name: str) -> TableColumn:
    return TableColumn(name, right=True)
