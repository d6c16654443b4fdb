"""The prompt of `regatta query`: lines with history and completion, one query after the other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.cli import ui
from regatta.errors import RegattaError

if TYPE_CHECKING:
    from regatta.repo import Repo

FIRST, FURTHER = "dql> ", "...> "
_WORDS = ("quit", "exit", "help")
MAX_HISTORY = 1_000  # lines
HELP = """\
A query ends with ; or with an empty line. For example:
  select m where m.metric.loss.best < 0.1 order by m.metric.loss.best limit 10;
  explain select m1 where m1["conv*"].next has POOL("MAX");
Tab completes words. `quit`, or Ctrl-D, ends the prompt. The language: docs/dql.md"""


def prompt(repo: Repo, answer: Callable[[str], None]) -> None:
    """Read queries until the input ends. An error is shown, and the next query is asked for."""
    readline = _readline()
    if readline is not None:
        _set_up(readline, repo)
    ui.message("DQL: a query ends with ; or an empty line. `help` shows examples, Ctrl-D ends.")
    while True:
        try:
            text = _read_query()
        except EOFError:
            ui.message()
            return
        except KeyboardInterrupt:
            ui.message("^C")
            continue
        if text.strip().lower() in ("quit", "exit"):
            return
        if text.strip().lower() == "help":
            ui.message(HELP)
            continue
        if text.strip():
            _run(text, answer)


def _run(text: str, answer: Callable[[str], None]) -> None:
    try:
        answer(text)
    except RegattaError as error:
        ui.error(error)
    except KeyboardInterrupt:
        ui.message("interrupted")


def _read_query() -> str:
    """One query, which may take several lines."""
    lines = [input(FIRST)]
    if lines[0].strip().lower() in _WORDS:
        return lines[0]
    while lines[-1].strip() and not _ends("\n".join(lines)):
        lines.append(input(FURTHER))
    return "\n".join(lines)


def _ends(text: str) -> bool:
    """Whether a semicolon ends the query: it stands in no quoted text, and in no comment."""
    bare = re.sub(r"""--[^\n]*|"[^"]*"|'[^']*'""", "", text)
    return bare.rstrip().endswith(";") and not re.search("[\"']", bare)


def _readline() -> Any:
    try:
        import readline
    except ImportError:  # Windows
        return None
    return readline


def _set_up(readline: Any, repo: Repo) -> None:
    import atexit

    path = history_file()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        readline.read_history_file(path)
    readline.set_history_length(MAX_HISTORY)
    atexit.register(_write_history, readline, path)
    readline.set_completer(_Completer(repo, readline))
    readline.set_completer_delims(" \t\n()[]{},.<>=+-*/%")
    readline.parse_and_bind("tab: complete")


def history_file() -> Path:
    """Where the lines of earlier prompts are kept."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "regatta" / "query_history"


def _write_history(readline: Any, path: Path) -> None:
    with suppress(OSError):
        readline.write_history_file(path)


class _Completer:
    """What readline calls for each completion of the line."""

    def __init__(self, repo: Repo, readline: Any) -> None:
        self._repo, self._readline = repo, readline
        self._found: list[str] = []

    def __call__(self, word: str, number: int) -> str | None:
        if number == 0:
            self._found = self._complete(word)
        return self._found[number] if number < len(self._found) else None

    def _complete(self, word: str) -> list[str]:
        from regatta.dql.completion import completions
        from regatta.dql.saved_queries import SavedQueries
        from regatta.dql.schema import known_names

        line = self._readline.get_line_buffer()[: self._readline.get_endidx()]
        try:
            return completions(line, known_names(self._repo, SavedQueries(self._repo.folder)))
        except RegattaError:
            return []
