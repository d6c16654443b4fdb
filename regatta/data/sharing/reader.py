"""A worker's side: it asks for a block, maps it, and lets go of it when it needs another."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from regatta.data.sharing.blocks import Layout, map_block
from regatta.data.sharing.ledger import Key
from regatta.data.sharing.wire import Message, receive, send
from regatta.errors import RegattaError


class PreparationError(RegattaError):
    """A function of the user raised in another process: its error and traceback, as they were there."""

    def __init__(self, headline: str, traceback: str) -> None:
        super().__init__(headline)
        self.headline, self.traceback = headline, traceback


class Reader:
    """Asks the broker at the other end of a socket; without one, a worker makes everything by itself."""

    def __init__(self, file: int) -> None:
        self._socket: socket.socket | None = socket.socket(fileno=file)

    def get(self, key: Key, models: Sequence[str] = ()) -> Any:
        """The arrays of a block, mapped; None where the worker is to make them by itself."""
        self._say({"want": key, "models": list(models)})
        answer, file = self._hear()
        if "error" in answer:
            raise PreparationError(answer["error"], answer["traceback"])
        if file is None:
            return None
        try:
            return map_block(file, Layout.from_json(answer["layout"]))
        finally:
            os.close(file)

    def note(self, key: Key, models: Sequence[str]) -> None:
        """Say that more models have had the block that is held here."""
        self._say({"note": key, "models": list(models)})

    def release(self, key: Key) -> None:
        self._say({"release": key})

    def measured(self, seconds: float) -> None:
        """Say what it takes to make the block of one unit."""
        self._say({"measured": seconds})

    def close(self) -> None:
        """Leave; what is mapped stays mapped."""
        if self._socket is not None:
            self._part()

    def _say(self, message: Message) -> None:
        if self._socket is not None:
            try:
                send(self._socket, message)
            except OSError:
                self._part()

    def _hear(self) -> tuple[Message, int | None]:
        if self._socket is not None:
            try:
                return receive(self._socket)
            except (EOFError, OSError):
                self._part()
        return {"yourself": True}, None

    def _part(self) -> None:
        assert self._socket is not None
        self._socket.close()
        self._socket = None
