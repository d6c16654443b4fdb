"""The only module that prints: data to stdout, messages and errors to stderr.

Tables are drawn with rich, which is imported for the first table.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from regatta.errors import RegattaError, UsageError
from regatta.format import json_value

if TYPE_CHECKING:
    from rich.console import Console

    from regatta.cli.output.table import Table

JSON_VERSION = 1  # keys stay the same within a version
RED, DIM, BOLD = "1;31", "2", "1"
MAX_RICH_ROWS = 500  # rich is too slow for longer tables


def forbid_color() -> None:
    """Turn colours off in this process and the processes that it starts: https://no-color.org."""
    os.environ["NO_COLOR"] = "1"


def write(text: str) -> None:
    print(text)


def write_json(**content: Any) -> None:
    """Print a document of the current version; NaN and infinity become null. Lists of numbers are on one line."""
    document = {"version": JSON_VERSION, **{key: json_value(value) for key, value in content.items()}}
    text = json.dumps(document, indent=2, allow_nan=False)
    print(re.sub(r'(?<=\[)\n\s+([^\[\]{}"]+?)\n\s+(?=\])', lambda numbers: " ".join(numbers[1].split()), text))


def write_file(path: Path, text: str, suffixes: tuple[str, ...] = (".html", ".htm")) -> str:
    """Write a text and return the path; an existing file with another suffix is not overwritten."""
    if path.exists() and path.suffix.lower() not in suffixes:
        raise UsageError(
            f"{str(path)!r} exists and does not end in {suffixes[0]}; it is not overwritten.",
            hint="Is the name of the output file missing?",
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {str(path)!r}: {error.strerror}.") from error
    return str(path)


def message(text: str = "") -> None:
    print(text, file=sys.stderr)


def error(problem: RegattaError) -> None:
    """Print the problem, the nearest names, and the hint, each on its own line."""
    place = f"{problem.place}: " if problem.place else ""
    message(f"{_paint('error:', RED, sys.stderr)} {place}{problem.message}")
    if problem.candidates:
        message("  Did you mean " + " or ".join(problem.candidates) + "?")
    for line in (problem.hint or "").splitlines():
        message(f"  {line}")


def steps(heading: str, commands: dict[str, str]) -> None:
    """Print commands to try next, each with its purpose."""
    message(_paint(heading, BOLD, sys.stderr))
    width = max(map(len, commands))
    for command, purpose in commands.items():
        message(f"  {command:{width}}  {_paint(purpose, DIM, sys.stderr)}")


def terminal_width() -> int | None:
    """The width of the terminal in characters; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def write_table(table: Table) -> None:
    """Draw a table; in a pipe it is as wide as its content, so no cell is cut."""
    if len(table.rows) > MAX_RICH_ROWS:
        print("\n".join(_plain_lines(table)))
        return
    from rich.console import Console

    if sys.stdout.isatty():
        _draw(table, Console(highlight=False))
        return
    buffer = io.StringIO()
    _draw(table, Console(file=buffer, highlight=False, width=10_000))
    print("\n".join(line.rstrip() for line in buffer.getvalue().splitlines()))


def write_tables(tables: Iterable[Table]) -> None:
    """Draw tables with an empty line between them."""
    for number, table in enumerate(tables):
        if number:
            print()
        write_table(table)


def _plain_lines(table: Table) -> Iterator[str]:
    """The lines of a long table: the same layout without colours, a hundred times as fast."""
    from rich.cells import cell_len

    rows = [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in table.rows]
    names = [column.name for column in table.columns]
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    yield from table.above
    for row in (names, *rows):
        cells = []
        for text, width, column in zip(row, widths, table.columns, strict=True):
            gap = " " * (width - cell_len(text))
            cells.append(gap + text if column.right else text + gap)
        yield "  ".join(cells).rstrip()
    yield from table.below


def _draw(table: Table, console: Console) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    for line in table.above:
        console.print(Text(line, style="bold" if line is table.above[0] else "dim"))
    if table.rows:
        named = any(column.name for column in table.columns)
        grid = Grid(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0), show_header=named)
        for column in table.columns:
            grid.add_column(Text(column.name), justify="right" if column.right else "left", no_wrap=True)
        grid.columns[-1].no_wrap = False  # the last column holds sentences
        for row in table.rows:
            grid.add_row(*(Text(cell) if isinstance(cell, str) else Text(*cell) for cell in row))
        console.print(grid)
    for line in table.below:
        console.print(Text(line, style="dim"))


def _paint(text: str, code: str, stream: TextIO) -> str:
    plain = not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
