"""The version log: every change of the catalog as a line with a checksum, durable before the catalog has it.

    <BLAKE3 of the rest, 32 digits> {"content":…,"id":…,"kind":…,"last":…,"number":…}

Lines are numbered from 1. The lines of one transaction all name its last line, so a transaction counts only if it is
complete. The first line is the identity of the log. The last line of a kind and id says what the catalog holds under
it; a content of null says that it was removed. So the catalog is an index, and the log is enough to make it again.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from blake3 import blake3

from regatta.durable import fsync_file, fsync_path, replacing, reserve
from regatta.errors import CorruptError, DiskError, NewerVersionError
from regatta.repo.catalog.networks import canonical_json

Key: TypeAlias = tuple[str, str]  # kind and id
Entries: TypeAlias = dict[Key, Any]  # what a catalog holds, as JSON values
REMEDY = "`regatta fsck --repair` writes it again, from the catalog if that can be read."
IDENTITY, FORMAT = "log", 1
_DIGITS = 32  # of a checksum
# For the next lines, which must be written on a full disk as well: those of a deletion, even of all versions at once.
RESERVED_BYTES, RESERVED_SHARE = 2**12, 0.5


class LogPosition(NamedTuple):
    """How much of a log a catalog has: the identity of the log, its lines and their bytes."""

    log: str
    lines: int
    bytes: int


@dataclass(frozen=True)
class LogLine:
    """A change: what the catalog holds under a kind and an id after it; None if it was removed."""

    number: int
    last: int
    kind: str
    id: str
    content: Any

    def text(self) -> bytes:
        text = canonical_json(vars(self), "change of the catalog").encode()
        return b"%s %s\n" % (_checksum(text), text)


@dataclass(frozen=True)
class LogContent:
    """What a log says. `bytes` is the end of the last complete transaction, `size` that of the file."""

    lines: Sequence[LogLine]
    damaged: Sequence[int]  # numbers of lines that cannot be read
    bytes: int
    size: int

    @property
    def count(self) -> int:
        """The number of lines up to the end of the last complete transaction, damaged ones included."""
        return max((line.number for line in self.lines), default=0)

    @property
    def identity(self) -> LogLine | None:
        return self.lines[0] if self.lines and self.lines[0].kind == IDENTITY else None

    def follows(self, position: LogPosition) -> bool:
        """Whether a catalog at this position has a part of this log, or of the one that this log has replaced."""
        identity = self.identity
        return identity is not None and position.log in (identity.id, identity.content.get("replaces"))

    def position(self) -> LogPosition:
        return LogPosition(self.identity.id if self.identity else "", self.count, self.bytes)

    def entries(self) -> Entries:
        """What the catalog should hold."""
        return {key: line.content for key, line in self.last_lines().items() if line.content is not None}

    def last_lines(self) -> dict[Key, LogLine]:
        return {(line.kind, line.id): line for line in self.lines if line.kind != IDENTITY}


class VersionLog:
    """The file. Only the holder of the catalog's write lock may change it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        with self._reading():
            return self.path.stat().st_size if self._is_there() else 0

    def read(self) -> LogContent:
        with self._reading():
            data = self.path.read_bytes() if self._is_there() else b""
        return parse_log(data, str(self.path))

    def identity(self) -> str | None:
        """The id of the log, from its first line; None if that line is damaged."""
        with self._reading(), self.path.open("rb") as file:
            line = _parse(file.readline(4096).removesuffix(b"\n"), str(self.path))
        return line.id if line is not None and line.kind == IDENTITY else None

    def append(self, at: LogPosition, changes: Mapping[Key, Any]) -> LogPosition:
        """Add the lines of one transaction after a position, durably."""
        data = _transaction(changes, at.lines)
        handle = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.lseek(handle, at.bytes, os.SEEK_SET)
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
            fsync_file(handle)
            _reserve(handle, at.bytes + len(data))
        except OSError as error:
            raise DiskError(f"The version log cannot be written: {error.strerror}.", place=str(self.path)) from error
        finally:
            os.close(handle)
        return LogPosition(at.log, at.lines + len(changes), at.bytes + len(data))

    def replace(self, entries: Entries, since: float) -> LogPosition:
        """Replace the log by one with these entries alone. Names of snapshots from before `since` may be missing."""
        ident, old = secrets.token_hex(8), self.identity() if self.size() else None
        changes = {(IDENTITY, ident): {"format": FORMAT, "since": since, "replaces": old}, **entries}
        data = _transaction(changes, 0)
        try:
            with replacing(self.path) as written, written.open("wb") as file:
                file.write(data)
                file.flush()
                _reserve(file.fileno(), len(data))
        except OSError as error:
            raise DiskError(f"The version log cannot be written: {error.strerror}.", place=str(self.path)) from error
        return LogPosition(ident, len(changes), len(data))

    def cut(self, size: int) -> None:
        """Remove what a transaction left that did not end."""
        os.truncate(self.path, size)
        fsync_path(self.path)

    def _is_there(self) -> bool:
        if os.path.lexists(self.path) and not self.path.is_file():
            raise CorruptError(
                "There is no version log: a file should be there, and is not.", place=str(self.path), hint=REMEDY
            )
        return self.path.exists()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CorruptError(
                f"The version log cannot be read: {error.strerror}.", place=str(self.path), hint=REMEDY
            ) from error


def _reserve(file: int, size: int) -> None:
    reserve(file, max(RESERVED_BYTES, int(RESERVED_SHARE * size)))


def parse_log(data: bytes, place: str) -> LogContent:
    lines: list[LogLine] = []
    end = start = 0
    while (stop := data.find(b"\n", start)) >= 0:
        line = _parse(data[start:stop], place)
        start = stop + 1
        if line is not None and line.number > (lines[-1].number if lines else 0):
            lines.append(line)
            end = start if line.number == line.last else end
    while lines and lines[-1].number < lines[-1].last:  # a transaction that did not end
        lines.pop()
    known = {line.number for line in lines}
    damaged = [number for number in range(1, max(known, default=0)) if number not in known]
    if lines and lines[0].kind == IDENTITY and lines[0].content.get("format", 0) > FORMAT:
        raise NewerVersionError("The version log was written by a later version.", place=place, hint="Update Regatta.")
    return LogContent(tuple(lines), tuple(damaged), end, len(data))


def _transaction(changes: Mapping[Key, Any], before: int) -> bytes:
    last = before + len(changes)
    numbered: Iterable[tuple[int, tuple[Key, Any]]] = enumerate(changes.items(), before + 1)
    return b"".join(LogLine(number, last, *key, content).text() for number, (key, content) in numbered)


def _parse(line: bytes, place: str) -> LogLine | None:
    """None if the line is not the one that its checksum names."""
    if line[_DIGITS : _DIGITS + 1] != b" " or _checksum(line[_DIGITS + 1 :]) != line[:_DIGITS]:
        return None
    try:
        return LogLine(**json.loads(line[_DIGITS + 1 :]))
    except (ValueError, TypeError, RecursionError) as error:
        raise NewerVersionError(
            f"The version log has a line that this version cannot read: {error!r:.200}.", place=place
        ) from error


def _checksum(text: bytes) -> bytes:
    return blake3(text).hexdigest(length=_DIGITS // 2).encode()
