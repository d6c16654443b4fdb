"""Files that are whole after a crash, and locks that end with the process that holds them.

A file is written under a temporary name in the folder of its final one, forced to the disk, and renamed; then the
folder is forced to the disk, since a name is durable only when its folder is. All steps go through `os`, so a test
can stop the process at each of them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from regatta.errors import ConflictError


def fsync_path(path: str | Path) -> None:
    """Force the content of a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_file(file: int | IO[Any]) -> None:
    """Force what was written to an open file to the disk."""
    if isinstance(file, int):
        os.fsync(file)
    else:
        file.flush()
        os.fsync(file.fileno())


def temporary_name(path: Path) -> Path:
    """A name to write a file under, in the folder of its final name; no other writer has the same."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def replacing(path: Path, *, durable: bool = True, durable_name: bool = True) -> Iterator[Path]:
    """A temporary name to write a file under; it takes the final name when the block ends without an error.

    `durable` forces the content to the disk before the rename, `durable_name` forces the folder afterwards. Without
    both the file is still whole or absent for other processes, but a power failure may lose it.
    """
    written = temporary_name(path)
    try:
        yield written
        if durable:
            fsync_path(written)
        os.replace(written, path)
    finally:
        written.unlink(missing_ok=True)
    if durable_name:
        fsync_path(path.parent)


def move(source: Path, target: Path) -> None:
    """Rename a file or a folder, and force the names in both folders to the disk."""
    os.replace(source, target)
    for folder in dict.fromkeys((target.parent, source.parent)):
        fsync_path(folder)


def put_aside(files: Iterable[Path], quarantine: Path) -> list[Path]:
    """Move files, in this order, into a folder that is made if it is missing; their new names end with the time."""
    quarantine.mkdir(exist_ok=True)
    stamp, moved, sources = time.time_ns(), list[Path](), set[Path]()
    for path in files:
        moved.append(quarantine / f"{path.name}.{stamp}")
        os.replace(path, moved[-1])
        sources.add(path.parent)
    for folder in (quarantine, *sorted({quarantine.parent, *sources})):
        fsync_path(folder)
    return moved


def checked_json(content: dict[str, Any]) -> str:
    """The JSON text of an object with a checksum, from which `parse_checked_json` sees every change."""
    return json.dumps({**content, _CHECKSUM: _checksum_of(content)})


def parse_checked_json(text: bytes) -> Any:
    """The object without its checksum; ValueError if it has changed. Earlier versions wrote no checksum."""
    content = json.loads(text)
    if isinstance(content, dict):
        found = content.pop(_CHECKSUM, None)
        if found is not None and found != _checksum_of(content):
            raise ValueError("its content has changed")
    return content


_CHECKSUM = "checksum"


def _checksum_of(content: dict[str, Any]) -> str:
    from blake3 import blake3

    return blake3(json.dumps(content, sort_keys=True).encode()).hexdigest()


FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of a disk without room, or beyond a quota
NEARLY_FULL_BYTES, NEARLY_FULL_FILES = 2**20, 64
_KEEP_SIZE = 1  # of fallocate


def is_nearly_full(folder: Path) -> bool:
    """Whether the disk of a folder has less room than the log of a database may take, or is at its limit of files."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < NEARLY_FULL_BYTES or (disk.f_files > 0 and disk.f_favail < NEARLY_FULL_FILES)


def reserve(file: int, size: int) -> None:
    """Reserve disk space after the end of a file, whose length stays, so that it can grow on a full disk.

    Where the system cannot do that, nothing is reserved.
    """
    fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
    if fallocate is not None:
        end = os.fstat(file).st_size
        fallocate(file, _KEEP_SIZE, ctypes.c_int64(end), ctypes.c_int64(size))


def lock_file(file: int | IO[Any], *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file until it is closed; False if another process holds it and `wait` is False."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


class FileLock:
    """The lock of a file, which is made if it is missing; also holds against other threads of this process.

    The content of the file is a note: the holder writes what others should know about it.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self.path, self._shared, self._handle = path, shared, -1

    def acquire(self, wait: bool = True) -> bool:
        """Whether the lock is held now; False if another process holds it and `wait` is False."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            held = lock_file(handle, shared=self._shared, wait=wait)
        except BaseException:
            os.close(handle)
            raise
        if held:
            self._handle = handle
        else:
            os.close(handle)
        return held

    def release(self, in_forks: bool = False) -> None:
        """Let go of the lock. `in_forks` unlocks it although a forked process still has the file open."""
        if self._handle < 0:
            return
        if in_forks:
            fcntl.flock(self._handle, fcntl.LOCK_UN)
        os.close(self._handle)
        self._handle = -1

    def note(self) -> bytes:
        """What the last holder wrote, whether or not this process holds the lock."""
        try:
            with self.path.open("rb") as file:
                return file.read(4096)
        except FileNotFoundError:
            return b""

    def write_note(self, text: str) -> bool:
        """Replace the note; False if the disk is full. A note that is no longer than the last one needs no room."""
        content = text.encode()
        try:
            os.pwrite(self._handle, content, 0)
        except OSError as error:
            if error.errno not in FULL:
                raise
            os.ftruncate(self._handle, 0)
            return False
        os.ftruncate(self._handle, len(content))
        return True

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def make_lock_file(path: Path) -> None:
    """Make the file of a lock beforehand: on a full disk it could not be made."""
    with suppress(OSError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock of a file exclusively."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not lock_file(handle, shared=True, wait=False)
    finally:
        os.close(handle)


@contextmanager
def exclusive(path: Path, purpose: str, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file; without `wait`, ConflictError says which process holds it, and what for."""
    held = FileLock(path)
    if not held.acquire(wait):
        raise ConflictError(
            f"The store is being worked on: {held.note().decode(errors='replace') or 'unknown'}.",
            place=str(path.parent),
            hint="Wait until that is done, or end that process.",
        )
    try:
        held.write_note(f"{purpose}, process {os.getpid()}")  # the lock holds without it as well
        yield
    finally:
        held.write_note("")  # a note would take a block of the disk
        held.release()
