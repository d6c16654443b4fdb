"""Capture and replay of steps, and the side streams they run on."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from regatta.pack.cuda_graphs.joint import Joint, runtime


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

    def burst(self, parts: Sequence[tuple[Any, Replay, int]], rounds: int) -> None:
        """Replay steps on their streams, each so many times a round, with as little beside it as can be."""

    def name(self, stream: Any) -> Hashable:
        """The same for two streams that are one: there are fewer than one may ask for."""

    def joint(self, branches: Sequence[Sequence[tuple[Replay, int]]]) -> Replay | None:
        """Steps as branches of one graph; None where that is not possible."""

    def synchronize(self) -> None:
        """Wait until the device has done everything."""


class CudaGraphs:
    """CUDA graphs: one per member, replayed side by side on streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._runtime = runtime() if hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph") else None

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

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
        keeps = self._runtime is not None
        graph = torch.cuda.CUDAGraph(keep_graph=True) if keeps else torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(stream), _no_collection():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # a broken capture says so a second time
                    graph.capture_end()
                raise
            graph.capture_end()
        if keeps:
            graph.instantiate()
        return graph

    def burst(self, parts: Sequence[tuple[torch.cuda.Stream, Replay, int]], rounds: int) -> None:
        calls = [(stream, step.replay, count) for stream, step, count in parts]
        current = torch.cuda.current_stream(self.device)
        try:
            for _ in range(rounds):
                for stream, replay, count in calls:
                    torch.cuda.set_stream(stream)
                    for _ in range(count):
                        replay()
        finally:
            torch.cuda.set_stream(current)

    def name(self, stream: torch.cuda.Stream) -> Hashable:
        return int(stream.cuda_stream)

    def joint(self, branches: Sequence[Sequence[tuple[Replay, int]]]) -> Replay | None:
        return None if self._runtime is None else Joint(self._runtime, branches, self.device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside: the end of another graph is not allowed while one is captured."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
