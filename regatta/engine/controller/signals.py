"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible(halt: Callable[[], None]) -> Iterator[None]:
    """In this scope the first signal calls `halt`, and the next one raises KeyboardInterrupt.

    An exception in the middle of a message to a worker would corrupt the connection. Only the main thread receives
    signals. A signal that is ignored, as under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 1:
            raise KeyboardInterrupt
        halt()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    ours = [number for number in SIGNALS if before[number] in (signal.default_int_handler, signal.SIG_DFL)]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
