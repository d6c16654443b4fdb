"""How the broker, preprocess workers and readers reach each other; processes of one machine use sockets."""

from __future__ import annotations

import os
import socket
from typing import Any, Protocol

from regatta.engine.sharing.blocks import BlockLayout, map_block
from regatta.engine.sharing.wire import Message, receive, send


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
