"""Where workers on Ray store durable states: in the run's folder, or below a URL that all nodes reach."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from regatta.durable import fsync_path
from regatta.errors import NotFoundError, UsageError
from regatta.store.states.state_files import make_durable, publishing, writing


class StateStorage:
    """Durable states by name; below a URL, every run has its own folder."""

    def __init__(self, run: Path, url: str | None) -> None:
        self._files: Any = None
        self._root = run
        if url is not None:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]
            from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

            try:
                files, root = url_to_fs(url)
            except (ImportError, ValueError) as error:
                raise UsageError(
                    f"Cluster.ray: storage={url!r} cannot be used: {error}.",
                    hint="It is a URL of fsspec, such as s3://bucket/runs; some need a package of their own.",
                ) from error
            self._root = Path(root) / run.name
            self._files = None if isinstance(files, LocalFileSystem) else files

    def persist(self, local: Path, name: Path) -> tuple[str, int]:
        """Copy a state from this node; returns its digest and its size once it is durable."""
        target = self._root / name
        with writing(target):
            if self._files is None:
                return _copy(local, target)
            self._files.makedirs(str(target.parent), exist_ok=True)
            self._files.put_file(str(local), f"{target}.part")
            self._files.mv(f"{target}.part", str(target))
            return make_durable(local)

    def fetch(self, name: Path, local: Path) -> None:
        """Copy a durable state to this node."""
        source = self._root / name
        with publishing(local) as written:
            try:
                if self._files is None:
                    shutil.copyfile(source, written)
                else:
                    self._files.get_file(str(source), str(written))
            except FileNotFoundError as error:
                raise NotFoundError("The state is not there.", place=str(source)) from error

    def drop(self, name: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._files is None:
                (self._root / name).unlink()
            else:
                self._files.rm_file(str(self._root / name))


def name_of(state: Path, run: Path) -> Path:
    """The name of a state on every node."""
    if state.is_relative_to(run):
        return state.relative_to(run)
    return Path("elsewhere", *state.parts[state.is_absolute() :])


def _copy(local: Path, target: Path) -> tuple[str, int]:
    with publishing(target) as written:
        try:
            os.link(local, written)  # nothing writes to a published state, so two names can share its file
        except OSError:
            shutil.copyfile(local, written)  # usually because it is another disk
        persisted = make_durable(written)  # before it gets its name, under which the controller may drop it
    fsync_path(target.parent)
    return persisted
