"""How much memory a worker's device has, and how much of it a model takes."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regatta.data.sharing import machine_memory

_PROCESS_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt in the GNU library
_TRIM_THRESHOLD_BYTES, _MMAP_THRESHOLD_BYTES = 128 * 2**20, 32 * 2**20


def keep_freed_memory() -> None:
    """Let the allocator keep freed memory for the next unit, which would otherwise fault it in page by page."""
    if (mallopt := _glibc_function("mallopt")) is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def device_memory(device: str, sharers: int = 1) -> int:
    """Bytes of a device for each of the workers that share it."""
    if not device.startswith("cuda"):
        return machine_memory() // max(1, sharers)
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory) // max(1, sharers)


def measure_peak(device: str) -> Callable[[], int]:
    """Start to measure the peak memory on a device; the returned function gives the bytes above the present use."""
    if not device.startswith("cuda"):
        return _process_peak()
    if "torch" not in sys.modules:
        return lambda: 0  # other frameworks do not count it
    import torch

    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    return lambda: max(0, torch.cuda.max_memory_allocated(device) - before)


def _process_peak() -> Callable[[], int]:
    """Use the kernel's record of the peak resident size, which only Linux can reset."""
    # Memory that was freed but is still held would make the next model look smaller than it is.
    if (malloc_trim := _glibc_function("malloc_trim")) is not None:
        malloc_trim(0)
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return lambda: 0
    before = _resident_bytes("VmRSS")
    return lambda: max(0, _resident_bytes("VmHWM") - before)


def _glibc_function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def _resident_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", _PROCESS_STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
