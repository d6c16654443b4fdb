"""Files of versions, stored once by content, under the BLAKE3 hash of their bytes.

    <repository>/files/<first two digits>/<hash>     whole and durable, never changed
    <repository>/files/tmp/<process>-<random>        being written

A file is stored before the version that refers to it. gc deletes files without a version.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from blake3 import blake3

from regatta.durable import fsync_file, fsync_path
from regatta.errors import CorruptError, DiskError, NotFoundError, UsageError
from regatta.paths import FOLDER, TMP

Files: TypeAlias = Mapping[str, str | Path | bytes] | Sequence[str | Path]
MAX_PATH, MAX_PART = 4096, 255  # bytes
_PIECE_BYTES = 2**20
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """A file of a version: its name there, with slashes, and its content."""

    path: str
    hash: str
    bytes: int
    executable: bool = False


class FileFolder:
    """The files of a repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tmp = folder / TMP

    def path(self, digest: str) -> Path:
        if not _HASH.fullmatch(digest):
            raise CorruptError(f"{digest!r:.100} is not the hash of a file.", place=str(self.folder))
        return self.folder / digest[:2] / digest

    def put_all(self, files: Files | Sequence[FileEntry]) -> list[FileEntry]:
        """Store files: {name: path or bytes}, or paths of files and folders. All are durable when this returns.

        Files that are stored already may be given as their entries.
        """
        if known := [file for file in files if isinstance(file, FileEntry)]:
            for file in known:
                self.check(file)
            return sorted(known, key=lambda file: file.path)
        named = dict(named_files(cast(Files, files)))
        if not named:
            return []
        self._tmp.mkdir(parents=True, exist_ok=True)
        found = [self._put(name, source) for name, source in named.items()]
        for folder in {self.path(entry.hash).parent for entry in found}:
            fsync_path(folder)
        fsync_path(self.folder)
        return found

    def open(self, file: FileEntry) -> BinaryIO:
        """The content of a file, after its size and hash were compared."""
        self.check(file)
        return self.path(file.hash).open("rb")

    def read(self, file: FileEntry) -> bytes:
        """The content of a file; these very bytes are compared with its size and hash."""
        try:
            content = self.path(file.hash).read_bytes()
        except OSError as error:
            raise self._damaged(file, _why_unreadable(error)) from None
        if len(content) != file.bytes:
            raise self._damaged(file, f"it has {len(content)} bytes, not {file.bytes}")
        if blake3(content).hexdigest() != file.hash:
            raise self._damaged(file, "its content has changed")
        return content

    def check(self, file: FileEntry) -> None:
        """Raise CorruptError if a file is not as it was committed."""
        if (reason := self.problem_of(file.hash, file.bytes, whole=True)) is not None:
            raise self._damaged(file, reason)

    def _damaged(self, file: FileEntry, reason: str) -> CorruptError:
        return CorruptError(
            f"The file {file.path!r:.200} is not as it was committed: {reason}.",
            place=str(self.path(file.hash)),
            hint="`regatta fsck --repair` looks for its content elsewhere; committing the same content again mends it.",
        )

    def problem_of(self, digest: str, size: int, whole: bool) -> str | None:
        """What is wrong with a stored file; None if it is sound. Its content is checked only with `whole`."""
        path = self.path(digest)
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                return "it is not a regular file"
            if found.st_size != size:
                return f"it has {found.st_size} bytes, not {size}"
            if whole and size and blake3().update_mmap(path).hexdigest() != digest:
                return "its content has changed"
        except OSError as error:
            return _why_unreadable(error)
        return None

    def present(self) -> Iterator[tuple[str, os.stat_result]]:
        """The hashes of all stored files."""
        if not self.folder.is_dir():
            return
        for folder in sorted(self.folder.glob("[0-9a-f][0-9a-f]/")):
            for path in sorted(folder.iterdir()):
                if _HASH.fullmatch(path.name):
                    with suppress(FileNotFoundError):  # gc of another process has just deleted it
                        yield path.name, path.stat()

    def renew(self, digests: Iterable[str]) -> None:
        """Restart the age of these files, which gc looks at."""
        for digest in digests:
            if self.path(digest).exists():
                os.utime(self.path(digest))

    def remove_unknown(self, known: set[str], before: float, dry_run: bool = False) -> tuple[int, int]:
        """Delete unknown files older than `before`, and unfinished files; return their number and bytes.

        No other process may write files meanwhile. With `dry_run`, nothing is deleted.
        """
        for path in self._tmp.iterdir() if self._tmp.is_dir() and not dry_run else ():
            path.unlink(missing_ok=True)
        gone = [
            (digest, found.st_size)
            for digest, found in self.present()
            if digest not in known and found.st_mtime <= before
        ]
        for digest, _ in gone if not dry_run else ():
            self.path(digest).unlink(missing_ok=True)
        return len(gone), sum(size for _, size in gone)

    def _put(self, name: str, source: Path | bytes) -> FileEntry:
        written = self._tmp / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with written.open("xb") as target:
                digest, executable = _write(source, target)
                fsync_file(target)
                size = target.tell()
            final = self.path(digest)
            final.parent.mkdir(exist_ok=True)
            if self.problem_of(digest, size, whole=True) is None:
                os.utime(final)
            else:
                os.replace(written, final)
        except OSError as error:
            raise DiskError(
                f"The file {name!r:.200} cannot be stored: {error.strerror or error}.", place=str(source)[:200]
            ) from error
        finally:
            written.unlink(missing_ok=True)
        return FileEntry(name, digest, size, executable)


def _why_unreadable(error: OSError) -> str:
    return "it is missing" if isinstance(error, FileNotFoundError) else f"it cannot be read: {error.strerror}"


def _write(source: Path | bytes, target: BinaryIO) -> tuple[str, bool]:
    """Copy and hash in one pass, so that the hash is that of the copied bytes."""
    digest = blake3()
    if isinstance(source, bytes):
        target.write(source)
        return digest.update(source).hexdigest(), False
    with source.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            target.write(piece)
        return digest.hexdigest(), bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)


def named_files(files: Files) -> list[tuple[str, Path | bytes]]:
    """Each file with its name; names are checked: unique, and none is the folder of another."""
    if isinstance(files, str | bytes | Path):
        raise UsageError(f"Files come as a list of paths or as {{name: path or bytes}}, not as {files!r:.100}.")
    pairs = files.items() if isinstance(files, Mapping) else ((_name_of(path), path) for path in files)
    found = [pair for name, source in pairs for pair in _named_sources(name, source)]
    names = {name for name, _ in found}
    if len(names) < len(found):
        raise UsageError("Two files would get the same name.", hint="Name them: files={name: path}.")
    for name in names:
        parts = name.split("/")
        if any("/".join(parts[:count]) in names for count in range(1, len(parts))):
            raise UsageError(f"A folder of the file {name!r:.200} would have the name of another file.")
    return sorted(found, key=lambda pair: pair[0])


def check_path(name: object) -> str:
    """Check the name of a file in a version: a relative path with slashes that is safe on any system."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"The name of a file is a text, not {name!r:.100}.")
    if (reason := _name_problem(name)) is not None:
        raise UsageError(f"The file name {name!r:.200} {reason}.")
    return name


def _name_problem(name: str) -> str | None:
    wrong = next((c for c in name if unicodedata.category(c) in ("Cc", "Cs")), None)
    if wrong is not None:
        return f"holds {wrong!a}"
    if "\\" in name or re.match(r"[A-Za-z]:", name):
        return "is not a relative path with slashes"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "has an empty part, '.' or '..' between its slashes"
    if len(name.encode()) > MAX_PATH or any(len(part.encode()) > MAX_PART for part in parts):
        return "is too long"
    return None


def _name_of(path: str | Path) -> str:
    """The name for a path: relative paths keep their folders, others only the last part."""
    given = Path(path)
    climbs = given.is_absolute() or ".." in given.parts
    return (given.resolve().name if climbs else given.as_posix()) or "."


def _named_sources(name: str, source: str | Path | bytes) -> Iterator[tuple[str, Path | bytes]]:
    if isinstance(source, bytes | bytearray | memoryview):
        yield check_path(name), bytes(source)
        return
    path = Path(source)
    if path.is_dir():
        yield from _files_below(name, path)
    elif path.is_file():
        yield check_path(name), path
    else:
        raise NotFoundError("There is no such file.", place=str(path))


def _files_below(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The files below a folder. Links that lead out of it are refused, since their targets were not named."""
    root = folder.resolve()
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if each not in (".git", FOLDER, "__pycache__"))
        for each in sorted([*files, *(each for each in folders if (Path(here) / each).is_symlink())]):
            path = Path(here) / each
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise UsageError(
                    f"The link {str(path)!r:.200} leads out of its folder.", hint="Name its target by itself."
                )
            if path.is_file():
                inside = path.relative_to(folder).as_posix()
                yield check_path(inside if name == "." else f"{name}/{inside}"), path


def write_inside(root: Path, entry: FileEntry, content: BinaryIO) -> None:
    """Write a file below the folder. Neither its name nor existing links can lead out of the folder."""
    *folders, last = check_path(entry.path).split("/")
    with ExitStack() as opened:
        here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, here)
        for part in folders:
            here = _open_folder(here, part, entry.path)
            opened.callback(os.close, here)
        _write_at(here, last, entry, content)


def _open_folder(here: int, part: str, path: str) -> int:
    """A handle of the subfolder, which is created if it is missing."""
    try:
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=here)
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
    except OSError as error:
        raise UsageError(
            f"The folder {part!r} of {path!r:.200} is a link or a file there.", hint="Choose an empty folder."
        ) from error


def _write_at(here: int, name: str, entry: FileEntry, content: BinaryIO) -> None:
    written = f".{os.getpid()}-{secrets.token_hex(8)}"
    mode = 0o777 if entry.executable else 0o666
    handle = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=here)
    try:
        with os.fdopen(handle, "wb") as target:
            shutil.copyfileobj(content, target, _PIECE_BYTES)
        os.replace(written, name, src_dir_fd=here, dst_dir_fd=here)
    except OSError as error:
        os.unlink(written, dir_fd=here)
        raise UsageError(f"The file {entry.path!r:.200} cannot be written there: {error.strerror}.") from error
