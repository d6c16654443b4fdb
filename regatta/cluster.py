"""Where a sweep runs: in this process, in worker processes of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from regatta.errors import UsageError


@dataclass(frozen=True)
class Cluster:
    """Workers to train on. Make one with `Cluster.inline()` or `Cluster.local()`."""

    kind: Literal["inline", "process"]
    workers: int | None = None
    threads: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise UsageError(f"Cluster: {name} is {value!r}; it is a whole number from 1, or None.")

    @classmethod
    def inline(cls, workers: int = 1, device: str = "auto") -> Cluster:
        """This process, one unit after another: the reference. Several workers take turns."""
        return cls("inline", workers, None, device)

    @classmethod
    def local(cls, workers: int | None = None, threads: int | None = None, device: str = "auto") -> Cluster:
        """A process per worker on this machine.

        By default a worker per GPU, or per core when there is none, but no more than there are partitions; the
        cores are shared out as `threads` of each worker. Results are bitwise reproducible for the same `threads`.
        """
        return cls("process", workers, threads, device)

    def sized(self, partitions: int) -> Cluster:
        """The same with every number decided, for so many partitions."""
        if self.kind == "inline":
            return Cluster("inline", self.workers or 1, None, self.device)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = self.workers or min(_gpus(self.device) or cores, partitions)
        return Cluster("process", workers, self.threads or max(1, cores // workers), self.device)

    def names(self) -> tuple[str, ...]:
        return tuple(f"w{index}" for index in range(self.workers or 1))

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "workers": self.workers, "threads": self.threads, "device": self.device}


def _gpus(device: str) -> int:
    """How many GPUs this machine has, without importing a framework; 0 when they are not wanted."""
    if device == "cpu":
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    gpus = "/proc/driver/nvidia/gpus"
    return len(os.listdir(gpus)) if os.path.isdir(gpus) else 0
