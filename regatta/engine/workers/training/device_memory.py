"""How much memory a worker's device has, and how much of it a model takes."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regatta.data.sharing import machine_memory

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of the GNU library
_KEPT, _LARGE = 128 * 2**20, 32 * 2**20


def keep_freed() -> None:
    """Let a unit have what the one before has freed: else it is given back, and comes anew page by page."""
    if (choose := _c_function("mallopt")) is not None:
        choose(_M_MMAP_THRESHOLD, _LARGE)
        choose(_M_TRIM_THRESHOLD, _KEPT)


def device_memory(device: str, sharers: int = 1) -> int:
    """Bytes of a device for each of so many workers that share it."""
    if not device.startswith("cuda"):
        return machine_memory() // max(1, sharers)
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory) // max(1, sharers)


def growth(device: str) -> Callable[[], int]:
    """A function that says how many bytes more the process had at most since, on the device; 0 where none can tell."""
    return _gpu_growth(device) if device.startswith("cuda") else _process_growth()


def _gpu_growth(device: str) -> Callable[[], int]:
    if "torch" not in sys.modules:
        return lambda: 0  # other frameworks keep no count of their own
    import torch

    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    return lambda: max(0, torch.cuda.max_memory_allocated(device) - before)


def _process_growth() -> Callable[[], int]:
    """By the kernel's own mark of the most that was resident, begun anew; only Linux has it."""
    _give_back()
    try:
        _RESET.write_text(_FORGET_PEAK)
    except OSError:
        return lambda: 0
    before = _resident("VmRSS")
    return lambda: max(0, _resident("VmHWM") - before)


def _give_back() -> None:
    """What was freed and is still held for later would make the next model look smaller than it is."""
    if (trim := _c_function("malloc_trim")) is not None:
        trim(0)


def _c_function(name: str) -> Any:
    """One that the GNU library alone has."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def _resident(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
