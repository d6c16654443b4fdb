"""Pack files at a remote: a folder on a disk, a server or an object store that fsspec can reach.

    <url>/packs/<pack>.pack

Pack files are named by their content. Pushing one twice changes nothing, and a fetched file can be checked against its
name. A file counts as pushed only after it was read back and matched.
"""

from __future__ import annotations

import io
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from regatta.errors import CorruptError, RegattaError
from regatta.paths import PACK_SUFFIX, PACKS
from regatta.store.folder import MissingPackError, PackFolder
from regatta.store.format.pack_file import Record, read_records
from regatta.store.format.tensor_id import is_id
from regatta.store.index import LOCAL, LocatedSegment
from regatta.store.reader import Range

READ_BLOCK_BYTES = 2**23
MERGE_GAP_BYTES = 2**12  # ranges with smaller gaps are requested as one


class Remote:
    """The pack files below a URL."""

    def __init__(self, url: str, **options: Any) -> None:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        self.url = url
        try:
            self._fs, root = url_to_fs(url, **options)
        except (ValueError, ImportError) as error:
            raise RegattaError(f"The remote cannot be used: {error}.", place=url) from error
        self._folder = f"{root.rstrip('/')}/{PACKS}"

    def where(self, pack: str) -> str:
        return f"{self.url.rstrip('/')}/{PACKS}/{pack}{PACK_SUFFIX}"

    def packs(self) -> Iterator[tuple[str, int]]:
        with self._reaching(self.url):
            self._fs.invalidate_cache()
            found = self._fs.ls(self._folder, detail=True) if self._fs.isdir(self._folder) else []
        for entry in found:
            name = entry["name"].rsplit("/", 1)[-1]
            if name.endswith(PACK_SUFFIX) and is_id(name.removesuffix(PACK_SUFFIX)):
                yield name.removesuffix(PACK_SUFFIX), int(entry["size"])

    def size(self, pack: str) -> int | None:
        """The size of a pack file at the remote; None if it is not there."""
        with self._reaching(self.where(pack)):
            self._fs.invalidate_cache()
            return int(self._fs.size(self._path(pack))) if self._fs.exists(self._path(pack)) else None

    def push(self, path: Path, pack: str) -> None:
        """Copy a pack file to the remote, unless it is there already, and read it back."""
        if self.size(pack) == path.stat().st_size and self.digest(pack) == pack:
            return
        part = f"{self._path(pack)}.{secrets.token_hex(4)}"
        with self._reaching(self.where(pack)):
            self._fs.makedirs(self._folder, exist_ok=True)
            self._fs.put_file(str(path), part)
            self._fs.mv(part, self._path(pack))
        if (found := self.digest(pack)) != pack:
            raise CorruptError(f"The pack was pushed, but the remote returned {found}.", place=self.where(pack))

    def fetch(self, pack: str, file: BinaryIO) -> None:
        """Copy a pack file from the remote; CorruptError if its content is another."""
        if (found := self.digest(pack, file.write)) != pack:
            raise CorruptError(f"The remote's copy is not this pack, but {found}.", place=self.where(pack))

    def read(self, pack: str, ranges: Sequence[Range]) -> list[memoryview]:
        """Ranges of a pack file; neighbouring ranges take one request."""
        merged = _merge(ranges)
        with self._reaching(self.where(pack)):
            starts, ends = [at for at, _ in merged], [at + length for at, length in merged]
            found = self._fs.cat_ranges([self._path(pack)] * len(merged), starts, ends, on_error="raise")
        for (at, length), data in zip(merged, found, strict=True):
            if len(data) != length:
                raise CorruptError(f"{len(data)} bytes were returned for {length} at {at}.", place=self.where(pack))
        return [_cut(merged, found, wanted) for wanted in ranges]

    def records(self, pack: str, size: int) -> list[Record]:
        return read_records(lambda at, length: self.read(pack, [(at, length)])[0], size, self.where(pack))

    def remove(self, pack: str) -> None:
        with self._reaching(self.where(pack)):
            if self._fs.exists(self._path(pack)):
                self._fs.rm_file(self._path(pack))

    def _path(self, pack: str) -> str:
        return f"{self._folder}/{pack}{PACK_SUFFIX}"

    def digest(self, pack: str, write: Callable[[bytes], Any] | None = None) -> str:
        """The hash of a pack file at the remote; `write` receives its blocks."""
        digest = blake3()
        with self._reaching(self.where(pack)), self._fs.open(self._path(pack), "rb") as source:
            while block := source.read(READ_BLOCK_BYTES):
                digest.update(block)
                if write is not None:
                    write(block)
        return digest.hexdigest()

    @contextmanager
    def _reaching(self, place: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise MissingPackError("The remote does not have this pack.", place=place) from error
        except (OSError, io.UnsupportedOperation) as error:
            raise RegattaError(
                f"The remote cannot be reached: {error}.",
                place=place,
                hint="Leading planes that are kept here can still be read.",
            ) from error


class PackSource:
    """The bytes of pack files, from this machine if they are here, else from the remote. Counts the bytes read."""

    def __init__(self, folder: PackFolder, remote: Remote | None) -> None:
        self.folder, self.remote = folder, remote
        self.bytes_read = {"local": 0, "remote": 0}
        self._lock = threading.Lock()

    def where(self, located: LocatedSegment) -> str:
        if located.place & LOCAL or self.remote is None:
            return str(self.folder.path(located.pack))
        return self.remote.where(located.pack)

    def read(self, pack: str, place: int, ranges: Sequence[Range]) -> list[memoryview]:
        with self._lock:
            self.bytes_read["local" if place & LOCAL else "remote"] += sum(length for _, length in ranges)
        if place & LOCAL:
            return self.folder.read_ranges(pack, ranges)
        return self._remote(pack).read(pack, ranges)

    def records(self, pack: str, place: int, size: int) -> list[Record]:
        return self.folder.records(pack) if place & LOCAL else self._remote(pack).records(pack, size)

    def size(self, pack: str, place: int) -> int:
        if place & LOCAL:
            return len(self.folder.view(pack))
        if (size := self._remote(pack).size(pack)) is None:
            raise MissingPackError("The pack is not there.", place=self._remote(pack).where(pack))
        return size

    def digest(self, pack: str, place: int) -> str:
        """The hash of a pack file, which should be its name."""
        return self.folder.digest(pack) if place & LOCAL else self._remote(pack).digest(pack)

    def _remote(self, pack: str) -> Remote:
        if self.remote is None:
            raise RegattaError(
                f"The pack {pack} is only at the remote, and the store has no remote.",
                place=str(self.folder.packs.parent),
                hint="Open the store with its remote.",
            )
        return self.remote


def _merge(ranges: Sequence[Range]) -> list[Range]:
    merged: list[Range] = []
    for at, length in sorted(ranges):
        if merged and at <= merged[-1][0] + merged[-1][1] + MERGE_GAP_BYTES:
            start = merged[-1][0]
            merged[-1] = start, max(at + length, start + merged[-1][1]) - start
        else:
            merged.append((at, length))
    return merged


def _cut(merged: Sequence[Range], found: Sequence[bytes], wanted: Range) -> memoryview:
    at, length = wanted
    for (start, size), data in zip(merged, found, strict=True):
        if start <= at and at + length <= start + size:
            return memoryview(data)[at - start : at - start + length]
    raise ValueError(f"No range holds {wanted}.")
