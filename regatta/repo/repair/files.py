"""Mends files of versions from copies of the same content in the project's folder and in its runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from blake3 import blake3

from regatta.errors import RegattaError
from regatta.paths import CATALOG, FILES, FOLDER, QUARANTINE, STORE
from regatta.repo.intake.staging import Staged, staged
from regatta.repo.repo import Repo

_LEFT_OUT = {".git", "__pycache__", ".venv", "node_modules"}


def mend_files(repo: Repo, damaged: Mapping[str, int]) -> dict[str, Path]:
    """Replace damaged files, {hash: bytes}, by copies that are found; the place of each copy by hash."""
    wanted = {size: {digest for digest, each in damaged.items() if each == size} for size in set(damaged.values())}
    mended: dict[str, Path] = {}
    for path in _candidates(repo):
        if len(mended) == len(damaged):
            break
        try:
            found = path.stat()
            if found.st_size not in wanted or not path.is_file():
                continue
            content = path.read_bytes()
        except OSError:
            continue
        digest = blake3(content).hexdigest()
        if digest in wanted[found.st_size] - mended.keys():
            repo.files.put_all({digest: content})
            mended[digest] = path
    return mended


def _candidates(repo: Repo) -> Iterator[Path]:
    """The files that may be copies: those of the project and of its runs, and the sources of what is staged."""
    yield from (Path(item.source) for item in _staged(repo))
    own = {repo.folder / FILES, repo.folder / STORE, repo.folder / QUARANTINE}
    roots = [repo.folder.parent] if repo.folder.name == FOLDER else [repo.folder]
    for root in roots:
        for here, folders, files in os.walk(root):
            folders[:] = [each for each in folders if each not in _LEFT_OUT and Path(here, each) not in own]
            yield from (Path(here, each) for each in files if not each.startswith(CATALOG))


def _staged(repo: Repo) -> Iterable[Staged]:
    try:
        return staged(repo)
    except RegattaError:
        return ()
