"""How the broker, preprocess workers and readers reach each other.

Processes of one machine send JSON over a pair of sockets, with at most one open file for each message.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, Protocol, TypeAlias

from regatta.engine.sharing.blocks import BlockLayout, map_block

Message: TypeAlias = dict[str, Any]
_HEADER = struct.Struct("!I?")  # the length of the text, and whether a file comes with it
MAX_MESSAGE_BYTES = 64 * 2**20


class BlockLostError(Exception):
    """A block no longer exists: it must be made again."""


class SharedBlock(Protocol):
    """A block that a channel delivers; its receiver reads it, and closes it."""

    def read(self, layout: BlockLayout) -> Any:
        """The arrays of the block, without a copy; afterwards the block can be closed. May raise BlockLostError."""

    def close(self) -> None: ...


class Channel(Protocol):
    """One end of a connection."""

    def send(self, message: Message, block: Any = None) -> None:
        """Send a message; OSError if the other end is gone."""

    def receive(self) -> tuple[Message, SharedBlock | None]:
        """Wait for the next message; EOFError if the other end is gone."""

    def close(self) -> None: ...


class SelectableChannel(Channel, Protocol):
    """A channel that a selector can wait for, among others."""

    def fileno(self) -> int:
        """A file that can be read when there is something to receive."""


class FileBlock:
    """The open file of a block."""

    def __init__(self, file: int) -> None:
        self.file = file

    def read(self, layout: BlockLayout) -> Any:
        return map_block(self.file, layout)

    def close(self) -> None:
        os.close(self.file)


class SocketChannel:
    """A channel to another process of this machine; open files travel over it."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, block: FileBlock | None = None) -> None:
        send(self._socket, message, None if block is None else block.file)

    def receive(self) -> tuple[Message, FileBlock | None]:
        message, file = receive(self._socket)
        return message, None if file is None else FileBlock(file)

    def close(self) -> None:
        self._socket.close()


def send(to: socket.socket, message: Message, file: int | None = None) -> None:
    text = json.dumps(message).encode()
    packet = _HEADER.pack(len(text), file is not None) + text
    if file is None:
        to.sendall(packet)
        return
    sent = socket.send_fds(to, [packet], [file])
    to.sendall(packet[sent:])


def receive(source: socket.socket) -> tuple[Message, int | None]:
    header, files = _read(source, _HEADER.size, 1)
    length, with_file = _HEADER.unpack(header)
    if length > MAX_MESSAGE_BYTES or len(files) != with_file:
        _close(files)
        raise EOFError("the bytes on the wire are not a message of a run")
    try:
        text, _ = _read(source, length, 0)
    except EOFError:
        _close(files)
        raise
    message: Message = json.loads(text)
    return message, files[0] if files else None


def _read(source: socket.socket, length: int, max_files: int) -> tuple[bytes, list[int]]:
    data, files = b"", list[int]()
    while len(data) < length:
        try:
            part, more, _, _ = socket.recv_fds(source, length - len(data), max_files)
        except ConnectionResetError:
            part, more = b"", []
        files += more
        if not part:
            _close(files)
            raise EOFError
        data += part
    return data, files


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)
