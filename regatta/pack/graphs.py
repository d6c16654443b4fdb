"""Capture and replay of steps, and the side streams they run on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Replay(Protocol):
    """A captured step."""

    def replay(self) -> None:
        """Run it again, on the current stream."""


class Graphs(Protocol):
    """What the graph tier needs of a device."""

    def stream(self) -> Any:
        """A side stream with memory of its own."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Work inside goes to that stream."""

    def fork(self, streams: Iterable[Any]) -> None:
        """Side streams wait for what the current stream has been given."""

    def join(self, streams: Iterable[Any]) -> None:
        """The current stream waits for the side streams."""

    def capture(self, stream: Any, step: Callable[[], None]) -> Replay:
        """Record a step without running it."""

    def synchronize(self) -> None:
        """Wait until the device has done everything."""


class CudaGraphs:
    """CUDA graphs: one per member, replayed side by side on streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def fork(self, streams: Iterable[torch.cuda.Stream]) -> None:
        current = torch.cuda.current_stream(self.device)
        for stream in streams:
            stream.wait_stream(current)

    def join(self, streams: Iterable[torch.cuda.Stream]) -> None:
        current = torch.cuda.current_stream(self.device)
        for stream in streams:
            current.wait_stream(stream)

    def capture(self, stream: torch.cuda.Stream, step: Callable[[], None]) -> Replay:
        # graphs that run side by side may not share memory, so each has a pool of its own
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # a broken capture says so a second time
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)
