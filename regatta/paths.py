"""Where a project keeps what Regatta writes: the folder `.regatta`, found as git finds `.git`."""

from __future__ import annotations

import os
from pathlib import Path

from regatta.errors import NotFoundError, UsageError

FOLDER = ".regatta"


def find_repository(start: str | Path | None = None) -> Path | None:
    """The `.regatta` of this folder or of the nearest one above it."""
    here = Path(os.path.abspath(start if start is not None else Path.cwd()))
    return next((folder / FOLDER for folder in (here, *here.parents) if (folder / FOLDER).is_dir()), None)


def repository(path: str | Path | None = None) -> Path:
    """The repository folder, which must be there: `path`, else the one found upward."""
    folder = Path(path) if path is not None else find_repository()
    if folder is None or not folder.is_dir():
        raise NotFoundError(
            f"There is no repository {'here or above' if path is None else f'at {path}'}.",
            hint="The first run makes one: `regatta demo`, or regatta.launch(...).",
        )
    return folder


def ensure_repository(path: str | Path | None = None) -> Path:
    """The repository folder itself: `path`, else the one found upward, else a new one here; it can be written."""
    found = Path(os.path.abspath(path)) if path is not None else find_repository()
    repository = found if found is not None else Path.cwd() / FOLDER
    return writable_folder(repository, "repository folder")


def writable_folder(folder: Path, what: str) -> Path:
    """Make the folder if it is not there, and find out now, not after an hour, that it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, what, error.strerror or str(error)) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _cannot_write(folder, what, "permission denied")
    return folder


def _cannot_write(folder: Path, what: str, reason: str) -> UsageError:
    return UsageError(
        f"The {what} cannot be written: {reason}.",
        place=str(folder),
        hint="Make it writable, or start from (or name) a folder that is.",
    )
