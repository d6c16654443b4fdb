"""Messages between our own processes: JSON over a pair of sockets, with one open file along where there is one."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
_HEAD = struct.Struct("!I?")  # the length of the text, and whether a file comes along
LONGEST = 64 * 2**20


def send(to: socket.socket, message: Message, file: int | None = None) -> None:
    """OSError: the other side is gone."""
    text = json.dumps(message).encode()
    packet = _HEAD.pack(len(text), file is not None) + text
    if file is None:
        to.sendall(packet)
        return
    sent = socket.send_fds(to, [packet], [file])
    to.sendall(packet[sent:])


def receive(source: socket.socket) -> tuple[Message, int | None]:
    """The next message, waited for; EOFError when the other side is gone."""
    head, files = _read(source, _HEAD.size, 1)
    length, with_file = _HEAD.unpack(head)
    if length > LONGEST or len(files) != with_file:
        _close(files)
        raise EOFError("what comes over the wire is none of our messages")
    try:
        text, _ = _read(source, length, 0)
    except EOFError:
        _close(files)
        raise
    message: Message = json.loads(text)
    return message, files[0] if files else None


def _read(source: socket.socket, length: int, most_files: int) -> tuple[bytes, list[int]]:
    found, files = b"", list[int]()
    while len(found) < length:
        try:
            part, more, _, _ = socket.recv_fds(source, length - len(found), most_files)
        except ConnectionResetError:
            part, more = b"", []
        files += more
        if not part:
            _close(files)
            raise EOFError
        found += part
    return found, files


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)
