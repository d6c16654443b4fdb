"""A worker's side: it asks for a block, maps it, and lets go of it when it needs another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regatta.engine.sharing.blocks import BlockLayout
from regatta.engine.sharing.connections import BlockLostError, Channel, SharedBlock
from regatta.engine.sharing.ledger import DEATHS, BlockKey
from regatta.engine.sharing.wire import Message
from regatta.errors import RegattaError


class PreprocessingError(RegattaError):
    """A function of the user raised in another process: its error and traceback, as they were there."""

    def __init__(self, headline: str, traceback: str) -> None:
        super().__init__(headline)
        self.headline, self.traceback = headline, traceback


class BlockReader:
    """Asks the broker at the other end of a line; without one, a worker makes everything by itself."""

    def __init__(self, line: Channel) -> None:
        self._line: Channel | None = line

    def get(self, key: BlockKey, models: Sequence[str] = ()) -> Any:
        """The arrays of a block, mapped; None where the worker is to make them by itself."""
        for _ in range(DEATHS):
            self._say({"want": key, "models": list(models)})
            answer, block = self._hear()
            if "error" in answer:
                raise PreprocessingError(answer["error"], answer["traceback"])
            if block is None:
                return None
            try:
                return block.read(BlockLayout.from_json(answer["layout"]))
            except BlockLostError:
                self._say({"lost": key})
            finally:
                block.close()
        return None

    def note(self, key: BlockKey, models: Sequence[str]) -> None:
        """Say that more models have had the block that is held here."""
        self._say({"note": key, "models": list(models)})

    def release(self, key: BlockKey) -> None:
        self._say({"release": key})

    def measured(self, seconds: float) -> None:
        """Say what it takes to make the block of one unit."""
        self._say({"measured": seconds})

    def close(self) -> None:
        """Leave; what is mapped stays mapped."""
        if self._line is not None:
            self._part()

    def _say(self, message: Message) -> None:
        if self._line is not None:
            try:
                self._line.send(message)
            except OSError:
                self._part()

    def _hear(self) -> tuple[Message, SharedBlock | None]:
        if self._line is not None:
            try:
                return self._line.receive()
            except (EOFError, OSError):
                self._part()
        return {"yourself": True}, None

    def _part(self) -> None:
        assert self._line is not None
        self._line.close()
        self._line = None
