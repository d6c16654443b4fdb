"""The only module that prints: data to stdout, messages and errors to stderr."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from regatta.errors import RegattaError, UsageError
from regatta.format import json_value, visible

if TYPE_CHECKING:
    from regatta.cli.output.table import Table

JSON_VERSION = 1  # keys stay the same within a version
STYLE_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
LESS_OPTIONS = "FRX"  # as git: end at once if a screen is enough, show colours, leave the text on the screen

_wide = False  # whether tables show every column


def forbid_color() -> None:
    """Turn colours off in this process and the processes that it starts: https://no-color.org."""
    os.environ["NO_COLOR"] = "1"


def styled() -> bool:
    """Whether the user allows colours, bold and dim text on a terminal."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show_wide(wide: bool) -> None:
    """Show every column of tables, however narrow the terminal is."""
    global _wide
    _wide = wide


def write(text: str) -> None:
    print(visible(text))


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
    _message(visible(text))


def _message(text: str) -> None:
    print(text, file=sys.stderr)


def error(problem: RegattaError) -> None:
    """Print the problem, the nearest names, and the hint, each on its own line."""
    place = f"{problem.place}: " if problem.place else ""
    _message(f"{_paint('error:', 'bold red', sys.stderr)} {visible(place + problem.message)}")
    if problem.candidates:
        message("  Did you mean " + " or ".join(problem.candidates) + "?")
    for line in (problem.hint or "").splitlines():
        message(f"  {line}")


def steps(heading: str, commands: dict[str, str]) -> None:
    """Print commands to try next, each with its purpose."""
    _message(_paint(visible(heading), "bold", sys.stderr))
    width = max(map(len, commands))
    for command, purpose in commands.items():
        _message(f"  {visible(command):{width}}  {_paint(visible(purpose), 'dim', sys.stderr)}")


def terminal_width() -> int | None:
    """The width of the terminal in characters; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def write_table(table: Table) -> None:
    """Draw a table. It fits the terminal; in a pipe and with --wide it is as wide as its content."""
    print("\n".join(_lines(table)))


def write_tables(tables: Iterable[Table]) -> None:
    """Draw tables with an empty line between them."""
    for number, table in enumerate(tables):
        if number:
            print()
        write_table(table)


def page_tables(tables: Iterable[Table]) -> None:
    """Draw tables as `write_tables` does, through a pager if stdout is a terminal."""
    _page("\n\n".join("\n".join(_lines(table)) for table in tables))


def page(text: str) -> None:
    """Show a text in the pager of the user, as git does. In a pipe it is printed."""
    _page(visible(text))


def _page(text: str) -> None:
    pager = _pager()
    if pager is None or not sys.stdout.isatty():
        print(text)
        return
    sys.stdout.flush()
    # Interrupts belong to the pager while it is shown: `less` stops a search. An ignored signal would be inherited.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        options = LESS_OPTIONS + ("S" if _wide else "")  # long lines are not folded, but scrolled
        environment = {**os.environ, "LESS": os.environ.get("LESS", options)}
        subprocess.run(pager, shell=True, input=text + "\n", text=True, env=environment, check=False)
    finally:
        signal.signal(signal.SIGINT, before)


def _pager() -> str | None:
    """The command of PAGER, or less; None if there is none, or PAGER is empty or cat."""
    chosen = os.environ.get("PAGER", "less" if shutil.which("less") else "")
    return None if chosen.strip() in ("", "cat") else chosen


def _lines(table: Table) -> Iterator[str]:
    from regatta.cli.output.table_lines import table_lines

    return table_lines(table, None if _wide else terminal_width(), lambda text, style: _paint(text, style, sys.stdout))


def _paint(text: str, style: str, stream: TextIO) -> str:
    codes = ";".join(STYLE_CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if text and codes and stream.isatty() and styled() else text
