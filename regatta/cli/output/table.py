"""A table: what commands hand to `ui.write_table`. It can be sorted, cut, and written as CSV or Markdown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from regatta import format as fmt
from regatta.errors import UsageError, nearest

MISSING = "-"  # the text of a value that a row does not have


class ValueCell(NamedTuple):
    """A cell that shows a value in short. Rows are sorted by the value, and CSV has it at full precision."""

    text: str
    style: str
    value: object


Cell: TypeAlias = str | tuple[str, str] | ValueCell  # text; text and its style; text, style and value


@dataclass(frozen=True)
class TableColumn:
    """A column. If a table is too wide, columns of high `priority` are left out first; those of 0 always stay."""

    name: str
    right: bool = False  # aligned to the right, as numbers are
    priority: int = 1
    wraps: bool = False  # holds sentences, which may take several lines


@dataclass(frozen=True)
class Table:
    """Rows under columns, with lines of text above and below them."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Cell]]
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    def sort(self, name: str, reverse: bool = False) -> Table:
        """The table by the values of a column, which stays however narrow the terminal is. Missing values are last."""
        place = self._find(name)
        keys = [_sort_key(cell_value(row[place])) for row in self.rows]
        known = [number for number, key in enumerate(keys) if key is not None]
        order = sorted(known, key=lambda number: keys[number], reverse=reverse)  # type: ignore[arg-type, return-value]
        rows = [self.rows[number] for number in order]
        rows += [row for row, key in zip(self.rows, keys, strict=True) if key is None]
        columns = [replace(column, priority=0) if i == place else column for i, column in enumerate(self.columns)]
        return replace(self, columns=columns, rows=rows)

    def cut(self, most: int | None, how: str = "--all") -> Table:
        """The first rows, and a line that says how many more there are."""
        if most is None or len(self.rows) <= most:
            return self
        more = f"{len(self.rows) - most:,} more ({how})"
        return replace(self, rows=self.rows[:most], below=(*self.below, more))

    def to_csv(self) -> str:
        """Every row and column, with values at full precision."""
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows([_exact_text(cell_value(cell)) for cell in row] for row in self.rows)
        return written.getvalue().removesuffix("\n")

    def to_markdown(self) -> str:
        """Every row and column, as people see them."""
        rules = ["---:" if column.right else "---" for column in self.columns]
        names = [_markdown_text(column.name) for column in self.columns]
        rows = [names, rules]
        rows += [[_markdown_text(cell_text(cell)) for cell in row] for row in self.rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def _find(self, name: str) -> int:
        """The place of a column: by its whole name, or by a part of it that no other column has."""
        names = [column.name for column in self.columns]
        matching = [place for place, known in enumerate(names) if known == name]
        matching = matching or [place for place, known in enumerate(names) if name and name in known]
        if len(matching) != 1:
            known = [each for each in names if each]
            problem = f"several columns match {name!r}" if matching else f"there is no column {name!r}"
            raise UsageError(
                f"Cannot sort: {problem}.", candidates=nearest(name, known), hint=f"Columns: {', '.join(known)}"
            )
        return matching[0]


def cell_text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def cell_style(cell: Cell) -> str:
    return "" if isinstance(cell, str) else cell[1]


def cell_value(cell: Cell) -> object:
    """The value of a cell, or its text; None if there is none."""
    if isinstance(cell, ValueCell):
        return cell.value
    text = cell_text(cell)
    return None if text in ("", MISSING) else text


def value_cell(value: object, style: str = "") -> ValueCell:
    """A metric or a hyperparameter: a number with four figures. A missing value is "-"."""
    text = MISSING if value is None else fmt.metric(value) if isinstance(value, float) else str(value)
    return ValueCell(text, style, value)


def seconds_cell(value: float) -> ValueCell:
    return ValueCell(fmt.seconds(value), "", value)


def size_cell(value: int | None) -> ValueCell:
    return ValueCell(MISSING if value is None else fmt.size(value), "", value)


def values_column(name: str, values: Iterable[object], priority: int = 1) -> TableColumn:
    """A column of values, aligned to the right if all are numbers."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return TableColumn(name, numbers, priority)


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
    text = ", ".join(f"{name}={fmt.scalar(value)}" for name, value in shared.items())
    return (f"in all: {text}",) if text else ()


def left(name: str, priority: int = 1) -> TableColumn:
    return TableColumn(name, priority=priority)


def right(name: str, priority: int = 1) -> TableColumn:
    return TableColumn(name, right=True, priority=priority)


def sentences(name: str, priority: int = 1) -> TableColumn:
    return TableColumn(name, priority=priority, wraps=True)


def _sort_key(value: object) -> tuple[int, float, str] | None:
    """Numbers come before texts; None and NaN have no place among them."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _exact_text(value: object) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _markdown_text(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
