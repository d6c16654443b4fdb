"""Captured steps joined into one CUDA graph: one launch for a whole tick, with the members as parallel branches.

PyTorch replays graphs one by one. The CUDA runtime, which PyTorch has loaded, can build a graph from others, so this
module calls it directly. Where that is not possible, members are replayed on streams.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

_Pointer = ctypes.c_void_p


def runtime() -> ctypes.CDLL | None:
    """The CUDA runtime of this process, or None."""
    version = torch.version.cuda
    if version is None:
        return None
    try:
        return ctypes.CDLL(f"libcudart.so.{version.partition('.')[0]}")
    except OSError:
        return None


class JointGraph:
    """One graph of captured steps with repetitions: branches run in parallel, the steps of a branch in order."""

    def __init__(
        self, library: ctypes.CDLL, branches: Sequence[Sequence[tuple[Any, int]]], device: torch.device
    ) -> None:
        self._library, self._device = library, device
        self._branches = [list(branch) for branch in branches]  # the steps own the memory that the graph uses
        self._graph, self._launchable = _Pointer(), _Pointer()
        self._check(library.cudaGraphCreate(ctypes.byref(self._graph), ctypes.c_uint(0)))
        for branch in self._branches:
            self._add([_Pointer(step.raw_cuda_graph()) for step, count in branch for _ in range(count)])
        self._check(library.cudaGraphInstantiate(ctypes.byref(self._launchable), self._graph, ctypes.c_ulonglong(0)))

    def _add(self, steps: Sequence[ctypes.c_void_p]) -> None:
        previous: ctypes.c_void_p | None = None
        for step in steps:
            node = _Pointer()
            after = (_Pointer * 1)(previous) if previous is not None else None
            number = ctypes.c_size_t(0 if previous is None else 1)
            self._check(self._library.cudaGraphAddChildGraphNode(ctypes.byref(node), self._graph, after, number, step))
            previous = node

    def replay(self) -> None:
        stream = _Pointer(torch.cuda.current_stream(self._device).cuda_stream)
        self._check(self._library.cudaGraphLaunch(self._launchable, stream))

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"The CUDA runtime returned error {code}.")

    def __del__(self) -> None:
        if self._launchable:
            torch.cuda.synchronize(self._device)
            self._library.cudaGraphExecDestroy(self._launchable)
        if self._graph:
            self._library.cudaGraphDestroy(self._graph)
