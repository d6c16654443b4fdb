"""Whether preprocessed data is shared, and how much of it is kept."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from regatta.errors import UsageError
from regatta.format import brief

DEFAULT_FRACTION = 4  # blocks get a quarter of the machine's memory, and of the free disk
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Sharing:
    """Whether to share preprocessed data: always, never, or where it pays (None); and the limits for its blocks.

    By default, blocks get a quarter of memory and of the free disk. `processes` is the maximum number of processes
    that make blocks at once, by default the number of cores.
    """

    always: bool | None = True
    memory: int | None = None
    disk: int | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        if not (self.always is None or isinstance(self.always, bool)):
            raise UsageError(f"Sharing: always is {brief(self.always)}; it is True, False, or None for where it pays.")
        for name, least in (("memory", 0), ("disk", 0), ("processes", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise UsageError(f"Sharing: {name} is {brief(value)}; it is a whole number from {least}, or None.")

    def memory_bytes(self) -> int:
        return machine_memory() // DEFAULT_FRACTION if self.memory is None else self.memory

    def disk_bytes(self, folder: Path) -> int:
        return shutil.disk_usage(folder).free // DEFAULT_FRACTION if self.disk is None else self.disk

    def max_processes(self) -> int:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.processes or cores


def sharing_of(share: object) -> Sharing:
    """The settings that a sweep's `share` stands for."""
    if isinstance(share, Sharing):
        return share
    if share is None or isinstance(share, bool):
        return Sharing(always=share)
    raise UsageError(
        f"share is {brief(share)}; it must be True, False, or None for where it pays.",
        hint="Bounds are given as regatta.data.sharing.Sharing(memory=..., disk=...).",
    )


def machine_memory() -> int:
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in map(Path, CGROUP_LIMITS):
        text = file.read_text().strip() if file.exists() else ""
        found += [int(text)] if text.isdigit() else []
    return min(found)
