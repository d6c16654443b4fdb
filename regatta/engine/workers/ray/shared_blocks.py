"""RaySharing in Ray's object store, and the lines over which they go between the controller and its actors.

A block is an object that the controller owns: it stays when the actor that made it ends, is gone when the broker lets
go of it and nobody reads it any more, and is lost only with the nodes that hold it. Workers cannot call the controller,
so the broker asks each of them what it has to say; Ray calls back when there is something.
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
from regatta.engine.sharing.connections import BlockLostError
from regatta.engine.sharing.wire import Message

Mail: TypeAlias = tuple[Message | None, Any]  # no message: the other side is gone
_GONE: Message = {"gone": True}


class RayBlock:
    """The reference of a block."""

    def __init__(self, reference: Any, private: bool = False) -> None:
        self.reference = reference
        self._private = private

    def read(self, layout: BlockLayout) -> Any:
        """Arrays in the node's shared memory, which cannot be written to; or, for one reader, a copy that can."""
        import ray.exceptions

        try:
            held: NDArray[np.uint8] = ray.get(self.reference)
        except ray.exceptions.RayError as error:
            raise BlockLostError from error
        return arrays_in(held.copy() if self._private else held, layout)

    def close(self) -> None:
        self.reference = None


def boxed(block: RayBlock | None) -> list[Any]:
    """A reference inside a list is handed over as it is: who gets it fetches the value, and hears if it is lost."""
    return [] if block is None else [block.reference]


def submitted(method: Any, *arguments: Any) -> Any:
    """The call of an actor's method; an OSError where there is no such actor any more."""
    try:
        return method.remote(*arguments)
    except Exception as error:  # Ray has no kind of its own for it
        raise OSError(str(error)) from error


class CallbackInbox:
    """Where Ray's callbacks leave what they bring, with a file that can be waited for."""

    def __init__(self) -> None:
        self._mail: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._woken, self._waker = socket.socketpair()

    def fileno(self) -> int:
        return self._woken.fileno()

    def put(self, message: Message | None, beside: Any = None) -> None:
        self._mail.put((message, beside))
        with contextlib.suppress(OSError):  # nobody waits any more
            self._waker.send(b"x")

    def take(self) -> tuple[Message, Any]:
        self._woken.recv(1)
        message, beside = self._mail.get()
        if message is None:
            raise EOFError
        return message, beside

    def expect(self, reference: Any, come: Callable[[Any], None], failed: Callable[[BaseException], None]) -> None:
        """Call one of the two when there is a value, or an error, in whatever thread Ray says so."""

        def heard(future: Any) -> None:
            error = future.exception()
            if error is None:
                come(future.result())
            else:
                failed(error)

        reference.future().add_done_callback(heard)

    def close(self) -> None:
        self._woken.close()
        self._waker.close()


class ReaderChannel:
    """The broker's end of the line to a worker."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._inbox = CallbackInbox()
        self._ask()

    def fileno(self) -> int:
        return self._inbox.fileno()

    def send(self, message: Message, block: RayBlock | None = None) -> None:
        submitted(self._actor.answer.options(concurrency_group="answer"), message, boxed(block))

    def receive(self) -> tuple[Message, None]:
        message, last = self._inbox.take()
        if last:
            self._ask()
        return message, None

    def close(self) -> None:
        self._inbox.close()
        with contextlib.suppress(OSError):  # a cluster that is far away is out of reach
            self.send(_GONE)

    def _ask(self) -> None:
        try:
            said = submitted(self._actor.ask.options(concurrency_group="ask"))
        except OSError:
            self._inbox.put(None)
            return
        self._inbox.expect(said, self._come, lambda error: self._inbox.put(None))

    def _come(self, messages: Sequence[Message]) -> None:
        for message in messages[:-1]:
            self._inbox.put(message, False)
        self._inbox.put(messages[-1], True)


class BrokerChannel:
    """A worker's end of it: what it says waits until the broker asks for it."""

    def __init__(self) -> None:
        self.private = False  # whether the blocks that come are copied, for somebody who may write into them
        self._said: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[tuple[Message, RayBlock | None]] = queue.SimpleQueue()

    def send(self, message: Message, block: None = None) -> None:
        self._said.put(message)

    def receive(self) -> tuple[Message, RayBlock | None]:
        message, block = self._heard.get()
        if message == _GONE:
            raise EOFError
        return message, block

    def close(self) -> None:
        """Nothing is to be given back: the controller ends the actor."""

    def said(self) -> list[Message]:
        """All that was said since the last time, waited for."""
        found = [self._said.get()]
        while not self._said.empty():
            found.append(self._said.get())
        return found

    def hear(self, message: Message, reference: Sequence[Any]) -> None:
        self._heard.put((message, RayBlock(reference[0], self.private) if reference else None))
