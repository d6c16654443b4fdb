"""Draws a table as lines of text. Columns that do not fit the terminal are left out whole; no cell is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from regatta.cli.output.table import Cell, Table, TableColumn, cell_style, cell_text
from regatta.format import visible

GAP = "  "
MIN_SENTENCE_WIDTH = 16  # characters; a column of sentences is not narrower
MAX_NAMED = 8  # columns that were left out, by name

Painter = Callable[[str, str], str]  # a text and its style


def table_lines(table: Table, room: int | None, paint: Painter) -> Iterator[str]:
    """The lines of a table for a terminal with `room` characters; without `room`, it is as wide as its content."""
    shown = fit(table, room)
    for number, line in enumerate(shown.above):
        yield from (paint(part, "dim" if number else "bold") for part in wrap(visible(line), room))
    if shown.rows:
        yield from _row_lines(shown, room, paint)
    for line in shown.below:
        yield from (paint(part, "dim") for part in wrap(visible(line), room))


def fit(table: Table, room: int | None) -> Table:
    """The table without the columns for which there is no room, and a line that names them."""
    if room is None or not table.rows:
        return table
    needed = [
        min(width, MIN_SENTENCE_WIDTH) if column.wraps else width
        for width, column in zip(_widths(table), table.columns, strict=True)
    ]
    places = list(range(len(needed)))
    while sum(needed[place] + len(GAP) for place in places) - len(GAP) > room:
        droppable = [place for place in places if table.columns[place].priority]
        if not droppable:
            break
        places.remove(max(droppable, key=lambda place: (table.columns[place].priority, place)))
    left_out = [column.name or "remarks" for place, column in enumerate(table.columns) if place not in places]
    names = f"{', '.join(left_out[:MAX_NAMED])}{' ...' if len(left_out) > MAX_NAMED else ''}"
    return Table(
        [table.columns[place] for place in places],
        [[row[place] for place in places] for row in table.rows],
        table.above,
        (*table.below, f"no room for: {names} (--wide shows all)") if left_out else table.below,
    )


def wrap(text: str, room: int | None) -> list[str]:
    """The lines of a text, broken between words, or within words that are longer than a line."""
    from rich.cells import cell_len, chop_cells

    lines = []
    for line in text.split("\n"):
        if room is None or cell_len(line) <= room:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())][: room // 2]
        current = ""
        for word in line.split():
            for part in chop_cells(word, room - len(indent)):
                if current and cell_len(indent + current) + 1 + cell_len(part) > room:
                    lines.append(indent + current)
                    current = ""
                current = f"{current} {part}" if current else part
        lines.append(indent + current)
    return lines


def _row_lines(table: Table, room: int | None, paint: Painter) -> Iterator[str]:
    widths = _widths(table)
    if room is not None:
        free = room - sum(width + len(GAP) for width in widths) + len(GAP)
        for place, column in enumerate(table.columns):
            if column.wraps and free < 0:
                narrowed = max(MIN_SENTENCE_WIDTH, widths[place] + free)
                free += max(0, widths[place] - narrowed)
                widths[place] = min(widths[place], narrowed)
    if any(column.name for column in table.columns):
        names = [visible(column.name, "") for column in table.columns]
        yield _line(names, [paint(name, "dim") for name in names], table.columns, widths)
    for row in table.rows:
        parts = [_parts(cell, column, width) for cell, column, width in zip(row, table.columns, widths, strict=True)]
        for number in range(max(map(len, parts))):
            texts = [lines[number] if number < len(lines) else "" for lines in parts]
            painted = [paint(text, cell_style(cell)) for text, cell in zip(texts, row, strict=True)]
            yield _line(texts, painted, table.columns, widths)


def _parts(cell: Cell, column: TableColumn, width: int) -> list[str]:
    return wrap(_visible(cell, column), width) if column.wraps else [_visible(cell, column)]


def _line(texts: Sequence[str], painted: Sequence[str], columns: Sequence[TableColumn], widths: Sequence[int]) -> str:
    from rich.cells import cell_len

    cells = []
    for text, shown, column, width in zip(texts, painted, columns, widths, strict=True):
        gap = " " * (width - cell_len(text))
        cells.append(gap + shown if column.right else shown + gap)
    return GAP.join(cells).rstrip()


def _widths(table: Table) -> list[int]:
    from rich.cells import cell_len

    widths = [cell_len(visible(column.name, "")) for column in table.columns]
    for row in table.rows:
        for place, (cell, column) in enumerate(zip(row, table.columns, strict=True)):
            for line in _visible(cell, column).split("\n"):
                widths[place] = max(widths[place], cell_len(line))
    return widths


def _visible(cell: Cell, column: TableColumn) -> str:
    """The text with its control characters escaped; only a column of sentences may have several lines."""
    return visible(cell_text(cell), "\n" if column.wraps else "")
