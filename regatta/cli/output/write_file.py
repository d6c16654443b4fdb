"""Files that commands write where they are told: pages, traces."""

from __future__ import annotations

from pathlib import Path

from regatta.errors import UsageError

PAGES = (".html", ".htm")


def write_file(path: Path, text: str, suffixes: tuple[str, ...] = PAGES) -> str:
    """Write a text; a file that is there and of another kind is left alone. Its name."""
    if path.exists() and path.suffix.lower() not in suffixes:
        raise UsageError(
            f"{str(path)!r} is there and does not end in {suffixes[0]}; it is left as it is.",
            hint="Is the name of the file to write missing?",
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {str(path)!r}: {error.strerror}.") from error
    return str(path)
