"""Ctrl-C, and the signal by which machines ask for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible(halt: Callable[[], None]) -> Iterator[None]:
    """A scope in which the first signal calls `halt` and the next one ends everything at once.

    An exception in the midst of a conversation with a worker would garble it. Only the main thread hears signals; what
    is ignored, as under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        if heard > 1:
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
