"""A worker's side of sharing: requests a block, maps it, and releases it before it needs another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regatta.engine.messages import Cause
from regatta.engine.sharing.blocks import BlockLayout
from regatta.engine.sharing.connections import BlockLostError, Channel, Message, SharedBlock
from regatta.engine.sharing.ledger import MAX_DEATHS, BlockKey
from regatta.errors import RegattaError


class PreprocessingError(RegattaError):
    """A function of the user raised in another process; carries the error and the traceback of that process."""

    def __init__(self, headline: str, traceback: str, cause: Cause = "model") -> None:
        super().__init__(headline)
        self.headline, self.traceback, self.cause = headline, traceback, cause


class BlockReader:
    """Requests blocks from the broker; when the broker is gone, the worker preprocesses everything itself."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Channel | None = channel

    def get(self, key: BlockKey, models: Sequence[str] = ()) -> Any:
        """The arrays of a block, mapped; None if the worker has to make them itself."""
        for _ in range(MAX_DEATHS):
            self._send({"want": key, "models": list(models)})
            answer, block = self._receive()
            if "error" in answer:
                raise PreprocessingError(answer["error"], answer["traceback"], answer.get("cause", "model"))
            if block is None:
                return None
            try:
                return block.read(BlockLayout.from_json(answer["layout"]))
            except BlockLostError:
                self._send({"lost": key})
            finally:
                block.close()
        return None

    def note(self, key: BlockKey, models: Sequence[str]) -> None:
        """Report that more models have used the block that this worker holds."""
        self._send({"note": key, "models": list(models)})

    def release(self, key: BlockKey) -> None:
        self._send({"release": key})

    def measured(self, seconds: float) -> None:
        """Report how long it takes to make the block of one unit."""
        self._send({"measured": seconds})

    def close(self) -> None:
        """Disconnect; mapped arrays stay valid."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _send(self, message: Message) -> None:
        if self._channel is not None:
            try:
                self._channel.send(message)
            except OSError:
                self.close()

    def _receive(self) -> tuple[Message, SharedBlock | None]:
        if self._channel is not None:
            try:
                return self._channel.receive()
            except (EOFError, OSError):
                self.close()
        return {"yourself": True}, None
