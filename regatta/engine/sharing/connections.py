"""How a broker, its makers and its readers reach each other; over sockets, which is how processes of a machine do."""

from __future__ import annotations

import os
import socket
from typing import Any, Protocol

from regatta.engine.sharing.blocks import BlockLayout, map_block
from regatta.engine.sharing.wire import Message, receive, send


class BlockLostError(Exception):
    """A block is no longer where it was: it must be made again."""


class SharedBlock(Protocol):
    """A block as it goes over a line; who gets it reads it or closes it."""

    def read(self, layout: BlockLayout) -> Any:
        """Its arrays, where they lie; the block can then be closed. BlockLostError: it is gone."""

    def close(self) -> None: ...


class Channel(Protocol):
    """One end of a connection."""

    def send(self, message: Message, block: Any = None) -> None:
        """OSError: the other side is gone."""

    def receive(self) -> tuple[Message, SharedBlock | None]:
        """The next message, waited for; EOFError when the other side is gone."""

    def close(self) -> None: ...


class SelectableChannel(Channel, Protocol):
    """One of many that are waited for at once."""

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
    """A line to another process of this machine, over which open files go."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours

    @classmethod
    def at(cls, file: int) -> SocketChannel:
        """Over a socket that this process was given as an open file."""
        return cls(socket.socket(fileno=file))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, block: FileBlock | None = None) -> None:
        send(self._socket, message, None if block is None else block.file)

    def receive(self) -> tuple[Message, FileBlock | None]:
        message, file = receive(self._socket)
        return message, None if file is None else FileBlock(file)

    def close(self) -> None:
        self._socket.close()
