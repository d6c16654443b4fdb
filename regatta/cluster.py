"""Where a sweep runs: in this process, in worker processes on this machine, or in actors of a Ray cluster."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from regatta.checks import is_number, is_whole
from regatta.errors import UsageError, nearest
from regatta.format import brief, count

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "xla", "hpu", "mtia", "tpu")
DEVICE = re.compile(r"[a-z]+(:\d+)?")
GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of the drivers of NVIDIA, of AMD, and of Windows


@dataclass(frozen=True)
class Cluster:
    """Workers to train on. Make one with `Cluster.inline()`, `Cluster.local()` or `Cluster.ray()`."""

    kind: Literal["inline", "process", "ray"]
    workers: int | None = None
    threads: int | None = None
    device: str = "auto"
    address: str | None = None
    resources: Mapping[str, float] | None = None  # per worker, by Ray's names
    cpus: float = 1
    gpus: float = 0
    storage: str | None = None
    group: int | None = None  # workers that train a model together; None: the plan decides

    def __post_init__(self) -> None:
        for name in ("workers", "threads", "group"):
            value = getattr(self, name)
            if value is not None and not is_whole(value):
                raise UsageError(f"Cluster: {name} is {brief(value)}; it must be a whole number from 1, or None.")
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus), *dict(self.resources or {}).items()):
            if not is_number(value) or value < 0:
                raise UsageError(f"Cluster: {name} is {brief(value)}; it must be a number per worker, 0 or more.")
        self._check_group()
        self._check_device()
        if not self.needs():
            raise UsageError(
                "Cluster: a worker with 0 CPUs, 0 GPUs and no other resource would fit any number of times.",
                hint="Give cpus=, gpus= or resources= what one worker needs.",
            )

    def _check_group(self) -> None:
        if self.group is None:
            return
        if self.group > 1 and self.kind == "inline":
            raise UsageError(
                f"Cluster: group={self.group} on inline workers, which take turns and cannot train together.",
                hint=f"Use Cluster.local(workers=..., group={self.group}), or Cluster.ray.",
            )
        if self.workers is not None and self.workers % self.group:
            widths = [width for width in range(1, self.workers + 1) if self.workers % width == 0]
            raise UsageError(
                f"Cluster: {self.workers} workers cannot be divided into groups of {self.group}.",
                hint=f"{self.workers} workers can form groups of {', '.join(map(str, widths))}.",
            )

    def _check_device(self) -> None:
        kind = self.device.partition(":")[0] if isinstance(self.device, str) else None
        if kind not in DEVICES or not DEVICE.fullmatch(self.device):
            raise UsageError(
                f"Cluster: device is {brief(self.device)}, which is not a device.",
                candidates=("cuda",) if kind in ("gpu", "nvidia") else nearest(str(kind), DEVICES),
                hint='It is "auto" (a GPU, if there is one), "cpu", "cuda", "cuda:1" or another device of PyTorch.',
            )

    def check_available(self) -> None:
        """Raise a UsageError if this machine does not have the device of its workers. Workers on Ray are elsewhere."""
        kind, _, index = self.device.partition(":")
        if self.kind == "ray" or kind != "cuda":
            return
        torch = sys.modules.get("torch")
        version = getattr(torch, "version", None)
        hint = 'Leave device= out to use what is there, or say device="cpu".'
        if version is not None and version.cuda is None and getattr(version, "hip", None) is None:
            raise UsageError(f"Cluster: device is {self.device!r}, but this PyTorch was built without CUDA.", hint=hint)
        gpus = _gpus(self.device)
        hidden = "CUDA_VISIBLE_DEVICES" in os.environ
        if not gpus and (hidden or not any(map(os.path.exists, GPU_FILES))):
            raise UsageError(f"Cluster: device is {self.device!r}, but this machine has no GPU for CUDA.", hint=hint)
        if gpus and int(index or 0) >= gpus:
            raise UsageError(
                f"Cluster: device is {self.device!r}, but there are only {count(gpus, 'GPU')}, from cuda:0.", hint=hint
            )

    @classmethod
    def inline(cls, workers: int = 1, device: str = "auto") -> Cluster:
        """This process, one unit after another: the reference implementation. Several workers take turns."""
        return cls("inline", workers, None, device)

    @classmethod
    def local(
        cls, workers: int | None = None, threads: int | None = None, device: str = "auto", *, group: int | None = None
    ) -> Cluster:
        """A process per worker on this machine.

        By default there is one worker per GPU, or per core without GPUs, but no more than there are partitions. The
        cores are divided among the workers as `threads`. Results are bitwise reproducible for the same `threads`.

        With `group`, this many workers train a PyTorch model together, each on its rows of every batch. A batch stays
        as large as the configuration says, but sums of gradients are rounded differently than on one worker. Without
        it the plan decides, if the sweep has `numerics="fast"`.
        """
        return cls("process", workers, threads, device, group=group)

    @classmethod
    def ray(
        cls,
        workers: int | None = None,
        *,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        cpus: float = 1,
        gpus: float = 0,
        threads: int | None = None,
        device: str = "auto",
        storage: str | None = None,
        group: int | None = None,
    ) -> Cluster:
        """An actor per worker on a Ray cluster, each with its own `cpus`, `gpus` and `resources`.

        By default there are as many workers as fit, but no more than there are partitions; more start when nodes join
        during the run. `address` is the address of a cluster: "auto" for the cluster of this machine, "ray://..." for a
        remote one, "local" to start one for this run; None finds a cluster here or starts one. By default there is one
        thread per CPU of a worker. All nodes must reach the partitions and the run's folder, or the fsspec URL
        `storage`, which then stores the durable states.

        With `group`, this many workers train a PyTorch model together, as in `local`; on one node if they fit.
        """
        return cls("ray", workers, threads, device, address, resources, cpus, gpus, storage, group)

    def sized(self, partitions: int) -> Cluster:
        """The same cluster with every number decided, for this many partitions. Ray decides its number of workers."""
        if self.kind == "inline":
            return Cluster("inline", self.workers or 1, None, self.device)
        if self.kind == "ray":
            return replace(self, threads=self.threads or max(1, int(self.cpus)))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        width = self.group or 1
        groups = max(1, min((_gpus(self.device) or cores) // width, partitions))
        workers = self.workers or groups * width
        return replace(self, workers=workers, threads=self.threads or max(1, cores // workers))

    def names(self) -> tuple[str, ...]:
        return tuple(f"w{index}" for index in range(self.workers or 1))

    def needs(self) -> dict[str, float]:
        """What a worker needs of a node, by Ray's names."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **dict(self.resources or {})}
        return {name: amount for name, amount in wanted.items() if amount > 0}

    def describe(self) -> dict[str, Any]:
        """Plain values that make the same cluster again."""
        found = {"kind": self.kind, "workers": self.workers, "threads": self.threads, "device": self.device}
        if self.group is not None:
            found["group"] = self.group
        if self.kind != "ray":
            return found
        resources = None if self.resources is None else dict(self.resources)
        more = {"address": self.address, "cpus": self.cpus, "gpus": self.gpus, "storage": self.storage}
        return {**found, **more, "resources": resources}


def _gpus(device: str) -> int:
    """How many GPUs this machine has, without importing a framework; 0 when the device is the CPU."""
    if device == "cpu":
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    gpus = "/proc/driver/nvidia/gpus"
    return len(os.listdir(gpus)) if os.path.isdir(gpus) else 0
