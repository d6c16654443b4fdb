"""Messages between processes of a run: JSON over a pair of sockets, with at most one open file for each message."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
_HEADER = struct.Struct("!I?")  # the length of the text, and whether a file comes with it
MAX_MESSAGE_BYTES = 64 * 2**20


def send(to: socket.socket, message: Message, file: int | None = None) -> None:
    """Send a message; OSError if the other end is gone."""
    text = json.dumps(message).encode()
    packet = _HEADER.pack(len(text), file is not None) + text
    if file is None:
        to.sendall(packet)
        return
    sent = socket.send_fds(to, [packet], [file])
    to.sendall(packet[sent:])


def receive(source: socket.socket) -> tuple[Message, int | None]:
    """Wait for the next message; EOFError if the other end is gone."""
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
