"""Blocks in Ray's object store, and the channels on which they travel between the controller and its actors.

A block is an object that the controller owns. It stays when the actor that made it ends. It is freed when the broker
has released it and no worker reads it any more, and it is lost only with the nodes that hold it. Workers cannot call
the controller, so the broker asks each worker for its messages; Ray calls back when there are some.
"""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regatta.engine.sharing.blocks import BlockLayout, arrays_in
from regatta.engine.sharing.connections import BlockLostError, Message
from regatta.engine.workers.ray.states import TrackedState

Mail: TypeAlias = tuple[Message | None, Any]  # None: the other side is gone
_GONE: Message = {"gone": True}


class RayBlock:
    """The reference of a block."""

    def __init__(self, reference: Any, copy: bool = False) -> None:
        self.reference = reference
        self._copy = copy

    def read(self, layout: BlockLayout) -> Any:
        """Arrays in the node's shared memory, which are read-only; or a writable copy."""
        import ray.exceptions

        try:
            buffer: NDArray[np.uint8] = ray.get(self.reference)
        except ray.exceptions.RayError as error:
            raise BlockLostError from error
        return arrays_in(buffer.copy() if self._copy else buffer, layout)

    def close(self) -> None:
        self.reference = None


def boxed(found: RayBlock | TrackedState | None) -> list[Any]:
    """A reference inside a list, which Ray does not replace by its value: the receiver fetches it, and sees a loss."""
    return [] if found is None else [found.reference]


def call(method: Any, *arguments: Any) -> Any:
    """Call an actor's method; OSError if the actor is gone."""
    try:
        return method.remote(*arguments)
    except Exception as error:  # Ray has no exception class of its own for it
        raise OSError(str(error)) from error


class CallbackInbox:
    """A queue that Ray's callbacks fill, with a file that a selector can wait for."""

    def __init__(self) -> None:
        self._mail: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._wake_receiver, self._wake_sender = socket.socketpair()

    def fileno(self) -> int:
        return self._wake_receiver.fileno()

    def put(self, message: Message | None, attachment: Any = None) -> None:
        self._mail.put((message, attachment))
        with contextlib.suppress(OSError):  # the inbox is closed
            self._wake_sender.send(b"x")

    def take(self) -> tuple[Message, Any]:
        self._wake_receiver.recv(1)
        message, attachment = self._mail.get()
        if message is None:
            raise EOFError
        return message, attachment

    def expect(self, result: Any, on_value: Callable[[Any], None], on_error: Callable[[BaseException], None]) -> None:
        """Call one of the two functions when the result has a value or an error, in a thread of Ray."""

        def on_done(future: Any) -> None:
            error = future.exception()
            if error is None:
                on_value(future.result())
            else:
                on_error(error)

        result.future().add_done_callback(on_done)

    def close(self) -> None:
        self._wake_receiver.close()
        self._wake_sender.close()


class ReaderChannel:
    """The broker's end of the channel to a worker."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._inbox = CallbackInbox()
        self._ask()

    def fileno(self) -> int:
        return self._inbox.fileno()

    def send(self, message: Message, block: RayBlock | None = None) -> None:
        call(self._actor.answer.options(concurrency_group="answer"), message, boxed(block))

    def receive(self) -> tuple[Message, None]:
        message, is_last = self._inbox.take()
        if is_last:
            self._ask()
        return message, None

    def close(self) -> None:
        self._inbox.close()
        with contextlib.suppress(OSError):  # the actor is gone
            self.send(_GONE)

    def _ask(self) -> None:
        try:
            messages = call(self._actor.ask.options(concurrency_group="ask"))
        except OSError:
            self._inbox.put(None)
            return
        self._inbox.expect(messages, self._on_messages, lambda error: self._inbox.put(None))

    def _on_messages(self, messages: Sequence[Message]) -> None:
        for message in messages[:-1]:
            self._inbox.put(message, False)
        self._inbox.put(messages[-1], True)


class BrokerChannel:
    """A worker's end of the channel to the broker: its messages wait until the broker asks for them."""

    def __init__(self) -> None:
        self.copy_blocks = False  # whether user code may write to the blocks
        self._sent: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._received: queue.SimpleQueue[tuple[Message, RayBlock | None]] = queue.SimpleQueue()

    def send(self, message: Message, block: None = None) -> None:
        self._sent.put(message)

    def receive(self) -> tuple[Message, RayBlock | None]:
        message, block = self._received.get()
        if message == _GONE:
            raise EOFError
        return message, block

    def close(self) -> None:
        """There is nothing to release: the controller ends the actor."""

    def take_sent(self) -> list[Message]:
        """Wait for messages, and return all that were sent since the last call."""
        messages = [self._sent.get()]
        while not self._sent.empty():
            messages.append(self._sent.get())
        return messages

    def deliver(self, message: Message, reference: Sequence[Any]) -> None:
        self._received.put((message, RayBlock(reference[0], self.copy_blocks) if reference else None))
