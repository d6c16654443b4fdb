"""The folder of a store: pack files that are being written, can be read, or were put aside.

    packs/<BLAKE3 of the file>.pack     complete and durable, never changed
    tmp/<process>-<random>.pack         being written; locked as long as its writer lives
    quarantine/<pack>.pack.<time>       moved aside by fsck

A pack file gets its name, and loses it, only inside a transaction of the index. So no process can remove a file after
another has found it and before that one relies on it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from regatta.durable import fsync_file, fsync_path, lock_file, put_aside
from regatta.errors import CorruptError
from regatta.paths import PACK_SUFFIX, PACKS, QUARANTINE, TMP
from regatta.store.format.pack_file import (
    HEADER,
    MAGIC,
    VERSION,
    ManifestRecord,
    Record,
    Segment,
    footer_of,
    read_records,
)
from regatta.store.format.tensor_id import is_id

MAX_OPEN_PACKS = 256
MAX_PACK_BYTES = 2**30  # a larger pack file is sealed, and the next one begins


class MissingPackError(CorruptError):
    """A pack file that is missing: another one may have replaced it."""


@dataclass(frozen=True)
class SealedPack:
    """A pack file that is complete and durable, under a temporary name."""

    id: str
    path: Path
    bytes: int
    records: tuple[Record, ...]
    lock: BinaryIO  # while it is open, `sweep_tmp` leaves the temporary file alone


class PackWriter:
    """Writes one pack file; `seal` it or `discard` it."""

    def __init__(self, folder: Path) -> None:
        self.path, self._file = _create(folder)
        self._digest = blake3()
        self.bytes = 0
        self.records: list[Record] = []
        self._write(HEADER.pack(MAGIC, VERSION, 0))

    def add(self, record: Record, data: Iterable[bytes | memoryview]) -> None:
        placed = record.moved(self.bytes)
        for piece in data:
            self._write(piece)
        if self.bytes - placed.offset != record.size:
            raise ValueError(f"The record claims {record.size} bytes and came with {self.bytes - placed.offset}.")
        self.records.append(placed)

    def seal(self) -> SealedPack:
        """Finish the pack file and make its content durable."""
        self._write(footer_of(self.records, self.bytes))
        fsync_file(self._file)
        return SealedPack(self._digest.hexdigest(), self.path, self.bytes, tuple(self.records), self._file)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # closing writes what is still buffered, and the disk may be full
            self._file.close()

    def _write(self, piece: bytes | memoryview) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self.bytes += len(piece)


class PackBatch:
    """Pack files being written; a new one begins when the last is full. Files that are not placed are deleted."""

    def __init__(self, folder: Path, limit: int = MAX_PACK_BYTES) -> None:
        self._folder, self._limit = folder, limit
        self._open: PackWriter | None = None
        self.sealed: list[SealedPack] = []

    def __enter__(self) -> PackBatch:
        return self

    def __exit__(self, *error: object) -> None:
        if self._open is not None:
            self._open.discard()
        for pack in self.sealed:
            pack.path.unlink(missing_ok=True)  # a placed file has lost this name
            pack.lock.close()

    def add(self, record: Record, data: Iterable[bytes | memoryview]) -> None:
        if self._open is None:
            self._open = PackWriter(self._folder)
        self._open.add(record, data)
        if self._open.bytes >= self._limit:
            self.seal()

    def receive(self, pack: str, fill: Callable[[BinaryIO], None]) -> None:
        """Receive the pack file of this name; `fill` writes it, and checks that it is the right one."""
        path, file = _create(self._folder)
        self.sealed.append(SealedPack(pack, path, 0, (), file))
        fill(file)
        fsync_file(file)

    def seal(self) -> list[SealedPack]:
        """Make everything added so far complete and durable."""
        if self._open is not None:
            self.sealed.append(self._open.seal())
            self._open = None
        return self.sealed

    def segments(self) -> dict[str, list[tuple[Segment, str]]]:
        """The sealed segments by tensor, each with its pack."""
        found: dict[str, list[tuple[Segment, str]]] = {}
        for pack in self.sealed:
            for record in pack.records:
                if isinstance(record, Segment):
                    found.setdefault(record.tensor, []).append((record, pack.id))
        return found

    def manifests(self) -> dict[str, tuple[ManifestRecord, str]]:
        """The sealed manifests by snapshot: the record and its pack."""
        records = ((record, pack.id) for pack in self.sealed for record in pack.records)
        return {record.snapshot: (record, pack) for record, pack in records if isinstance(record, ManifestRecord)}


@dataclass(frozen=True)
class _MappedPack:
    """A mapped file. Reading beyond the end of a file that was truncated since would kill the process."""

    file: mmap.mmap
    view: memoryview
    inode: int

    def is_current(self, path: str) -> bool:
        try:
            found = os.stat(path)
        except OSError:
            return False
        return (found.st_ino, found.st_size) == (self.inode, len(self.view))


class PackFolder:
    def __init__(self, root: Path) -> None:
        self.packs, self.tmp, self.quarantine = root / PACKS, root / TMP, root / QUARANTINE
        self._views: OrderedDict[str, _MappedPack] = OrderedDict()
        self._lock = threading.Lock()

    def create(self) -> None:
        for folder in (self.packs, self.tmp):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (self.packs.parent, self.packs.parent.absolute().parent):
            fsync_path(folder)

    def path(self, pack: str) -> Path:
        return self.packs / f"{pack}{PACK_SUFFIX}"

    def packing(self) -> PackBatch:
        """Write pack files: `with folder.packing() as packing`."""
        return PackBatch(self.tmp)

    def place(self, sealed: Iterable[SealedPack]) -> None:
        """Give sealed pack files their names, durably. Only inside a transaction of the index."""
        for pack in sealed:
            os.replace(pack.path, self.path(pack.id))
            pack.lock.close()
        fsync_path(self.packs)

    def remove(self, packs: Iterable[str]) -> None:
        """Delete pack files that the index no longer lists. Only inside a transaction of the index."""
        for pack in packs:
            self.forget(pack)
            self.path(pack).unlink(missing_ok=True)

    def put_aside(self, pack: str) -> Path | None:
        """Move a bad pack file, if it exists, to quarantine. Only inside a transaction of the index."""
        self.forget(pack)
        return put_aside([self.path(pack)], self.quarantine)[0] if self.path(pack).exists() else None

    def forget(self, pack: str) -> None:
        """Drop the mapping of a pack file, so that the next access opens it again."""
        with self._lock:
            self._views.pop(pack, None)

    def forget_pages(self) -> None:
        """Let go of the memory of mapped pack files; what is read again comes from the system's cache."""
        with self._lock:
            for mapped in self._views.values():
                mapped.file.madvise(mmap.MADV_DONTNEED)

    def view(self, pack: str) -> memoryview:
        """The bytes of a pack file, mapped into memory; mapped again if the file was replaced or truncated."""
        with self._lock:
            mapped = self._views.get(pack)
            if mapped is None or not mapped.is_current(f"{self.packs}/{pack}{PACK_SUFFIX}"):  # quicker than a Path
                mapped = self._views[pack] = self._map(pack)
            self._views.move_to_end(pack)
            while len(self._views) > MAX_OPEN_PACKS:
                self._views.popitem(last=False)  # unmapped when its last reader is done
            return mapped.view

    def read(self, pack: str, offset: int, length: int) -> memoryview:
        """A range of a pack file; CorruptError if the file is shorter."""
        return self.read_ranges(pack, [(offset, length)])[0]

    def read_ranges(self, pack: str, ranges: Iterable[tuple[int, int]]) -> list[memoryview]:
        """Ranges of a pack file, each an offset and a length."""
        view = self.view(pack)
        for offset, length in ranges:
            if offset < 0 or length < 0 or offset + length > len(view):
                message = f"Bytes {offset} to {offset + length} were requested from a file of {len(view)}."
                raise CorruptError(message, place=str(self.path(pack)))
        return [view[offset : offset + length] for offset, length in ranges]

    def records(self, pack: str) -> list[Record]:
        size = len(self.view(pack))
        return read_records(lambda offset, length: self.read(pack, offset, length), size, str(self.path(pack)))

    def digest(self, pack: str) -> str:
        """The hash of the file, which should be its name."""
        return blake3(self.view(pack)).hexdigest()

    def present(self) -> Iterator[tuple[str, os.stat_result]]:
        """All pack files, whether or not the index lists them."""
        for entry in os.scandir(self.packs):
            if entry.name.endswith(PACK_SUFFIX) and is_id(entry.name.removesuffix(PACK_SUFFIX)):
                with contextlib.suppress(FileNotFoundError):  # gc of another process has just deleted it
                    yield entry.name.removesuffix(PACK_SUFFIX), entry.stat(follow_symlinks=False)

    def sweep_tmp(self, before: float) -> int:
        """Delete files that dead writers left unfinished before this time; the number of files."""
        return sum(_remove_if_abandoned(Path(entry.path), before) for entry in os.scandir(self.tmp))

    def _map(self, pack: str) -> _MappedPack:
        place = str(self.path(pack))
        try:
            # O_NONBLOCK: a named pipe in its place must not block
            handle = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise MissingPackError("The pack is not there.", place=place) from error
        except OSError as error:
            raise CorruptError(f"The pack cannot be opened: {error.strerror}.", place=place) from error
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or not found.st_size:
                raise CorruptError("The pack is empty, or not a regular file.", place=place)
            file = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
            return _MappedPack(file, memoryview(file), found.st_ino)
        finally:
            os.close(handle)


def _create(folder: Path) -> tuple[Path, BinaryIO]:
    """A new temporary file, locked so that `sweep_tmp` does not delete it."""
    while True:
        path = folder / f"{os.getpid()}-{secrets.token_hex(8)}{PACK_SUFFIX}"
        file = open(path, "xb")  # noqa: SIM115 (its user closes it)
        lock_file(file)
        if os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()  # deleted before it was locked


def _remove_if_abandoned(path: Path, before: float) -> bool:
    try:
        with path.open("rb") as file:
            if not lock_file(file, wait=False) or os.fstat(file.fileno()).st_mtime >= before:
                return False
            path.unlink()
            return True
    except FileNotFoundError:
        return False
