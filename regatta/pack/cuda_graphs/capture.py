"""Capture and replay of steps, and the side streams on which they run."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from regatta.pack.cuda_graphs.joint import JointGraph, runtime


class Replay(Protocol):
    """A captured step."""

    def replay(self) -> None:
        """Run it again, on the current stream."""


Branch = list[tuple[Replay, int]]  # steps in order, each with how often it runs


class CudaGraphs:
    """The device operations that the graph tier needs: a graph per member, replayed concurrently on streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._runtime = runtime() if hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph") else None

    def stream(self) -> torch.cuda.Stream:
        """A side stream with its own memory."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def on_stream(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def fork(self, streams: Iterable[torch.cuda.Stream]) -> None:
        """Side streams wait for the work that was submitted to the current stream."""
        current = torch.cuda.current_stream(self.device)
        for stream in streams:
            stream.wait_stream(current)

    def join(self, streams: Iterable[torch.cuda.Stream]) -> None:
        """The current stream waits for the side streams."""
        current = torch.cuda.current_stream(self.device)
        for stream in streams:
            current.wait_stream(stream)

    def capture(self, stream: torch.cuda.Stream, step: Callable[[], None]) -> Replay:
        """Record a step without running it."""
        # graphs that run concurrently may not share memory, so each has its own pool
        keeps = self._runtime is not None
        graph = torch.cuda.CUDAGraph(keep_graph=True) if keeps else torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(stream), _no_collection():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # a broken capture raises again here
                    graph.capture_end()
                raise
            graph.capture_end()
        if keeps:
            graph.instantiate()
        return graph

    def replay_many(self, parts: Sequence[tuple[torch.cuda.Stream, Replay, int]], rounds: int) -> None:
        """Replay steps on their streams, each `count` times per round, with as little overhead as possible."""
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

    def stream_id(self, stream: torch.cuda.Stream) -> Hashable:
        """The id of the underlying stream: two stream objects may share one."""
        return int(stream.cuda_stream)

    def join_steps(self, branches: Sequence[Branch]) -> Replay | None:
        """Steps as branches of one graph; None where that is not possible."""
        return None if self._runtime is None else JointGraph(self._runtime, branches, self.device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside, because no graph may be destroyed while another is captured."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
