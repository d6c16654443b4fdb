"""Writes the files that options such as --html and --trace name."""

from __future__ import annotations

from pathlib import Path

from regatta.errors import UsageError

PAGES = (".html", ".htm")


def write_file(path: Path, text: str, suffixes: tuple[str, ...] = PAGES) -> str:
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
